"""`millpond tenant`, `principal` and `quota`: who shares a server of workflows, with which rights, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import INSTALLATION, every, plain_message, show_messages
from millpond.errors import Invalid
from millpond.workflows.deferred import protocol

__all__ = (
    "delete_principal",
    "delete_quota",
    "list_principals",
    "list_quotas",
    "list_tenants",
    "put_principal",
    "put_quota",
    "put_tenant",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The name of a tenant.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="[TENANT/]RESOURCE:ACTION", show_default="nothing",
        help="A right, everywhere or in a tenant, such as WORKFLOW:RUN, etl/TASK:READ or ALL_RESOURCES:ALL_ACTIONS."
        " Again for more.",
    ),
]  # fmt: skip
Principal = Annotated[
    str, typer.Option("--principal", metavar="NAME", help="Only the requests of this principal.", show_default="all")
]


@verb("tenant put", "millpond tenant put etl", on=INSTALLATION)
def put_tenant(call: Any, name: Name) -> console.Shown:
    """Make a tenant. One that is there stays as it is."""
    return _change(call, "PutTenant", protocol.PutTenantRequest(id=name), f"tenant {name} is there")


@verb("tenant list", "millpond tenant list --json", on=INSTALLATION)
def list_tenants(call: Any) -> console.Shown:
    """List the tenants."""
    return show_messages(every(call, "Tenant"), ["tenant", "since"], lambda row: [row.id.id, _since(row)])


@verb("principal put", "millpond principal put nightly --allow etl/WORKFLOW:RUN --allow etl/TASK:ALL_ACTIONS",
      on=INSTALLATION)  # fmt: skip
def put_principal(
    call: Any,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a token, or anonymous.")],
    allow: Allow = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Give one that is there these rights instead.")
    ] = False,
) -> console.Shown:
    """Make a principal with rights, everywhere or in tenants."""
    request = protocol.PutPrincipalRequest(id=name, overwrite=overwrite)
    for right in allow or ():
        tenant, slash, rest = right.rpartition("/")
        acls = request.per_tenant_acls[tenant] if slash else request.global_acls
        acls.acls.append(_acl(right, rest))
    return _change(call, "PutPrincipal", request, f"principal {name} may do so")


@verb("principal list", "millpond principal list", on=INSTALLATION)
def list_principals(call: Any) -> console.Shown:
    """List the principals, with their rights."""
    principals = every(call, "Principal")
    return show_messages(
        principals, ["principal", "rights"], lambda row: [row.id.id, ", ".join(_rights(row)) or "none"]
    )


@verb("principal delete", "millpond principal delete nightly", on=INSTALLATION)
def delete_principal(call: Any, name: Name) -> console.Shown:
    """Delete a principal: its callers have the rights of anonymous then."""
    request = protocol.DeletePrincipalRequest(id=protocol.PrincipalId(id=name))
    return _change(call, "DeletePrincipal", request, f"principal {name} is deleted", get="GetPrincipal")


@verb("quota put", "millpond quota put etl 100", "millpond quota put etl 10 --principal nightly", on=INSTALLATION)
def put_quota(
    call: Any,
    tenant: Tenant,
    rate: Annotated[int, typer.Argument(metavar="PER_SECOND", help="Changing requests a second.")],
    principal: Principal = "",
) -> console.Shown:
    """Limit the changing requests of a tenant, or of a principal in it; those beyond are sent again later."""
    request = protocol.PutQuotaRequest(tenant=protocol.TenantId(id=tenant), write_requests_per_second=rate)
    if principal:
        request.principal.CopyFrom(protocol.PrincipalId(id=principal))
    return _change(call, "PutQuota", request, f"{tenant} may send {rate:,} changing requests a second")


@verb("quota list", "millpond quota list", on=INSTALLATION)
def list_quotas(call: Any) -> console.Shown:
    """List the quotas."""
    return show_messages(
        every(call, "Quota"),
        ["tenant", "principal", "requests/s"],
        lambda row: [row.id.tenant.id, row.id.principal.id or "all", f"{row.write_requests_per_second:,}"]
    )  # fmt: skip


@verb("quota delete", "millpond quota delete etl", on=INSTALLATION)
def delete_quota(call: Any, tenant: Tenant, principal: Principal = "") -> console.Shown:
    """Delete a quota: there is no limit any more."""
    own = protocol.PrincipalId(id=principal) if principal else None
    request = protocol.DeleteQuotaRequest(id=protocol.QuotaId(tenant=protocol.TenantId(id=tenant), principal=own))
    return _change(call, "DeleteQuota", request, f"{tenant} has no such quota any more", get="GetQuota")


def _change(call: Any, method: str, request: Any, said: str, get: str | None = None) -> console.Shown:
    """Send a request for a change; `get` is the method that finds what must be there before."""
    if get is not None:
        call(get, request.id)
    changed = call(method, request)
    return console.said(plain_message(changed), said)


def _acl(right: str, rest: str) -> Any:
    resource, _, action = rest.partition(":")
    resources = {name.removeprefix("ACL_"): name for name in protocol.ACLResource.keys()}  # noqa: SIM118
    if resource not in resources or action not in protocol.ACLAction.keys():  # noqa: SIM118
        raise Invalid("not a right", kind="principal_right", right=right,
                      hint=f"write [TENANT/]RESOURCE:ACTION; resources: {', '.join(sorted(resources))};"
                           f" actions: {', '.join(protocol.ACLAction.keys())}")  # fmt: skip
    return protocol.ServerACL(resources=[resources[resource]], allowed_actions=[action])


def _rights(principal: Any) -> Iterator[str]:
    """The rights of a principal, as `--allow` takes them."""
    scopes = [("", principal.global_acls), *((f"{name}/", acls) for name, acls in principal.per_tenant_acls.items())]
    for scope, acls in scopes:
        for acl in acls.acls:
            for resource in acl.resources:
                for action in acl.allowed_actions:
                    name = protocol.ACLResource.Name(resource).removeprefix("ACL_")
                    yield f"{scope}{name}:{protocol.ACLAction.Name(action)}"


def _since(row: Any) -> str:
    return row.created_at.ToJsonString().replace("T", " ")[:19] if row.HasField("created_at") else "the beginning"
