"""A manual clock that threads wait on, and time that passes while a test waits for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.clock import ManualClock
from millpond.testing.passing_time import STEP_MS_MAX, until, while_time_passes

HOUR = 3600.0


def test_a_jump_goes_to_the_next_time_that_a_thread_waits_for() -> None:
    clock, stop = ManualClock(now=5), threading.Event()
    assert not clock.jump(1000), "nobody waits"
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(clock.wait, stop, due) for due in (0.3, 0.7, None)]
        until(clock, lambda: clock.turns == 3)
        assert clock.passed_ms == 0
        assert clock.jump(10_000)
        assert (clock.passed_ms, clock.now) == (300, 305)
        assert waits[0].result() is False
        assert clock.jump(100)
        assert clock.passed_ms == 400, "no further than it may"
        stop.set()
        assert [wait.result() for wait in waits[1:]] == [True, True]
    assert clock.turns == 6
    assert not clock.jump(1000)


def test_one_whose_time_has_come_goes_on_before_the_clock_does() -> None:
    clock, condition, seen = ManualClock(), threading.Condition(), threading.Event()

    def look() -> bool:
        seen.set()
        return False

    def wait() -> bool:
        with condition:
            return clock.wait_for(condition, look, 0.5)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(wait)
        assert seen.wait(60)
        with condition:  # it cannot go on as long as this holds its lock
            assert clock.jump(10_000)
            assert not clock.jump(10_000)
            assert clock.passed_ms == 500
        assert pending.result() is False


def test_a_move_of_the_clock_wakes_those_whose_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not look: twenty waiting threads that look all the time take a processor for themselves."""
    monkeypatch.setattr("millpond.clock.LOOK_SECONDS", 600)
    clock, never, condition = ManualClock(), threading.Event(), threading.Condition()

    def wait() -> bool:
        with condition:
            return clock.wait_for(condition, lambda: False, 2.0)

    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(clock.wait, never, 1.0), pool.submit(wait)]
        until(clock, lambda: clock.turns == 2)
        clock.advance(1500)
        assert waits[0].result(60) is False and not waits[1].done()
        clock.advance(500)
        assert waits[1].result(60) is False


def test_hours_pass_while_something_is_done() -> None:
    clock, never = ManualClock(), threading.Event()

    def rest() -> float:
        for hour in range(1, 4):
            assert not clock.wait(never, hour * HOUR / 60)
        return clock.monotonic()

    assert while_time_passes(clock, rest) == 3 * HOUR / 60
    assert clock.passed_ms % STEP_MS_MAX == 0


def test_an_error_of_what_is_done_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        while_time_passes(ManualClock(), lambda: 1 // 0)


@pytest.mark.usefixtures("processor")
def test_threads_draw_different_ids() -> None:
    clock = ManualClock()
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: clock.random_id(), range(2000)))
    assert len(set(drawn)) == 2000
