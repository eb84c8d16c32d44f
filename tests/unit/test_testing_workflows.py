"""Runs of workflows in a test: timers, retries, timeouts, failures and crashes, with no server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("littlehorse")

import littlehorse
from littlehorse.exceptions import LHTaskException
from littlehorse.model import ExternalEventDefId, PutExternalEventRequest, VariableValue, WfRunId
from littlehorse.worker import WorkerContext
from littlehorse.workflow import Workflow, WorkflowThread

from millpond import AlreadyExists, Invalid, NotFound
from millpond.clock import ManualClock
from millpond.testing.workflows import WorkerLost, WorkflowRuns

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


async def work(name: str) -> str:
    return f"{name} is done"


def one_task(wf: WorkflowThread) -> None:
    name, result = wf.declare_str("name").required(), wf.declare_str("result")
    result.assign(wf.execute("work", name, retries=3, timeout_seconds=60))


def runs_of(body: Callable[[WorkflowThread], None], *tasks: Any) -> WorkflowRuns:
    runs = WorkflowRuns()
    runs.register(Workflow("flow", body), *tasks)
    return runs


def test_a_task_is_called_and_its_result_is_there_at_once() -> None:
    runs = runs_of(one_task, work)
    run = runs.start("flow", "r-1", name="a")
    assert (run, runs.status(run), runs.variable(run, "result")) == ("r-1", "COMPLETED", "a is done")
    (call,) = runs.calls
    assert (call.task, call.arguments, call.at, call.run, call.attempt) == ("work", ("a",), BEGAN, "r-1", 0)


def test_a_year_of_weeks_passes_and_each_task_is_called_at_its_instant() -> None:
    def weekly(wf: WorkflowThread) -> None:
        week = wf.declare_int("week", 0)

        def one_week(body: WorkflowThread) -> None:
            body.execute("work", "a")
            body.sleep(7 * 86_400)
            week.assign(week.add(1))

        wf.do_while(week.is_less_than(52), one_week)

    runs = runs_of(weekly, work)
    run = runs.start("flow")
    runs.pass_time(timedelta(weeks=51))
    assert runs.status(run) == "RUNNING"
    assert [call.at for call in runs.calls] == [BEGAN + timedelta(weeks=week) for week in range(52)]
    runs.pass_time(timedelta(weeks=1))
    assert runs.status(run) == "COMPLETED"
    assert runs.clock.now_ms() == (BEGAN + timedelta(weeks=52)).timestamp() * 1000


def test_errors_are_tried_again_until_the_retries_are_used_up() -> None:
    async def failing(name: str) -> str:
        raise OSError(name)

    async def work(name: str) -> str:
        return await failing(name)

    runs = runs_of(one_task, work)
    run = runs.start("flow", name="a")
    assert runs.status(run) == "ERROR"
    assert [call.attempt for call in runs.calls] == [0, 1, 2, 3]


def test_an_exception_of_the_business_is_no_error_and_not_repeated() -> None:
    async def work(name: str) -> str:
        raise LHTaskException("sold-out", name)

    runs = runs_of(one_task, work)
    assert runs.status(runs.start("flow", name="a")) == "EXCEPTION"
    assert len(runs.calls) == 1


def test_a_lost_worker_costs_the_timeout_and_one_attempt() -> None:
    async def work(name: str, context: WorkerContext) -> str:
        if context.attempt_number == 0:
            raise WorkerLost
        return name

    runs = runs_of(one_task, work)
    run = runs.start("flow", name="a")
    runs.pass_time(timedelta(seconds=59))
    assert runs.status(run) == "RUNNING"
    runs.pass_time(timedelta(seconds=2))
    assert runs.status(run) == "COMPLETED"
    assert [call.at - BEGAN for call in runs.calls] == [timedelta(), timedelta(seconds=60)]


def test_a_task_that_takes_longer_than_its_timeout_is_too_late() -> None:
    clock = ManualClock(now=int(BEGAN.timestamp()) * 1000)

    async def work(name: str, context: WorkerContext) -> str:
        if context.attempt_number == 0:
            clock.advance(61_000)
        return f"attempt {context.attempt_number}"

    runs = WorkflowRuns(clock=clock)
    runs.register(Workflow("flow", one_task), work)
    run = runs.start("flow", name="a")
    assert (runs.status(run), runs.variable(run, "result")) == ("COMPLETED", "attempt 1")


def test_events_come_from_outside() -> None:
    def waits(wf: WorkflowThread) -> None:
        paid = wf.declare_str("paid")
        paid.assign(wf.wait_for_event("paid"))

    runs = WorkflowRuns()
    littlehorse.create_external_event_def("paid", runs.registrations)
    runs.register(Workflow("flow", waits))
    run = runs.start("flow")
    runs.pass_time(timedelta(days=30))
    assert runs.status(run) == "RUNNING"
    runs.send(PutExternalEventRequest(
        wf_run_id=WfRunId(id=run), external_event_def_id=ExternalEventDefId(name="paid"),
        content=VariableValue(str="in cash"),
    ))  # fmt: skip
    assert (runs.status(run), runs.variable(run, "paid")) == ("COMPLETED", "in cash")


def test_runs_survive_a_restart_at_any_instant() -> None:
    def sleeps(wf: WorkflowThread) -> None:
        for name in ("a", "b"):
            wf.execute("work", name)
            wf.sleep(3_600)

    runs = runs_of(sleeps, work)
    run = runs.start("flow")
    for _ in range(9):
        runs.restart()
        runs.pass_time(timedelta(minutes=15))
    assert runs.status(run) == "COMPLETED"
    assert [call.arguments for call in runs.calls] == [("a",), ("b",)]


def test_the_same_test_takes_the_same_course() -> None:
    def story() -> tuple[list[str], list[Any]]:
        runs = runs_of(one_task, work)
        ids = [runs.start("flow", name=name) for name in ("a", "b")]
        return ids, runs.calls

    assert story() == story()


def test_mistakes_are_those_of_a_node() -> None:
    runs = runs_of(one_task, work)
    with pytest.raises(NotFound):
        runs.start("nowhere")
    with pytest.raises(Invalid):
        runs.start("flow", name="a", color="red")
    runs.start("flow", "r-1", name="a")
    with pytest.raises(AlreadyExists):
        runs.start("flow", "r-1", name="a")
    with pytest.raises(NotFound):
        runs.status("r-2")
    with pytest.raises(NotFound):
        runs.variable("r-1", "color")


def test_a_loop_in_which_no_time_passes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(wf: WorkflowThread) -> None:
        number = wf.declare_int("number", 0)
        wf.do_while(number.is_less_than(1), lambda body: body.execute("work", "a") and None)

    monkeypatch.setattr("millpond.testing.workflows.CALLS_AT_ONE_INSTANT_MAX", 50)
    runs = runs_of(endless, work)
    with pytest.raises(AssertionError, match="no time passed"):
        runs.start("flow")


def test_a_task_may_start_another_run() -> None:
    runs = WorkflowRuns()

    async def begin(name: str) -> str:
        return runs.start("flow", f"child-{name}", name=name)

    def parent(wf: WorkflowThread) -> None:
        wf.execute("begin", "a")

    runs.register(Workflow("flow", one_task), work)
    runs.register(Workflow("parent", parent), begin)
    assert runs.status(runs.start("parent")) == "COMPLETED"
    assert runs.status("child-a") == "COMPLETED"


def test_runs_are_no_part_of_a_running_loop() -> None:
    async def inside() -> None:
        runs = runs_of(one_task, work)
        runs.start("flow", name="a")

    with pytest.raises(AssertionError, match="running event loop"):
        asyncio.run(inside())


def test_a_checkpoint_is_computed_once_over_all_attempts() -> None:
    computed = []

    async def work(name: str, context: WorkerContext) -> str:
        found = await context.execute_and_checkpoint(lambda _: computed.append(name) or "expensive")
        if context.attempt_number < 2:
            raise OSError(name)
        return str(found)

    runs = runs_of(one_task, work)
    run = runs.start("flow", name="a")
    assert (runs.status(run), runs.variable(run, "result")) == ("COMPLETED", "expensive")
    assert (len(runs.calls), computed) == (3, ["a"])
