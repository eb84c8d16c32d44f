"""Events, as they are appended and as they are read.

Events are tuples, for there are millions of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from millpond.argument_types import need_type
from millpond.error_values import ShownAsTable, shown
from millpond.errors import Invalid
from millpond.events.ids import format_id
from millpond.events.names import StreamName, is_unicode

__all__ = (
    "BATCH_BYTES_MAX", "BATCH_EVENTS_MAX", "EVENT_BYTES_MAX", "HEADERS_BYTES_MAX", "KIND_BYTES_MAX", "NO_HEADERS",
    "POSITION_MAX", "SOURCE_BYTES_MAX", "TIME_MS_MAX", "Appended", "Columns", "Event", "EventBatch",
    "NewEvent", "Page", "have_headers",
)  # fmt: skip

EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one event: its payload and headers."""
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all events of one batch."""
BATCH_EVENTS_MAX = 100_000
KIND_BYTES_MAX = 255
HEADERS_BYTES_MAX = 64 * 1024
SOURCE_BYTES_MAX = 160
POSITION_MAX = (1 << 128) - 1
"""Positions in a source: room for the three numbers of a Pulsar message, one after another."""
TIME_MS_MAX = (1 << 53) - 1
"""Times beyond every calendar are mistakes of their producer; within this bound they are stored as they are."""

_NO_EVENT = "it is neither bytes nor a NewEvent"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class NewEvent(NamedTuple):
    """An event to be appended: the time it happened (UTC milliseconds), its kind, its payload, and headers.

    `kind` is a word such as `running`; `headers` are small texts by name, such as `job_id`.
    """

    time_ms: int
    payload: bytes
    kind: str = ""
    headers: Mapping[str, str] = NO_HEADERS


class Columns(NamedTuple):
    """New events as columns of the same length."""

    times: list[int]
    payloads: list[bytes]
    kinds: list[str]
    headers: list[Mapping[str, str]]

    def part(self, start: int, stop: int) -> Columns:
        """The events from one on, up to another."""
        times, payloads, kinds, headers = self
        return Columns(times[start:stop], payloads[start:stop], kinds[start:stop], headers[start:stop])


class Event(NamedTuple):
    """An event of a stream. `number` is its id as a number, `id` the text that users pass on."""

    number: int
    time_ms: int
    payload: bytes
    kind: str
    headers: Mapping[str, str]

    @property
    def id(self) -> str:
        """The id: opaque, growing, the same for ever."""
        return format_id(self.number)

    @property
    def time(self) -> datetime:
        """The time it happened, in UTC.

        Raises:
            Invalid: the producer gave a time that is in no calendar.
        """
        try:
            return datetime.fromtimestamp(self.time_ms / 1000, UTC)
        except (OverflowError, ValueError, OSError) as error:
            raise Invalid("the time of the event is no date", kind="event_time", time_ms=self.time_ms) from error


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events for one stream, stored wholly or not at all.

    With a `source`, such as `kafka:jobs/3`, each event has the position of the message that it came from: they never
    fall, and events of one message stand in one batch. What is at or before the last position stored is left out.

    With an `expected_id`, a batch is stored only while that is the newest id of the stream, 0 for one without events:
    else it is fenced, for it was decided before events that others appended. It has no source then.
    """

    stream: StreamName
    events: Sequence[NewEvent]
    source: str = ""
    positions: Sequence[int] = field(default=())
    expected_id: int | None = None
    _columns: list[Columns] = field(default_factory=list, init=False, repr=False, compare=False)

    def columns(self, start: int = 0) -> Columns:
        """The events from one on, as columns. They are made once: to visit events costs as much as to store them."""
        if not self._columns:
            self._columns.append(_columns_of(self.events))
        whole = self._columns[0]
        return whole.part(start, len(whole.times)) if start else whole

    def check(self) -> EventBatch:
        """The batch itself.

        Raises:
            Invalid: a name, a position, an event is not acceptable; nothing of the batch is stored.
        """
        self.stream.check()
        self._check_source()
        if len(self.events) > BATCH_EVENTS_MAX:
            raise Invalid(
                "the batch has too many events", kind="event_batch_size", events=len(self.events),
                events_max=BATCH_EVENTS_MAX, hint="append smaller batches",
            )  # fmt: skip
        if len(self.events) == 1:
            _checked_bytes(self.events[0], 0)
        elif self.events:
            _check_events(self.events, self.columns())
        return self

    def _check_source(self) -> None:
        if not isinstance(self.positions, tuple | list):  # as most are, and a check of another type takes a while
            need_type("positions", self.positions, Collection)
        if len(self.positions) != (len(self.events) if self.source else 0):
            raise Invalid(
                "a batch with a source has a position for each event, and another has none", kind="event_source",
                source=shown(self.source), positions=len(self.positions), events=len(self.events),
            )  # fmt: skip
        if self.source and self.expected_id is not None:
            raise Invalid("a batch with a source expects no id", kind="event_source", source=shown(self.source))
        if self.source and not _is_source(self.source):
            raise Invalid(
                "the name of a source is not understood", kind="event_source", source=shown(self.source),
                bytes_max=SOURCE_BYTES_MAX,
            )  # fmt: skip
        if not _never_fall(self.positions):
            raise Invalid(
                "the positions of a batch are whole numbers that never fall", kind="event_source",
                source=shown(self.source), hint="sort the events by the order of their source",
            )  # fmt: skip


def _is_source(name: object) -> bool:
    return isinstance(name, str) and name.isprintable() and len(name.encode()) <= SOURCE_BYTES_MAX


def _never_fall(positions: Sequence[int]) -> bool:
    if len(positions) == 1:
        return type(positions[0]) is int and 0 <= positions[0] <= POSITION_MAX
    if isinstance(positions, range):
        return not positions or (positions.step > 0 and positions[0] >= 0 and positions[-1] <= POSITION_MAX)
    return all(type(position) is int and 0 <= position <= POSITION_MAX for position in positions) and not any(
        later < earlier for earlier, later in pairwise(positions)
    )


def have_headers(headers: Sequence[Mapping[str, str]]) -> bool:
    """True when one of them has a header; cheap where all are `NO_HEADERS`."""
    return headers.count(NO_HEADERS) != len(headers) and any(headers)


def _columns_of(events: Sequence[NewEvent]) -> Columns:
    """One pass over the events, in their order: they lie all over the memory, and a look at each is what costs."""
    columns = Columns([], [], [], [])
    add_time, add_payload = columns.times.append, columns.payloads.append
    add_kind, add_headers = columns.kinds.append, columns.headers.append
    try:
        for time_ms, payload, kind, headers in events:
            add_time(time_ms)
            add_payload(payload)
            add_kind(kind)
            add_headers(headers)
    except (TypeError, ValueError):
        position = len(columns.headers)
        raise _bad_event(_NO_EVENT, position, events[position]) from None
    return columns


def _check_events(events: Sequence[NewEvent], columns: Columns) -> None:
    """Check events by their columns; each by itself only where something may be wrong, to name it."""
    times, payloads, kinds, headers = columns
    sizes: list[int] = []
    sound = (
        set(map(type, times)) == {int} and min(times) >= -TIME_MS_MAX and max(times) <= TIME_MS_MAX
        and set(map(type, payloads)) == {bytes} and not have_headers(headers)
        and set(map(type, kinds)) == {str}
        and all(kind.isascii() and len(kind) <= KIND_BYTES_MAX for kind in set(kinds))
        and max(sizes := list(map(len, payloads))) <= EVENT_BYTES_MAX
    )  # fmt: skip
    total = sum(sizes) if sound else sum(_checked_bytes(event, position) for position, event in enumerate(events))
    if total > BATCH_BYTES_MAX:
        raise Invalid(
            "the batch is too large", kind="event_batch_size", bytes=total, bytes_max=BATCH_BYTES_MAX,
            hint="append smaller batches",
        )  # fmt: skip


def _checked_bytes(event: object, position: int) -> int:
    if not isinstance(event, tuple) or len(event) != len(NewEvent._fields):
        raise _bad_event(_NO_EVENT, position, event)
    time_ms, payload, kind, headers = event
    if type(time_ms) is not int or not -TIME_MS_MAX <= time_ms <= TIME_MS_MAX:
        raise _bad_event("its time is no count of milliseconds", position, time_ms)
    if type(payload) is not bytes:
        raise _bad_event("its payload is not bytes", position, payload)
    if type(kind) is not str or not (kind.isascii() or is_unicode(kind)) or len(kind.encode()) > KIND_BYTES_MAX:
        raise _bad_event("its kind is no short text", position, kind)
    size = len(payload) + (_headers_bytes(headers, position) if headers else 0)
    if size > EVENT_BYTES_MAX:
        raise _bad_event(f"it has more than {EVENT_BYTES_MAX} bytes", position, f"{size} bytes")
    return size


def _headers_bytes(headers: Any, position: int) -> int:
    size = 0
    for name, text in headers.items() if isinstance(headers, Mapping) else [(headers, None)]:
        if type(name) is not str or type(text) is not str or not (is_unicode(name) and is_unicode(text)):
            raise _bad_event("its headers are not texts by name", position, headers)
        size += len(name.encode()) + len(text.encode())
    if size > HEADERS_BYTES_MAX:
        raise _bad_event(f"its headers have more than {HEADERS_BYTES_MAX} bytes", position, f"{size} bytes")
    return size


def _bad_event(reason: str, position: int, value: object) -> Invalid:
    return Invalid(f"an event cannot be stored: {reason}", kind="event_invalid", place=position, value=shown(value))


@dataclass(frozen=True, slots=True)
class Appended(ShownAsTable):
    """The outcome of a batch: how many events are new, how many were stored before, and the ids of the new ones.

    `last_id` of a batch that brought nothing is the last id of the stream, `first_id` is 0. Of a batch that was fenced
    no event is new, and none was stored before. `past_retention` of the new ones are in days that retention drops: they
    go with the next maintenance, unless `events.retention` is raised.
    """

    count: int
    repeated: int
    first_id: int
    last_id: int
    past_retention: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Events that follow a place in a stream.

    * `after`: the place behind them: the next page begins there.
    * `more`: true when the stream had more events at that moment.
    * `gap`: true when events between the place and the first of these have expired; or when the stream lost its end,
      and with it the place: `after` is an earlier one then, and the events of a minute may come again.
    """

    events: list[Event]
    after: int
    more: bool = False
    gap: bool = False
