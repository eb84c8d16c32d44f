"""Recurring work, one or many by name: the rules by which runs begin, without threads and without a clock.

    due, or requested ──begin(now)──▶ running ──end──▶ idle

The caller brings the time, as a number. Nothing here waits.

Invariants:
* A name is running at most once.
* Due times lie on a grid: `start + n × interval`, n ≥ 1; they are exact when both are whole numbers. A late
  `begin` makes one run of all that is due by then, and the grid stays where it is.
* A time that comes while the name is running, or paused, is passed over: the next one comes soon enough.
* A request is never passed over: it begins at once, also when the name is paused; and when it is running, after that.
* Every name with an interval that is not paused is due at some time after now.
* What is due begins in the order of the times.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

__all__ = ("Recurring", "Schedule")

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Recurring:
    """Something that is due at once, then at the times of its grid; without an interval on request alone."""

    start: float
    interval: float
    paused: bool = False
    running: bool = False
    requested: bool = False
    due: float | None = -inf

    def begin(self, now: float) -> bool:
        """True when it is due; it is then due at the next time after now. A clock that went back holds nothing up."""
        begun = self.due is not None and self.due <= now
        if begun or self.due is None or self.due > now + self.interval:
            self.set(now)
        return begun

    def set(self, now: float) -> None:
        """Be due at the next time after now, if there is one."""
        self.due = self._after(now) if self.interval and not self.paused else None

    def _after(self, now: float) -> float:
        steps = max(1, int((now - self.start) // self.interval) + 1)
        # The division may round to the time itself.
        while self.start + steps * self.interval <= now:
            steps += 1
        return self.start + steps * self.interval


class Schedule(Generic[K]):
    """Due times, requests and pauses of names. Not safe for threads: its owner holds a lock."""

    def __init__(self) -> None:
        self._turns: dict[K, Recurring] = {}

    def add(self, name: K, *, start: float, interval: float = 0.0, now: float, paused: bool = False) -> None:
        """Add a name; its first time is an interval after `start`."""
        assert name not in self._turns, f"{name} was added before"
        assert interval >= 0
        self._turns[name] = Recurring(start, interval, paused)
        self._turns[name].set(now)

    def due(self, name: K) -> float | None:
        """The time at which a name is due next, None when it is paused or has no interval."""
        return self._turns[name].due

    def next_due(self) -> float | None:
        """The time until which `begin` has nothing to do, unless there is a request; None when that is for ever."""
        return min((turn.due for turn in self._turns.values() if turn.due is not None), default=None)

    def request(self, name: K) -> bool:
        """Let a name run once more, soon; False when that was requested before and has not begun."""
        turn = self._turns[name]
        new, turn.requested = not turn.requested, True
        return new

    def set_paused(self, name: K, paused: bool, now: float) -> None:
        """Let a name run on request alone, or again at its times."""
        turn = self._turns[name]
        if turn.paused != paused:  # else a time that has come, and has not begun, would be passed over
            turn.paused = paused
            turn.set(now)

    def begin(self, now: float) -> list[K]:
        """The names that run from now on: what is due, then what is requested. Each must come to an `end`."""
        by_due = sorted(self._turns.items(), key=lambda named: named[1].due or 0.0)
        due = [name for name, turn in by_due if turn.begin(now) and not turn.running]
        more = [name for name, turn in self._turns.items() if turn.requested and not turn.running and name not in due]
        for name in due + more:
            # A run that begins now starts after every request so far, so it serves them all.
            self._turns[name].running, self._turns[name].requested = True, False
        return due + more

    def end(self, name: K) -> bool:
        """The run of a name has ended; True when another one was requested meanwhile."""
        turn = self._turns[name]
        assert turn.running, "what ends was begun"
        turn.running = False
        return turn.requested
