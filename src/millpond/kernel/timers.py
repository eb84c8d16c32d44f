"""Due times in a heap, one for each key: what is due next, and what is due by now.

The caller brings the time, as a number that only grows (`Clock.monotonic`, or the position of a log whose entries
carry times). Nothing here waits.

Invariants:
* A key has at most one due time; `set` replaces it.
* `take(now)` yields every key whose time has come, in the order of their times, and of equal times in the order in
  which they were set. What was taken is set no more.
* A key that is neither taken nor cancelled stays set: no timer is lost.
* The heap holds at most twice as many entries as there are keys, and a few: cancelling costs no memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ("Timers",)

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
