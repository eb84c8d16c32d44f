"""Messages that make no sense, for every method: each gets a documented status, and the server goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from littlehorse.model import service_pb2
from littlehorse.workflow import Workflow, WorkflowThread
from numpy.random import Generator, default_rng

from tests.armada.test_hostile import mutated

if TYPE_CHECKING:
    from tests.workflows.conftest import WorkflowServer

pytestmark = pytest.mark.sample(1, of="file")

SERVICE = service_pb2.DESCRIPTOR.services_by_name["LittleHorse"]
STREAMS = ("PollTask",)
DOCUMENTED = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
TEXTS = ("", "greet", "greeting", "ready", "run-1", "default", "é \x00", "a/b", "x" * 400, "1", "-1", "{}", "[1", "$.a")
NUMBERS = (0, 1, 2, 7, -1, 1 << 20, (1 << 31) - 1, -(1 << 31))
MEMBERS_MAX = 3
DEPTH_MAX = 5
_TEXT, _BYTES = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES


def number_of(field: FieldDescriptor, draw: Generator) -> Any:
    """A number, or a name of an enumeration that is, or is not, there."""
    number = NUMBERS[int(draw.integers(len(NUMBERS)))]
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(number & 1)
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return (float(number), float("nan"), float("inf"), 0.5)[int(draw.integers(4))]
        case FieldDescriptor.CPPTYPE_ENUM:
            return number % 9
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            return abs(number)
    return number


def value_of(field: FieldDescriptor, draw: Generator, depth: int) -> Any:
    """Something that a field may hold."""
    if field.message_type is not None:
        return filled(field.message_type, draw, depth + 1)
    if field.type in (_TEXT, _BYTES):
        text = TEXTS[int(draw.integers(len(TEXTS)))]
        return text.encode() if field.type == _BYTES else text
    return number_of(field, draw)


def filled(kind: Any, draw: Generator, depth: int = 0) -> Message:
    """A message of a kind with some fields, as deep as that."""
    made = GetMessageClass(kind)()
    for field in kind.fields:
        if draw.random() < (0.2 if depth else 0.1) or (field.message_type is not None and depth >= DEPTH_MAX):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(int(draw.integers(MEMBERS_MAX))):
                found = value_of(value, draw, depth)
                place = getattr(made, field.name)
                if isinstance(found, Message):
                    place[value_of(key, draw, depth)].CopyFrom(found)
                else:
                    place[value_of(key, draw, depth)] = found
        elif field.is_repeated:
            getattr(made, field.name).extend(
                value_of(field, draw, depth) for _ in range(int(draw.integers(MEMBERS_MAX)))
            )
        elif isinstance(found := value_of(field, draw, depth), Message):
            getattr(made, field.name).CopyFrom(found)
        else:
            setattr(made, field.name, found)
    return made


def status_of(channel: grpc.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    """The status and details of a call with these bytes."""
    call = channel.unary_unary(
        f"/littlehorse.LittleHorse/{method}", request_serializer=lambda raw: raw, response_deserializer=lambda raw: raw
    )
    try:
        call(data, timeout=5 if not method.startswith("Await") else 0.05)
    except grpc.RpcError as error:
        return error.code(), error.details()  # type: ignore[attr-defined]
    return grpc.StatusCode.OK, ""


def greeting(wf: WorkflowThread) -> None:
    name = wf.declare_str("name").searchable()
    wf.wait_for_event("ready")
    name.assign("b")


@pytest.fixture(scope="module")
def methods() -> list[Any]:
    return [method for method in SERVICE.methods if method.name not in STREAMS]


@pytest.mark.parametrize("seed", range(3))
def test_messages_without_sense_have_a_documented_status(
    workflow_server: WorkflowServer, methods: list[Any], seed: int
) -> None:
    from littlehorse.model import PutExternalEventDefRequest, RunWfRequest

    draw = default_rng(seed)
    with workflow_server.stub() as stub:
        stub.PutExternalEventDef(PutExternalEventDefRequest(name="ready"))
        stub.PutWfSpec(Workflow("greeting", greeting).compile())
        stub.RunWf(RunWfRequest(wf_spec_name="greeting", id="run-1"))
    wrong = []
    with grpc.insecure_channel(f"127.0.0.1:{workflow_server.grpc_port}") as channel:
        for _ in range(12):
            for method in methods:
                data = filled(method.input_type, draw).SerializeToString()
                for some in (data, mutated(data, draw)):
                    code, details = status_of(channel, method.name, some)
                    if code not in DOCUMENTED:
                        wrong.append((method.name, code, details, some))
    assert not wrong, (len(wrong), {(name, code, details) for name, code, details, _ in wrong})
    with workflow_server.stub() as stub:
        stub.PutWfSpec(Workflow("after", lambda wf: None).compile())
        assert stub.RunWf(RunWfRequest(wf_spec_name="after", id=f"after-{seed}")).id.id == f"after-{seed}"
        assert stub.Whoami(Empty()).id.id == "anonymous"


def test_a_search_for_every_kind_of_definition_and_node_is_answered(workflow_server: WorkflowServer) -> None:
    from littlehorse import model as lh

    with workflow_server.stub() as stub:
        stub.PutExternalEventDef(lh.PutExternalEventDefRequest(name="ready"))
        field = lh.UserTaskField(name="a", type=lh.VariableType.STR, display_name="A")
        stub.PutUserTaskDef(lh.PutUserTaskDefRequest(name="form", fields=[field]))
        stub.PutWfSpec(Workflow("greeting", greeting).compile())
        stub.RunWf(lh.RunWfRequest(wf_spec_name="greeting", id="waits"))
        assert [found.name for found in stub.SearchUserTaskDef(lh.SearchUserTaskDefRequest()).results] == ["form"]
        wanted = lh.SearchNodeRunRequest(external_event_def=lh.ExternalEventDefId(name="ready"))
        assert [found.wf_run_id.id for found in stub.SearchNodeRun(wanted).results] == ["waits"]


def timed(wf: WorkflowThread) -> None:
    wf.declare_timestamp("at").required()


@pytest.mark.parametrize("seconds", [1 << 60, -(1 << 60), 253402300800])
def test_an_instant_that_is_none_is_the_callers_mistake(workflow_server: WorkflowServer, seconds: int) -> None:
    from google.protobuf.timestamp_pb2 import Timestamp
    from littlehorse import model as lh

    with workflow_server.stub() as stub:
        stub.PutWfSpec(Workflow("timed", timed).compile())
        at = lh.VariableValue(utc_timestamp=Timestamp(seconds=seconds))
        with pytest.raises(grpc.RpcError) as caught:
            stub.RunWf(lh.RunWfRequest(wf_spec_name="timed", variables={"at": at}))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_a_worker_that_sends_nonsense_ends_its_stream_alone(workflow_server: WorkflowServer) -> None:
    draw = default_rng(7)
    with grpc.insecure_channel(f"127.0.0.1:{workflow_server.grpc_port}") as channel:
        poll = channel.stream_stream(
            "/littlehorse.LittleHorse/PollTask", request_serializer=lambda raw: raw,
            response_deserializer=lambda raw: raw,
        )  # fmt: skip
        kind = SERVICE.methods_by_name["PollTask"].input_type
        for _ in range(20):
            sent = mutated(filled(kind, draw).SerializeToString(), draw)
            call = poll(iter([sent]), timeout=0.3)
            with suppress(grpc.RpcError):
                list(call)
            assert call.code() in DOCUMENTED | {grpc.StatusCode.UNAVAILABLE}
    with workflow_server.stub() as stub:
        assert stub.Whoami(Empty()).id.id == "anonymous"
