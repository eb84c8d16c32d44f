"""A dictionary of bounded size, for what can be had again: the entries that were used longest ago leave first.

Invariants:
* it holds no more than `size_max`, but for the entry that came last, which stays until the next one;
* what makes an entry runs outside the lock: two threads may make the same one, and the first one made stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ("Cache",)

K = TypeVar("K")
V = TypeVar("V")


def _unit(_: object) -> int:
    return 1


class Cache(Generic[K, V]):
    """Entries by key, of a size in all: how many, or the sum of what `size_of` says of each. Threads may share it."""

    def __init__(self, size_max: int, size_of: Callable[[V], int] = _unit) -> None:
        self._size_max, self._size_of, self._size = size_max, size_of, 0
        # a dictionary has its order: first what was used longest ago
        self._entries: dict[K, tuple[V, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        # With the lock: `get` and `put` take an entry out for a moment, and it would be missed then.
        with self._lock:
            return key in self._entries

    def get(self, key: K) -> V | None:
        """An entry, which counts as used."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            # Put in anew, so that it is the last in the order: a key that is overwritten keeps its place.
            self._entries[key] = entry
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Hold an entry, instead of the one there was."""
        with self._lock:
            self._take(key)
            self._put(key, value)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """An entry; one that is not there is made, and held."""
        if (value := self.get(key)) is not None:
            return value
        # Without the lock: it may fetch a file, or ask this cache for another entry.
        value = make()
        with self._lock:
            if key in self._entries:
                return self._entries[key][0]
            self._put(key, value)
        return value

    def pop(self, key: K) -> V | None:
        """An entry, which is held no more."""
        with self._lock:
            return self._take(key)

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def values(self) -> list[V]:
        """All that is held; nothing counts as used."""
        with self._lock:
            return [value for value, _ in self._entries.values()]

    def _put(self, key: K, value: V) -> None:
        size = self._size_of(value)
        self._entries[key] = (value, size)
        self._size += size
        # The last one stays, or one that is larger than all would be made anew for each who asks.
        while self._size > self._size_max and len(self._entries) > 1:
            self._take(next(iter(self._entries)))

    def _take(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._size -= entry[1]
        return entry[0]
