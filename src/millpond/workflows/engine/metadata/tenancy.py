"""Commands of tenants, principals and quotas: what belongs to all tenants together.

    tenant      a name for runs and definitions that see no others
    principal   a name of callers, with what they may do: everywhere, or in some tenants
    quota       the changing requests a second of a tenant, or of a principal in it

Their rows are under `CLUSTER`, which no tenant can be called.

Invariants:
* the tenant `default` and the principal `anonymous`, who may do everything, are there from the beginning;
* there is always a principal who may do everything;
* what a tenant's own access lists allow is within that tenant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from google.protobuf.empty_pb2 import Empty
from littlehorse.model import (
    ACLAction,
    ACLResource,
    DeletePrincipalRequest,
    DeleteQuotaRequest,
    Principal,
    PrincipalId,
    PutPrincipalRequest,
    PutQuotaRequest,
    PutTenantRequest,
    Quota,
    QuotaId,
    ServerACL,
    ServerACLs,
    Tenant,
    TenantId,
)

from millpond.errors import AlreadyExists, Conflict, Invalid
from millpond.workflows.engine.keys import Key, key_of
from millpond.workflows.engine.work import Work

__all__ = (
    "ANONYMOUS",
    "CLUSTER",
    "CLUSTER_RESOURCES",
    "DEFAULT_TENANT",
    "PRINCIPALS_MAX",
    "anonymous",
    "check_tenant",
    "delete_principal",
    "delete_quota",
    "is_admin",
    "put_principal",
    "put_quota",
    "put_tenant",
)

CLUSTER: Final = ""
"""Stands for the tenant in the keys of what belongs to none."""
DEFAULT_TENANT: Final = "default"
ANONYMOUS: Final = "anonymous"
PRINCIPALS_MAX: Final = 10_000
"""The principals that there may be: who may do everything is looked for among all."""
CLUSTER_RESOURCES: Final = frozenset({ACLResource.ACL_TENANT, ACLResource.ACL_PRINCIPAL, ACLResource.ACL_QUOTA})
"""Resources that belong to no tenant."""
_NAME_CHARACTERS_MAX = 100
_TENANT = re.compile(r"[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?")


@lru_cache(1_000)
def check_tenant(name: str) -> str:
    """The name of a tenant, as it came.

    >>> check_tenant("etl")
    'etl'

    Raises: `Invalid`.
    """
    if len(name) > _NAME_CHARACTERS_MAX or not _TENANT.fullmatch(name):
        raise Invalid("not a name of a tenant", kind="tenant_name", tenant=name[:100],
                      hint="use a letter, then letters, digits and inner hyphens")  # fmt: skip
    return name


def anonymous() -> Principal:
    """The principal of callers who have no other, as long as nobody has put it."""
    everything = ServerACL(resources=[ACLResource.ACL_ALL_RESOURCES], allowed_actions=[ACLAction.ALL_ACTIONS])
    return Principal(id=PrincipalId(id=ANONYMOUS), global_acls=ServerACLs(acls=[everything]))


def is_admin(principal: Principal) -> bool:
    """True for a principal who may do everything everywhere."""
    return any(
        ACLResource.ACL_ALL_RESOURCES in acl.resources and ACLAction.ALL_ACTIONS in acl.allowed_actions
        for acl in principal.global_acls.acls
    )


def put_tenant(work: Work, request: PutTenantRequest) -> Tenant:
    """Make a tenant, or say anew if it has topics of output, and what is written there.

    Raises: `Invalid` for a name that is none.
    """
    check_tenant(request.id)
    tenant = Tenant(id=TenantId(id=request.id), created_at=work.instant())
    if request.HasField("output_topic_config"):
        tenant.output_topic_config.CopyFrom(request.output_topic_config)
    old = work.rows.get(Tenant, (request.id,))
    if old is not None:
        tenant.created_at.CopyFrom(old.created_at)
        if old == tenant:
            return old
    work.rows.put((request.id,), tenant)
    return tenant


def put_principal(work: Work, request: PutPrincipalRequest) -> Principal:
    """Make a principal, or give one other rights.

    Raises: `AlreadyExists` without `overwrite`; `Conflict` where nobody could do everything any more; `Invalid`.
    """
    if not 0 < len(request.id) <= _NAME_CHARACTERS_MAX:
        raise Invalid("not a name of a principal", kind="principal_name", principal=request.id[:100],
                      hint=f"use 1 to {_NAME_CHARACTERS_MAX} characters: the name of a token")  # fmt: skip
    old = _principal(work, request.id)
    if old is not None and not request.overwrite:
        raise AlreadyExists("there is a principal of this name", kind="principal", principal=request.id,
                            hint="overwrite=True gives it other rights")  # fmt: skip
    _check_acls(work, request)
    principal = Principal(id=PrincipalId(id=request.id), created_at=work.instant(), global_acls=request.global_acls)
    for tenant, acls in request.per_tenant_acls.items():
        principal.per_tenant_acls[tenant].CopyFrom(acls)
    if old is not None and old.HasField("created_at"):
        principal.created_at.CopyFrom(old.created_at)
    if old is None and len(work.rows.list(Principal, (), PRINCIPALS_MAX)) == PRINCIPALS_MAX:
        raise Invalid("there are as many principals as may be", kind="principals_full", principals_max=PRINCIPALS_MAX)
    work.rows.put((request.id,), principal)
    if old is not None and is_admin(old) and not is_admin(principal):
        _need_admin(work, request.id)
    return principal


def delete_principal(work: Work, request: DeletePrincipalRequest) -> Empty:
    """Delete a principal: its callers are anonymous from then on.

    Raises: `Conflict` where nobody could do everything any more; `Invalid` for `anonymous`.
    """
    name = request.id.id
    if name == ANONYMOUS:
        raise Invalid("this principal cannot be deleted", kind="principal", principal=name,
                      hint="put it with overwrite, and fewer rights")  # fmt: skip
    old = _principal(work, name)
    work.rows.delete(Principal, (name,))
    if old is not None and is_admin(old):
        _need_admin(work, name)
    return Empty()


def put_quota(work: Work, request: PutQuotaRequest) -> Quota:
    """Limit the changing requests of a tenant, or of a principal in it, in place of an earlier limit.

    Raises: `Invalid` for a rate that is none, a tenant or a principal that is not there.
    """
    if request.write_requests_per_second <= 0:
        raise Invalid("not a rate", kind="quota_rate", write_requests_per_second=request.write_requests_per_second,
                      hint="give 1 or more, or delete the quota")  # fmt: skip
    _need_tenant(work, request.tenant.id)
    name = QuotaId(tenant=request.tenant)
    if request.principal.id:
        if _principal(work, request.principal.id) is None:
            raise Invalid("there is no such principal", kind="principal_unknown", principal=request.principal.id,
                          hint="put it first")  # fmt: skip
        name.principal.CopyFrom(request.principal)
    quota = Quota(id=name, created_at=work.instant(), write_requests_per_second=request.write_requests_per_second)
    key = key_of(name)
    old = work.rows.get(Quota, key)
    if old is not None:
        quota.created_at.CopyFrom(old.created_at)
    work.rows.put(key, quota)
    return quota


def delete_quota(work: Work, request: DeleteQuotaRequest) -> Empty:
    """Delete a quota: there is no limit any more."""
    key: Key = key_of(request.id)
    work.rows.delete(Quota, key)
    return Empty()


def _principal(work: Work, name: str) -> Principal | None:
    principal = work.rows.get(Principal, (name,))
    return anonymous() if principal is None and name == ANONYMOUS else principal


def _need_tenant(work: Work, name: str) -> None:
    if check_tenant(name) != DEFAULT_TENANT and work.rows.get(Tenant, (name,)) is None:
        raise Invalid("there is no such tenant", kind="tenant_unknown", tenant=name, hint="put the tenant first")


def _check_acls(work: Work, request: PutPrincipalRequest) -> None:
    for tenant, acls in request.per_tenant_acls.items():
        _need_tenant(work, tenant)
        beyond = {resource for acl in acls.acls for resource in acl.resources} & CLUSTER_RESOURCES
        if beyond:
            raise Invalid("a tenant's access lists name what belongs to all", kind="acl_resource", tenant=tenant,
                          resources=[ACLResource.Name(resource) for resource in sorted(beyond)],
                          hint="name them in global_acls")  # fmt: skip
    _check_known(acl for acls in request.per_tenant_acls.values() for acl in acls.acls)
    _check_known(request.global_acls.acls)


def _check_known(acls: Iterable[ServerACL]) -> None:
    """Refuse what would be stored and not be heeded."""
    for acl in acls:
        if acl.WhichOneof("resource_filter") is not None:
            raise Invalid("access lists are not narrowed to names here", kind="acl_filter",
                          filter=acl.name or acl.prefix, hint="leave name and prefix out")  # fmt: skip
        if not set(acl.resources) <= set(ACLResource.values()) or not set(acl.allowed_actions) <= set(
            ACLAction.values()
        ):
            raise Invalid("an access list names an unknown resource or action", kind="acl_resource",
                          resources=list(acl.resources), actions=list(acl.allowed_actions))  # fmt: skip


def _need_admin(work: Work, changed: str) -> None:
    admins = [row for row in work.rows.list(Principal, ()) if is_admin(row)]
    if not admins and work.rows.get(Principal, (ANONYMOUS,)) is not None:
        raise Conflict("nobody could do everything any more", kind="failed_precondition", principal=changed,
                       hint="put another principal with ALL_ACTIONS on ACL_ALL_RESOURCES first")  # fmt: skip
