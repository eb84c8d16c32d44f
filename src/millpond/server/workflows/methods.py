"""The methods of `littlehorse.LittleHorse`: each is a command, a read, or one of a few of its own.

| request | handled by |
|---|---|
| one of the engine's | a command: its reply comes after its write is durable |
| an id, a list, a search | a read |
| `PollTask`, `RegisterTaskWorker`, `GetTaskWorkerGroup`, `AwaitWorkflowEvent`, `Whoami`, `GetServerVersion`,
`ListQuotaUsageMetrics` | here |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from littlehorse.model import (
    ACLAction,
    ApplyWorkflowMigrationPlanRequest,
    AwaitWorkflowEventRequest,
    DeletePrincipalRequest,
    LHHostInfo,
    ListQuotaUsageMetricsRequest,
    ListTaskRunsRequest,
    LittleHorseVersion,
    MetricsList,
    PollTaskRequest,
    PollTaskResponse,
    Principal,
    PutCheckpointRequest,
    RegisterTaskWorkerRequest,
    RegisterTaskWorkerResponse,
    ReportTaskRun,
    RunWfRequest,
    TaskDef,
    TaskDefId,
    TaskRun,
    TaskRunId,
    TaskRunList,
    TaskWorkerGroup,
    TaskWorkerGroupId,
    WfRunId,
    WorkflowEvent,
    service_pb2,
)

from millpond.client.wire_errors import NODE_KEY
from millpond.errors import Denied, NotFound, Unavailable
from millpond.server.routes.table import On, Work
from millpond.server.rpc.dispatch import Call, Row, Service, method
from millpond.server.workflows.access import admit, need_of, need_tenant, principal_of
from millpond.server.workflows.cluster_reads import CLUSTER_READS
from millpond.server.workflows.reads import GETS, READS
from millpond.server.workflows.shared.peers import METHODS
from millpond.server.workflows.shared.peers import SERVICE as PEERS
from millpond.server.workflows.shared.wire import parts_of
from millpond.tracing import TRACEPARENT, traceparent, traceparent_in
from millpond.workflows.engine import COMMANDS, Command, apply, key_of, run_path
from millpond.workflows.engine.trace_context import carry
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.tasks.progress import METADATA
from millpond.workflows.tasks.queues import Worker

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.processor import ReadRows

__all__ = ("SERVICE", "peer_methods", "workflow_methods")

SERVICE: Final = "littlehorse.LittleHorse"
AWAIT_SECONDS_MAX = 60.0
"""The time that a caller may wait for a workflow event."""
_METHODS: Final = service_pb2.DESCRIPTOR.services_by_name["LittleHorse"].methods
_OF_WORKERS = frozenset({"ReportTask", "PutCheckpoint"})
_REPORTS = (ReportTaskRun, PutCheckpointRequest)
_TASK_RUNS: Final = {TaskRunId: TaskRun, ListTaskRunsRequest: TaskRunList}
"""The reads whose replies show how far attempts are that run now."""
_Call: TypeAlias = "Call[WorkflowService]"
_Row: TypeAlias = "Row[WorkflowService, Any]"


def workflow_methods(service: WorkflowService) -> Service[WorkflowService]:
    """All methods of the service."""
    return Service(SERVICE, "workflows", service, _ROWS, admit)


def peer_methods(service: WorkflowService) -> Service[WorkflowService]:
    """The methods by which the processes of one group call one another."""
    return Service(PEERS, "workflows", service, {name: Row(None, _for_peer, _PEER) for name in METHODS})


async def _for_peer(call: _Call, data: bytes) -> bytes:
    need_tenant(call.caller, call.right, str(parts_of(data)[1]))
    return await call.service.for_peer(call.method, data)


def _row(described: MethodDescriptor) -> _Row:
    name, request, need = described.name, GetMessageClass(described.input_type), need_of(described.name)
    if name in _OWN:
        return _OWN[name]
    right = "read" if need.action == ACLAction.READ else "admin" if need.defines else "write"
    # Workers' reports follow from what people and programs ask for.
    audited = right != "read" and name not in _OF_WORKERS
    needs = method(right, On.EVERY_TENANT if need.of_cluster else On.TENANT, audited=audited)
    if request in COMMANDS:
        return Row(request, _command, needs)
    assert right == "read" and (request in CLUSTER_READS or request in READS), name
    return Row(request, _read, needs)


async def _command(call: _Call, request: Message) -> Message | None:
    if isinstance(request, DeletePrincipalRequest) and request.id.id == principal_of(call.caller):
        raise Denied("nobody deletes oneself", kind="principal", principal=request.id.id,
                     hint="let another principal do it")  # fmt: skip
    if not isinstance(request, _REPORTS):
        call.notes = {"tenant": call.tenant, **_noted(request)}
    if isinstance(request, RunWfRequest) and (
        caller := traceparent() or traceparent_in(call.metadata.get(TRACEPARENT))
    ):
        carry(request, caller)
    reply = await call.service.submit(call.tenant, request)
    if isinstance(request, ReportTaskRun):
        call.service.lost.reported(call.tenant, request)
    return None if reply is None else shown(reply)


def _noted(request: Message) -> dict[str, str]:
    """The fields of a request for the audit log: the run that it is about."""
    if isinstance(request, RunWfRequest):
        return {"spec": request.wf_spec_name, "run": request.id}
    fields = request.DESCRIPTOR.fields_by_name
    run = getattr(request, next((name for name in ("wf_run_id", "id") if name in fields), ""), None)
    return {"run": run_path(run)} if isinstance(run, WfRunId) else {}


async def _read(call: _Call, request: Message) -> bytes:
    kind = type(request)
    read = CLUSTER_READS.get(kind) or READS[kind]
    reading = call.service.get if kind in GETS else call.service.read
    reply: bytes = await reading(call.tenant, lambda rows: read(rows, request).SerializeToString())
    runs = _TASK_RUNS.get(kind)
    return reply if runs is None else call.service.progress.added(call.tenant, runs, reply)


# -- methods of their own ---------------------------------------------------------------------------------


async def _poll(call: _Call, requests: AsyncIterator[PollTaskRequest]) -> AsyncGenerator[tuple[bytes], None]:
    """A worker asks for a task, gets one, asks for the next.

        request ─▶ the worker waits ─▶ the processor claims a task for it, by a command ─▶ durable ─▶ response

    A task is handed out after its claim is durable, so an attempt goes to one worker at most. A worker that is not
    there any more by then costs one timeout of the task. The stream ends well only for a worker that ends it itself:
    another one would not come back. Its next request is read while it waits, to notice that there is none.
    """
    service, tenant, need = call.service, call.tenant, need_of(call.method)
    defined: set[str] = set()
    early: asyncio.Future[PollTaskRequest | None] | None = None

    def read_next() -> asyncio.Future[PollTaskRequest | None]:
        nonlocal early
        early = asyncio.ensure_future(anext(requests, None))
        return early

    try:
        while (request := await (early or anext(requests, None))) is not None:
            early = None
            await service.access.check(call.caller, need, tenant)
            name = request.task_def_id.name
            if name not in defined:
                await _need_task(call, name)
                defined.add(name)
            worker = Worker((tenant, name), request.client_id, request.task_worker_version)
            if (task := await service.task(worker, read_next)) is None:
                return
            service.lost.handed(tenant, request.client_id, task)
            yield (PollTaskResponse(result=task).SerializeToString(),)
    finally:
        if early is not None:
            early.cancel()


async def _need_task(call: _Call, name: str) -> None:
    if await call.service.get(call.tenant, lambda rows: rows.get(TaskDef, (name,))) is None:
        raise NotFound("no task is defined by this name", kind="task_def", task=name,
                       hint="register it before its workers poll")  # fmt: skip


async def _register(call: _Call, request: RegisterTaskWorkerRequest) -> RegisterTaskWorkerResponse:
    """The hosts that a worker polls, by the addresses that others use."""
    service = call.service
    await service.begin()
    service.registered.note(call.tenant, request.task_def_id.name, request.task_worker_id)
    service.lost.beat(call.tenant, request.task_worker_id)
    if METADATA in call.metadata:
        service.progress.note(call.tenant, call.metadata[METADATA])
    return RegisterTaskWorkerResponse(your_hosts=_hosts(service), is_cluster_healthy=True)


def _hosts(service: WorkflowService) -> list[LHHostInfo]:
    addresses = (address.rpartition(":") for address in service.partitions.hosts())
    return [LHHostInfo(host=host, port=int(port)) for host, _, port in addresses]


async def _worker_group(call: _Call, name: TaskDefId) -> TaskWorkerGroup:
    """The workers of a task that registered lately, at this process or at another.

    Raises: `NotFound` when there is none, or no such task.
    """
    service, tenant = call.service, call.tenant
    defined = await service.get(tenant, lambda rows: rows.get(TaskDef, (name.name,)))
    workers = [] if defined is None else await service.registered.everywhere(tenant, name.name)
    if not workers:
        raise NotFound("no worker of this task registered lately", kind="workflow_object", type="TaskWorkerGroup",
                       id=name.name)  # fmt: skip
    group = TaskWorkerGroup(id=TaskWorkerGroupId(task_def_id=name))
    group.created_at.FromMilliseconds(min(member.began_ms for member in workers))
    hosts = _hosts(service)
    for member in workers:
        worker = group.task_workers[member.worker]
        worker.task_worker_id = member.worker
        worker.hosts.extend(hosts)
        worker.latest_heartbeat.FromMilliseconds(member.seen_ms)
    return group


async def _await_event(call: _Call, request: AwaitWorkflowEventRequest) -> WorkflowEvent:
    """The first event of a run, of the definitions that are named or of any, which the caller does not know yet."""
    names = {definition.name for definition in request.event_def_ids}
    ignored = {key_of(event) for event in request.workflow_events_to_ignore}

    def matches(event: WorkflowEvent) -> bool:
        return (not names or event.id.workflow_event_def_id.name in names) and key_of(event.id) not in ignored

    thrown = await call.service.thrown(call.tenant, run_path(request.wf_run_id), matches, AWAIT_SECONDS_MAX)
    if thrown is None:
        raise Unavailable("no such event was thrown", kind="wait_over", run=run_path(request.wf_run_id),
                          seconds=AWAIT_SECONDS_MAX, hint="wait again")  # fmt: skip
    return thrown


async def _migrate(call: _Call, request: ApplyWorkflowMigrationPlanRequest) -> Message | None:
    """Let a run go on as a plan says; with the metadata `dry-run`, the run as it would be, and nothing is written."""
    if "dry-run" not in call.metadata:
        return await _command(call, request)
    return await call.service.read(call.tenant, lambda rows: _as_migrated(rows, call.service.clock.now_ms(), request))


def _as_migrated(rows: ReadRows, now_ms: int, request: ApplyWorkflowMigrationPlanRequest) -> Message:
    """The reply of a migration on a copy of the rows."""
    reply = apply(rows, Command("dry-run", request), now_ms).reply
    assert reply is not None, "a migration answers with the run"
    return shown(reply)


async def _quota_usage(call: _Call, request: ListQuotaUsageMetricsRequest) -> MetricsList:
    return call.service.access.usage.listed(request)


async def _whoami(call: _Call, request: Message) -> Principal:
    """The caller: the name of the token, or `anonymous`, with what it may do beyond its token; and the node."""
    del request
    if call.service.url.isascii():  # other metadata gRPC refuses
        call.trailing[NODE_KEY] = call.service.url
    return await call.service.access.principal(call.caller)


async def _version(call: _Call, request: Message) -> LittleHorseVersion:
    del call, request
    return _release()


@cache
def _release() -> LittleHorseVersion:
    major, minor, patch = (int(part) for part in version("millpond").split(".")[:3])  # it is read from the disk
    return LittleHorseVersion(major_version=major, minor_version=minor, patch_version=patch)


_READ: Final = method("read", On.TENANT)
_CHANGE: Final = method("write", On.TENANT, audited=True)
_PEER: Final = method("admin", On.TENANT)
_FREE: Final = method(None, On.TOKEN)
_OWN: Final[dict[str, _Row]] = {
    "PollTask": Row(PollTaskRequest, _poll, method("write", On.TENANT, Work.POLL)),
    "RegisterTaskWorker": Row(RegisterTaskWorkerRequest, _register, method("write", On.TENANT)),
    "GetTaskWorkerGroup": Row(TaskDefId, _worker_group, _READ),
    "AwaitWorkflowEvent": Row(AwaitWorkflowEventRequest, _await_event, _READ),
    "Whoami": Row(Empty, _whoami, _FREE),
    "GetServerVersion": Row(Empty, _version, _FREE),
    "ApplyWorkflowMigrationPlan": Row(ApplyWorkflowMigrationPlanRequest, _migrate, _CHANGE),
    "ListQuotaUsageMetrics": Row(ListQuotaUsageMetricsRequest, _quota_usage, method("read", On.EVERY_TENANT)),
}
_ROWS: Final = {method.name: _row(method) for method in _METHODS}
