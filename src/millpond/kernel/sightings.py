"""Sightings of leases that other processes hold: how long a row has stayed as it is, by this process's own clock.

    row seen first ─▶ the same after its length: the holder is dead      row changed: it lives, and the time begins anew

Clocks of machines disagree, also by days. A time in the row would take the lease of a live holder away, or hold that of
a dead one for as long as its clock was ahead. So nobody reads it: a holder renews its row within the length, each time
with other bytes, and counts its own time from before the write; others count theirs from when they saw the row. Both
are monotonic, so a holder that is late knows so before anybody else does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.clock import Clock

__all__ = ("ROWS_MAX", "Sightings")

ROWS_MAX = 1_000
"""The leases that are remembered; one that is forgotten is seen first once more."""


class Sightings:
    """The rows that a process saw, by their keys. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()

    def is_over(self, key: bytes, row: bytes, length_ms: int) -> bool:
        """True when the row at a key has been the same for the length of its lease."""
        now = self._clock.monotonic()
        with self._lock:
            seen, since = self._seen.get(key, (b"", now))
            if seen != row:
                since = now
            self._seen[key] = row, since
            self._seen.move_to_end(key)
            if len(self._seen) > ROWS_MAX:
                self._seen.popitem(last=False)
        return 1000 * (now - since) >= length_ms
