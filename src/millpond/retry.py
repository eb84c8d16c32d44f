"""Retrying: an act is done until it succeeds, is not worth doing again, or is stopped.

    retry(act, Backoff(first_seconds=0.2, seconds_max=30), clock, stop=stopping)

A policy is any function of the error, of the number of failures so far and of a random number; it gives the seconds to
pause, or None when the error is final. Policies decide; `retry` alone waits, on the injected clock.

Invariants:
* The act is done once more than it failed and was paused for; what it returned last is returned.
* An error that is not retried is raised as it is.
* No attempt begins after `stop` is set, and no pause goes beyond `until`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from millpond.clock import Clock

__all__ = ("Backoff", "Policy", "only", "retry")

T = TypeVar("T")

Policy: TypeAlias = Callable[[Exception, int, float], float | None]
"""`(error, failures, chance)` to the seconds before the next attempt; None to raise the error."""

DOUBLINGS_MAX = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double up to a limit, shortened at random by up to `jitter` of their length.

    The jitter keeps clients that failed together from coming back together.
    """

    first_seconds: float
    seconds_max: float
    attempts_max: int | None = None
    jitter: float = 0.5

    def __call__(self, error: Exception, failures: int, chance: float) -> float | None:
        if self.attempts_max is not None and failures >= self.attempts_max:
            return None
        full = min(self.seconds_max, self.first_seconds * 2.0 ** min(failures - 1, DOUBLINGS_MAX))
        return full * (1 - self.jitter * chance)


def only(kind: type[Exception], policy: Policy) -> Policy:
    """A policy for the errors of one class; all others are final."""
    return lambda error, failures, chance: policy(error, failures, chance) if isinstance(error, kind) else None


def retry(
    act: Callable[[], T], policy: Policy, clock: Clock, *, stop: threading.Event | None = None,
    wake: threading.Event | None = None, until: float | None = None,
) -> T:  # fmt: skip
    """Do something until it succeeds, with the pauses of a policy.

    `wake` cuts a pause short and is cleared; whoever sets `stop` sets it, too. `until` is a monotonic time.

    Raises: the error of the last attempt, when the policy gives it up, `stop` is set, or the pause would end after
    `until`.
    """
    stop = stop or threading.Event()
    failures = 0
    while True:
        try:
            return act()
        except Exception as error:
            failed, failures = clock.monotonic(), failures + 1
            pause = None if stop.is_set() else policy(error, failures, clock.chance())
            due = failed + (pause or 0.0)
            if pause is None or (until is not None and due > until):
                raise
            clock.wait(wake or stop, due)
            if wake is not None:
                wake.clear()
            if stop.is_set():
                raise
