"""Values of structs: their fields are those of the definition, wherever a value comes in."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    ExternalEventDefId,
    InlineArrayDef,
    LHStatus,
    NodeRun,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    PutTaskDefRequest,
    ReturnType,
    RunWfRequest,
    Struct,
    StructDefCompatibilityType,
    StructDefId,
    StructField,
    StructFieldDef,
    TaskRun,
    TypeDefinition,
    ValidateStructDefEvolutionRequest,
    Variable,
    VariableType,
    VariableValue,
    WfRun,
    WfRunId,
    WfSpec,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid
from millpond.workflows.engine.metadata.structs import evolution_is_valid
from millpond.workflows.engine.values.masks import shown
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_structs import COMPATIBLE, INT, NAME, NICK, put

PERSON = TypeDefinition(struct_def_id=StructDefId(name="person", version=-1))
AGE = StructFieldDef(field_type=INT, is_nullable=True)
CODE = StructFieldDef(field_type=TypeDefinition(primitive_type=VariableType.STR, masked=True), is_nullable=True)


def person(**fields: VariableValue) -> VariableValue:
    found = {name: StructField(value=value) for name, value in fields.items()}
    return VariableValue(struct=Struct(struct_def_id=StructDefId(name="person", version=-1), struct={"fields": found}))


ANNA = {"name": VariableValue(str="anna"), "age": VariableValue(), "code": VariableValue(str="secret")}


@pytest.fixture
def stage() -> Stage:
    """A stage with the struct `person`, and a workflow that passes one through a task and an event."""
    made = Stage()
    put(made, "person", name=NAME, age=AGE, code=CODE, nick=NICK)
    team = TypeDefinition(inline_array_def=InlineArrayDef(array_type=PERSON))
    made.do(PutTaskDefRequest(name="grow", return_type=ReturnType(return_type=PERSON)))
    made.do(PutExternalEventDefRequest(name="team", content_type=ReturnType(return_type=team)))

    def flow(wf: WorkflowThread) -> None:
        wf.declare_struct("someone", "person").required()
        wf.execute("grow")
        wf.wait_for_event("team")

    made.do(Workflow("flow", flow).compile())
    return made


def start(stage: Stage, value: VariableValue) -> None:
    stage.do(RunWfRequest(wf_spec_name="flow", id="r", variables={"someone": value}))


def test_a_specification_names_the_version_of_a_struct(stage: Stage) -> None:
    put(stage, "person", compatible=True, name=NAME, age=AGE, code=CODE, nick=NICK, text="newer")
    spec = stage.rows.get(WfSpec, ("flow", 0, 0))
    assert spec is not None
    declared = spec.thread_specs["entrypoint"].variable_defs[0].var_def.type_def
    assert declared.struct_def_id == StructDefId(name="person", version=0)
    start(stage, person(**ANNA))
    stored = stage.rows.get(Variable, ("r", 0, "someone"))
    assert stored is not None and stored.value.struct.struct_def_id.version == 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({**ANNA, "name": None}, "needs the field name"),
        ({**ANNA, "name": VariableValue()}, "field name of the struct person cannot be null"),
        ({**ANNA, "age": VariableValue(str="x")}, "field age of the struct person is of type INT, not STR"),
        ({**ANNA, "extra": VariableValue(int=1)}, None),
    ],
)
def test_an_input_lacks_no_field(stage: Stage, fields: dict[str, VariableValue | None], problem: str | None) -> None:
    value = person(**{name: found for name, found in fields.items() if found is not None})
    if problem is None:
        start(stage, value)
        return
    with pytest.raises(Invalid, match=problem):
        start(stage, value)
    assert stage.rows.get(WfRun, ("r",)) is None


def test_an_output_of_a_task_is_checked(stage: Stage) -> None:
    start(stage, person(**ANNA))
    assert stage.claim("grow") is not None
    stage.report("r", "0-1", 0, "done", person(age=VariableValue(int=7)))
    row = stage.rows.get(NodeRun, ("r", 0, 1))
    assert row is not None and row.status == LHStatus.ERROR
    assert row.failures[0].failure_name == "VAR_MUTATION_ERROR" and "needs the field name" in row.failures[0].message


def test_structs_in_an_event_are_checked_each(stage: Stage) -> None:
    start(stage, person(**ANNA))

    def send(*people: VariableValue) -> None:
        content = VariableValue(array={"items": people})
        event = ExternalEventDefId(name="team")
        stage.do(PutExternalEventRequest(wf_run_id=WfRunId(id="r"), external_event_def_id=event, content=content))

    with pytest.raises(Invalid, match="needs the field name"):
        send(person(**ANNA), person())
    send(person(**ANNA), person(**ANNA))


def test_masked_fields_are_shown_masked(stage: Stage) -> None:
    start(stage, person(**ANNA))
    assert stage.claim("grow") is not None
    stage.report("r", "0-1", 0, "done", person(**ANNA))
    variable = stage.rows.get(Variable, ("r", 0, "someone"))
    task = stage.rows.get(TaskRun, ("r", "0-1"))
    assert variable is not None and task is not None
    for value in (shown(variable).value, shown(task).attempts[0].output):
        fields = value.struct.struct.fields
        assert (fields["code"].value.str, fields["name"].value.str) == ("*****", "anna")
    assert variable.value.struct.struct.fields["code"].value.str == "secret"


def test_what_names_no_struct_is_refused() -> None:
    stage = Stage()
    with pytest.raises(Invalid, match="Refers to non-existent StructDef"):
        stage.do(PutTaskDefRequest(name="grow", return_type=ReturnType(return_type=PERSON)))
    with pytest.raises(Invalid, match=r"^Variable someone refers to non-existent StructDef person"):
        stage.do(Workflow("flow", lambda wf: wf.declare_struct("someone", "person") and None).compile())


@pytest.mark.parametrize(
    ("fields", "rule", "valid"),
    [
        ({"name": NAME, "nick": NICK}, StructDefCompatibilityType.NO_SCHEMA_UPDATES, True),
        ({"name": NAME}, StructDefCompatibilityType.NO_SCHEMA_UPDATES, False),
        ({"name": NAME}, COMPATIBLE, True),
        ({"nick": NICK}, COMPATIBLE, False),
        ({"name": NAME, "Bad_name": NICK}, COMPATIBLE, False),
    ],
)
def test_a_change_is_judged_without_being_made(
    fields: dict[str, StructFieldDef], rule: StructDefCompatibilityType, valid: bool
) -> None:
    stage = Stage()
    put(stage, "person", name=NAME, nick=NICK)
    before = dict(stage.rows.bytes)
    request = ValidateStructDefEvolutionRequest(
        struct_def_id=StructDefId(name="person"), struct_def={"fields": fields}, compatibility_type=rule
    )
    assert evolution_is_valid(stage.rows, request) is valid
    assert stage.rows.bytes == before
