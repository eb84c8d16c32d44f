"""`millpond tenant`, `principal` and `quota`: who shares a server of workflows, with which rights, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import SERVER, Server, connected, every_result, plain_message
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

_PAGE = 1_000
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


@verb("tenant put", "millpond tenant put etl")
def put_tenant(name: Name, server: Server = SERVER, json: Json = False) -> None:
    """Make a tenant. One that is there stays as it is."""
    _change(server, "PutTenant", protocol.PutTenantRequest(id=name), json, f"tenant {name} is there")


@verb("tenant list", "millpond tenant list --json")
def list_tenants(server: Server = SERVER, json: Json = False) -> None:
    """List the tenants."""
    with connected(server, "default") as call:
        names = every_result(call, "SearchTenant", protocol.SearchTenantRequest(limit=_PAGE))
        tenants = [call("GetTenant", name) for name in names]
    if json:
        console.print_json_list(plain_message(tenant) for tenant in tenants)
        return
    console.print_table(["tenant", "since"], [[tenant.id.id, _since(tenant)] for tenant in tenants])


@verb("principal put", "millpond principal put nightly --allow etl/WORKFLOW:RUN --allow etl/TASK:ALL_ACTIONS")
def put_principal(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a token, or anonymous.")],
    allow: Allow = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Give one that is there these rights instead.")
    ] = False,
    server: Server = SERVER,
    json: Json = False,
) -> None:
    """Make a principal with rights, everywhere or in tenants."""
    request = protocol.PutPrincipalRequest(id=name, overwrite=overwrite)
    for right in allow or ():
        tenant, slash, rest = right.rpartition("/")
        acls = request.per_tenant_acls[tenant] if slash else request.global_acls
        acls.acls.append(_acl(right, rest))
    _change(server, "PutPrincipal", request, json, f"principal {name} may do so")


@verb("principal list", "millpond principal list")
def list_principals(server: Server = SERVER, json: Json = False) -> None:
    """List the principals, with their rights."""
    with connected(server, "default") as call:
        names = every_result(call, "SearchPrincipal", protocol.SearchPrincipalRequest(limit=_PAGE))
        principals = [call("GetPrincipal", name) for name in names]
    if json:
        console.print_json_list(plain_message(principal) for principal in principals)
        return
    console.print_table(["principal", "rights"], [[row.id.id, ", ".join(_rights(row)) or "none"] for row in principals])


@verb("principal delete", "millpond principal delete nightly")
def delete_principal(name: Name, server: Server = SERVER, json: Json = False) -> None:
    """Delete a principal: its callers have the rights of anonymous then."""
    request = protocol.DeletePrincipalRequest(id=protocol.PrincipalId(id=name))
    _change(server, "DeletePrincipal", request, json, f"principal {name} is deleted", get="GetPrincipal")


@verb("quota put", "millpond quota put etl 100", "millpond quota put etl 10 --principal nightly")
def put_quota(
    tenant: Tenant,
    rate: Annotated[int, typer.Argument(metavar="PER_SECOND", help="Changing requests a second.")],
    principal: Principal = "",
    server: Server = SERVER,
    json: Json = False,
) -> None:
    """Limit the changing requests of a tenant, or of a principal in it; those beyond are sent again later."""
    request = protocol.PutQuotaRequest(tenant=protocol.TenantId(id=tenant), write_requests_per_second=rate)
    if principal:
        request.principal.CopyFrom(protocol.PrincipalId(id=principal))
    _change(server, "PutQuota", request, json, f"{tenant} may send {rate:,} changing requests a second")


@verb("quota list", "millpond quota list")
def list_quotas(server: Server = SERVER, json: Json = False) -> None:
    """List the quotas."""
    with connected(server, "default") as call:
        names = every_result(call, "SearchQuota", protocol.SearchQuotaRequest(limit=_PAGE))
        quotas = [call("GetQuota", name) for name in names]
    if json:
        console.print_json_list(plain_message(quota) for quota in quotas)
        return
    console.print_table(
        ["tenant", "principal", "requests/s"],
        [[row.id.tenant.id, row.id.principal.id or "all", f"{row.write_requests_per_second:,}"] for row in quotas],
    )


@verb("quota delete", "millpond quota delete etl")
def delete_quota(
    tenant: Tenant,
    principal: Principal = "",
    server: Server = SERVER,
    json: Json = False,
) -> None:
    """Delete a quota: there is no limit any more."""
    name = protocol.QuotaId(
        tenant=protocol.TenantId(id=tenant), principal=protocol.PrincipalId(id=principal) if principal else None
    )
    _change(
        server,
        "DeleteQuota",
        protocol.DeleteQuotaRequest(id=name),
        json,
        f"{tenant} has no such quota any more",
        get="GetQuota",
    )


def _change(server: str, method: str, request: Any, json: bool, said: str, get: str | None = None) -> None:
    """Send a request for a change; `get` is the method that finds what must be there before."""
    with connected(server, "default") as call:
        if get is not None:
            call(get, request.id)
        changed = call(method, request)
    console.answer(plain_message(changed), said, as_json=json)


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
