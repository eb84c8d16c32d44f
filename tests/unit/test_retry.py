"""Retrying beside the plain list of what each attempt does, on a clock that is moved by hand."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.retry import Backoff, retry


class Passing(ManualClock):
    """Time that passes when it is waited for; the pauses are kept."""

    def __init__(self, share: float = 0.0) -> None:
        super().__init__(share=share)
        self.pauses: list[float] = []

    def wait(self, event: threading.Event, due: float | None) -> bool:
        assert due is not None
        if not event.is_set():
            self.pauses.append(due - self.monotonic())
            self.advance(round(1000 * (due - self.monotonic())))
        return event.is_set()


class Final(Exception):
    """An error that the policy of these tests gives up."""


def policy(error: Exception, failures: int, _chance: float) -> float | None:
    return None if isinstance(error, Final) else float(failures)


@given(
    fates=st.lists(st.sampled_from(["fails", "final", "stopped", "fine"]), min_size=1, max_size=8),
    until=st.none() | st.integers(0, 40),
)
def test_attempts_and_pauses_are_those_of_the_plain_list(fates: list[str], until: int | None) -> None:
    """Each attempt fails, fails for good, is stopped while it fails, or succeeds."""
    clock, stop, attempts = Passing(), threading.Event(), list[str]()

    def act() -> int:
        fate = fates[len(attempts)] if len(attempts) < len(fates) else "fine"
        attempts.append(fate)
        if fate == "stopped":
            stop.set()
        if fate != "fine":
            raise Final(len(attempts)) if fate == "final" else ValueError(len(attempts))
        return len(attempts)

    expected, now, pauses = list[str](), 0, list[float]()
    for fate in [*fates, "fine"]:
        expected.append(fate)
        if fate != "fails" or (until is not None and now + len(expected) > until):
            break
        pauses.append(len(expected))
        now += len(expected)
    if expected[-1] == "fine":
        assert retry(act, policy, clock, stop=stop, until=until) == len(expected)
    else:
        with pytest.raises((Final, ValueError)) as raised:
            retry(act, policy, clock, stop=stop, until=until)
        assert raised.value.args == (len(expected),), "the error of the last attempt"
    assert (attempts, clock.pauses) == (expected, pauses)


@given(
    first=st.floats(0, 5), limit=st.floats(0, 60), failures=st.integers(1, 10_000), chance=st.floats(0, 0.999),
    attempts=st.none() | st.integers(1, 20),
)  # fmt: skip
def test_pauses_double_up_to_the_limit_and_are_shortened_by_chance(
    first: float, limit: float, failures: int, chance: float, attempts: int | None
) -> None:
    pause = Backoff(first, limit, attempts)(ValueError(), failures, chance)
    if attempts is not None and failures >= attempts:
        assert pause is None
        return
    whole = min(limit, first * 2 ** min(failures - 1, 60))
    assert pause == pytest.approx(whole * (1 - chance / 2))


def test_a_pause_is_cut_short_by_a_stop_and_nothing_is_tried_again() -> None:
    clock, stop, attempts = ManualClock(), threading.Event(), list[int]()

    def act() -> None:
        attempts.append(1)
        threading.Timer(0.02, stop.set).start()
        raise ValueError

    with pytest.raises(ValueError):
        retry(act, policy, clock, stop=stop)
    assert len(attempts) == 1


def test_a_pause_is_cut_short_by_a_wake_and_the_next_attempt_begins() -> None:
    clock, wake, attempts = ManualClock(), threading.Event(), list[int]()

    def act() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            wake.set()
            raise ValueError
        return len(attempts)

    assert retry(act, policy, clock, wake=wake) == 2
    assert not wake.is_set()
    assert clock.monotonic() == 0
