"""A census of streams: their days by state, counted a part at a time, and the oldest day that waits for maintenance.

    turn: 20,000 streams ─▶ turn: 20,000 streams ─▶ … ─▶ the last stream: the count is shown, and the next one begins

A million streams have no index of their days by state, and reading all of them takes minutes. So each run of
maintenance counts some, and monitors see the last count that is whole. The oldest day comes from the registry, with
one read: it also tells of a job that is paused, for its age grows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.events.days import DAY_MAX, DAY_MS
from millpond.events.index import State
from millpond.events.protocol import Work

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore

__all__ = ("TURN_STREAMS", "Census", "Count", "lag_ms")

TURN_STREAMS = 20_000
"""Streams that one turn counts: about a second's work."""
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Count:
    """The streams of a place, and by state their days and the bytes that these take as they are stored."""

    streams: int
    days: Mapping[State, int]
    stored_bytes: Mapping[State, int]


class Census:
    """The census of a store. One thread takes turns; others read what it found."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self.count: Count | None = None
        """The last count that is whole; None before there is one."""
        self.oldest: Mapping[Work, int | None] = {}
        """The oldest day of each kind of work, due or not, after the last turn."""
        self._begin()

    def _begin(self) -> None:
        self._after: StreamName | None = None
        self._streams, self._days, self._bytes = 0, Counter[State](), Counter[State]()

    def turn(self, stopping: threading.Event, streams_max: int = TURN_STREAMS) -> None:
        """Count so many streams more, and look for the oldest days.

        Raises:
            Unavailable: the store is out of reach; the next turn goes on.
        """
        self.oldest = {work: self._oldest(work) for work in (Work.COMPRESS, Work.EXPIRE)}
        counted = 0
        while counted < streams_max and not stopping.is_set():
            page = self._store.streams(None, self._after, limit=min(_PAGE, streams_max - counted))
            for stream in page:
                self._add(stream)
            counted += len(page)
            if not page:
                self.count = Count(self._streams, self._days, self._bytes)
                self._begin()
                return
            self._after = page[-1]

    def _oldest(self, work: Work) -> int | None:
        found = self._store.due(work, DAY_MAX, limit=1)
        return found[0].day if found else None

    def _add(self, stream: StreamName) -> None:
        index = self._store.index(stream)
        if index is None:  # it is forgotten meanwhile
            return
        self._streams += 1
        for segment in index.segments:
            self._days[segment.state] += len(segment.days)
            self._bytes[segment.state] += segment.stored_bytes


def lag_ms(day: int | None, after_ms: int, now_ms: int) -> int:
    """The time since a day was due, which is `after_ms` after its end; 0 when it is not due yet, or there is none.

    >>> lag_ms(day=0, after_ms=2 * DAY_MS, now_ms=3 * DAY_MS + 5), lag_ms(day=0, after_ms=2 * DAY_MS, now_ms=DAY_MS)
    (5, 0)
    """
    return 0 if day is None else max(0, now_ms - after_ms - (day + 1) * DAY_MS)
