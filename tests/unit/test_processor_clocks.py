"""A processor on a clock that jumps: what is due is due by the clock of now, whatever it said before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    DeleteWfSpecRequest,
    ExponentialBackoffRetryPolicy,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    ScheduleWfRequest,
    StopWfRunRequest,
    WfRunId,
    WfSpec,
    WfSpecId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.keyspaces import FAILED, TIMER, TIMER_TIME
from millpond.workflows.processor import processor
from millpond.workflows.processor.timers import cancel_timers_of
from millpond.workflows.store import TagQuery
from millpond.workflows.verify import _REMEDY, check_runs

DAYS = 2 * 86_400_000
MINUTE = timedelta(minutes=1)


def sleeps(wf: WorkflowThread) -> None:
    wf.sleep(4)


def begun(body: Callable[[WorkflowThread], Any], *tasks: Any) -> WorkflowRuns:
    runs = WorkflowRuns()
    runs.register(Workflow("flow", body), *tasks)
    return runs


def after_a_jump(runs: WorkflowRuns, restarted: bool) -> None:
    """Let the clock be two days ahead for the time of one command, and right again."""
    runs.clock.now += DAYS
    runs.start("flow", "ahead")
    runs.clock.now -= DAYS
    if restarted:
        runs.restart()


def test_the_backlog_says_that_the_clock_was_ahead() -> None:
    runs = begun(sleeps)
    after_a_jump(runs, restarted=True)
    assert runs._processor.backlog().stamp_ms == runs.clock.now + DAYS


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sleep_ends_in_time_on_a_clock_that_was_ahead(restarted: bool) -> None:
    runs = begun(sleeps)
    after_a_jump(runs, restarted)
    runs.start("flow", "now")
    runs.pass_time(timedelta(seconds=5))
    assert (runs.status("now"), runs.status("ahead")) == ("COMPLETED", "COMPLETED")


def test_retries_and_timeouts_come_in_time_on_a_clock_that_was_ahead() -> None:
    async def work() -> str:
        raise ValueError("not now")

    def retried(wf: WorkflowThread) -> None:
        delay = ExponentialBackoffRetryPolicy(base_interval_ms=1000, multiplier=1, max_delay_ms=1000)
        wf.execute("work", retries=3, exponential_backoff=delay)

    runs = begun(retried, work)
    after_a_jump(runs, restarted=True)
    runs.start("flow", "now")
    runs.pass_time(timedelta(seconds=5))
    assert (runs.status("now"), runs.status("ahead")) == ("ERROR", "ERROR")
    assert len(runs.calls) == 8


def test_a_sleep_until_an_instant_ends_at_that_instant_whatever_the_clock_said() -> None:
    def until(wf: WorkflowThread) -> None:
        wf.sleep_until(wf.declare_int("at"))

    runs = begun(until)
    at = runs.clock.now + DAYS + 60_000
    runs.clock.now += DAYS
    runs.start("flow", "ahead", at=at)
    runs.clock.now -= DAYS
    runs.pass_time(timedelta(days=1))
    assert runs.status("ahead") == "RUNNING"
    runs.pass_time(timedelta(days=1, minutes=1))
    assert runs.status("ahead") == "COMPLETED"


def test_a_schedule_goes_on_after_the_clock_was_ahead() -> None:
    runs = begun(sleeps)
    runs.send(ScheduleWfRequest(wf_spec_name="flow", id="hourly", cron_expression="0 * * * *"))
    runs.pass_time(timedelta(hours=1))
    runs.clock.now += DAYS
    runs.pass_time(MINUTE)
    runs.clock.now -= DAYS
    before = count_runs(runs)
    runs.pass_time(timedelta(hours=2, minutes=2))
    assert count_runs(runs) == before + 2


@pytest.mark.parametrize(("passed", "started"), [(90, 90), (101, 101), (102, 1), (2880, 1)])
def test_a_schedule_catches_up_with_a_few_instants_and_not_with_thousands(passed: int, started: int) -> None:
    runs = begun(sleeps)
    runs.send(ScheduleWfRequest(wf_spec_name="flow", id="minutely", cron_expression="* * * * *"))
    runs.clock.now += passed * 60_000
    runs.pass_time(timedelta())
    assert count_runs(runs) == started
    runs.pass_time(timedelta(minutes=3))
    assert count_runs(runs) == started + 3


@pytest.mark.parametrize("days", [DAYS, -DAYS])
def test_a_schedule_on_a_clock_that_jumps_and_comes_back_goes_on(days: int) -> None:
    runs = begun(sleeps)
    runs.send(ScheduleWfRequest(wf_spec_name="flow", id="minutely", cron_expression="* * * * *"))
    for jump in (days, -days):
        runs.clock.now += jump
        runs.pass_time(timedelta(minutes=1))
    assert count_runs(runs) <= 6
    before = count_runs(runs)
    runs.pass_time(timedelta(minutes=10))
    assert before + 9 <= count_runs(runs) <= before + 11


def test_a_clock_that_was_behind_and_jumps_two_days_ahead_lets_all_end() -> None:
    runs = begun(sleeps)
    runs.start("flow", "before")
    runs.clock.now += DAYS
    runs.pass_time(timedelta())
    assert runs.status("before") == "COMPLETED"


def test_timers_are_set_anew_some_in_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "TIMERS_PULLED_PER_WRITE", 3)
    runs = begun(sleeps)
    runs.clock.now += DAYS
    for number in range(10):
        runs.start("flow", f"r{number}")
    runs.clock.now -= DAYS
    runs.pass_time(timedelta(seconds=5))
    assert {runs.status(f"r{number}") for number in range(10)} == {"COMPLETED"}


def test_a_timer_of_an_earlier_release_does_not_say_when_it_was_set() -> None:
    runs = begun(sleeps)
    runs.clock.now += DAYS
    runs.start("flow", "old")

    def shorten(tx: Any) -> None:
        for key, row in list(tx.scan(TIMER_TIME.range())):
            tx.put(key, row[:8])

    space(runs).write(shorten)
    runs.clock.now -= DAYS
    runs.restart()
    runs.pass_time(timedelta(seconds=5))
    assert runs.status("old") == "RUNNING"
    runs.pass_time(timedelta(days=2))
    assert runs.status("old") == "COMPLETED"


# -- timers that cannot be applied ------------------------------------------------------------------------


def space(runs: WorkflowRuns) -> Any:
    return runs._space


def drop_spec(runs: WorkflowRuns) -> None:
    """Delete the row of the specification, as releases before this one did."""
    rows = runs._processor.partition

    def drop(tx: Any) -> None:
        tx.delete(rows.reads(tx, TENANT)._key(WfSpec, ("flow", 0, 0)))

    space(runs).write(drop)
    runs.restart()


def test_a_timer_that_cannot_be_applied_is_told_and_its_run_can_be_rescued(caplog: pytest.LogCaptureFixture) -> None:
    runs = begun(sleeps)
    runs.start("flow", "r")
    drop_spec(runs)
    assert [found.found for found in check_runs(space(runs)).problems] == ["its specification flow/0/0 is gone"]
    with caplog.at_level(logging.ERROR):
        runs.pass_time(timedelta(seconds=5))
    assert "a timer of run r of tenant default failed: the specification of the run was deleted" in caplog.text
    assert runs.status("r") == "ERROR"
    assert runs._processor.measures.failed == 1
    with space(runs).read() as tx:
        assert sum(1 for _ in tx.keys(FAILED.range())) == 1
        assert not list(tx.keys(TIMER.range()))
    assert isinstance(runs.send(Workflow("flow", sleeps).compile()), WfSpec)
    runs.send(RescueThreadRunRequest(wf_run_id=WfRunId(id="r"), thread_run_number=0))
    runs.pass_time(timedelta(seconds=5))
    assert runs.status("r") == "COMPLETED"


def test_verify_finds_a_run_whose_timer_is_gone_and_a_resume_gives_it_one() -> None:
    runs = begun(sleeps)
    runs.start("flow", "r")
    assert check_runs(space(runs)).counts == (("run", 1),) and check_runs(space(runs)).ok
    space(runs).write(lambda tx: cancel_timers_of(tx, TENANT, "r"))
    assert [str(found) for found in check_runs(space(runs)).problems] == [
        f"run default/r: thread 0 waits for the timer of its sleep, and there is none ({_REMEDY})"
    ]
    runs.pass_time(MINUTE)
    assert runs.status("r") == "RUNNING"
    runs.send(StopWfRunRequest(wf_run_id=WfRunId(id="r")))
    runs.send(ResumeWfRunRequest(wf_run_id=WfRunId(id="r")))
    runs.pass_time(timedelta())
    assert runs.status("r") == "COMPLETED"


def test_a_schedule_of_a_deleted_specification_is_counted_at_each_instant() -> None:
    runs = begun(sleeps)
    runs.send(ScheduleWfRequest(wf_spec_name="flow", id="hourly", cron_expression="0 * * * *"))
    runs.send(DeleteWfSpecRequest(id=WfSpecId(name="flow")))
    runs.pass_time(timedelta(hours=3))
    assert runs._processor.measures.failed == 3


def count_runs(runs: WorkflowRuns) -> int:
    with space(runs).read() as tx:
        return runs._processor.partition.reads(tx, TENANT).count(TagQuery.runs())
