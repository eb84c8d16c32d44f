"""Merge failures: recorded per map, raised to waiting loads, and listed with the queue.

Attempts to merge are numbered in the order in which they begin. Each new waiter requests one, and gets what
went wrong with an attempt that began later than that: never what has been mended since.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ("MergeFailures", "Failure")


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed attempt on a map: its number, its kind (`errors.py`), its message."""

    map: str
    attempt: int
    kind: str
    reason: str


class MergeFailures:
    """The maps whose last merge failed; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts = 0
        self._failures: dict[str, Failure] = {}
        self._running: set[str] = set()
        self._requested: set[str] = set()

    def begin(self, name: str) -> int:
        """An attempt on a map begins: its number."""
        with self._lock:
            self._attempts += 1
            self._running.add(name)
            self._requested.discard(name)
            return self._attempts

    def ended(self, name: str, attempt: int, error: Exception | None) -> None:
        """The attempt ended: with an error, or well."""
        with self._lock:
            self._running.discard(name)
            if error is None:
                self._requested.discard(name)
                self._failures.pop(name, None)
            else:
                kind, reason = getattr(error, "kind", "internal"), str(error) or repr(error)
                self._failures[name] = Failure(name, attempt, kind, reason)

    def ask(self, names: Collection[str] | None) -> int:
        """Somebody waits for these maps (all: None): those that fail are wanted to be tried again. The last attempt."""
        with self._lock:
            troubled = self._failures.keys() | self._running
            self._requested |= troubled if names is None else troubled & set(names)
            return self._attempts

    def requested(self, name: str) -> bool:
        """True when a caller waits for a new attempt on a map."""
        with self._lock:
            return name in self._requested

    def all(self, after: int = 0) -> list[Failure]:
        """The failures of attempts that began after one."""
        with self._lock:
            return [failure for failure in self._failures.values() if failure.attempt > after]
