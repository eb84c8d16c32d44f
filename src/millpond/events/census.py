"""A census of streams: their days by state, counted a part at a time, and when the first of their days is due.

    turn: 20,000 streams ─▶ turn: 20,000 streams ─▶ … ─▶ the last stream: the count is shown, and the next one begins

A million streams have no index of their days by state, and reading all of them takes minutes. So each run of
maintenance counts some, and monitors see the last count that is whole. The first due day comes from the registry, as
far as the shortest age may matter: mostly with one read. It also tells of a job that is paused, for its lag grows.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from millpond.events.ages import Ages
from millpond.events.days import DAY_MAX, DAY_MS
from millpond.events.index import State
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore, Work

__all__ = ("TURN_STREAMS", "Census", "Count", "first_due_ms", "lag_ms")

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
        self.due_ms: Mapping[Work, int | None] = {}
        """The moment at which the first day of each kind of work is or was due, as of the last turn; None: never."""
        self._begin()

    def _begin(self) -> None:
        self._after: StreamName | None = None
        self._streams, self._days, self._bytes = 0, Counter[State](), Counter[State]()

    def turn(self, stopping: threading.Event, ages: Ages, streams_max: int = TURN_STREAMS) -> None:
        """Count so many streams more, and look for the first day that is due at these ages.

        Raises:
            Unavailable: the store is out of reach; the next turn goes on.
        """
        self.due_ms = {
            work: first_due_ms(self._store, work, ages) for work in (Work.COMPRESS, Work.EXPIRE)
            if ages.shortest_ms(work)
        }  # fmt: skip
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

    def _add(self, stream: StreamName) -> None:
        index = self._store.index(stream)
        if index is None:  # it is forgotten meanwhile
            return
        self._streams += 1
        for segment in index.segments:
            self._days[segment.state] += len(segment.days)
            self._bytes[segment.state] += segment.stored_bytes


def first_due_ms(store: StreamStore, work: Work, ages: Ages) -> int | None:
    """The moment at which the first day of any stream is due, at the age of that stream; None: never."""
    first: int | None = None
    after, shortest_ms = None, ages.shortest_ms(work)
    limit = 1 if not ages.rules else _PAGE
    while page := store.due(work, DAY_MAX, after, limit=limit):
        for due in page:
            if first is not None and (due.day + 1) * DAY_MS + shortest_ms >= first:
                return first
            due_ms = ages.due_ms(work, due)
            first = due_ms if first is None else min(first, due_ms or first)
            if first is not None and not ages.rules:
                return first
        after, limit = page[-1], _PAGE
    return first


def lag_ms(due_ms: int | None, now_ms: int) -> int:
    """The time since a day was due; 0 when it is not due yet, or there is none.

    >>> lag_ms(5, 7), lag_ms(7, 5), lag_ms(None, 5)
    (2, 0, 0)
    """
    return 0 if due_ms is None else max(0, now_ms - due_ms)
