"""The index of a stream: its days and the segments that hold them, as values.

A *day* is a run of events. A *segment* is what is stored, switched and dropped as one: the open day, a closed day, or
compressed days. Small days share a compressed segment.

Invariants, asserted when an index is made:
* the days of all segments grow, and so do their ids, without overlap;
* only the newest segment may be open, and only the oldest ones may be expired;
* open and closed segments hold one day.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from millpond.error_values import html_bars, html_table
from millpond.events.days import day_of, format_day
from millpond.events.ids import id_time_ms
from millpond.events.names import StreamName

if TYPE_CHECKING:
    from millpond.events.event import Event

__all__ = ("Day", "DaySegment", "State", "StreamIndex", "day_faults", "forget_day")

_DAYS_DRAWN = 90


def forget_day(last_id: int, last_day: int) -> int:
    """The day from whose end on `forget_ms` are counted: a stream without events lives on since its last append."""
    return max(last_day, day_of(id_time_ms(last_id)))


class State(StrEnum):
    """The state of a day."""

    OPEN = "open"
    """Events are appended to it."""
    CLOSED = "closed"
    """It gets no events any more, and is stored as it was written."""
    COMPRESSED = "compressed"
    EXPIRED = "expired"
    """Nobody reads it any more; its rows are being dropped."""


@dataclass(frozen=True, slots=True)
class Day:
    """The events of one day: their first and last id, their number, and the bytes of payloads and headers."""

    day: int
    first_id: int
    last_id: int
    count: int
    bytes: int

    def __post_init__(self) -> None:
        assert 0 < self.first_id <= self.last_id and 0 < self.count <= self.last_id - self.first_id + 1

    def __str__(self) -> str:
        return format_day(self.day)

    def grown(self, last_id: int, count: int, size: int) -> Day:
        """The day with more events at its end."""
        return Day(self.day, self.first_id, last_id, self.count + count, self.bytes + size)


@dataclass(frozen=True, slots=True)
class DaySegment:
    """Days that are stored together, and the bytes that they take as they are stored."""

    state: State
    days: tuple[Day, ...]
    stored_bytes: int

    def __post_init__(self) -> None:
        assert self.days and (len(self.days) == 1 or self.state not in (State.OPEN, State.CLOSED))
        assert all(a.day < b.day and a.last_id < b.first_id for a, b in itertools.pairwise(self.days))

    @property
    def first_id(self) -> int:
        """The id of its first event."""
        return self.days[0].first_id

    @property
    def last_id(self) -> int:
        """The id of its last event."""
        return self.days[-1].last_id

    @property
    def count(self) -> int:
        """The number of its events."""
        return sum(day.count for day in self.days)

    @property
    def bytes(self) -> int:
        """The bytes of its events before compression."""
        return sum(day.bytes for day in self.days)


@dataclass(frozen=True, slots=True)
class StreamIndex:
    """The segments of a stream, oldest first.

    `last_id` is the id of the newest event ever appended, `last_day` its day; up to `dropped_id` all events expired.
    """

    stream: StreamName
    segments: tuple[DaySegment, ...]
    last_id: int
    last_day: int
    dropped_id: int

    def __post_init__(self) -> None:
        for older, newer in itertools.pairwise(self.segments):
            assert older.days[-1].day < newer.days[0].day and older.last_id < newer.first_id
            assert older.state is not State.OPEN and (newer.state is not State.EXPIRED or older.state is State.EXPIRED)
        assert self.dropped_id <= self.last_id

    def _repr_html_(self) -> str:
        rows = [(format_day(day.day), state, day.count, day.bytes) for day, state in self.days()]
        title = f"{self.stream.queue}/{self.stream.job_set}"
        bars = html_bars(f"events by day of {title}", [count for _, _, count, _ in rows[-_DAYS_DRAWN:]])
        return html_table(title, ("day", "state", "events", "bytes"), rows) + bars

    def days(self) -> list[tuple[Day, State]]:
        """Each day with its state, oldest first."""
        return [(day, segment.state) for segment in self.segments for day in segment.days]

    @property
    def stored_bytes(self) -> int:
        """The bytes of its segments as they are stored."""
        return sum(segment.stored_bytes for segment in self.segments)

    @property
    def count(self) -> int:
        """The number of events that can be read."""
        return sum(segment.count for segment in self.segments if segment.state is not State.EXPIRED)


def day_faults(days: Iterable[Day], after: int, events: Iterable[Event]) -> Iterator[str]:
    """Compare the events after an id with the days of their stream."""
    left, count = iter(days), 0
    day = next(left, None)
    for event in events:
        if day is None or event.number <= after or not day.first_id <= event.number <= day.last_id:
            yield f"the event {event.id} is in no day"
            return
        after, count = event.number, count + 1
        if event.number == day.last_id:
            if count != day.count:
                yield f"the day {day} has {count} events, not {day.count}"
            day, count = next(left, None), 0
    if day is not None:
        yield f"the day {day} lacks events"
