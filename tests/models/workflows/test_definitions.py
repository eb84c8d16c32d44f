"""Definitions: what is equal stays, what changes gets a version or an error, and broken specifications are errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    AllowedUpdateType,
    DeleteTaskDefRequest,
    DeleteWfSpecRequest,
    ExternalEvent,
    ExternalEventRetentionPolicy,
    PutExternalEventDefRequest,
    PutTaskDefRequest,
    PutUserTaskDefRequest,
    PutWfSpecRequest,
    PutWorkflowEventDefRequest,
    ReturnType,
    ScheduledTask,
    TaskDef,
    TaskRun,
    TypeDefinition,
    UserTaskDef,
    UserTaskField,
    Variable,
    VariableDef,
    VariableType,
    VariableValue,
    WfRun,
    WfSpec,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import AlreadyExists, Conflict, Invalid, NotFound
from millpond.workflows.engine.limits import VALUE_BYTES_MAX
from millpond.workflows.engine.values.masks import shown
from tests.models.workflows.specs import request
from tests.models.workflows.stage import Stage

STR = TypeDefinition(primitive_type=VariableType.STR)
INT = TypeDefinition(primitive_type=VariableType.INT)


def task_def(name: str, *types: TypeDefinition, masked: bool = False) -> PutTaskDefRequest:
    """A request for a task with inputs of these types."""
    inputs = [VariableDef(name=f"input-{at}", type_def=kind) for at, kind in enumerate(types)]
    for definition in inputs:
        definition.type_def.masked = masked
    return PutTaskDefRequest(name=name, input_vars=inputs)


def compiled(
    body: Callable[[WorkflowThread], None], updates: AllowedUpdateType = AllowedUpdateType.ALL_UPDATES
) -> PutWfSpecRequest:
    """A request for a specification, under one name."""
    found = Workflow("shop", body).compile()
    found.allowed_updates = updates
    return found


def put(stage: Stage, request: PutWfSpecRequest) -> tuple[int, int]:
    """The version that a specification gets."""
    found = stage.do(request)
    assert isinstance(found, WfSpec)
    return found.id.major_version, found.id.revision


def test_case_1_a_task_is_defined_once() -> None:
    stage = Stage()
    first = stage.do(task_def("greet", STR))
    stage.pass_time(1000)
    assert stage.do(task_def("greet", STR)) == first
    with pytest.raises(AlreadyExists):
        stage.do(task_def("greet", INT))
    stage.do(DeleteTaskDefRequest(id={"name": "greet"}))
    stage.do(DeleteTaskDefRequest(id={"name": "greet"}))
    assert stage.rows.get(TaskDef, ("greet",)) is None
    with pytest.raises(Invalid):
        stage.do(task_def("no_name"))


def test_events_and_user_tasks() -> None:
    stage = Stage()
    stage.do(PutExternalEventDefRequest(name="paid", content_type=ReturnType(return_type=STR)))
    stage.do(PutExternalEventDefRequest(name="paid", content_type=ReturnType(return_type=INT)))
    stage.do(PutWorkflowEventDefRequest(name="sent", content_type=ReturnType(return_type=STR)))
    stage.do(PutWorkflowEventDefRequest(name="sent", content_type=ReturnType(return_type=STR)))
    with pytest.raises(AlreadyExists):
        stage.do(PutWorkflowEventDefRequest(name="sent", content_type=ReturnType(return_type=INT)))
    versions = []
    for field in ("a", "a", "b"):
        found = stage.do(PutUserTaskDefRequest(name="approve", fields=[UserTaskField(name=field)]))
        assert isinstance(found, UserTaskDef)
        versions.append(found.version)
    assert versions == [0, 0, 1]


def test_case_2_versions_of_a_specification() -> None:
    stage = Stage()
    stage.do(task_def("work"))

    def first(wf: WorkflowThread) -> None:
        wf.declare_str("name")

    def with_task(wf: WorkflowThread) -> None:
        wf.declare_str("name")
        wf.execute("work")

    def required(wf: WorkflowThread) -> None:
        wf.declare_str("name").required()
        wf.execute("work")

    assert [put(stage, compiled(body)) for body in (first, first, with_task)] == [(0, 0), (0, 0), (0, 1)]
    with pytest.raises(Conflict, match=r"^The resulting WfSpec has a breaking change\.$") as broken:
        put(stage, compiled(required, AllowedUpdateType.MINOR_REVISION_UPDATES))
    assert broken.value.kind == "failed_precondition"
    with pytest.raises(AlreadyExists, match=r"^WfSpec already exists\.$"):
        put(stage, compiled(first, AllowedUpdateType.NO_UPDATES))
    assert put(stage, compiled(required)) == (1, 0)


def test_case_3_a_frozen_variable_never_changes_its_type() -> None:
    stage = Stage()
    bodies: list[Callable[[WorkflowThread], None]] = [
        lambda wf: wf.declare_str("name").as_public() and None,
        lambda wf: wf.declare_int("other") and None,
    ]
    assert [put(stage, compiled(body)) for body in bodies] == [(0, 0), (1, 0)]
    with pytest.raises(Invalid) as frozen:
        put(stage, compiled(lambda wf: wf.declare_int("name") and None))
    assert frozen.value.kind == "frozen_variable"
    assert put(stage, compiled(lambda wf: wf.declare_int("other").searchable() and None)) == (1, 1)


def test_broken_specifications() -> None:
    stage = Stage()
    stage.do(task_def("work", STR))
    whole = compiled(lambda wf: wf.execute("work", "x") and None)
    put(stage, whole)
    problems = {}
    for name, change in BROKEN.items():
        broken = PutWfSpecRequest()
        broken.CopyFrom(whole)
        change(broken)
        with pytest.raises(Invalid) as raised:
            stage.do(broken)
        problems[name] = raised.value.message
    assert len(set(problems.values())) == len(problems), problems


def _task_node(spec: PutWfSpecRequest) -> object:
    return spec.thread_specs["entrypoint"].nodes["1-work-TASK"]


def _add_self_loop(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["1-work-TASK"].outgoing_edges.add(sink_node_name="1-work-TASK")


def _lead_nowhere(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["1-work-TASK"].outgoing_edges[0].sink_node_name = "nowhere"


def _lead_to_entrypoint(spec: PutWfSpecRequest) -> None:
    thread = spec.thread_specs["entrypoint"]
    thread.nodes["1-work-TASK"].outgoing_edges[0].sink_node_name = "0-entrypoint-ENTRYPOINT"


def _unknown_task(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["1-work-TASK"].task.task_def_id.name = "other"


def _no_inputs(spec: PutWfSpecRequest) -> None:
    del spec.thread_specs["entrypoint"].nodes["1-work-TASK"].task.variables[:]


def _negative_retries(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["1-work-TASK"].task.retries = -1


def _unknown_variable(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["1-work-TASK"].task.variables[0].variable_name = "missing"


def _no_thread(spec: PutWfSpecRequest) -> None:
    spec.entrypoint_thread_name = "missing"


def _two_entrypoints(spec: PutWfSpecRequest) -> None:
    spec.thread_specs["entrypoint"].nodes["second"].entrypoint.SetInParent()


def _variable_twice(spec: PutWfSpecRequest) -> None:
    for _ in range(2):
        spec.thread_specs["entrypoint"].variable_defs.add(var_def=VariableDef(name="a", type_def=STR))


def _bad_name(spec: PutWfSpecRequest) -> None:
    spec.name = "no_name"


BROKEN: dict[str, Callable[[PutWfSpecRequest], None]] = {
    "self loop": _add_self_loop,
    "no sink": _lead_nowhere,
    "into the entrypoint": _lead_to_entrypoint,
    "unknown task": _unknown_task,
    "no inputs": _no_inputs,
    "negative retries": _negative_retries,
    "unknown variable": _unknown_variable,
    "no thread": _no_thread,
    "two entrypoints": _two_entrypoints,
    "variable twice": _variable_twice,
    "bad name": _bad_name,
}


def test_case_31_masked_values_are_clear_for_workers_alone() -> None:
    stage = Stage()
    stage.do(task_def("greet", STR, masked=True))
    stage.do(request("masked"))
    stage.run("masked", "r", {"secret": VariableValue(str="sesame")})
    scheduled = stage.claim("greet")
    assert isinstance(scheduled, ScheduledTask)
    assert scheduled.variables[0].value.str == "sesame"
    variable = stage.rows.get(Variable, ("r", 0, "secret"))
    task = stage.rows.get(TaskRun, ("r", "0-1"))
    assert variable is not None and task is not None
    assert shown(variable).value.str == "*****"
    assert shown(task).input_variables[0].value.str == "*****"
    assert variable.value.str == "sesame"


def test_case_37_retention_deletes_the_run() -> None:
    stage = Stage()
    spec = compiled(lambda wf: wf.declare_str("name") and None)
    spec.retention_policy.seconds_after_wf_termination = 5
    put(stage, spec)
    stage.run("shop", "r", {})
    stage.pass_time(4999)
    assert stage.rows.get(WfRun, ("r",)) is not None
    stage.pass_time(1)
    assert not [place for place in stage.rows.bytes if place[1][0] == "r"]
    assert not stage.timers


def test_case_43_an_oversized_output_fails_the_attempt_with_a_reason() -> None:
    stage = Stage()
    stage.do(task_def("work"))
    put(stage, compiled(lambda wf: wf.execute("work", retries=3) and None))
    stage.run("shop", "r", {})
    stage.claim("work")
    stage.report("r", "0-1", 0, "done", VariableValue(str="x" * (2 * VALUE_BYTES_MAX)))
    assert "output_serde_error" in stage.show("r")
    assert "VAR_MUTATION_ERROR: RESOURCE_EXHAUSTED" in stage.show("r")
    assert f"value_bytes_max={VALUE_BYTES_MAX}" in stage.show("r")
    assert stage.claim("work") is None


def test_an_oversized_input_is_named() -> None:
    stage = Stage()
    put(stage, compiled(lambda wf: wf.declare_str("name") and None))
    with pytest.raises(Invalid) as large:
        stage.run("shop", "r", {"name": VariableValue(str="x" * (VALUE_BYTES_MAX + 1))})
    assert "variable name" in large.value.message


def test_an_event_that_nobody_claims_expires() -> None:
    stage = Stage()
    policy = ExternalEventRetentionPolicy(seconds_after_put=5)
    stage.do(PutExternalEventDefRequest(name="ready", retention_policy=policy))
    stage.do(PutExternalEventDefRequest(name="ready", retention_policy=policy))
    stage.event("r", "ready", VariableValue(str="early"), "first")
    stage.event("s", "ready", VariableValue(str="early"), "first")
    put(stage, compiled(lambda wf: wf.wait_for_event("ready") and None))
    stage.run("shop", "s", {})
    stage.pass_time(5000)
    assert [key[0] for key, _event in stage.rows.list(ExternalEvent, ())] == ["s"]


# -- deleted specifications -------------------------------------------------------------------------------


def sleeps(wf: WorkflowThread) -> None:
    wf.sleep(4)


def sleeps_long(wf: WorkflowThread) -> None:
    wf.sleep(40)


def test_a_run_goes_on_with_its_specification_that_was_deleted() -> None:
    stage = Stage()
    spec = stage.do(compiled(sleeps))
    assert isinstance(spec, WfSpec)
    stage.run("shop", "r", {})
    stage.do(DeleteWfSpecRequest(id=spec.id))
    with pytest.raises(NotFound, match="Couldn't find WfSpec shop"):
        stage.run("shop", "s", {})
    stage.pass_time(4_000)
    assert stage.show("r").startswith("r COMPLETED")


def test_a_deleted_version_is_given_to_no_other_specification() -> None:
    stage = Stage()
    spec = stage.do(compiled(sleeps))
    assert isinstance(spec, WfSpec)
    stage.run("shop", "r", {})
    stage.do(DeleteWfSpecRequest(id=spec.id))
    other = stage.do(compiled(sleeps_long, AllowedUpdateType.NO_UPDATES))
    assert isinstance(other, WfSpec)
    assert (spec.id.revision, other.id.revision) == (0, 1)
    stage.pass_time(4_000)
    assert stage.show("r").startswith("r COMPLETED")
    assert stage.run("shop", "s", {}).wf_spec_id == other.id


def test_a_deleted_specification_that_is_put_again_is_back() -> None:
    stage = Stage()
    spec = stage.do(compiled(sleeps))
    assert isinstance(spec, WfSpec)
    stage.do(DeleteWfSpecRequest(id=spec.id))
    assert stage.do(compiled(sleeps)) == spec
    assert stage.run("shop", "r", {}).wf_spec_id == spec.id
