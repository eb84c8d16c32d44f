"""Jobs run when they are due and on demand, one at a time, and say how it went."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.clock import SystemClock
from millpond.errors import Closed, Corrupt, Invalid, NotFound, Unavailable
from millpond.nodes.jobs.scheduler import Job, Outcome, Scheduler

SECONDS = 20.0
Work = Callable[[threading.Event], Outcome]
Start = Callable[..., Scheduler]


def done(_stopping: threading.Event) -> Outcome:
    return Outcome("tended 2 maps", {"maps": 2})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a scheduler of jobs given as `name=work` or `name=(work, interval)`."""
    started: list[Scheduler] = []

    def begin(**works: Work | tuple[Work, int]) -> Scheduler:
        jobs = []
        for name, entry in works.items():
            work, interval = entry if isinstance(entry, tuple) else (entry, 0)
            jobs.append(Job(name, f"Does {name}.", interval, work))
        scheduler = Scheduler(jobs, state=tmp_path / "jobs.json", clock=SystemClock())
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


def test_a_job_that_is_due_runs_again_and_again(start: Start) -> None:
    ran = threading.Semaphore(0)

    def work(_stopping: threading.Event) -> Outcome:
        ran.release()
        return Outcome("ran")

    scheduler = start(tick=(work, 20))
    for _ in range(3):
        assert ran.acquire(timeout=SECONDS)
    (status,) = scheduler.status()
    assert status.next_ms is not None
    assert not status.paused


def test_a_job_without_an_interval_runs_only_on_demand(start: Start) -> None:
    scheduler = start(tend=done)
    (before,) = scheduler.status()
    assert (before.runs, before.last, before.next_ms) == (0, None, None)
    after = scheduler.run("tend")
    assert (after.runs, after.failures, after.running_since_ms) == (1, 0, None)
    assert after.last is not None
    assert (after.last.summary, after.last.numbers, after.last.error) == ("tended 2 maps", {"maps": 2}, None)
    assert abs(after.last.began_ms - SystemClock().now_ms()) < 1000 * SECONDS
    assert after.last.seconds >= 0


def test_on_demand_while_it_runs_it_runs_once_more_and_not_twice_at_once(start: Start) -> None:
    gate = Gate()
    scheduler = start(slow=gate)
    scheduler.call("slow")
    assert gate.begun.acquire(timeout=SECONDS)
    (running,) = scheduler.status()
    assert running.running_since_ms is not None
    threads = [threading.Thread(target=scheduler.run, args=("slow",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    scheduler.call("slow")
    gate.open.release()
    assert gate.begun.acquire(timeout=SECONDS), "the run that was requested while the first went on"
    gate.open.release()
    # A request after the second began waits for a third.
    gate.open.release()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    (status,) = scheduler.status()
    assert status.runs in (2, 3)
    assert status.failures == 0


def test_a_wait_that_is_too_short_is_an_error_and_the_job_goes_on(start: Start) -> None:
    gate = Gate()
    scheduler = start(slow=gate)
    with pytest.raises(Unavailable) as raised:
        scheduler.run("slow", seconds=0.01)
    assert raised.value.kind == "job_slow"
    assert scheduler.wait("slow", 1, 0.01).runs == 0
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


def test_a_paused_job_runs_only_on_demand_and_stays_paused_over_a_restart(start: Start, tmp_path: Path) -> None:
    scheduler = start(tick=(done, 20), other=(done, 1_000_000))
    assert scheduler.pause("tick").paused
    assert scheduler.status("tick")[0].next_ms is None
    runs = scheduler.run("tick").runs
    assert scheduler.run("tick").runs == runs + 1
    scheduler.stop()

    again = start(tick=(done, 20), other=(done, 1_000_000))
    assert [(job.name, job.paused, job.next_ms is None) for job in again.status()] == [
        ("tick", True, True), ("other", False, False),
    ]  # fmt: skip
    assert not again.resume("tick").paused
    assert again.status("tick")[0].next_ms is not None
    assert json.loads((tmp_path / "jobs.json").read_text()) == {"paused": []}


def test_work_between_the_runs_knows_of_pauses_also_after_a_restart(tmp_path: Path) -> None:
    held: list[bool] = []

    def begin() -> Scheduler:
        job = Job("merge", "Merges.", 0, done, pause=held.append)
        scheduler = Scheduler([job], state=tmp_path / "jobs.json", clock=SystemClock())
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


class _Wrong(SystemClock):
    """A clock that is an hour ahead until it is set."""

    def __init__(self) -> None:
        self.ahead_ms = 3_600_000

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_clock_set_back_keeps_no_job_from_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.nodes.jobs.scheduler.CLOCK_SECONDS", 0.02)
    ran, clock = threading.Semaphore(0), _Wrong()

    def work(_stopping: threading.Event) -> Outcome:
        ran.release()
        return Outcome("ran")

    jobs = [Job("tick", "Ticks.", 20, work), Job("rest", "Rests.", 20, work)]
    scheduler = Scheduler(jobs, state=tmp_path / "jobs.json", clock=clock)
    scheduler.start()
    try:
        scheduler.pause("rest")
        assert not ran.acquire(timeout=0.1)
        clock.ahead_ms = 0
        for _ in range(3):
            assert ran.acquire(timeout=SECONDS)
        assert scheduler.status("rest")[0].next_ms is None
        assert scheduler.status("rest")[0].runs == 0
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
    command = [sys.executable, "-c", ENDS, str(tmp_path / "jobs.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
