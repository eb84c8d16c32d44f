"""The tasks of a read: slices of streams, each within days that are known.

Invariants:
* slices hold the events that were there when the read was planned and are wanted, each once;
* a task reads about `TASK_BYTES`: large days are cut by their ids, small ones share a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millpond.events.event import Page
from millpond.events.filters import EventFilter
from millpond.events.index import Day, State, StreamIndex
from millpond.events.names import StreamName
from millpond.events.rows import event_rows
from millpond.spark.events.locations import Streams, read_matching
from millpond.spark.events.selection import Selection

__all__ = ("TASK_BYTES", "EventSlices", "Slice", "planned", "read_pages", "rows_of", "slices_of", "stream_slices")

TASK_BYTES = 32 << 20
EVENT_BYTES = 64
"""The cost of an event besides its payload."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The events of one day of a stream after an id, up to another; and about their bytes."""

    stream: StreamName
    day: Day
    after: int
    until: int
    bytes: int


class EventSlices(InputPartition):
    """The input of one task."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


def slices_of(store: Streams, selection: Selection) -> Iterator[Slice]:
    """The slices of all that is wanted and there now."""
    for stream in selection.streams(store):
        index = store.index(stream.check())
        if index is not None:
            yield from stream_slices(index, selection, selection.after, selection.until)


def stream_slices(index: StreamIndex, selection: Selection, after: int, until: int) -> Iterator[Slice]:
    """The slices of one stream after an id, up to another."""
    for day, state in index.days():
        if state is State.EXPIRED or not selection.wants(day):
            continue
        first, last = max(after, day.first_id - 1), min(until, day.last_id)
        if last <= first:
            continue
        size = (day.bytes + EVENT_BYTES * day.count) * (last - first) // (day.last_id - day.first_id + 1) + 1
        pieces = min(-(-size // TASK_BYTES), last - first)
        for piece in range(pieces):
            start, stop = (first + (last - first) * cut // pieces for cut in (piece, piece + 1))
            yield Slice(index.stream, day, start, stop, size // pieces)


def planned(slices: Iterable[Slice]) -> list[EventSlices]:
    """Slices in tasks, in their order."""
    tasks: list[EventSlices] = []
    some: list[Slice] = []
    size = 0
    for slice_ in slices:
        if some and size + slice_.bytes > TASK_BYTES:
            tasks.append(EventSlices(tuple(some)))
            some, size = [], 0
        some.append(slice_)
        size += slice_.bytes
    return [*tasks, EventSlices(tuple(some))] if some else tasks


def read_pages(store: Streams, slice_: Slice, matching: EventFilter) -> Iterator[Page]:
    """The pages with the events of a slice that match; the last may go beyond it."""
    after = slice_.after
    while after < slice_.until:
        page = read_matching(store, slice_.stream, after, matching)
        yield page
        if not page.more:
            return
        after = page.after


def rows_of(page: Page, slice_: Slice) -> pa.RecordBatch | None:
    """The events of a page that are in the slice, as rows."""
    events = page.events
    if events and events[-1].number > slice_.until:
        events = [event for event in events if event.number <= slice_.until]
    return event_rows(slice_.stream, events, [slice_.day]) if events else None
