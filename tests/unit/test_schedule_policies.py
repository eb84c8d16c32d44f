"""Schedules of pipelines: no two runs at a time, and what becomes of instants that passed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import LHStatus, ScheduleWfRequest, WfRun
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.engine.cron import (
    MISSED,
    Cron,
    instant_of,
    instant_to_run,
    last_instant,
    next_instant,
    parse_cron,
    run_at,
)  # fmt: skip
from tests.rings.sampling import examples

MINUTE = 60_000
EXPRESSIONS = st.sampled_from([
    "* * * * *", "*/7 * * * *", "30 3 * * *", "CRON_TZ=Europe/Paris 30 2 * * *", "CRON_TZ=Europe/Paris 0 * * * *",
    "0 0 1 * *", "5,6,40 1-3 * * 1",
])  # fmt: skip


@given(expression=EXPRESSIONS,
       begin=st.datetimes(datetime(2026, 3, 20), datetime(2026, 4, 2))
       | st.datetimes(datetime(2026, 10, 24, 20), datetime(2026, 10, 26)),
       passed=st.integers(0, 300 * MINUTE))  # fmt: skip
@settings(max_examples=examples(10, 40), deadline=None)
def test_the_last_instant_is_that_of_a_walk(expression: str, begin: datetime, passed: int) -> None:
    at = next_instant(expression, int(begin.replace(tzinfo=UTC).timestamp() * 1000))
    assert at is not None
    now, last = at + passed, at
    while (following := next_instant(expression, last)) is not None and following <= now:
        last = following
    assert last_instant(expression, at, now) == last
    assert instant_to_run(f"MISSED=last {expression}", at, now) == last
    assert instant_to_run(f"MISSED=none {expression}", at, now) == (last if now - last < MINUTE else None)
    assert instant_to_run(expression, at, now) == at


@given(st.integers(0, 2**37), st.sampled_from(["nightly", "a_b", "a-b"]))
def test_a_run_has_its_instant_in_its_id(seconds: int, name: str) -> None:
    instant = instant_of(run_at(name, seconds * 1000))
    assert instant is not None and instant.timestamp() == seconds


@pytest.mark.parametrize("name", ["nightly-2026", "nightly-20261301t000000z", "nightly-961a457684"])
def test_other_runs_have_none(name: str) -> None:
    assert instant_of(name) is None


@given(st.builds(Cron, st.just("0 3 * * *"), st.sampled_from(["", "Europe/Paris"]), st.booleans(), st.booleans(),
                 st.sampled_from(MISSED), st.sampled_from(["", "nightly-20260101t000000z"])))  # fmt: skip
def test_policies_come_back_from_the_text(cron: Cron) -> None:
    assert parse_cron(cron.text()) == cron


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid, match=r"none\|last\|all"):
        parse_cron("MISSED=some 0 3 * * *")


def intervals(runs: WorkflowRuns) -> list[tuple[int, int, int]]:
    """The instant, the begin and the end of each run; of one that is open it is now."""
    with runs._space.read() as tx:
        reads = runs._processor.partition.reads(tx, TENANT)
        paths = [
            path for status in (LHStatus.RUNNING, LHStatus.COMPLETED) for path in reads.runs("flow", status, 1000)[0]
        ]
        rows = [reads.get(WfRun, (path,)) for path in paths]
    whole = []
    for row in rows:
        assert row is not None
        instant = instant_of(row.id.id)
        assert instant is not None
        end = row.end_time.ToMilliseconds() if row.status == LHStatus.COMPLETED else runs.clock.now_ms()
        whole.append((int(instant.timestamp() * 1000), row.start_time.ToMilliseconds(), end))
    return sorted(whole)


PAUSES = st.tuples(st.sampled_from(["pass", "down", "put"]), st.integers(1, 15) | st.just(110))


@settings(max_examples=examples(4, 8), deadline=None)
@given(missed=st.sampled_from(MISSED), seconds=st.integers(1, 400), steps=st.lists(PAUSES, min_size=1, max_size=4))
def test_runs_of_a_schedule_follow_one_another(missed: str, seconds: int, steps: list[tuple[str, int]]) -> None:
    def body(wf: WorkflowThread) -> None:
        wf.sleep(seconds)

    runs = WorkflowRuns(clock=ManualClock(1_767_225_605_000))
    runs.register(Workflow("flow", body))
    cron = Cron("* * * * *", overlap=False, missed=missed)
    put = ScheduleWfRequest(wf_spec_name="flow", id="flow", cron_expression=cron.text())
    runs.send(put)
    puts = [runs.clock.now_ms()]
    for what, amount in [*steps, ("pass", 20)]:
        if what == "pass":
            runs.pass_time(timedelta(minutes=amount))
        elif what == "down":
            runs.clock.advance(amount * MINUTE)
        else:
            runs.send(put)
            puts.append(runs.clock.now_ms())
    whole = intervals(runs)
    assert whole, "it begins runs"
    for (instant, _, end), (following, start, _) in pairwise(whole):
        assert start >= end, "no two at a time"
        assert following > instant
        if missed == "all" and following - instant > MINUTE:
            at_put = any(instant < own <= following for own in puts)
            assert at_put or start - instant > 100 * MINUTE, "all have runs, one after another"
    for instant, start, _ in whole:
        assert instant <= start
        if missed == "none":
            assert start - instant < MINUTE
        if missed == "last":
            assert start - instant < MINUTE, "the newest that has passed"
    assert runs.clock.now_ms() - whole[-1][2] <= 2 * MINUTE + (runs.clock.now_ms() - whole[-1][0]) // 10
