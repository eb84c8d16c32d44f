"""Runs with many threads: a step costs what it changes, and their number has limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeVar

import pytest

pytest.importorskip("littlehorse")

from google.protobuf.message import Message
from littlehorse.model import (
    ExternalEventDefId,
    InactiveThreadRun,
    LHStatus,
    NodeRun,
    PutExternalEventRequest,
    ReportTaskRun,
    TaskRunId,
    TaskStatus,
    Variable,
    WfRun,
    WorkflowEvent,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.workflows.engine import Command, Key, Request, advance, apply, run_id, thread_queue, threads
from tests.models.workflows.rows import MemoryRows
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_scenarios import parsed, prepared

M = TypeVar("M", bound=Message)


class CountedRows(MemoryRows):
    """Rows that count how often one is read."""

    reads = 0

    def get(self, kind: type[M], key: Key) -> M | None:
        self.reads += 1
        return super().get(kind, key)

    def list(self, kind: type[M], prefix: Key) -> Iterator[tuple[Key, M]]:
        for found in super().list(kind, prefix):
            self.reads += 1
            yield found


def counted() -> tuple[Stage, CountedRows]:
    stage, rows = prepared(), CountedRows()
    rows.bytes = stage.rows.bytes
    stage.rows = rows
    return stage, rows


def found(stage: Stage) -> WfRun:
    run = stage.rows.get(WfRun, ("r",))
    assert run is not None
    return run


def reads_of_a_step(spec: str, width: int) -> int:
    """The rows that one step of a run reads which has so many children."""
    stage, rows = counted()
    stage.run(spec, "r", {"items": parsed(json.dumps(["x"] * width))})
    assert len(found(stage).thread_runs) + len(found(stage).thread_run_queue) == width + 1
    request: Request
    if spec == "per-element":
        stage.claim("greet")
        task = TaskRunId(wf_run_id=run_id("r"), task_guid="1-1")
        request = ReportTaskRun(task_run_id=task, status=TaskStatus.TASK_SUCCESS, output=parsed('"hello"'))
    else:
        stage.now += 1000
        request = stage.timers["r", "node", 1, 1].request
    rows.reads = 0
    outcome = apply(rows, Command("step", request), stage.now)
    reads = rows.reads
    rows.write(outcome)
    assert found(stage).thread_runs[1].status == LHStatus.COMPLETED
    return reads


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("spec", ["per-element", "sleeping-elements"])
def test_a_step_reads_as_much_of_a_wide_run_as_of_a_narrow_one(spec: str) -> None:
    assert reads_of_a_step(spec, 40) == reads_of_a_step(spec, 400)


def test_an_event_is_offered_to_the_first_of_many_threads_that_wait_for_it() -> None:
    reads = []
    for width in (40, 400):
        stage, rows = counted()
        stage.do(Workflow("waiting-elements", waiting_elements).compile())
        stage.run("waiting-elements", "r", {"items": parsed(json.dumps(["x"] * width))})
        rows.reads = 0
        rows.write(apply(rows, Command("step", put_event(1)), stage.now))
        reads.append(rows.reads)
        ended = [thread.number for thread in found(stage).thread_runs if thread.status == LHStatus.COMPLETED]
        assert ended == [1]
    assert reads[0] == reads[1]


def waiting_elements(wf: WorkflowThread) -> None:
    wf.spawn_thread_for_each(
        wf.declare_json_arr("items"), lambda child: child.wait_for_event("ready") and None, "child"
    )


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("spec", ["per-element", "sleeping-elements"])
def test_a_step_reads_one_row_of_those_that_are_queued(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_queue, "THREADS_ACTIVE_MAX", 20)
    assert reads_of_a_step(spec, 40) == reads_of_a_step(spec, 400)


def test_more_threads_than_a_run_may_have_end_in_an_error_that_names_the_limit() -> None:
    stage = prepared()
    stage.run("per-element", "r", {"items": parsed(json.dumps(["x"] * 100_000))})
    row = stage.rows.get(NodeRun, ("r", 0, 1))
    assert row is not None and found(stage).status == LHStatus.ERROR and len(found(stage).thread_runs) == 1
    assert row.failures[0].failure_name == "INTERNAL_ERROR"
    assert "exceeding the maximum number of ThreadRuns per WfRun" in row.failures[0].message


def test_a_run_that_starts_threads_for_ever_lists_some_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADS_MAX", 60)
    monkeypatch.setattr(advance, "THREADS_LISTED_MAX", 20)
    stage = prepared()
    stage.run("spawns-for-ever", "r", {})
    while found(stage).status == LHStatus.RUNNING:
        stage.pass_time(1000)
        assert len(found(stage).thread_runs) <= 20
    assert found(stage).status == LHStatus.ERROR
    archived = [row.thread_run.number for _key, row in stage.rows.list(InactiveThreadRun, ("r",))]
    listed = [thread.number for thread in found(stage).thread_runs]
    assert sorted(archived + listed) == list(range(60)) and archived == sorted(archived) and listed[0] == 0
    row = stage.rows.get(NodeRun, ("r", 0, found(stage).thread_runs[0].current_node_position))
    assert row is not None and "threads_max=60" in row.failures[0].message


def put_event(number: int, thread: int | None = None) -> PutExternalEventRequest:
    definition = ExternalEventDefId(name="ready")
    return PutExternalEventRequest(
        wf_run_id=run_id("r"), external_event_def_id=definition, guid=f"g-{number}", thread_run_number=thread
    )


def test_a_step_of_a_run_with_many_events_reads_none_of_those_that_were_claimed() -> None:
    stage, rows = counted()
    stage.run("loops-over-events", "r", {})
    reads = []
    for number in range(60):
        rows.reads = 0
        outcome = apply(rows, Command(f"step-{number}", put_event(number)), stage.now)
        reads.append(rows.reads)
        rows.write(outcome)
    thrown = [event.id.number for _key, event in stage.rows.list(WorkflowEvent, ("r", "progress"))]
    assert thrown == list(range(60)) and len(set(reads[1:])) == 1


def test_the_oldest_event_is_taken_though_many_are_for_other_nodes() -> None:
    stage = prepared()
    for number in range(40):
        stage.do(put_event(number, thread=7))
    stage.event("r", "ready", parsed('"first"'), "z")
    stage.pass_time(1)
    stage.event("r", "ready", parsed('"second"'), "a")
    stage.run("awaits", "r", {})
    seen = stage.rows.get(Variable, ("r", 0, "seen"))
    assert seen is not None and seen.value.str == "first" and found(stage).status == LHStatus.COMPLETED
