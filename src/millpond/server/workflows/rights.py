"""Rights on workflows: patterns of tokens `tenant:NAME`, of the shell.

`read` shows runs and definitions; `write` runs workflows, sends events and works on tasks; `admin` changes definitions.
Tenants, principals and quotas need `read` or `admin` on all tenants: `*`, or `tenant:*`. The events of runs are
streams, with rights of their own.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from millpond.workflows.engine.metadata.tenancy import DEFAULT_TENANT, check_tenant

if TYPE_CHECKING:
    from millpond.nodes.tokens import Caller
    from millpond.server.armada.calls import Call

__all__ = ("EVERY_TENANT", "need_tenant", "tenant_of")

EVERY_TENANT = "*"
"""Stands for all tenants: a right on it is one on tenants, principals and quotas."""


def tenant_of(call: Call) -> str:
    """The tenant of a call: that of its metadata `tenantid`, else `default`.

    Raises: `Invalid`.
    """
    return check_tenant(call.metadata.get("tenantid") or DEFAULT_TENANT)


def need_tenant(caller: Caller, right: str, tenant: str) -> None:
    """Insist on a right on a tenant.

    Raises: `Denied`.
    """
    patterns = caller.patterns(right, "tenant")
    if not ("*" in patterns or (tenant != EVERY_TENANT and any(fnmatchcase(tenant, name) for name in patterns))):
        raise caller.denied(right, f"tenant:{tenant}")
