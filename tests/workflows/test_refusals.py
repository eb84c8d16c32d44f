"""Rules of workflows through the client as installed, against a real server: what is refused, and what runs end with.

The tables are those of `docs/reference/workflow-rules.md`; the rules of meaning are tested in `tests/models/workflows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

pytest.importorskip("littlehorse")

import littlehorse
from littlehorse.config import LHConfig
from littlehorse.model import (
    ExternalEventDefId,
    GetLatestWfSpecRequest,
    InlineStructDef,
    LHStatus,
    NodeRunId,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutUserTaskDefRequest,
    PutWorkflowEventDefRequest,
    ReturnType,
    RunWfRequest,
    ScheduleWfRequest,
    SearchVariableRequest,
    SearchWfRunRequest,
    StructDefId,
    StructFieldDef,
    TypeDefinition,
    UserTaskField,
    VariableDef,
    VariableId,
    VariableMatch,
    VariableType,
    VariableValue,
    WfRunId,
    WorkflowEventDefId,
    WorkflowEventId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from tests.workflows.conftest import WorkflowServer

Body = Callable[[WorkflowThread], object]


def of(kind: VariableType) -> TypeDefinition:
    return TypeDefinition(primitive_type=kind)


INT, STR = of(VariableType.INT), of(VariableType.STR)
CAR = TypeDefinition(struct_def_id=StructDefId(name="car", version=-1))
COUNTED = StructFieldDef(field_type=INT, default_value=VariableValue(int=4))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LHConfig]:
    """The client's configuration for a server on which tasks, events, a struct and a child are defined."""
    server = WorkflowServer(tmp_path_factory.mktemp("rules") / "pond")
    server.start()
    found = LHConfig()
    found.load({"LHC_API_HOST": "127.0.0.1", "LHC_API_PORT": str(server.grpc_port)})
    stub = found.stub()
    for name, type_ in (("number", INT), ("text", STR)):
        inputs = [VariableDef(name="in", type_def=type_)]
        stub.PutTaskDef(PutTaskDefRequest(name=name, input_vars=inputs, return_type=ReturnType(return_type=type_)))
    stub.PutStructDef(PutStructDefRequest(name="car", struct_def=InlineStructDef(fields={"wheels": COUNTED})))
    stub.PutExternalEventDef(PutExternalEventDefRequest(name="paid", content_type=ReturnType(return_type=CAR)))
    stub.PutWorkflowEventDef(PutWorkflowEventDefRequest(name="sold", content_type=ReturnType(return_type=INT)))
    stub.PutUserTaskDef(
        PutUserTaskDefRequest(name="approve", fields=[UserTaskField(name="yes", type=VariableType.BOOL)])
    )
    register(found, "child", lambda wf: (wf.declare_int("count").required(), wf.complete("hello")))
    yield found
    server.end()


def register(config: LHConfig, name: str, body: Body) -> None:
    """Register a workflow as programs do it."""

    def entrypoint(wf: WorkflowThread) -> None:
        body(wf)

    littlehorse.create_workflow_spec(Workflow(name, entrypoint), config)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """The code and the words of a refusal."""
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error: Any = refused.value
    return error.code().name, error.details()


def returns_two(wf: WorkflowThread) -> None:
    wf.do_if(wf.declare_bool("flag").is_equal_to(True), lambda inner: inner.complete(1))
    wf.complete("text")


def returns_once(wf: WorkflowThread) -> None:
    wf.do_if(wf.declare_bool("flag").is_equal_to(True), lambda inner: inner.complete(1))


def thread_without(wf: WorkflowThread) -> None:
    wf.spawn_thread(lambda inner: inner.declare_int("count").required() and None, "other", {})


REFUSED: list[tuple[Body, str]] = [
    (
        lambda wf: wf.declare_int("n").assign(wf.declare_str("s")),
        "Mutation of variable n invalid: cannot use a STR as a INT",
    ),
    (
        lambda wf: wf.declare_int("n").assign(wf.execute("text", "x")),
        "Mutation of variable n invalid: cannot use a STR as a INT",
    ),
    (
        lambda wf: wf.execute("number", wf.execute("text", "x")),
        "The input in expects type INT but is type STR: cannot assign STR to INT",
    ),
    (
        lambda wf: wf.execute("number", wf.wait_for_event("paid")),
        "The input in expects type INT but is type STRUCT car",
    ),
    (
        lambda wf: wf.declare_bool("b").assign(wf.declare_int("n").cast_to_bool()),
        "Cannot cast from INT to BOOL. This conversion is not supported.",
    ),
    (
        lambda wf: wf.declare_bool("b").assign(wf.declare_int("n")),
        "Mutation of variable b invalid: cannot use a INT as a BOOL",
    ),
    (lambda wf: wf.declare_int("n").assign(wf.declare_str("s").multiply(2)), "Cannot MULTIPLY to a STR"),
    (
        lambda wf: wf.declare_int("n").assign(wf.declare_struct("c", "car").get("wings")),
        "Could not find field 'wings' of the struct",
    ),
    (returns_two, "the exits of a thread returned different output types"),
    (returns_once, "one exit of a thread returns void, and another returns non-void"),
    (lambda wf: wf.run_wf("child", {}), "the child needs an input that it is not given"),
    (lambda wf: wf.run_wf("child", {"count": "many"}), "The input count expects type INT but is type STR"),
    (lambda wf: wf.run_wf("child", {"count": 1, "more": 2}), "the child takes no such input"),
    (
        lambda wf: wf.declare_int("n").assign(wf.wait_for_child_wf(wf.run_wf("child", {"count": 1}))),
        "Mutation of variable n invalid: cannot use a STR as a INT",
    ),
    (thread_without, "the child needs an input that it is not given"),
    (lambda wf: wf.throw_event("sold", "many"), "The content of sold expects type INT but is type STR"),
    (lambda wf: wf.run_wf("nobody", {}), "Could not find WfSpec nobody"),
    (lambda wf: wf.execute("nothing"), "Refers to nonexistent TaskDef nothing"),
    (lambda wf: wf.execute("number"), "For TaskDef number we need 1 input vars, but we have 0"),
    (lambda wf: wf.wait_for_event("nothing"), "Refers to nonexistent ExternalEventDef nothing"),
    (lambda wf: wf.throw_event("nothing", 1), "Refers to missing workflowEventDef nothing"),
    (lambda wf: wf.declare_struct("s", "nothing"), "Variable s refers to non-existent StructDef nothing"),
    (lambda wf: wf.assign_user_task("nothing", "anna"), "Specified UserTaskDef nothing not found"),
]  # fmt: skip


def test_registration_refuses_what_cannot_run_in_the_words_that_clients_look_for(config: LHConfig) -> None:
    wrong = []
    for number, (body, words) in enumerate(REFUSED):
        code, answer = refusal(lambda body=body: register(config, "wrong", body))
        if code != "INVALID_ARGUMENT" or not answer.startswith(words):
            wrong.append((number, words, code, answer))
    assert wrong == []
    code, answer = refusal(lambda: config.stub().GetLatestWfSpec(GetLatestWfSpecRequest(name="wrong")))
    assert (code, answer.startswith("Couldn't find specified WfSpec")) == ("NOT_FOUND", True)


@pytest.mark.parametrize(
    ("field", "words"), [("user_id", "UserId can't be empty"), ("user_group", "UserGroup can't be empty")]
)
def test_a_user_task_is_for_a_named_user_or_group(config: LHConfig, field: str, words: str) -> None:
    request = Workflow("asks", lambda wf: wf.assign_user_task("approve", "anna", "all") and None).compile()
    nodes = request.thread_specs["entrypoint"].nodes
    [asks] = [node.user_task for node in nodes.values() if node.HasField("user_task")]
    getattr(asks, field).literal_value.str = " "
    assert refusal(lambda: config.stub().PutWfSpec(request))[1].startswith(words)
    asks.ClearField("user_id")
    asks.ClearField("user_group")
    assert refusal(lambda: config.stub().PutWfSpec(request))[1].startswith("Must specify userGroup or userId")


def divided(wf: WorkflowThread) -> None:
    whole, real = wf.declare_int("whole"), wf.declare_double("real")
    real.assign(wf.declare_int("seven", 7).divide(2.0))
    whole.assign(wf.declare_int("five", 5).divide(2.0).multiply(2))


def test_intermediate_results_stay_double(config: LHConfig) -> None:
    register(config, "divided", divided)
    stub = config.stub()
    stub.RunWf(RunWfRequest(wf_spec_name="divided", id="divided"))
    values = [stub.GetVariable(VariableId(wf_run_id=WfRunId(id="divided"), thread_run_number=0, name=name)).value
              for name in ("real", "whole")]  # fmt: skip
    assert values == [VariableValue(double=3.5), VariableValue(int=5)]


def by_zero(wf: WorkflowThread) -> None:
    number = wf.declare_int("number", 1)
    number.assign(number.divide(0))


def behind_null(wf: WorkflowThread) -> None:
    wf.declare_int("n").assign(wf.declare_json_obj("o", {"a": None}).with_json_path("$.a.b"))


def incomparable(wf: WorkflowThread) -> None:
    given = wf.declare_json_obj("o", {"a": 1, "b": "1"})
    wf.do_if(given.with_json_path("$.a").is_equal_to(given.with_json_path("$.b")), lambda inner: None)


def thrown_wrong(wf: WorkflowThread) -> None:
    wf.throw_event("sold", wf.declare_json_obj("o", {"a": "x"}).with_json_path("$.a"))


@pytest.mark.parametrize(
    ("body", "position", "words"),
    [
        (by_zero, 0, "VAR_SUB_ERROR: Cannot divide by zero"),
        (behind_null, 0, "VAR_SUB_ERROR: Missing property in path '$.a.b'"),
        (incomparable, 1, "VAR_SUB_ERROR: INT and STR cannot be compared"),
        (thrown_wrong, 1, "VAR_SUB_ERROR: Failed calculating content of workflow Event: "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_ends_with_the_error_that_clients_look_for(
    config: LHConfig, body: Body, position: int, words: str
) -> None:
    name = body.__name__.replace("_", "-")
    register(config, name, body)
    stub = config.stub()
    assert stub.RunWf(RunWfRequest(wf_spec_name=name, id=name)).status == LHStatus.ERROR
    row = stub.GetNodeRun(NodeRunId(wf_run_id=WfRunId(id=name), thread_run_number=0, position=position))
    failure = row.failures[-1]
    assert f"{failure.failure_name}: {failure.message}".startswith(words)


def test_events_have_the_content_of_their_types(config: LHConfig) -> None:
    def body(wf: WorkflowThread) -> None:
        wheels = wf.declare_int("wheels")
        wheels.assign(wf.declare_struct("car", "car").get("wheels"))
        wf.throw_event("sold", wheels)

    def receives(wf: WorkflowThread) -> None:
        wf.declare_struct("car", "car").assign(wf.wait_for_event("paid"))

    register(config, "receives", receives)
    stub = config.stub()
    run = stub.RunWf(RunWfRequest(wf_spec_name="receives", id="receives")).id
    empty = VariableValue(struct={"struct": {}})

    def put(content: VariableValue) -> Any:
        event = ExternalEventDefId(name="paid")
        return stub.PutExternalEvent(
            PutExternalEventRequest(wf_run_id=run, external_event_def_id=event, content=content)
        )

    name_of_event = ExternalEventDefId(name="paid")
    for guid in ("a\x1b[2J", "a\n", "\u202eb"):
        named = PutExternalEventRequest(wf_run_id=run, external_event_def_id=name_of_event, guid=guid, content=empty)
        code, answer = refusal(lambda named=named: stub.PutExternalEvent(named))  # type: ignore[misc]
        assert code == "INVALID_ARGUMENT" and answer.startswith("not a valid name") and guid not in answer
    code, answer = refusal(lambda: put(VariableValue(str="x")))
    assert code == "INVALID_ARGUMENT"
    assert answer.startswith("Invalid type of content for event. Check the return type of ExternalEventDef paid")
    assert put(empty).content.struct.struct.fields["wheels"].value.int == 4, "a field that is absent has its default"
    assert stub.GetWfRun(run).status == LHStatus.COMPLETED

    register(config, "throws", body)
    stub.RunWf(RunWfRequest(wf_spec_name="throws", id="throws", variables={"car": empty}))
    name = WorkflowEventId(wf_run_id=WfRunId(id="throws"), workflow_event_def_id=WorkflowEventDefId(name="sold"))
    assert stub.GetWorkflowEvent(name).content == VariableValue(int=4)


def test_a_specification_that_does_not_exist_is_told_by_its_name(config: LHConfig) -> None:
    stub = config.stub()
    value = VariableValue(int=1)
    match = VariableMatch(var_name="n", value=value)
    for expected, call in (
        ("NOT_FOUND", lambda: stub.RunWf(RunWfRequest(wf_spec_name="nobody"))),
        (
            "INVALID_ARGUMENT",
            lambda: stub.ScheduleWf(ScheduleWfRequest(wf_spec_name="nobody", cron_expression="* * * * *")),
        ),
        (
            "INVALID_ARGUMENT",
            lambda: stub.SearchWfRun(SearchWfRunRequest(wf_spec_name="nobody", variable_filters=[match])),
        ),
        (
            "INVALID_ARGUMENT",
            lambda: stub.SearchVariable(SearchVariableRequest(wf_spec_name="nobody", var_name="n", value=value)),
        ),
    ):
        code, answer = refusal(call)
        assert (code, answer.startswith("Couldn't find WfSpec nobody")) == (expected, True), answer


def test_another_type_of_output_is_a_new_major_version(config: LHConfig) -> None:
    for value, version in ((1, (0, 0)), (2, (0, 1)), ("text", (1, 0))):
        register(config, "gives", lambda wf, value=value: wf.complete(value))
        found = config.stub().GetLatestWfSpec(GetLatestWfSpecRequest(name="gives")).id
        assert (found.major_version, found.revision) == version
