"""Recorded runs of workflows against changed ones: a replay says what a migration of the run itself would do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from littlehorse.model import (
    ApplyWorkflowMigrationPlanRequest,
    PutWorkflowMigrationPlanRequest,
    WfRunId,
    WfSpecId,
    WorkflowMigrationPlanId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Conflict, Invalid, NotFound
from millpond.testing.workflow_replays import recorded, replayed_workflow
from millpond.testing.workflows import WorkerLost, WorkflowRuns

NAMES = ("a", "b", "c", "d")
LOST: set[str] = set()
"""The tasks whose worker dies."""


def task(name: str) -> Callable[..., object]:
    async def act() -> str:
        if name in LOST:
            raise WorkerLost
        return name

    act.__name__ = name
    return act


def workflow(steps: tuple[str, ...], variable: str = "declare_str") -> Workflow:
    """Tasks, one after another; `sleep` waits a day between two of them."""

    def body(wf: WorkflowThread) -> None:
        getattr(wf, variable)("note")
        for name in steps:
            wf.sleep(seconds=86_400) if name == "sleep" else wf.execute(name)

    return Workflow("steps", body)


def began(steps: tuple[str, ...], lost: str = "") -> tuple[WorkflowRuns, str]:
    runs = WorkflowRuns()
    runs.register(workflow(steps), *map(task, NAMES))
    LOST.update([lost] * bool(lost))
    try:
        return runs, runs.start("steps")
    finally:
        LOST.clear()


def migrated(runs: WorkflowRuns, run: str, changed: Workflow) -> str:
    """The reason for which a run cannot go on with a changed workflow: the answer of the engine that has it."""
    runs.register(changed)
    old = WfSpecId(name="steps", major_version=0, revision=0)
    row = recorded(runs, runs.start("steps"))["run"]["wf_spec_id"]
    new = row.get("major_version", 0), row.get("revision", 0)
    plan = PutWorkflowMigrationPlanRequest(name="p", old_wfSpec=old, major_version=new[0], revision=new[1])
    runs.send(plan)
    try:
        runs.send(ApplyWorkflowMigrationPlanRequest(id=WorkflowMigrationPlanId(name="p"), wfRun_id=WfRunId(id=run)))
    except (Invalid, Conflict) as error:
        return str(error.without("run", "plan"))
    return ""


STEPS = st.lists(st.sampled_from((*NAMES, "sleep")), min_size=1, max_size=5).map(tuple)


@given(
    before=STEPS,
    after=STEPS,
    lost=st.sampled_from(("", *NAMES)),
    variable=st.sampled_from(("declare_str", "declare_int")),
)
def test_a_replay_says_what_a_migration_does(
    before: tuple[str, ...], after: tuple[str, ...], lost: str, variable: str
) -> None:
    runs, run = began(before, lost)
    record = json.loads(json.dumps(recorded(runs, run)))
    changed = WorkflowRuns()
    changed.register(workflow(after, variable), *map(task, NAMES))
    replay = replayed_workflow(changed, "steps", [record])
    if runs.status(run) == "COMPLETED":
        assert (replay.open, replay.broken) == (0, {})
        return
    assert replay.open == 1
    if workflow(after, variable).compile() != workflow(before).compile():  # else it is no new version
        assert replay.broken.get(run, "") == migrated(runs, run, workflow(after, variable))
    else:
        assert not replay.broken


def test_new_names_of_nodes_are_followed_and_records_are_files(tmp_path: Path) -> None:
    runs, run = began(("a", "sleep", "b"))
    file = tmp_path / "run.json"
    file.write_text(json.dumps(recorded(runs, run)))
    changed = WorkflowRuns()
    changed.register(workflow(("a", "c", "sleep", "b")), *map(task, NAMES))
    broken = replayed_workflow(changed, "steps", [file])
    assert str(broken).startswith("1 of 1 open runs would break\n1: ")
    names = PutWorkflowMigrationPlanRequest()
    thread = names.thread_migrations["entrypoint"]
    thread.new_thread_name = "entrypoint"
    thread.node_migrations["2-sleep-SLEEP"].new_node_name = "3-sleep-SLEEP"
    assert str(replayed_workflow(changed, "steps", [file], names)) == "0 of 1 open runs would break"
    thread.node_migrations["2-sleep-SLEEP"].new_node_name = "9-none"
    with pytest.raises(Invalid, match="9-none"):
        replayed_workflow(changed, "steps", [file], names)


def test_mistakes_are_named(tmp_path: Path) -> None:
    runs, run = began(("sleep",))
    record = recorded(runs, run)
    with pytest.raises(NotFound, match="no workflow has this name"):
        replayed_workflow(WorkflowRuns(), "steps", [record])
    assert replayed_workflow(runs, "others", [record]).open == 0
    with pytest.raises(NotFound, match="no run has this id"):
        recorded(runs, "none")
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{")
    for own in ({}, {"run": 1}, {**record, "nodes": [{"none": 1}]}, damaged, tmp_path / "none.json"):
        with pytest.raises(Invalid, match="not a recorded run of a workflow"):
            replayed_workflow(runs, "steps", [own])
