"""Counts by hour, of the last day, in memory: what a process did since it began.

>>> hours = Hours()
>>> hours.add(7_200_000), hours.add(7_200_001, 2), hours.add(3_600_000)
(None, None, None)
>>> hours.of_day(7_300_000)[-3:], hours.of_day(7_300_000 + 23 * HOUR_MS)[:2], sum(hours.of_day(100 * HOUR_MS))
([0, 1, 3], [3, 0], 0)
"""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ("DAY_HOURS", "HOUR_MS", "Hours")

HOUR_MS = 3_600_000
DAY_HOURS = 24


class Hours:
    """The counts of the hours of a day. Threads may share them; so may processes, which each send theirs."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, ms: int, count: int = 1) -> None:
        """Count something at a time, UTC milliseconds."""
        hour = ms // HOUR_MS
        with self._lock:
            # Only an hour that is new makes others too old, so they are looked through once in an hour.
            if hour not in self._counts:
                for old in [old for old in self._counts if old <= hour - DAY_HOURS]:
                    del self._counts[old]
            self._counts[hour] += count

    def of_day(self, now_ms: int) -> list[int]:
        """The counts of the last 24 hours, that of now the last."""
        last = now_ms // HOUR_MS
        with self._lock:
            # All 24, empty ones too: those of other processes are added place by place. A `Counter` does not store an
            # hour that it is only asked for.
            return [self._counts[hour] for hour in range(last + 1 - DAY_HOURS, last + 1)]
