"""Places with streams, and what their contracts do with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from millpond.events.codec import Codec, encode
from millpond.events.days import DAY_MS
from millpond.events.event import Appended, Event, EventBatch, NewEvent
from millpond.events.index import DaySegment, StreamIndex
from millpond.events.names import StreamName
from millpond.events.protocol import StreamRules, StreamStore

if TYPE_CHECKING:
    from millpond.clock import ManualClock

__all__ = (
    "NOON", "RULES", "STREAM", "TODAY", "StreamSite", "append", "batches_of", "compress", "days", "delivered",
    "events_of", "events_up_to", "everything", "index_of", "payloads_of",
)  # fmt: skip

NOON = 1_700_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
TODAY = NOON // DAY_MS
RULES = StreamRules(ahead_ms=3_600_000, forget_ms=30 * DAY_MS)
STREAM = StreamName("etl", "nightly")


class StreamSite(Protocol):
    """A place with streams, under `RULES`."""

    clock: ManualClock

    def open(self) -> StreamStore:
        """Another store over the same streams; the site closes it."""

    def damage(self, stream: StreamName) -> None:
        """Change a byte of the stored events of a stream, behind the API's back."""


def events_of(*payloads: str, time_ms: int = NOON, kind: str = "running") -> list[NewEvent]:
    """Events with these payloads."""
    return [NewEvent(time_ms, payload.encode(), kind) for payload in payloads]


def everything(store: StreamStore, stream: StreamName = STREAM, after: int = 0, bytes_max: int = 1) -> list[Event]:
    """All events after an id, page by page."""
    events: list[Event] = []
    while True:
        page = store.read(stream, after, bytes_max=bytes_max)
        assert page.more or not store.read(stream, page.after, bytes_max=bytes_max).events
        if not page.events:
            return events
        assert page.events[-1].number == page.after
        events += page.events
        after = page.after


def compress(store: StreamStore, stream: StreamName, seen: Sequence[DaySegment], events_max: int = 1000) -> DaySegment:
    """Switch segments to batches of so many events."""
    return store.switch(stream, seen, lambda after: batches_of(events_up_to(store, stream, seen, after), events_max))


def events_up_to(store: StreamStore, stream: StreamName, seen: Sequence[DaySegment], after: int = 0) -> list[Event]:
    """The events of segments behind an id."""
    start, last_id = max(after, seen[0].first_id - 1), seen[-1].last_id
    return [event for event in everything(store, stream, start) if event.number <= last_id]


def batches_of(events: Sequence[Event], events_max: int = 1000) -> Iterator[bytes]:
    """Batches of so many events."""
    for start in range(0, len(events), events_max):
        yield encode(events[start : start + events_max], Codec.ZSTD)


def append(store: StreamStore, *payloads: str, stream: StreamName = STREAM, time_ms: int = NOON) -> Appended:
    """Append events with these payloads."""
    return store.append([EventBatch(stream, events_of(*payloads, time_ms=time_ms))])[0]


def payloads_of(store: StreamStore, stream: StreamName = STREAM, after: int = 0) -> list[str]:
    """The payloads of all events after an id."""
    return [event.payload.decode() for event in everything(store, stream, after)]


def delivered(payloads: str, first: int = 1, source: str = "kafka:jobs/0") -> EventBatch:
    """One event a letter, at positions from `first` on."""
    return EventBatch(STREAM, events_of(*payloads), source, range(first, first + len(payloads)))


def days(store: StreamStore, stream: StreamName = STREAM) -> list[tuple[int, str, int]]:
    """The days of a stream, counted from today, their states and their events."""
    return [(day.day - TODAY, state.value, day.count) for day, state in index_of(store, stream).days()]


def index_of(store: StreamStore, stream: StreamName = STREAM) -> StreamIndex:
    """The index of a stream that is there."""
    index = store.index(stream)
    assert index is not None
    return index
