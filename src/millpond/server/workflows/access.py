"""Access to workflows: the tenant of a call is there, its principal may do what it asks, and no quota is used up.

    token's right on the tenant ─▶ tenant ─▶ access lists of the principal ─▶ quotas

Patterns of tokens are `tenant:NAME`: `read` shows runs and definitions; `write` runs workflows, sends events and works
on tasks; `admin` changes definitions. Tenants, principals and quotas need `tenant:*`. The events of runs are streams,
with rights of their own.

A caller is the principal with the name of its token; without one of that name, and without tokens, `anonymous`.

| what | resource | action |
|---|---|---|
| reads | that of the method | READ |
| work on runs and tasks | that of the method | RUN |
| definitions; also `DeleteWfRun`, `AssignUserTaskRun`, `CreateBulkJob` | that of the method | WRITE_METADATA |
| `RegisterTaskWorker`, `PollTask` | ACL_WORKFLOW, ACL_TASK | READ |
| `Whoami`, `GetServerVersion` | none | |

Invariants:
* a token and a principal both allow what is done: neither gives more than the other;
* a principal that has access lists for a tenant has these there, instead of its global ones;
* what is retained in memory is what is stored: it is forgotten with each change of a tenant, a principal or a quota.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from littlehorse.model import (
    ACLAction,
    ACLResource,
    ExternalEventDef,
    Principal,
    PrincipalId,
    Quota,
    TaskDef,
    Tenant,
    WfSpec,
)

from millpond.errors import Denied, Unavailable
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.workflows.quota_usage import QuotaUsage
from millpond.workflows.engine.metadata.tenancy import (
    ANONYMOUS,
    CLUSTER,
    CLUSTER_RESOURCES,
    DEFAULT_TENANT,
    anonymous,
    check_tenant,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.clock import Clock
    from millpond.server.rpc.dispatch import Call
    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.processor import ReadRows

    T = TypeVar("T")

__all__ = ("EVERY_TENANT", "Access", "Need", "admit", "need_of", "need_tenant", "principal_of")

EVERY_TENANT = "*"
"""Stands for all tenants: a right on it is one on tenants, principals and quotas."""

RETAINED_MAX = 10_000
"""Tenants, principals and quotas that are retained in memory, each."""
QUOTA_WINDOW_SECONDS = 0.5
"""The time whose requests may come at once, and of which the delays of refused callers are multiples."""
QUOTA_DELAY_SECONDS_MAX = 30.0
_READS = ("Get", "List", "Search", "Count", "Await", "Validate")
_READING: Final = frozenset({"RegisterTaskWorker", "PollTask"})
_WRITING: Final = frozenset({"DeleteWfRun", "AssignUserTaskRun", "CreateBulkJob"})
_RUNNING: Final = frozenset({
    "PutExternalEvent", "PutCorrelatedEvent", "DeleteCorrelatedEvent", "PutCheckpoint", "DeleteScheduledWfRun",
    "PutUserTaskRunComment", "DeleteUserTaskRunComment",
})  # fmt: skip
_FREE: Final = frozenset({"Whoami", "GetServerVersion"})
_RESOURCES: Final = (
    ("Tenant", ACLResource.ACL_TENANT), ("Principal", ACLResource.ACL_PRINCIPAL), ("Quota", ACLResource.ACL_QUOTA),
    ("TaskWorkerGroup", ACLResource.ACL_TASK_WORKER_GROUP), ("RegisterTaskWorker", ACLResource.ACL_WORKFLOW),
    ("UserTask", ACLResource.ACL_USER_TASK), ("Task", ACLResource.ACL_TASK), ("Checkpoint", ACLResource.ACL_TASK),
    ("ExternalEvent", ACLResource.ACL_EXTERNAL_EVENT), ("CorrelatedEvent", ACLResource.ACL_EXTERNAL_EVENT),
    ("WorkflowEvent", ACLResource.ACL_WORKFLOW_EVENT), ("StructDef", ACLResource.ACL_STRUCT),
)  # fmt: skip
"""The resource of a method, by the first of these words that is in its name; else ACL_WORKFLOW."""


@dataclass(frozen=True, slots=True)
class Need:
    """The need of a method: an action on a resource, none where everybody may; and whether quotas count it, and whether
    it changes definitions.
    """

    resource: int | None
    action: int | None = None
    counted: bool = False
    defines: bool = False

    @property
    def of_cluster(self) -> bool:
        """True for what belongs to no tenant."""
        return self.resource in CLUSTER_RESOURCES


@cache
def need_of(method: str) -> Need:
    """The need of a method of the service.

    >>> need_of("SearchTenant").of_cluster, need_of("RunWf").counted, need_of("Whoami").resource
    (True, True, None)
    """
    if method in _FREE:
        return Need(None)
    resource = next((resource_ for word, resource_ in _RESOURCES if word in method), ACLResource.ACL_WORKFLOW)
    if method.startswith(_READS) or method in _READING:
        return Need(resource, ACLAction.READ)
    if method in _WRITING or (method.startswith(("Put", "Delete", "Migrate")) and method not in _RUNNING):
        return Need(resource, ACLAction.WRITE_METADATA, counted=True, defines=method not in _WRITING)
    return Need(resource, ACLAction.RUN, counted=True)


def need_tenant(caller: Caller, right: str, tenant: str) -> None:
    """Insist on a right on a tenant; on `EVERY_TENANT`: on tenants, principals and quotas.

    Raises: `Denied`.
    """
    if tenant == EVERY_TENANT and "*" not in caller.patterns(right, "tenant"):
        raise caller.denied(right, f"tenant:{tenant}")
    caller.need_tenant(right, tenant)


async def admit(call: Call[WorkflowService]) -> None:
    """Let a call in that may do what its method needs, and note the tenant of the rows that it is about.

    Raises: `Invalid` for the name of the tenant; as `need_tenant` and `Access.check`.
    """
    if not call.right:
        return
    need, tenant = need_of(call.method), check_tenant(call.metadata.get("tenantid") or DEFAULT_TENANT)
    need_tenant(call.caller, call.right, EVERY_TENANT if need.of_cluster else tenant)
    await call.service.access.check(call.caller, need, tenant)
    call.tenant = CLUSTER if need.of_cluster else tenant


@dataclass(slots=True)
class _Turn:
    """The place of a quota in time: when it is free again, and the time that was promised to those refused."""

    free: float = 0.0
    promised: float = 0.0


class Access:
    """The tenants, principals and quotas of a service, as calls need them. Used from its event loop."""

    def __init__(self, service: WorkflowService, clock: Clock) -> None:
        self._service, self._clock = service, clock
        self._version = service.cluster_version
        self._tenants: set[str] = set()
        self._principals: dict[str, Principal] = {}
        self._allowed: dict[tuple[str, str], frozenset[tuple[int, int]]] = {}
        self._rates: dict[tuple[str, ...], int] = {}
        self._turns: dict[tuple[str, ...], _Turn] = {}
        self.usage = QuotaUsage(clock)

    async def check(self, caller: Caller, need: Need, tenant: str) -> None:
        """Insist that a caller may do what a method needs, and count it.

        Raises: `Denied`; `Unavailable`, kind `quota_exceeded`, with the time after which to call again.
        """
        self._look()
        name = principal_of(caller)
        if need.resource is None:
            return
        if not need.of_cluster and tenant not in self._tenants:
            await self._need_tenant(tenant)
        if not await self.may(caller, need, tenant):
            raise Denied(
                "the principal may not do this", kind="acl_missing", principal=name, tenant=tenant,
                resource=ACLResource.Name(need.resource), action=ACLAction.Name(need.action or 0),
                hint="give it the access list: millpond principal put",
            )  # fmt: skip
        if need.counted:
            for quota in ((tenant,), (tenant, name)):
                if self._rates.get(quota) != 0 or quota in self._turns:
                    await self._count(quota)

    async def may(self, caller: Caller, need: Need, tenant: str) -> bool:
        """True when the access lists of a caller have what a method needs."""
        self._look()
        name = principal_of(caller)
        allowed = self._allowed.get((name, tenant))
        if allowed is None:
            allowed = await self._load_allowed(name, tenant)
        return (need.resource, need.action) in allowed

    async def principal(self, caller: Caller) -> Principal:
        """The caller, with what it may do."""
        self._look()
        name = principal_of(caller)
        principal_row = Principal()
        principal_row.CopyFrom(await self._principal(name))
        principal_row.id.CopyFrom(PrincipalId(id=name))
        return principal_row

    def _look(self) -> None:
        """Forget everything when something has changed."""
        if self._version != self._service.cluster_version:
            self._version = self._service.cluster_version
            for retained in (self._tenants, self._principals, self._allowed, self._rates):
                retained.clear()

    async def _get(self, act: Callable[[ReadRows], T]) -> tuple[T, bool]:
        """The result of a function of the rows of no tenant; True if it may be retained."""
        version = self._service.cluster_version
        row = await self._service.get(CLUSTER, act)
        return row, version == self._service.cluster_version == self._version

    async def _need_tenant(self, tenant: str) -> None:
        row, keep = await self._get(lambda rows: rows.get(Tenant, (tenant,)))
        there = tenant == DEFAULT_TENANT or row is not None
        # One that is older than tenants were asked for has definitions.
        if not there and not await self._service.read(tenant, _has_definitions):
            raise Denied("there is no such tenant", kind="tenant_unknown", tenant=tenant,
                         hint="make it first: millpond tenant put NAME")  # fmt: skip
        if keep:
            _make_room(self._tenants)
            self._tenants.add(tenant)

    async def _principal(self, name: str) -> Principal:
        cached = self._principals.get(name)
        if cached is not None:
            return cached
        row, keep = await self._get(lambda rows: rows.get(Principal, (name,)) or rows.get(Principal, (ANONYMOUS,)))
        cached = anonymous() if row is None else row
        if keep:
            _make_room(self._principals)
            self._principals[name] = cached
        return cached

    async def _load_allowed(self, name: str, tenant: str) -> frozenset[tuple[int, int]]:
        version = self._version
        allowed = _allowed_by(await self._principal(name), tenant)
        if version == self._service.cluster_version:
            _make_room(self._allowed)
            self._allowed[name, tenant] = allowed
        return allowed

    async def _count(self, quota: tuple[str, ...]) -> None:
        rate = self._rates.get(quota)
        if rate is None:
            row, keep = await self._get(lambda rows: rows.get(Quota, quota))
            rate = 0 if row is None else row.write_requests_per_second
            if keep:
                _make_room(self._rates)
                self._rates[quota] = rate
        if not rate:
            self._turns.pop(quota, None)
            return
        delay = self._delay(quota, rate)
        self.usage.note(quota, delay)
        if delay:
            raise Unavailable(
                "more requests come than the quota allows", kind="quota_exceeded", quota="/".join(quota),
                write_requests_per_second=rate, retry_after=delay, hint="wait, or raise it: millpond quota put",
            )  # fmt: skip

    def _delay(self, quota: tuple[str, ...], rate: int) -> float:
        """Take a turn: 0.0, or the seconds after which one that is refused has its own turn."""
        now, step = self._clock.monotonic(), max(1, len(self._service.partitions.members())) / rate
        if quota not in self._turns:
            _make_room(self._turns)
            self._turns[quota] = _Turn()
        turn = self._turns[quota]
        turn.free = max(turn.free, now - QUOTA_WINDOW_SECONDS)
        if turn.free <= now:
            turn.free += step
            return 0.0
        turn.promised = min(max(turn.promised, turn.free) + step, now + QUOTA_DELAY_SECONDS_MAX)
        windows = math.ceil((turn.promised - now) / QUOTA_WINDOW_SECONDS)
        return float(max(1, windows) * QUOTA_WINDOW_SECONDS)


def principal_of(caller: Caller) -> str:
    """The name of a caller: that of its token."""
    return ANONYMOUS if caller is ANYBODY else caller.name


def _allowed_by(principal: Principal, tenant: str) -> frozenset[tuple[int, int]]:
    """The pairs of resource and action that a principal may do in a tenant."""
    own = tenant in principal.per_tenant_acls
    lists = principal.per_tenant_acls[tenant] if own else principal.global_acls
    allowed = set()
    for acl in lists.acls:
        resources: set[int] = set(acl.resources)
        if ACLResource.ACL_ALL_RESOURCES in resources:
            resources = set(ACLResource.values()) - (CLUSTER_RESOURCES if own else frozenset())
        every = ACLAction.ALL_ACTIONS in acl.allowed_actions
        for action in ACLAction.values() if every else acl.allowed_actions:
            allowed |= {(resource, action) for resource in resources}
    return frozenset(allowed)


def _has_definitions(rows: ReadRows) -> bool:
    return any(next(iter(rows.list(kind, ())), None) is not None for kind in (TaskDef, WfSpec, ExternalEventDef))


def _make_room(retained: set[str] | dict[str, Principal] | dict[tuple[str, str], frozenset[tuple[int, int]]]
               | dict[tuple[str, ...], int] | dict[tuple[str, ...], _Turn]) -> None:  # fmt: skip
    if len(retained) >= RETAINED_MAX:
        retained.clear()
