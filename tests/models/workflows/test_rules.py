"""Rules that the public client relies on, each where it shows: values, conditions, halts, pins, reports, words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    Array,
    DeleteUserTaskRunCommentRequest,
    ExternalEventDef,
    InlineStructBuilder,
    InlineStructDef,
    LHStatus,
    NodeRun,
    PutExternalEventDefRequest,
    PutStructDefRequest,
    PutTaskDefRequest,
    PutUserTaskRunCommentRequest,
    PutWfSpecRequest,
    PutWorkflowEventDefRequest,
    RescueThreadRunRequest,
    ReturnType,
    StructDefCompatibilityType,
    StructDefId,
    StructFieldDef,
    TaskDef,
    TaskRun,
    TaskStatus,
    TypeDefinition,
    UserTaskRunId,
    Variable,
    VariableAssignment,
    VariableDef,
    VariableMutation,
    VariableMutationType,
    VariableType,
    VariableValue,
    WfRun,
    WfSpec,
    WorkflowEventDef,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import AlreadyExists, Conflict, Invalid
from millpond.workflows.engine import run_id
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.values.conversions import plain
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_known_defects import found_run
from tests.models.workflows.test_scenarios import prepared

INT = TypeDefinition(primitive_type=VariableType.INT)
STR = TypeDefinition(primitive_type=VariableType.STR)
LIST = TypeDefinition(inline_array_def={"array_type": INT})


def node(stage: Stage, path: str, thread: int, position: int) -> NodeRun:
    found = stage.rows.get(NodeRun, (path, thread, position))
    assert found is not None
    return found


def failure(stage: Stage, path: str, position: int = 0) -> str:
    """The newest failure of a node of the first thread."""
    found = node(stage, path, 0, position).failures[-1]
    return f"{found.failure_name}: {found.message}"


def value(stage: Stage, path: str, name: str) -> VariableValue:
    found = stage.rows.get(Variable, (path, 0, name))
    assert found is not None
    return found.value


def array(*items: int) -> VariableValue:
    return VariableValue(array=Array(items=[VariableValue(int=item) for item in items]))


def define_struct(stage: Stage, struct: str, evolved: bool = False, **fields: TypeDefinition) -> None:
    every = {field: StructFieldDef(field_type=kind) for field, kind in fields.items()}
    if evolved:
        every["added"] = StructFieldDef(field_type=INT, default_value=VariableValue(int=1))
    stage.do(
        PutStructDefRequest(
            name=struct,
            struct_def=InlineStructDef(fields=every),
            allowed_updates=StructDefCompatibilityType.FULLY_COMPATIBLE_SCHEMA_UPDATES,
        )
    )


# -- numbers, arrays, structs ------------------------------------------------------------------------------


def test_a_value_that_cannot_be_computed_is_a_substitution_error() -> None:
    def body(wf: WorkflowThread) -> None:
        number = wf.declare_int("number")
        number.assign(number.divide(0))

    stage = Stage()
    stage.do(Workflow("divides", body).compile())
    stage.run("divides", "r", {"number": VariableValue(int=1)})
    assert failure(stage, "r").startswith("VAR_SUB_ERROR: Cannot divide by zero")


def extends(kind: TypeDefinition, other: TypeDefinition) -> PutWfSpecRequest:
    """A specification that extends an array by another value."""

    def body(wf: WorkflowThread) -> None:
        wf.declare_json_arr("list")
        wf.declare_json_arr("other")

    request = Workflow("extends", body).compile()
    thread = request.thread_specs["entrypoint"]
    for number, wanted in enumerate((kind, other)):
        thread.variable_defs[number].var_def.type_def.CopyFrom(wanted)
    thread.nodes["0-entrypoint-ENTRYPOINT"].outgoing_edges[0].variable_mutations.append(
        VariableMutation(
            lhs_name="list",
            operation=VariableMutationType.EXTEND,
            rhs_assignment=VariableAssignment(variable_name="other"),
        )
    )
    return request


@pytest.mark.parametrize(
    ("kind", "given", "other_kind", "other", "expected"),
    [
        (LIST, array(1, 2), LIST, array(3), [1, 2, 3]),
        (LIST, array(1, 2), INT, VariableValue(int=3), [1, 2, 3]),
        (
            TypeDefinition(inline_array_def={"array_type": LIST}),
            VariableValue(array=Array(items=[array(1, 2)])),
            LIST,
            array(3),
            [[1, 2], [3]],
        ),
    ],
)
def test_an_array_is_joined_with_its_like_and_takes_elements(
    kind: TypeDefinition, given: VariableValue, other_kind: TypeDefinition, other: VariableValue, expected: list[object]
) -> None:
    stage = Stage()
    stage.do(extends(kind, other_kind))
    stage.run("extends", "r", {"list": given, "other": other})
    assert plain(value(stage, "r", "list")) == expected


def test_a_value_has_the_types_that_its_variable_declares() -> None:
    stage = Stage()
    stage.do(extends(LIST, INT))
    wrong = array(1)
    wrong.array.element_type.CopyFrom(STR)
    stage.run("extends", "r", {"list": wrong})
    assert value(stage, "r", "list").array.element_type == INT


def test_a_struct_is_built_with_a_struct_inside() -> None:
    stage = Stage()
    define_struct(stage, "address", street=STR)
    define_struct(
        stage, "person", name=STR, address=TypeDefinition(struct_def_id=StructDefId(name="address", version=-1))
    )

    def body(wf: WorkflowThread) -> None:
        wf.declare_struct("made", "person").assign(wf.declare_str("name"))

    request = Workflow("builds", body)
    compiled = request.compile()
    entrypoint = compiled.thread_specs["entrypoint"].nodes["0-entrypoint-ENTRYPOINT"]
    built = entrypoint.outgoing_edges[0].variable_mutations[0].rhs_assignment
    built.Clear()
    built.struct_builder.struct_def_id.CopyFrom(StructDefId(name="person", version=-1))
    fields = built.struct_builder.value.fields
    fields["name"].simple_value.variable_name = "name"
    inner = InlineStructBuilder()
    inner.fields["street"].simple_value.literal_value.str = "Long Lane"
    fields["address"].sub_structure.CopyFrom(inner)
    stage.do(compiled)
    stage.run("builds", "r", {"name": VariableValue(str="Anna")})
    made = value(stage, "r", "made").struct
    assert made.struct_def_id == StructDefId(name="person", version=0)
    inside = made.struct.fields["address"].value.struct
    assert (inside.struct_def_id.name, inside.struct.fields["street"].value.str) == ("address", "Long Lane")


# -- conditions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize(
    ("left", "right", "outcome"),
    [
        ("1", "1", True), ("1.0", "1.0", True), ('"a"', '"b"', False), ("null", "1", False), ("null", "null", True),
        ("1", "1.0", None), ("2", '"2"', None), ("false", '"false"', None), ("[0]", "[0]", None),
        ('{"a":1}', '{"a":1}', None), ("2", '{"a":1}', None),
    ],
)  # fmt: skip
def test_values_that_cannot_be_compared_end_the_thread(
    equal: bool, left: str, right: str, outcome: bool | None
) -> None:
    def body(wf: WorkflowThread) -> None:
        given, answer = wf.declare_json_obj("given"), wf.declare_bool("answer")
        sides = given.with_json_path("$.left"), given.with_json_path("$.right")
        answer.assign(sides[0].is_equal_to(sides[1]) if equal else sides[0].is_not_equal_to(sides[1]))

    stage = Stage()
    stage.do(Workflow("compares", body).compile())
    stage.run("compares", "r", {"given": VariableValue(json_obj=f'{{"left":{left},"right":{right}}}')})
    if outcome is None:
        assert found_run(stage, "r").status == LHStatus.ERROR and "cannot be compared" in failure(stage, "r")
    else:
        assert plain(value(stage, "r", "answer")) is (outcome is equal)


# -- halts -------------------------------------------------------------------------------------------------


def interrupted(wf: WorkflowThread) -> None:
    wf.execute("work")
    wf.add_interrupt_handler("stopped", handles)


def handles(wf: WorkflowThread) -> None:
    wf.fail("i-fail", "failed")


def test_the_node_of_a_halted_thread_says_so_and_its_task_stays_as_it_was() -> None:
    stage = prepared()
    stage.do(PutExternalEventDefRequest(name="stopped"))
    stage.do(Workflow("interrupted", interrupted).compile())
    for path, claimed in (("queued", False), ("claimed", True)):
        stage.run("interrupted", path, {})
        if claimed:
            stage.claim("work")
        stage.event(path, "stopped", VariableValue(), "e")
        task = stage.rows.get(TaskRun, (path, "0-1"))
        thread = found_run(stage, path).thread_runs[0]
        if claimed:
            assert node(stage, path, 0, 1).status == thread.status == LHStatus.HALTING
            assert task is not None and task.status == TaskStatus.TASK_RUNNING
            stage.report(path, "0-1", 0, "done", VariableValue())
            thread = found_run(stage, path).thread_runs[0]
        else:
            assert task is not None and task.status == TaskStatus.TASK_SCHEDULED
        assert thread.status == LHStatus.EXCEPTION and thread.error_message == "Interrupt thread with id 1 failed!"
        assert found_run(stage, path).thread_runs[1].error_message == "failed"


def test_a_thread_that_waits_for_a_child_run_halts_when_that_ends() -> None:
    def waits(wf: WorkflowThread) -> None:
        wf.add_interrupt_handler("other", lambda inner: inner.execute("repair") and None)
        wf.wait_for_child_wf(wf.run_wf("child", {}))

    stage = prepared()
    stage.do(Workflow("child", lambda wf: wf.execute("work") and None).compile())
    stage.do(Workflow("waits", waits).compile())
    stage.run("waits", "r", {})
    stage.event("r", "other", VariableValue(), "e")
    child = node(stage, "r", 0, 1).run_child_wf.child_wf_run_id.id
    assert node(stage, "r", 0, 2).status == LHStatus.HALTING
    stage.claim("work")
    stage.report(f"r_{child}", "0-1", 0, "done", VariableValue())
    assert node(stage, "r", 0, 2).status == LHStatus.HALTED
    stage.claim("repair")
    stage.report("r", "1-1", 0, "done", VariableValue())
    assert found_run(stage, "r").status == LHStatus.COMPLETED


def test_the_rescue_of_a_child_run_lets_its_parents_wait_again() -> None:
    def waits(wf: WorkflowThread, child: str) -> None:
        wf.wait_for_child_wf(wf.run_wf(child, {}))

    stage = prepared()
    stage.do(Workflow("child", lambda wf: wf.execute("work") and None).compile())
    stage.do(Workflow("middle", lambda wf: waits(wf, "child")).compile())
    stage.do(Workflow("top", lambda wf: waits(wf, "middle")).compile())
    stage.run("top", "r", {})
    middle = f"r_{node(stage, 'r', 0, 1).run_child_wf.child_wf_run_id.id}"
    child = f"{middle}_{node(stage, middle, 0, 1).run_child_wf.child_wf_run_id.id}"
    stage.claim("work")
    stage.report(child, "0-1", 0, "failed", VariableValue(), "broken")
    assert [found_run(stage, path).status for path in ("r", middle, child)] == [LHStatus.ERROR] * 3
    stage.do(RescueThreadRunRequest(wf_run_id=run_id(child), thread_run_number=0))
    assert [found_run(stage, path).status for path in ("r", middle, child)] == [LHStatus.RUNNING] * 3
    stage.claim("work")
    stage.report(child, "0-2", 0, "done", VariableValue())
    assert [found_run(stage, path).status for path in ("r", middle, child)] == [LHStatus.COMPLETED] * 3
    assert node(stage, "r", 0, 3).WhichOneof("node_type") == "wait_for_child_wf"


# -- pins --------------------------------------------------------------------------------------------------


def test_a_definition_names_the_version_of_a_struct_that_was_the_newest() -> None:
    stage = Stage()
    define_struct(stage, "person", name=STR)
    person = TypeDefinition(struct_def_id=StructDefId(name="person", version=-1))
    task = PutTaskDefRequest(name="greet", input_vars=[VariableDef(name="who", type_def=person)])
    thrown = PutWorkflowEventDefRequest(name="greeted", content_type=ReturnType(return_type=person))
    external = PutExternalEventDefRequest(name="came", content_type=ReturnType(return_type=person))
    first = [stage.do(request) for request in (task, thrown, external)]
    define_struct(stage, "person", evolved=True, name=STR)
    assert [stage.do(request) for request in (task, thrown, external)] == first, "put again, it is the same"
    found = stage.rows.get(TaskDef, ("greet",))
    event = stage.rows.get(WorkflowEventDef, ("greeted",))
    other = stage.rows.get(ExternalEventDef, ("came",))
    assert found is not None and event is not None and other is not None
    assert found.input_vars[0].type_def.struct_def_id.version == 0
    assert event.content_type.return_type.struct_def_id.version == 0
    assert other.type_information.return_type.struct_def_id.version == 0
    nobody = TypeDefinition(struct_def_id=StructDefId(name="nobody", version=-1))
    with pytest.raises(Invalid, match="Refers to non-existent StructDef nobody"):
        stage.do(PutWorkflowEventDefRequest(name="other", content_type=ReturnType(return_type=nobody)))


def test_a_definition_of_an_older_version_of_the_program_is_still_the_same() -> None:
    stage = Stage()
    define_struct(stage, "person", name=STR)
    person = TypeDefinition(struct_def_id=StructDefId(name="person", version=-1))
    request = PutTaskDefRequest(name="greet", input_vars=[VariableDef(name="who", type_def=person)])
    stage.do(request)
    old = stage.rows.get(TaskDef, ("greet",))
    assert old is not None
    old.input_vars[0].type_def.struct_def_id.version = -1  # as versions were stored once
    stage.rows.bytes[TaskDef, ("greet",)] = old.SerializeToString(deterministic=True)
    assert stage.do(request) == old
    with pytest.raises(AlreadyExists, match=r"^TaskDef already exists and is immutable\.$"):
        stage.do(PutTaskDefRequest(name="greet"))


def test_the_deprecated_form_of_a_type_is_the_same_type() -> None:
    stage = Stage()
    first = stage.do(PutTaskDefRequest(name="add", input_vars=[VariableDef(name="n", type=VariableType.INT)]))
    assert isinstance(first, TaskDef) and first.input_vars[0].type_def == INT
    assert stage.do(PutTaskDefRequest(name="add", input_vars=[VariableDef(name="n", type_def=INT)])) == first


def test_a_child_is_pinned_to_the_major_version_and_runs_its_newest_revision() -> None:
    stage = prepared()

    def child(*optional: str, required: str = "user") -> None:
        def body(wf: WorkflowThread) -> None:
            wf.declare_str(required).required()
            for name in optional:
                wf.declare_str(name)

        stage.do(Workflow("child", body).compile())

    child()
    stage.do(Workflow("parent", lambda wf: wf.run_wf("child", {"user": "anna"}) and None).compile())
    child("hidden")
    child(required="other")
    spec = stage.rows.get(WfSpec, ("parent", 0, 0))
    assert spec is not None
    assert [n.run_child_wf.major_version for n in spec.thread_specs["entrypoint"].nodes.values()
            if n.HasField("run_child_wf")] == [0]  # fmt: skip
    stage.run("parent", "r", {})
    name = node(stage, "r", 0, 1).run_child_wf.child_wf_run_id.id
    started = stage.rows.get(WfRun, (f"r_{name}",))
    assert started is not None and (started.wf_spec_id.major_version, started.wf_spec_id.revision) == (0, 1)


# -- reports, words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "value", "words"),
    [
        (0, VariableValue(json_obj='{"a":'), "not valid JSON"),
        (0, VariableValue(json_arr="{}"), "not valid JSON"),
        (0, VariableValue(bytes=bytes(VALUE_BYTES_MAX)), "RESOURCE_EXHAUSTED"),
        (600_000, VariableValue(bytes=bytes(600_000)), "RESOURCE_EXHAUSTED"),
    ],
    ids=["object", "list", "large", "large together"],
)
def test_a_result_that_cannot_be_stored_ends_the_attempt(inputs: int, value: VariableValue, words: str) -> None:
    stage = Stage()
    anything = [VariableDef(name="data", type_def=TypeDefinition(primitive_type=VariableType.BYTES))]
    stage.do(PutTaskDefRequest(name="give", input_vars=anything))
    stage.do(Workflow("gives", lambda wf: wf.execute("give", wf.declare_bytes("data"), retries=2) and None).compile())
    stage.run("gives", "r", {"data": VariableValue(bytes=bytes(inputs))})
    stage.claim("give")
    stage.report("r", "0-1", 0, "done", value)
    task = stage.rows.get(TaskRun, ("r", "0-1"))
    assert task is not None and len(task.attempts) == 1
    assert task.status == TaskStatus.TASK_OUTPUT_SERDE_ERROR and words in task.attempts[0].error.message
    assert failure(stage, "r", 1).startswith("VAR_MUTATION_ERROR")


def test_a_deleted_comment_is_not_deleted_again() -> None:
    stage = prepared()
    stage.do(Workflow("asks", lambda wf: wf.assign_user_task("approval", "anna") and None).compile())
    stage.run("asks", "r", {})
    name = UserTaskRunId(wf_run_id=run_id("r"), user_task_guid="0-1")
    stage.do(PutUserTaskRunCommentRequest(user_task_run_id=name, user_id="anna", comment="wait"))
    stage.do(DeleteUserTaskRunCommentRequest(user_task_run_id=name, user_comment_id=1, user_id="anna"))
    for user in ("anna", ""):
        with pytest.raises(Conflict) as refused:
            stage.do(DeleteUserTaskRunCommentRequest(user_task_run_id=name, user_comment_id=1, user_id=user))
        assert refused.value.kind == "failed_precondition"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda wf: wf.run_wf("nobody", {}), "Could not find WfSpec nobody"),
        (
            lambda wf: wf.declare_int("n").assign(wf.declare_str("s")),
            "Mutation of variable n invalid: cannot use a STR as a INT",
        ),
        (
            lambda wf: wf.execute("greet", wf.declare_json_obj("o")),
            "The input name expects type STR but is type JSON_OBJ: cannot assign JSON_OBJ to STR",
        ),
        (
            lambda wf: wf.declare_bool("b").assign(wf.declare_int("n").cast_to_bool()),
            "Cannot cast from INT to BOOL. This conversion is not supported.",
        ),
        (lambda wf: wf.declare_int("n").assign(wf.declare_str("s").multiply(2)), "Cannot MULTIPLY to a STR"),
    ],
)  # fmt: skip
def test_a_refusal_begins_with_the_words_that_clients_look_for(
    body: Callable[[WorkflowThread], object], words: str
) -> None:
    stage = prepared()
    with pytest.raises(Invalid) as refused:
        stage.do(Workflow("wrong", lambda wf: body(wf) and None).compile())
    assert str(refused.value).startswith(words)


def test_a_user_task_is_for_somebody() -> None:
    def asks(wf: WorkflowThread) -> None:
        wf.assign_user_task("approval", wf.declare_str("user"), wf.declare_str("group"))

    stage = prepared()
    stage.do(Workflow("asks", asks).compile())
    for path, inputs, words in (
        ("none", {}, "Invalid user task assignment"),
        ("user", {"user": " "}, "Invalid user task assignment. UserId can't be empty"),
        ("group", {"group": " "}, "Invalid group task assignment. UserGroup can't be empty"),
    ):
        stage.run("asks", path, {name: VariableValue(str=text) for name, text in inputs.items()})
        assert failure(stage, path, 1) == f"VAR_ERROR: {words}"
