"""Reads of tenants, principals and quotas, which belong to no tenant.

Invariants:
* the tenant `default` and the principal `anonymous` are shown also when nobody has put them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from littlehorse.model import (
    Principal,
    PrincipalId,
    PrincipalIdList,
    Quota,
    QuotaId,
    QuotaIdList,
    SearchPrincipalRequest,
    SearchQuotaRequest,
    SearchTenantRequest,
    Tenant,
    TenantId,
    TenantIdList,
)

from millpond.errors import NotFound
from millpond.kernel.keys import encode
from millpond.server.workflows.pages import page_of
from millpond.server.workflows.run_filters import instant_of
from millpond.workflows.engine import Key, key_of
from millpond.workflows.engine.metadata.tenancy import ANONYMOUS, DEFAULT_TENANT, anonymous, is_admin

if TYPE_CHECKING:
    from millpond.workflows.processor import ReadRows

__all__ = ("CLUSTER_READS",)


def _tenants(rows: ReadRows) -> Iterator[tuple[Key, Tenant]]:
    own = rows.list(Tenant, ())
    return _with(own, (DEFAULT_TENANT,), Tenant(id=TenantId(id=DEFAULT_TENANT)))


def _principals(rows: ReadRows) -> Iterator[tuple[Key, Principal]]:
    return _with(rows.list(Principal, ()), (ANONYMOUS,), anonymous())


def _with(rows: Iterable[tuple[Key, Any]], key: Key, row: Message) -> Iterator[tuple[Key, Any]]:
    """Rows in their order, and one more unless it is among them."""
    last: Key | None = None
    for place, item in merge(rows, [(key, row)], key=_key):  # of equals, those of the first come first
        if place != last:
            yield place, item
        last = place


def _key(row: tuple[Key, Any]) -> Key:
    return row[0]


def _get_tenant(rows: ReadRows, name: TenantId) -> Tenant:
    tenant = rows.get(Tenant, key_of(name))
    if tenant is None and name.id == DEFAULT_TENANT:
        return Tenant(id=name)
    return _needed(tenant, name)


def _get_principal(rows: ReadRows, name: PrincipalId) -> Principal:
    principal = rows.get(Principal, key_of(name))
    return anonymous() if principal is None and name.id == ANONYMOUS else _needed(principal, name)


def _get_quota(rows: ReadRows, name: QuotaId) -> Quota:
    return _needed(rows.get(Quota, key_of(name)), name)


def _needed(row: Any, name: Message) -> Any:
    if row is None:
        type_ = type(name).__name__.removesuffix("Id")
        raise NotFound(f"Couldn't find specified {type_}", kind="workflow_object", type=type_,
                       id="/".join(map(str, key_of(name))))  # fmt: skip
    return row


def _search_tenants(rows: ReadRows, request: SearchTenantRequest) -> Message:
    return page_of(TenantIdList, ((encode(key), row.id) for key, row in _tenants(rows)), request)


def _search_principals(rows: ReadRows, request: SearchPrincipalRequest) -> Message:
    """Principals: those who may do everything, those with rights of their own in a tenant, or all; by their time.

    Raises: `Invalid` for an instant that is none.
    """
    times = {name: instant_of(request, name) for name in ("earliest_start", "latest_start") if request.HasField(name)}

    def is_wanted(row: Principal) -> bool:
        ms = row.created_at.ToMilliseconds()
        if not times.get("earliest_start", ms) <= ms <= times.get("latest_start", ms):
            return False
        if request.HasField("is_admin"):
            return is_admin(row) is request.is_admin
        return not request.HasField("tenant_id") or request.tenant_id in row.per_tenant_acls

    principals = ((encode(key), row.id) for key, row in _principals(rows) if is_wanted(row))
    return page_of(PrincipalIdList, principals, request)


def _search_quotas(rows: ReadRows, request: SearchQuotaRequest) -> Message:
    prefix: Key = (request.tenant_id,) if request.HasField("tenant_id") else ()
    principal = request.principal.id if request.HasField("principal") else None
    quotas = (
        (encode(key), row.id) for key, row in rows.list(Quota, prefix)
        if principal is None or row.id.principal.id == principal
    )  # fmt: skip
    return page_of(QuotaIdList, quotas, request)


CLUSTER_READS: Final[dict[type[Message], Callable[[ReadRows, Any], Message]]] = {
    TenantId: _get_tenant, PrincipalId: _get_principal, QuotaId: _get_quota, SearchTenantRequest: _search_tenants,
    SearchPrincipalRequest: _search_principals, SearchQuotaRequest: _search_quotas,
}  # fmt: skip
"""The function of each request that reads what belongs to no tenant."""
