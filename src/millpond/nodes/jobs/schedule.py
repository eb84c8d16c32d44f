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
* What is due begins in the order of the times, and of equal times in the order in which they were set; a time that is
  neither taken nor cancelled stays set. The heap holds at most twice as many entries as there are names, and a few.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ("Schedule", "Timers")

K = TypeVar("K", bound=Hashable)

STALE_MIN = 64
"""So many replaced or cancelled entries may stay in the heap, however few keys there are."""


class Timers(Generic[K]):
    """The due times of keys. Not safe for threads: its owner holds a lock."""

    def __init__(self) -> None:
        self._set: dict[K, tuple[float, int]] = {}
        # The number settles the order of equal times, and tells an entry that counts from one that was replaced.
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._set)

    def set(self, key: K, due: float) -> None:
        """Let a key be due at a time, and not at another one that was set before."""
        self._number += 1
        self._set[key] = due, self._number
        heapq.heappush(self._heap, (due, self._number, key))
        if len(self._heap) > 2 * len(self._set) + STALE_MIN:
            self._heap = [(due, number, key) for key, (due, number) in self._set.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Let a key not be due; also one that is not set."""
        self._set.pop(key, None)

    def due(self, key: K) -> float | None:
        """The time at which a key is due, None when it is not set."""
        found = self._set.get(key)
        return None if found is None else found[0]

    def next_due(self) -> float | None:
        """The earliest due time, None when nothing is set."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[K]:
        """Remove and return the keys that are due by now."""
        taken: list[K] = []
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._set[key]
            taken.append(key)
        return taken

    def _drop_stale(self) -> None:
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)


@dataclass(slots=True)
class _Turn:
    """A name's grid, and its state. Without an interval it runs on request alone."""

    start: float
    interval: float
    paused: bool = False
    running: bool = False
    requested: bool = False

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
        self._timers: Timers[K] = Timers()

    def add(self, name: K, *, start: float, interval: float = 0.0, now: float, paused: bool = False) -> None:
        """Add a name; its first time is an interval after `start`."""
        assert name not in self._turns, f"{name} was added before"
        assert interval >= 0
        self._turns[name] = _Turn(start, interval, paused)
        self._set(name, now)

    def _set(self, name: K, now: float) -> None:
        turn = self._turns[name]
        if turn.interval and not turn.paused:
            self._timers.set(name, turn.after(now))

    def due(self, name: K) -> float | None:
        """The time at which a name is due next, None when it is paused or has no interval."""
        return self._timers.due(name)

    def next_due(self) -> float | None:
        """The time until which `begin` has nothing to do, unless there is a request; None when that is for ever."""
        return self._timers.next_due()

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
            self._timers.cancel(name)
            self._set(name, now)

    def begin(self, now: float) -> list[K]:
        """The names that run from now on: what is due, then what is requested. Each must come to an `end`."""
        due = self._timers.take(now)
        for name in due:
            self._set(name, now)
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
