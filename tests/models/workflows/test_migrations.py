"""Migrations: a run goes on with another version, whole, or stays as it is; tried on a copy, it is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    DeleteWorkflowMigrationPlanRequest,
    LHStatus,
    NodeRun,
    PutWorkflowMigrationPlanRequest,
    RescueThreadRunRequest,
    Variable,
    VariableAssignment,
    VariableValue,
    WfRun,
    WfSpecId,
    WorkflowMigrationPlan,
    WorkflowMigrationPlanId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.engine import Command, apply, run_id
from millpond.workflows.engine.values.conversions import plain
from tests.models.workflows.stage import Stage, as_bytes
from tests.models.workflows.test_known_defects import found_run
from tests.models.workflows.test_scenarios import prepared


def old(wf: WorkflowThread) -> None:
    name = wf.declare_str("name")
    name.assign(wf.execute("greet", "anna"))
    wf.wait_for_event("ready")
    wf.execute("work")


def new(wf: WorkflowThread) -> None:
    """One task more before the event, a variable more, and another task behind it."""
    name, count = wf.declare_str("name"), wf.declare_int("count", 7)
    wf.execute("repair")
    name.assign(wf.execute("greet", "anna"))
    wf.wait_for_event("ready")
    wf.execute("greet", name)
    count.assign(8)


PLAN = {
    "1-greet-TASK": "2-greet-TASK",
    "2-ready-EXTERNAL_EVENT": "3-ready-EXTERNAL_EVENT",
    "3-work-TASK": "1-repair-TASK",
}


@pytest.fixture
def stage() -> Stage:
    """Two versions of a workflow, and a plan from one to the other."""
    found = prepared()
    for body in (old, new):
        found.do(Workflow("flow", body).compile())
    found.do(plan())
    return found


def plan(name: str = "fix", nodes: dict[str, str] = PLAN, revision: int = 1) -> PutWorkflowMigrationPlanRequest:
    request = PutWorkflowMigrationPlanRequest(
        name=name, old_wfSpec=WfSpecId(name="flow", major_version=0, revision=0), major_version=0, revision=revision
    )
    request.thread_migrations["entrypoint"].new_thread_name = "entrypoint"
    for before, after in nodes.items():
        request.thread_migrations["entrypoint"].node_migrations[before].new_node_name = after
    return request


def moves(path: str, name: str = "fix") -> ApplyWorkflowMigrationPlanRequest:
    return ApplyWorkflowMigrationPlanRequest(id=WorkflowMigrationPlanId(name=name), wfRun_id=run_id(path))


def begin(stage: Stage, path: str, steps: int) -> None:
    """A run of the old version: at its first task, at the event, or at its second task."""
    from littlehorse.model import RunWfRequest

    stage.do(RunWfRequest(wf_spec_name="flow", id=path, major_version=0, revision=0))
    if steps > 0:
        stage.claim("greet")
        stage.report(path, "0-1", 0, "done", VariableValue(str="hello"))
    if steps > 1:
        stage.event(path, "ready", VariableValue(str="go"), "e")


def current(stage: Stage, path: str) -> tuple[int, str, str]:
    thread = found_run(stage, path).thread_runs[0]
    row = stage.rows.get(NodeRun, (path, 0, thread.current_node_position))
    assert row is not None
    return row.id.position, row.node_name, LHStatus.Name(row.status)


def test_a_node_that_does_the_same_goes_on_under_its_new_name(stage: Stage) -> None:
    begin(stage, "r", 1)
    stage.do(moves("r"))
    run = found_run(stage, "r")
    assert (run.wf_spec_id.revision, run.old_wf_spec_versions[0].revision) == (1, 0)
    assert current(stage, "r") == (2, "3-ready-EXTERNAL_EVENT", "RUNNING")
    variables = {key[2]: plain(row.value) for key, row in stage.rows.list(Variable, ("r", 0))}
    assert variables == {"name": "hello", "count": 7}
    stage.event("r", "ready", VariableValue(str="go"), "e")
    stage.claim("greet")
    stage.report("r", "0-3", 0, "done", VariableValue(str="again"))
    assert found_run(stage, "r").status == LHStatus.COMPLETED
    assert plain(stage.rows.get(Variable, ("r", 0, "count")).value) == 8  # type: ignore[union-attr]


def test_a_claimed_task_is_not_done_twice(stage: Stage) -> None:
    begin(stage, "kept", 0)
    stage.claim("greet")
    stage.do(moves("kept"))
    assert current(stage, "kept") == (1, "2-greet-TASK", "RUNNING")
    stage.report("kept", "0-1", 0, "done", VariableValue(str="hello"))
    assert current(stage, "kept")[1] == "3-ready-EXTERNAL_EVENT"
    begin(stage, "left", 2)
    stage.claim("work")
    with pytest.raises(Conflict, match="wait for its report"):
        stage.do(moves("left"))
    assert found_run(stage, "left").wf_spec_id.revision == 0


def test_a_node_that_does_something_else_is_left(stage: Stage) -> None:
    begin(stage, "r", 2)
    stage.do(moves("r"))
    assert current(stage, "r") == (4, "1-repair-TASK", "RUNNING")
    assert stage.queues["work"] == []
    assert stage.claim("repair") is not None


def test_a_run_that_failed_is_mended_by_a_migration_and_a_rescue(stage: Stage) -> None:
    begin(stage, "r", 0)
    stage.claim("greet")
    stage.report("r", "0-1", 0, "failed", VariableValue(), "broken")
    stage.do(moves("r"))
    assert found_run(stage, "r").status == LHStatus.ERROR
    stage.do(RescueThreadRunRequest(wf_run_id=run_id("r"), thread_run_number=0))
    assert current(stage, "r") == (2, "2-greet-TASK", "RUNNING")


def test_a_variable_gets_the_value_that_the_request_gives(stage: Stage) -> None:
    begin(stage, "r", 1)
    request = moves("r")
    given = request.migration_vars_by_thread["entrypoint"].var_assignment_by_var_name
    given["count"].CopyFrom(VariableAssignment(literal_value=VariableValue(int=3)))
    stage.now += 60_000
    stage.do(request)
    count = stage.rows.get(Variable, ("r", 0, "count"))
    assert count is not None and plain(count.value) == 3
    assert count.created_at == found_run(stage, "r").start_time  # a search meets it at the time of its run


def test_what_cannot_go_on_stays_as_it_is(stage: Stage) -> None:
    def other(wf: WorkflowThread) -> None:
        wf.declare_int("name")
        wf.execute("work")

    stage.do(Workflow("flow", other).compile())
    stage.do(plan("nowhere", {}, revision=2))
    stage.do(plan("retyped", {"2-ready-EXTERNAL_EVENT": "1-work-TASK"}, revision=2))
    begin(stage, "r", 1)
    before = dict(stage.rows.bytes)
    for name, problem in (("nowhere", "no such node"), ("retyped", "another type")):
        with pytest.raises(Invalid, match=problem):
            stage.do(moves("r", name))
    with pytest.raises(NotFound):
        stage.do(moves("r", "unknown"))
    with pytest.raises(NotFound):
        stage.do(moves("unknown"))
    assert stage.rows.bytes == before
    stage.do(moves("r"))
    with pytest.raises(Conflict, match="another version"):
        stage.do(moves("r"))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_trial_on_a_copy_says_what_the_migration_does(stage: Stage, steps: int) -> None:
    begin(stage, "r", steps)
    before = dict(stage.rows.bytes)
    tried = apply(stage.rows, Command("tried", moves("r")), stage.now)
    assert stage.rows.bytes == before
    done = apply(stage.rows, Command("done", moves("r")), stage.now)
    assert as_bytes(tried) == as_bytes(done)
    assert isinstance(tried.reply, WfRun) and tried.reply.wf_spec_id.revision == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda request: request.thread_migrations["other"].SetInParent(), "a thread of the plan"),
        (lambda request: request.MergeFrom(plan(nodes={"1-greet-TASK": "none"})), "a node of the plan"),
        (lambda request: setattr(request, "revision", 9), "Couldn't find WfSpec flow"),
    ],
)
def test_a_plan_names_what_exists(
    stage: Stage, change: Callable[[PutWorkflowMigrationPlanRequest], None], problem: str
) -> None:
    request = plan("other")
    change(request)
    with pytest.raises(Invalid, match=problem):
        stage.do(request)
    stage.do(DeleteWorkflowMigrationPlanRequest(id=WorkflowMigrationPlanId(name="fix")))
    assert stage.rows.get(WorkflowMigrationPlan, ("fix",)) is None
