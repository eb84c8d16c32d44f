"""The methods of `littlehorse.LittleHorse`: each is a command, a read, or one of a few of its own.

| request | handled by |
|---|---|
| one of the engine's | a command: its reply comes after its write is durable |
| an id, a list, a search | a read |
| `PollTask`, `RegisterTaskWorker`, `GetTaskWorkerGroup`, `AwaitWorkflowEvent`, `Whoami`, `GetServerVersion` | here |
| any other | UNIMPLEMENTED, with the reason; `docs/workflows.md` lists them |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from littlehorse.model import (
    AwaitWorkflowEventRequest,
    DeletePrincipalRequest,
    LHHostInfo,
    LittleHorseVersion,
    PutCheckpointRequest,
    RegisterTaskWorkerRequest,
    RegisterTaskWorkerResponse,
    ReportTaskRun,
    RunWfRequest,
    TaskDef,
    TaskDefId,
    TaskWorkerGroup,
    TaskWorkerGroupId,
    WfRunId,
    WorkflowEvent,
    service_pb2,
)

from millpond.errors import Denied, Internal, NotFound, Unavailable
from millpond.server.armada.calls import Call, Means, Method, answering, parsed
from millpond.server.workflows.access import need_of, principal_of
from millpond.server.workflows.cluster_reads import CLUSTER_READS
from millpond.server.workflows.polling import poll_method
from millpond.server.workflows.reads import GETS, READS
from millpond.server.workflows.rights import EVERY_TENANT, need_tenant, tenant_of
from millpond.workflows.engine import COMMANDS, key_of, run_path
from millpond.workflows.engine.metadata.tenancy import CLUSTER
from millpond.workflows.engine.values.masks import shown

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor

    from millpond.server.workflows.service import WorkflowService

__all__ = ("SERVICE", "served_methods", "workflow_methods")

SERVICE: Final = "littlehorse.LittleHorse"
AWAIT_SECONDS_MAX = 60.0
"""The time that a caller may wait for a workflow event."""
_DEFINING = ("Put", "Delete")
_OF_RUNS = frozenset({"PutExternalEvent", "PutCheckpoint", "DeleteWfRun", "PutCorrelatedEvent",
                      "DeleteCorrelatedEvent", "DeleteScheduledWfRun", "PutUserTaskRunComment",
                      "DeleteUserTaskRunComment"})  # fmt: skip
"""Methods that are named like those of definitions, and are work on runs."""
_METHODS: Final = service_pb2.DESCRIPTOR.services_by_name["LittleHorse"].methods
_OF_WORKERS = frozenset({"ReportTask", "PutCheckpoint"})
_REPORTS = (ReportTaskRun, PutCheckpointRequest)
Act = Callable[[Call, bytes], Awaitable[bytes]]


def workflow_methods(means: Means, service: WorkflowService) -> dict[str, Method]:
    """All methods of the service."""
    methods: dict[str, Method] = {}
    for method in _METHODS:
        path = f"/{SERVICE}/{method.name}"
        if method.name == "PollTask":
            methods[method.name] = poll_method(means, service, path)
        elif method.name in _OWN:
            methods[method.name] = answering(means, path, _bound(_OWN[method.name], service), audited=False)
        else:
            act = _act(service, method)
            methods[method.name] = answering(means, path, act, audited=_is_audited(method))
    return methods


def served_methods() -> dict[str, bool]:
    """All methods of the service; False for those that answer UNIMPLEMENTED."""
    own = {"PollTask", *_OWN}
    return {method.name: method.name in own or _request(method) in COMMANDS or _is_read(method) for method in _METHODS}


def _right_of(method: str) -> str:
    """The right that a method needs of a token."""
    if method.startswith(("Get", "List", "Search", "Count", "Await", "Validate")):
        return "read"
    return "admin" if method.startswith(_DEFINING) and method not in _OF_RUNS else "write"


def _is_audited(method: MethodDescriptor) -> bool:
    """True for changes that people and programs ask for; workers' reports follow from them."""
    return _right_of(method.name) != "read" and method.name not in _OF_WORKERS


def _request(method: MethodDescriptor) -> type[Message]:
    found: type[Message] = GetMessageClass(method.input_type)
    return found


def _is_read(method: MethodDescriptor) -> bool:
    request = _request(method)
    if request in CLUSTER_READS:
        return _right_of(method.name) == "read"
    return request in READS and _right_of(method.name) == "read"


def _bound(function: Callable[[WorkflowService, Call, bytes], Awaitable[bytes]], service: WorkflowService) -> Act:
    return lambda call, data: function(service, call, data)


def _act(service: WorkflowService, method: MethodDescriptor) -> Act:
    request = _request(method)
    if request in COMMANDS:
        return _command(service, request, method.name)
    if _is_read(method):
        return _read(service, request, method.name)
    return _unserved(method.name)


def _command(service: WorkflowService, kind: type[Message], method: str) -> Act:
    admit = _admission(service, method)

    async def act(call: Call, data: bytes) -> bytes:
        tenant = await admit(call)
        request = parsed(kind, data)
        if isinstance(request, DeletePrincipalRequest) and request.id.id == principal_of(call.caller):
            raise Denied("nobody deletes oneself", kind="principal", principal=request.id.id,
                         hint="let another principal do it")  # fmt: skip
        if kind not in _REPORTS:
            call.notes = {"tenant": tenant, **_noted(request)}
        reply = await service.submit(tenant, request)
        return b"" if reply is None else shown(reply).SerializeToString()

    return act


def _noted(request: Message) -> dict[str, str]:
    """The fields of a request for the audit log: the run that it is about."""
    if isinstance(request, RunWfRequest):
        return {"spec": request.wf_spec_name, "run": request.id}
    fields = request.DESCRIPTOR.fields_by_name
    run = getattr(request, next((name for name in ("wf_run_id", "id") if name in fields), ""), None)
    return {"run": run_path(run)} if isinstance(run, WfRunId) else {}


def _read(service: WorkflowService, kind: type[Message], method: str) -> Act:
    read = CLUSTER_READS.get(kind) or READS[kind]
    admit = _admission(service, method)

    async def act(call: Call, data: bytes) -> bytes:
        tenant, request = await admit(call), parsed(kind, data)
        reading = service.get if kind in GETS else service.read
        return await reading(tenant, lambda rows: read(rows, request).SerializeToString())

    return act


def _admission(service: WorkflowService, method: str) -> Callable[[Call], Awaitable[str]]:
    """A function that lets calls of a method in, and gives the tenant of the rows that they are about."""
    right, need = _right_of(method), need_of(method)

    async def admit(call: Call) -> str:
        tenant = tenant_of(call)
        need_tenant(call.caller, right, EVERY_TENANT if need.of_cluster else tenant)
        await service.access.check(call.caller, need, tenant)
        return CLUSTER if need.of_cluster else tenant

    return admit


def _unserved(name: str) -> Act:
    async def act(call: Call, data: bytes) -> bytes:
        del call, data
        raise Internal("this method is not served", kind="workflow_unserved", method=name,
                       hint="docs/workflows.md lists the methods that are")  # fmt: skip

    return act


# -- methods of their own ---------------------------------------------------------------------------------


async def _register(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The hosts that a worker polls, by the addresses that others use."""
    tenant = await _admission(service, "RegisterTaskWorker")(call)
    request = parsed(RegisterTaskWorkerRequest, data)
    await service.begin()
    service.registered.note(tenant, request.task_def_id.name, request.task_worker_id)
    return RegisterTaskWorkerResponse(your_hosts=_hosts(service), is_cluster_healthy=True).SerializeToString()


def _hosts(service: WorkflowService) -> list[LHHostInfo]:
    addresses = (address.rpartition(":") for address in service.hosts())
    return [LHHostInfo(host=host, port=int(port)) for host, _, port in addresses]


async def _worker_group(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The workers of a task that registered lately, at this process or at another.

    Raises: `NotFound` when there is none, or no such task.
    """
    tenant = await _admission(service, "GetTaskWorkerGroup")(call)
    name = parsed(TaskDefId, data)
    defined = await service.get(tenant, lambda rows: rows.get(TaskDef, (name.name,)))
    found = [] if defined is None else await service.registered.everywhere(tenant, name.name)
    if not found:
        raise NotFound("no worker of this task registered lately", kind="workflow_object", type="TaskWorkerGroup",
                       id=name.name)  # fmt: skip
    group = TaskWorkerGroup(id=TaskWorkerGroupId(task_def_id=name))
    group.created_at.FromMilliseconds(min(one.began_ms for one in found))
    hosts = _hosts(service)
    for one in found:
        worker = group.task_workers[one.worker]
        worker.task_worker_id = one.worker
        worker.hosts.extend(hosts)
        worker.latest_heartbeat.FromMilliseconds(one.seen_ms)
    return group.SerializeToString()


async def _await_event(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The first event of a run, of the definitions that are named or of any, which the caller does not know yet."""
    tenant = await _admission(service, "AwaitWorkflowEvent")(call)
    request = parsed(AwaitWorkflowEventRequest, data)
    names = {definition.name for definition in request.event_def_ids}
    ignored = {key_of(event) for event in request.workflow_events_to_ignore}

    def wanted(event: WorkflowEvent) -> bool:
        return (not names or event.id.workflow_event_def_id.name in names) and key_of(event.id) not in ignored

    found = await service.thrown(tenant, run_path(request.wf_run_id), wanted, AWAIT_SECONDS_MAX)
    if found is None:
        raise Unavailable("no such event was thrown", kind="wait_over", run=run_path(request.wf_run_id),
                          seconds=AWAIT_SECONDS_MAX, hint="wait again")  # fmt: skip
    return found.SerializeToString()


async def _whoami(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The caller: the name of the token, or `anonymous`, with what it may do beyond its token."""
    del data
    return (await service.access.principal(call.caller)).SerializeToString()


async def _version(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The version of this release."""
    del service, call, data
    major, minor, patch = (int(part) for part in version("millpond").split(".")[:3])
    return LittleHorseVersion(major_version=major, minor_version=minor, patch_version=patch).SerializeToString()


_OWN: Final[dict[str, Callable[[WorkflowService, Call, bytes], Awaitable[bytes]]]] = {
    "RegisterTaskWorker": _register, "GetTaskWorkerGroup": _worker_group, "AwaitWorkflowEvent": _await_event,
    "Whoami": _whoami, "GetServerVersion": _version,
}  # fmt: skip
