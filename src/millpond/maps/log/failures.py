"""Merge failures: recorded per map, raised to waiting loads, and listed with the queue.

Attempts to merge are numbered in the order in which they begin. Each new waiter requests one, and gets what
went wrong with an attempt that began later than that: never what has been mended since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
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
        self._requested: dict[str, int] = {}

    def begin(self, name: str) -> int:
        """An attempt on a map begins: its number."""
        with self._lock:
            self._attempts += 1
            self._requested.pop(name, None)
            return self._attempts

    def ended(self, name: str, attempt: int, error: Exception | None) -> None:
        """The attempt ended: with an error, or well."""
        with self._lock:
            if error is None:
                self._failures.pop(name, None)
            else:
                kind, reason = getattr(error, "kind", "internal"), str(error) or repr(error)
                self._failures[name] = Failure(name, attempt, kind, reason)

    def ask(self, names: Iterable[str], position: int) -> int:
        """Somebody waits for these maps up to a position: they do not rest before, and those that fail are tried again.

        Returns the number of the last attempt.
        """
        with self._lock:
            for name in names:
                self._requested[name] = max(position, self._requested.get(name, 0))
            return self._attempts

    def requested(self, name: str) -> int | None:
        """The position of the log up to which a caller waits for a map; None when nobody asked since an attempt."""
        with self._lock:
            return self._requested.get(name)

    def all(self, after: int = 0) -> list[Failure]:
        """The failures of attempts that began after one."""
        with self._lock:
            return [failure for failure in self._failures.values() if failure.attempt > after]
