"""Recurring work by name: the rules by which runs begin, without threads and without a clock.

    due, or requested ──begin(now)──▶ running ──end──▶ idle

The caller brings the time, as a number that only grows. Nothing here waits.

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
from operator import itemgetter
from typing import Generic, TypeVar

__all__ = ("Schedule",)

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Turn:
    """A name's grid, and its state. Without an interval it runs on request alone."""

    start: float
    interval: float
    paused: bool = False
    running: bool = False
    requested: bool = False
    due: float | None = None

    def set(self, now: float) -> None:
        """Be due at the next time after now, if there is one."""
        self.due = self.after(now) if self.interval and not self.paused else None

    def after(self, now: float) -> float:
        """The first time of the grid after now."""
        steps = max(1, int((now - self.start) // self.interval) + 1)
        # The division may round to the time itself.
        while self.start + steps * self.interval <= now:
            steps += 1
        return self.start + steps * self.interval


class Schedule(Generic[K]):
    """Due times, requests and pauses of names. Not safe for threads: its owner holds a lock."""

    def __init__(self) -> None:
        self._turns: dict[K, _Turn] = {}

    def add(self, name: K, *, start: float, interval: float = 0.0, now: float, paused: bool = False) -> None:
        """Add a name; its first time is an interval after `start`."""
        assert name not in self._turns, f"{name} was added before"
        assert interval >= 0
        self._turns[name] = _Turn(start, interval, paused)
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
        dues = [(turn.due, name) for name, turn in self._turns.items() if turn.due is not None and turn.due <= now]
        due = [name for _, name in sorted(dues, key=itemgetter(0))]
        for name in due:
            self._turns[name].set(now)
        begun = [name for name in due if not self._turns[name].running]
        for name in begun:
            self._run(name)
        requested = [name for name, turn in self._turns.items() if turn.requested and not turn.running]
        for name in requested:
            self._run(name)
        return begun + requested

    def _run(self, name: K) -> None:
        turn = self._turns[name]
        assert not turn.running, "a name runs once at a time"
        # A run that begins now starts after every request so far, so it serves them all.
        turn.running, turn.requested = True, False

    def end(self, name: K) -> bool:
        """The run of a name has ended; True when another one was requested meanwhile."""
        turn = self._turns[name]
        assert turn.running, "what ends was begun"
        turn.running = False
        return turn.requested
