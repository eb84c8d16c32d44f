"""Jobs run when they are due and on request, one at a time, and report the outcome.

The clock is moved by hand; `SECONDS` is only the patience with threads that do not answer. The rules of due times are
compared with brute force in `tests/models/test_schedule_model.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Closed, Corrupt, Invalid, NotFound, Unavailable
from millpond.nodes.jobs.scheduler import Job, Outcome, Scheduler
from tests.rings.sampling import examples

SECONDS = 20.0
NOW = 1_700_000_000_000
Work = Callable[[threading.Event], Outcome]
Start = Callable[..., Scheduler]


def done(_stopping: threading.Event) -> Outcome:
    return Outcome("tended 2 maps", {"maps": 2})


def settle(scheduler: Scheduler) -> None:
    """Wait until everything that was due or requested by now has been run."""
    schedule = scheduler._schedule

    def rests() -> bool:
        with scheduler._lock:
            return (
                not any(turn.running or turn.requested for turn in schedule._turns.values())
                and (schedule.next_due() or 1e18) > scheduler._elapsed_ms()
            )

    assert scheduler.changed.wait_for(rests, None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def start(tmp_path: Path, clock: ManualClock) -> Iterator[Start]:
    """Start a scheduler of jobs given as `name=work` or `name=(work, interval)`."""
    started: list[Scheduler] = []

    def begin(**works: Work | tuple[Work, int]) -> Scheduler:
        jobs = []
        for name, given_work in works.items():
            work, interval = given_work if isinstance(given_work, tuple) else (given_work, 0)
            jobs.append(Job(name, f"Does {name}.", interval, work))
        scheduler = Scheduler(jobs, state=tmp_path / "jobs.json", clock=clock)
        scheduler.start()
        started.append(scheduler)
        return scheduler

    yield begin
    for scheduler in started:
        scheduler.stop()


class Gate:
    """Work that says it has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.at_work = 0

    def __call__(self, _stopping: threading.Event) -> Outcome:
        self.at_work += 1
        assert self.at_work == 1, "one at a time"
        self.begun.release()
        assert self.open.acquire(timeout=SECONDS)
        self.at_work -= 1
        return Outcome("passed")


def test_a_job_that_is_due_runs_by_handler_again_and_again(start: Start, clock: ManualClock) -> None:
    scheduler = start(tick=(done, 20))
    for runs in range(1, 4):
        clock.advance(19)
        settle(scheduler)
        assert scheduler.status()[0].runs == runs - 1
        clock.advance(1)
        status = scheduler.wait("tick", runs, SECONDS)
        settle(scheduler)
        assert status.runs == runs
    (status,) = scheduler.status()
    assert status.next_ms == clock.now_ms() + 20
    assert not status.paused


def test_jobs_of_one_interval_run_apart_by_their_lag(tmp_path: Path, clock: ManualClock) -> None:
    jobs = [Job("first", "Runs.", 1000, done), Job("second", "Runs later.", 1000, done, lag=0.5)]
    scheduler = Scheduler(jobs, state=tmp_path / "jobs.json", clock=clock)
    scheduler.start()
    try:
        assert [status.next_ms for status in scheduler.status()] == [NOW + 1000, NOW + 1500]
        clock.advance(1200)
        settle(scheduler)
        assert [(status.runs, status.next_ms) for status in scheduler.status()] == [(1, NOW + 2000), (0, NOW + 1500)]
        clock.advance(400)
        settle(scheduler)
        assert [(status.runs, status.next_ms) for status in scheduler.status()] == [(1, NOW + 2000), (1, NOW + 2500)]
    finally:
        scheduler.stop()


def test_a_job_without_an_interval_runs_only_on_request(start: Start, clock: ManualClock) -> None:
    scheduler = start(tend=done)
    (before,) = scheduler.status()
    assert (before.runs, before.last, before.next_ms) == (0, None, None)
    clock.advance(1_000_000)
    after = scheduler.run("tend")
    assert (after.runs, after.failures, after.running_since_ms) == (1, 0, None)
    assert after.last is not None
    assert (after.last.summary, after.last.numbers, after.last.error) == ("tended 2 maps", {"maps": 2}, None)
    assert (after.last.began_ms, after.last.seconds) == (NOW + 1_000_000, 0)


def test_requested_while_it_runs_it_runs_once_more_and_not_twice_at_once(start: Start) -> None:
    gate = Gate()
    scheduler = start(slow=gate)
    scheduler.call("slow")
    assert gate.begun.acquire(timeout=SECONDS)
    (running,) = scheduler.status()
    assert running.running_since_ms is not None
    waiters = [threading.Thread(target=scheduler.run, args=("slow",)) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    scheduler.call("slow")
    gate.open.release()
    assert gate.begun.acquire(timeout=SECONDS), "the run that was requested while the first went on"
    gate.open.release()
    # A request after the second began waits for a third.
    gate.open.release()
    for waiter in waiters:
        waiter.join(SECONDS)
        assert not waiter.is_alive()
    (status,) = scheduler.status()
    assert status.runs in (2, 3)
    assert status.failures == 0


def test_a_wait_ends_after_its_seconds_and_the_job_goes_on(start: Start, clock: ManualClock) -> None:
    gate = Gate()
    scheduler = start(slow=gate)
    raised: list[Unavailable] = []

    def run() -> None:
        with pytest.raises(Unavailable) as info:
            scheduler.run("slow", seconds=30)
        raised.append(info.value)

    waiter = threading.Thread(target=run)
    waiter.start()
    assert gate.begun.acquire(timeout=SECONDS)
    while not raised:
        clock.advance(1_000)
        waiter.join(0.01)
    assert clock.monotonic() >= 30
    assert raised[0].kind == "job_slow"
    assert scheduler.wait("slow", 1, 0).runs == 0
    gate.open.release(2)
    assert scheduler.wait("slow", 1, SECONDS).runs == 1
    assert scheduler.run("slow").runs == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Invalid("the map is strange", kind="strange", map="m"), "the map is strange. map=m"),
        (KeyError("x"), "KeyError: 'x'. job=bad"),
    ],
)
def test_a_failing_job_shows_its_error_and_stops_no_other(start: Start, error: Exception, message: str) -> None:
    def fail(_stopping: threading.Event) -> Outcome:
        raise error

    scheduler = start(bad=fail, good=done)
    failed = scheduler.run("bad")
    assert failed.last is not None
    assert (failed.failures, failed.last.error) == (1, message)
    assert scheduler.run("good").failures == 0
    assert scheduler.run("bad").failures == 2


def test_faults_of_some_maps_are_the_error_of_a_run_that_did_the_rest(start: Start) -> None:
    scheduler = start(some=lambda _: Outcome("2 of 3 maps", {"maps": 2}, ("map a: broken", "map b: broken")))
    last = scheduler.run("some").last
    assert last is not None
    assert (last.summary, last.error) == ("2 of 3 maps", "map a: broken; map b: broken")


def test_a_paused_job_runs_only_on_request_and_stays_paused_over_a_restart(
    start: Start, clock: ManualClock, tmp_path: Path
) -> None:
    scheduler = start(tick=(done, 20), other=(done, 1_000_000))
    assert scheduler.pause("tick").paused
    assert scheduler.status("tick")[0].next_ms is None
    clock.advance(100)
    settle(scheduler)
    assert scheduler.run("tick").runs == 1
    assert scheduler.run("tick").runs == 2
    scheduler.stop()

    again = start(tick=(done, 20), other=(done, 1_000_000))
    assert [(status.name, status.paused, status.next_ms is None) for status in again.status()] == [
        ("tick", True, True), ("other", False, False),
    ]  # fmt: skip
    assert not again.resume("tick").paused
    assert again.status("tick")[0].next_ms == clock.now_ms() + 20
    assert json.loads((tmp_path / "jobs.json").read_text()) == {"paused": []}


def test_work_between_the_runs_is_paused_too_also_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    held: list[bool] = []

    def begin() -> Scheduler:
        job = Job("merge", "Merges.", 0, done, pause=held.append)
        scheduler = Scheduler([job], state=tmp_path / "jobs.json", clock=clock)
        scheduler.start()
        return scheduler

    first = begin()
    first.pause("merge")
    first.stop()
    second = begin()
    second.resume("merge")
    second.stop()
    assert held == [False, True, True, False]


def test_pauses_that_cannot_be_read_are_not_forgotten_in_silence(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text("{")
    with pytest.raises(Corrupt) as raised:
        start(tick=done)
    assert raised.value.kind == "jobs_damaged"


def test_an_unknown_job_is_named_with_those_there_are(start: Start) -> None:
    scheduler = start(merge=done, retain=done)
    for act in (scheduler.run, scheduler.pause, scheduler.resume, scheduler.status):
        with pytest.raises(NotFound, match="one of: merge, retain"):
            act("merg")


def test_stopping_lets_a_job_come_to_an_end_and_begins_no_other(start: Start) -> None:
    begun = threading.Event()

    def long(stopping: threading.Event) -> Outcome:
        begun.set()
        assert stopping.wait(SECONDS)
        return Outcome("came to an end")

    scheduler = start(long=long, other=done)
    scheduler.call("long")
    assert begun.wait(SECONDS)
    scheduler.stop()
    (status, _) = scheduler.status()
    assert status.last is not None
    assert status.last.summary == "came to an end"
    with pytest.raises(Closed):
        scheduler.wait("other", 1, SECONDS)
    for act in (scheduler.run, scheduler.pause):
        with pytest.raises(Closed):
            act("other")
    scheduler.stop()


@pytest.mark.parametrize("shift", [-3_600_000, 3_600_000, -NOW])
def test_a_clock_that_is_set_moves_no_run(start: Start, clock: ManualClock, shift: int) -> None:
    scheduler = start(tick=(done, 20), rest=(done, 20))
    scheduler.pause("rest")
    clock.now += shift
    settle(scheduler)
    assert scheduler.status("tick")[0].next_ms == NOW + shift + 20
    for runs in range(1, 4):
        clock.advance(20)
        assert scheduler.wait("tick", runs, SECONDS).runs == runs
    assert (scheduler.status("rest")[0].next_ms, scheduler.status("rest")[0].runs) == (None, 0)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 60)),
        st.tuples(st.sampled_from(["pause", "resume", "run"]), st.integers(0, 2)),
        st.tuples(st.just("set the clock"), st.integers(-100, 100)),
    ),
    max_size=20,
)


@settings(max_examples=examples(8, 25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(intervals=st.lists(st.integers(0, 25), min_size=3, max_size=3), acts=ACTS)
def test_runs_are_those_that_were_due_and_those_requested(
    tmp_path: Path, intervals: list[int], acts: list[tuple[str, int]]
) -> None:
    """Each jump of the clock over one or more due times is one run of a job that is not paused."""
    clock, expected, paused = ManualClock(NOW), [0, 0, 0], [False] * 3
    jobs = [Job(f"job{number}", "Works.", interval, done) for number, interval in enumerate(intervals)]
    (tmp_path / "jobs.json").unlink(missing_ok=True)
    scheduler = Scheduler(jobs, state=tmp_path / "jobs.json", clock=clock)
    scheduler.start()
    try:
        for act, number in acts:
            if act == "advance":
                before = clock.passed_ms
                clock.advance(number)
                for job, interval in enumerate(intervals):
                    due = interval > 0 and clock.passed_ms // interval > before // interval
                    expected[job] += due and not paused[job]
            elif act == "set the clock":
                clock.now += number
            elif act == "run":
                expected[number] += 1
                assert scheduler.run(f"job{number}").runs == expected[number]
            else:
                paused[number] = act == "pause"
                (scheduler.pause if paused[number] else scheduler.resume)(f"job{number}")
            settle(scheduler)
            assert [status.runs for status in scheduler.status()] == expected
    finally:
        scheduler.stop()


ENDS = """
import sys, threading
from pathlib import Path
from millpond.clock import SystemClock
from millpond.nodes.jobs.scheduler import Job, Outcome, Scheduler

def work(stopping):
    stopping.wait(0.3)
    return Outcome("done")

jobs = [Job(f"j{number}", "Works.", 2, work) for number in range(9)]
Scheduler(jobs, state=Path(sys.argv[1]), clock=SystemClock()).start()
threading.Event().wait(0.1)
"""


def test_a_process_that_ends_without_stopping_says_nothing_of_it(tmp_path: Path) -> None:
    # A real process, and so a real clock.
    arguments = [sys.executable, "-c", ENDS, str(tmp_path / "jobs.json")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
