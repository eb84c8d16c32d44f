"""Child runs and checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    Checkpoint,
    DeleteWfSpecRequest,
    LHStatus,
    NodeRun,
    PutCheckpointRequest,
    PutCheckpointResponse,
    PutTaskDefRequest,
    RunWfRequest,
    TaskRunId,
    Variable,
    VariableValue,
    WfRun,
    WfRunId,
    WfSpec,
    WfSpecId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import AlreadyExists, Conflict, Invalid
from millpond.workflows.engine import run_path
from millpond.workflows.engine.limits import RUN_DEPTH_MAX
from tests.models.workflows.stage import Stage


def with_parent(wf: WorkflowThread) -> None:
    shared = wf.declare_int("shared").as_inherited()
    shared.assign(shared.add(1))


def test_case_32_a_child_shares_the_variables_that_it_inherits() -> None:
    stage = Stage()
    stage.do(PutTaskDefRequest(name="work"))

    def parent(wf: WorkflowThread) -> None:
        wf.declare_int("shared", 1).as_public()
        wf.execute("work")

    stage.do(Workflow("parent", parent).compile())
    child = Workflow("child", with_parent, parent_wf="parent").compile()
    stage.do(child)
    with pytest.raises(Invalid):
        stage.run("child", "c", {})
    orphan = RunWfRequest(wf_spec_name="child", id="c", parent_wf_run_id=WfRunId(id="p"))
    with pytest.raises(Conflict):
        stage.do(orphan)
    for name in ("p", "q"):
        stage.run("parent", name, {})
        stage.do(RunWfRequest(wf_spec_name="child", id="c", parent_wf_run_id=WfRunId(id=name)))
        shared = stage.rows.get(Variable, (name, 0, "shared"))
        assert shared is not None and shared.value.int == 2
    with pytest.raises(AlreadyExists, match="WfRun with id c already exists!"):
        stage.do(orphan)


def test_a_parent_exists_in_some_version_and_its_newest_shares_what_a_child_inherits() -> None:
    stage = Stage()
    for inherits in (with_parent, lambda wf: wf.sleep(1)):
        with pytest.raises(Invalid, match=r"the parent specification does not exist.*parent=parent"):
            stage.do(Workflow("child", inherits, parent_wf="parent").compile())
    stage.do(Workflow("parent", lambda wf: wf.sleep(1)).compile())
    with pytest.raises(Invalid, match="shares no such variable"):
        stage.do(Workflow("child", with_parent, parent_wf="parent").compile())
    newest = stage.do(Workflow("parent", lambda wf: wf.declare_int("shared", 1).as_public() and None).compile())
    assert isinstance(newest, WfSpec) and newest.id.major_version == 1
    stage.do(Workflow("child", with_parent, parent_wf="parent").compile())


def family(body: str) -> Stage:
    """A stage with a run `p` that has started a child of a specification, and waits for it."""
    stage = Stage()
    stage.do(PutTaskDefRequest(name="work"))

    def child(wf: WorkflowThread) -> None:
        result = wf.declare_str("result")
        result.assign(wf.execute("work"))
        wf.complete(result)

    def parent(wf: WorkflowThread) -> None:
        result = wf.declare_str("result")
        result.assign(wf.wait_for_child_wf(wf.run_wf("child", {})))

    stage.do(Workflow("child", child).compile())
    stage.do(Workflow("parent", parent).compile())
    stage.run("parent", "p", {})
    task = stage.claim("work")
    assert task is not None
    path = run_path(task.task_run_id.wf_run_id)
    assert path.startswith("p_")
    stage.report(path, "0-1", 0, body, VariableValue(str="output"), "broken")
    return stage


@pytest.mark.parametrize(
    ("body", "status", "failure"),
    [("done", "COMPLETED", None), ("failed", "ERROR", "CHILD_FAILURE"), ("sad", "EXCEPTION", "sad")],
)
def test_case_33_a_child_run_ends_its_parents_wait(body: str, status: str, failure: str | None) -> None:
    stage = family(body)
    run = stage.rows.get(WfRun, ("p",))
    row = stage.rows.get(NodeRun, ("p", 0, 2))
    result = stage.rows.get(Variable, ("p", 0, "result"))
    assert run is not None and row is not None and result is not None
    assert LHStatus.Name(run.status) == status
    assert [found.failure_name for found in row.failures] == ([failure] if failure else [])
    assert result.value.str == ("output" if body == "done" else "")


def test_case_33_a_missing_specification_fails_the_node() -> None:
    stage = Stage()

    stage.do(Workflow("child", lambda wf: None).compile())
    stage.do(Workflow("parent", lambda wf: wf.run_wf("child", {}) and None).compile())
    stage.do(DeleteWfSpecRequest(id=WfSpecId(name="child")))
    stage.run("parent", "p", {})
    row = stage.rows.get(NodeRun, ("p", 0, 1))
    assert row is not None and not row.run_child_wf.HasField("child_wf_run_id")
    assert [found.failure_name for found in row.failures] == ["CHILD_FAILURE"]


def test_a_specification_that_runs_itself_ends() -> None:
    stage = Stage()
    stage.do(Workflow("self", lambda wf: wf.run_wf("self", {}) and None).compile())
    stage.run("self", "p", {})
    runs = [row for _key, row in stage.rows.list(WfRun, ())]
    assert len(runs) == RUN_DEPTH_MAX
    assert [LHStatus.Name(run.status) for run in runs].count("ERROR") == 1


def test_case_44_checkpoints() -> None:
    stage = Stage()
    stage.do(PutTaskDefRequest(name="work"))
    found = stage.do(Workflow("shop", lambda wf: wf.execute("work", retries=1, timeout_seconds=2) and None).compile())
    assert isinstance(found, WfSpec)
    stage.run("shop", "r", {})
    stage.claim("work")
    name = TaskRunId(wf_run_id=WfRunId(id="r"), task_guid="0-1")
    request = PutCheckpointRequest(task_run_id=name, task_attempt=0, value=VariableValue(int=7))
    for _ in range(3):  # no timeout while checkpoints come
        stage.pass_time(1500)
        answer = stage.do(request)
        assert isinstance(answer, PutCheckpointResponse)
        assert answer.flow_control_continue_type == PutCheckpointResponse.CONTINUE_TASK
    stage.pass_time(2000)
    late = stage.do(request)
    assert isinstance(late, PutCheckpointResponse)
    assert late.flow_control_continue_type == PutCheckpointResponse.STOP_TASK
    again = stage.claim("work")
    assert again is not None and (again.attempt_number, again.total_observed_checkpoints) == (1, 3)
    assert len(list(stage.rows.list(Checkpoint, ("r", "0-1")))) == 3
    stage.report("r", "0-1", 1, "done", VariableValue())  # a worker always sends 0 as its number of checkpoints
    assert stage.show("r").startswith("r COMPLETED")
    with pytest.raises(Invalid):
        stage.do(PutCheckpointRequest(task_run_id=TaskRunId(wf_run_id=WfRunId(id="r"), task_guid="9-9")))
