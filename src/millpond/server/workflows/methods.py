"""The methods of `littlehorse.LittleHorse`: each is a command, a read, or one of a few of its own.

| request | handled by |
|---|---|
| one of the engine's | a command: its reply comes after its write is durable |
| an id, a list, a search | a read |
| `PollTask`, `RegisterTaskWorker`, `AwaitWorkflowEvent`, `Whoami`, `GetServerVersion` | here |
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
    LHHostInfo,
    LittleHorseVersion,
    Principal,
    PrincipalId,
    RegisterTaskWorkerRequest,
    RegisterTaskWorkerResponse,
    ReportTaskRun,
    WorkflowEvent,
    service_pb2,
)

from millpond.errors import Internal, Unavailable
from millpond.nodes.tokens import ANYBODY
from millpond.server.armada.calls import Call, Means, Method, answering, parsed
from millpond.server.workflows.polling import poll_method
from millpond.server.workflows.reads import GETS, READS
from millpond.server.workflows.rights import need_tenant, tenant_of
from millpond.workflows.engine import COMMANDS, key_of, run_path
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
Act = Callable[[Call, bytes], Awaitable[bytes]]


def workflow_methods(means: Means, service: WorkflowService) -> dict[str, Method]:
    """All methods of the service."""
    own: dict[str, Callable[[WorkflowService, Call, bytes], Awaitable[bytes]]] = {
        "RegisterTaskWorker": _register, "AwaitWorkflowEvent": _await_event, "Whoami": _whoami,
        "GetServerVersion": _version,
    }  # fmt: skip
    methods: dict[str, Method] = {}
    for method in _METHODS:
        path = f"/{SERVICE}/{method.name}"
        if method.name == "PollTask":
            methods[method.name] = poll_method(means, service, path)
        elif method.name in own:
            methods[method.name] = answering(means, path, _bound(own[method.name], service), audited=False)
        else:
            act = _act(service, method)
            methods[method.name] = answering(means, path, act, audited=_right_of(method.name) == "admin")
    return methods


def served_methods() -> dict[str, bool]:
    """All methods of the service; False for those that answer UNIMPLEMENTED."""
    own = {"PollTask", "RegisterTaskWorker", "AwaitWorkflowEvent", "Whoami", "GetServerVersion"}
    return {method.name: method.name in own or _request(method) in COMMANDS or _is_read(method) for method in _METHODS}


def _right_of(method: str) -> str:
    """The right that a method needs."""
    if method.startswith(("Get", "List", "Search", "Count", "Await", "Validate")):
        return "read"
    return "admin" if method.startswith(_DEFINING) and method not in _OF_RUNS else "write"


def _request(method: MethodDescriptor) -> type[Message]:
    found: type[Message] = GetMessageClass(method.input_type)
    return found


def _is_read(method: MethodDescriptor) -> bool:
    return _request(method) in READS and _right_of(method.name) == "read" and method.name != "GetTaskWorkerGroup"


def _bound(function: Callable[[WorkflowService, Call, bytes], Awaitable[bytes]], service: WorkflowService) -> Act:
    return lambda call, data: function(service, call, data)


def _act(service: WorkflowService, method: MethodDescriptor) -> Act:
    request = _request(method)
    if request in COMMANDS:
        return _command(service, request, _right_of(method.name))
    if _is_read(method):
        return _read(service, request)
    return _unserved(method.name)


def _command(service: WorkflowService, kind: type[Message], right: str) -> Act:
    async def act(call: Call, data: bytes) -> bytes:
        tenant = _tenant(call, right)
        reply = await service.submit(tenant, parsed(kind, data))
        if kind is not ReportTaskRun:
            call.notes = {"tenant": tenant}
        return b"" if reply is None else shown(reply).SerializeToString()

    return act


def _read(service: WorkflowService, kind: type[Message]) -> Act:
    read = READS[kind]

    async def act(call: Call, data: bytes) -> bytes:
        tenant, request = _tenant(call, "read"), parsed(kind, data)
        reading = service.get if kind in GETS else service.read
        return await reading(tenant, lambda rows: read(rows, request).SerializeToString())

    return act


def _tenant(call: Call, right: str) -> str:
    tenant = tenant_of(call)
    need_tenant(call.caller, right, tenant)
    return tenant


def _unserved(name: str) -> Act:
    async def act(call: Call, data: bytes) -> bytes:
        del call, data
        raise Internal("this method is not served", kind="workflow_unserved", method=name,
                       hint="docs/workflows.md lists the methods that are")  # fmt: skip

    return act


# -- methods of their own ---------------------------------------------------------------------------------


async def _register(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The hosts that a worker polls, by the addresses that others use."""
    _tenant(call, "write")
    parsed(RegisterTaskWorkerRequest, data)
    await service.begin()
    addresses = (address.rpartition(":") for address in service.hosts())
    hosts = [LHHostInfo(host=host, port=int(port)) for host, _, port in addresses]
    return RegisterTaskWorkerResponse(your_hosts=hosts, is_cluster_healthy=True).SerializeToString()


async def _await_event(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The first event of a run, of the definitions that are named or of any, which the caller does not know yet."""
    tenant, request = _tenant(call, "read"), parsed(AwaitWorkflowEventRequest, data)
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
    """The caller: the name of the token, or `anonymous`."""
    del service, data
    name = "anonymous" if call.caller is ANYBODY else call.caller.name
    return Principal(id=PrincipalId(id=name)).SerializeToString()


async def _version(service: WorkflowService, call: Call, data: bytes) -> bytes:
    """The version of this release."""
    del service, call, data
    major, minor, patch = (int(part) for part in version("millpond").split(".")[:3])
    return LittleHorseVersion(major_version=major, minor_version=minor, patch_version=patch).SerializeToString()
