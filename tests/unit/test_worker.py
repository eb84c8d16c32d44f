"""A worker acts at its times and when it is woken, and a failure does not end it."""

from __future__ import annotations

import logging
import threading

import pytest

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.kernel.worker import WorkerThread, repeating, workers


class Acts:
    """Counts its calls; `due` is when it wants the next one, `error` what it raises."""

    def __init__(self) -> None:
        self.calls, self.due, self.error = 0, None, None  # type: tuple[int, float | None, Exception | None]
        self.changed = threading.Condition()

    def __call__(self) -> float | None:
        with self.changed:
            self.calls += 1
            self.changed.notify_all()
        if self.error is not None:
            raise self.error
        return self.due

    def reached(self, calls: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.calls >= calls, 10)


def rests(clock: ManualClock) -> None:
    """Wait until the worker waits on the clock."""
    while not clock._waits:
        threading.Event().wait(0.001)


def test_it_acts_at_once_at_its_time_and_when_it_is_woken() -> None:
    clock, acts = ManualClock(), Acts()
    acts.due = 5.0
    worker = WorkerThread("a test", acts, clock)
    worker.start()
    worker.start()
    assert acts.reached(1)
    rests(clock)
    acts.due = None
    clock.advance(5_000)
    assert acts.reached(2)
    rests(clock)
    worker.wake()
    assert acts.reached(3)
    assert worker.alive
    worker.stop()
    worker.stop()
    assert (acts.calls, worker.alive, worker.started) == (3, False, False)


def test_a_wake_while_it_acts_is_not_lost() -> None:
    clock, entered, go_on, calls = ManualClock(), threading.Event(), threading.Event(), []

    def act() -> None:
        calls.append(1)
        entered.set()
        go_on.wait(10)

    worker = WorkerThread("a test", act, clock)
    worker.start()
    assert entered.wait(10)
    worker.wake()
    entered.clear()
    go_on.set()
    assert entered.wait(10)
    worker.stop()
    assert len(calls) == 2


def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    clock, acts = ManualClock(), Acts()
    acts.error = Unavailable("no disk")
    worker = WorkerThread("a test", acts, clock, retry_seconds=2)
    with caplog.at_level(logging.WARNING):
        worker.start()
        for calls in (1, 2, 3):
            assert acts.reached(calls)
            rests(clock)
            clock.advance(2_000)
        assert acts.reached(4)
        rests(clock)
    assert str(worker.failure) == "no disk"
    assert [record.message for record in caplog.records] == ["a test: no disk"]
    acts.error = None
    worker.wake()
    assert acts.reached(5)
    rests(clock)
    assert worker.failure is None
    worker.stop()


def test_it_can_be_started_anew_and_stopped_before_it_began() -> None:
    clock, acts = ManualClock(), Acts()
    worker = WorkerThread("a test", acts, clock)
    worker.stop()
    worker.start()
    assert acts.reached(1)
    worker.stop()
    worker.start()
    assert acts.reached(2)
    worker.stop()


def test_workers_are_seen_with_what_went_wrong_last() -> None:
    clock, acts = ManualClock(now=1000), Acts()
    worker = WorkerThread("a worker that is seen", acts, clock)
    assert not [seen for seen in workers() if seen.name == "a worker that is seen"]
    acts.error = Unavailable("nothing answers")
    worker.start()
    try:
        assert acts.reached(1)
        rests(clock)
        (seen,) = [seen for seen in workers() if seen.name == "a worker that is seen"]
        assert (seen.state, seen.last_ms, seen.failed_ms, seen.failure) == ("failing", 1000, 1000, "nothing answers")
        acts.error = None
        clock.advance(2000)
        assert acts.reached(2)
        rests(clock)
        seen = worker.status()
        assert (seen.state, seen.last_ms, seen.failed_ms, seen.failure) == ("waiting", 3000, 1000, "nothing answers")
    finally:
        worker.stop()
    assert worker.status().state == "ended"
    assert not [seen for seen in workers() if seen.name == "a worker that is seen"]


def test_what_repeats_begins_after_a_while_and_ends_with_its_block() -> None:
    clock, acts = ManualClock(), Acts()
    with repeating("what repeats", acts, 5.0, clock):
        rests(clock)
        assert acts.calls == 0
        clock.advance(5000)
        assert acts.reached(1)
        rests(clock)
        clock.advance(5000)
        assert acts.reached(2)
    clock.advance(60_000)
    assert acts.calls == 2
