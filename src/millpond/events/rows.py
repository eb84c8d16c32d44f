"""Events as rows of Arrow: the columns that Spark, SQL and exported files know them by.

| column | |
|---|---|
| `queue`, `job_set`, `id` | the stream, and the id there: texts, in the order of the events |
| `day` | the day to which the stream assigned it |
| `appended` | when it was appended, as its id tells |
| `time` | when it happened, as its producer says |
| `kind`, `payload`, `headers` | as the producer gave them |
| `job` | the header `job_id`; null without one |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millpond.events.codec import size_of
from millpond.events.event import Event, have_headers
from millpond.events.filters import ALL, JOB_HEADER, EventFilter
from millpond.events.ids import format_id, id_time_ms
from millpond.events.index import Day, StreamIndex
from millpond.events.interface import EventsLike
from millpond.events.names import StreamName

__all__ = ("EVENTS", "TABLE", "event_rows", "read_rows")

BATCH_EVENTS = 10_000
BATCH_BYTES = 4 << 20
"""A batch ends at so many events, or at so many bytes of payloads and headers."""
_MOMENT = pa.timestamp("us", tz="UTC")
_FIELDS = {
    field.name: field
    for field in (
        pa.field("queue", pa.string(), nullable=False),
        pa.field("job_set", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("appended", _MOMENT, nullable=False),
        pa.field("time", _MOMENT, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("job", pa.string()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
    )
}
TABLE = pa.schema(_FIELDS.values())
"""The columns of events in SQL and in files."""
EVENTS = pa.schema([field for name, field in _FIELDS.items() if name not in ("appended", "job")])
"""The columns of events that are read in Spark."""


class _Some(NamedTuple):
    """Events of one stream as columns, and the days that they are of."""

    stream: StreamName
    days: Sequence[Day]
    numbers: Sequence[int]
    times: Sequence[int]
    payloads: Sequence[bytes]
    kinds: Sequence[str]
    headers: Sequence[Mapping[str, str]]

    def repeated(self, text: str) -> pa.Array:
        return pa.repeat(pa.scalar(text, pa.string()), len(self.numbers))

    def of_days(self) -> pa.Array:
        positions = np.searchsorted(np.array([day.last_id for day in self.days], "i8"), np.array(self.numbers, "i8"))
        return pa.array(np.array([day.day for day in self.days], "i4")[positions], pa.int32()).cast(pa.date32())

    def header_maps(self) -> pa.Array:
        if have_headers(self.headers):
            return pa.array([list(some.items()) for some in self.headers], _FIELDS["headers"].type)
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(self.headers) + 1, "i4")), nothing, nothing)


def _moments(milliseconds: Sequence[int]) -> pa.Array:
    return pa.array(np.array(milliseconds, "i8") * 1_000, pa.int64()).cast(_MOMENT)


_MAKERS: dict[str, Callable[[_Some], pa.Array]] = {
    "queue": lambda some: some.repeated(some.stream.queue),
    "job_set": lambda some: some.repeated(some.stream.job_set),
    "id": lambda some: pa.array([format_id(number) for number in some.numbers], pa.string()),
    "day": _Some.of_days,
    "appended": lambda some: _moments([id_time_ms(number) for number in some.numbers]),
    "time": lambda some: _moments(some.times),
    "kind": lambda some: pa.array(some.kinds, pa.string()),
    "job": lambda some: pa.array([headers.get(JOB_HEADER) for headers in some.headers], pa.string()),
    "payload": lambda some: pa.array(some.payloads, pa.binary()),
    "headers": _Some.header_maps,
}


def event_rows(
    stream: StreamName, events: Sequence[Event], days: Sequence[Day], schema: pa.Schema = EVENTS
) -> pa.RecordBatch:
    """Events of some days of a stream as rows with the columns of `schema`, which are some of `TABLE`."""
    some = _Some(stream, days, *zip(*events, strict=True))
    return pa.RecordBatch.from_arrays([_MAKERS[name](some) for name in schema.names], schema=schema)


def read_rows(
    events: EventsLike, index: StreamIndex, after: int, until: int, *, schema: pa.Schema = TABLE,
    matching: EventFilter = ALL,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The events of a stream after an id, up to another, that match and were there when its index was read.

    Raises: as `Events.read`.
    """
    days, until = [day for day, _ in index.days()], min(until, index.last_id)
    if not days or after >= until or days[0].first_id > until:
        return
    # A reader that looks for what matches does not know where to end: it goes on to the end of the stream.
    pushed = matching if until == index.last_id else ALL
    some: list[Event] = []
    size = 0
    for event in events.read(*index.stream, format_id(after), filters=pushed.query):
        if event.number > until:
            break
        some.append(event)
        size += size_of(event)
        if len(some) >= BATCH_EVENTS or size >= BATCH_BYTES:
            yield from _matching_rows(index, some, days, schema, matching)
            some, size = [], 0
    yield from _matching_rows(index, some, days, schema, matching)


def _matching_rows(
    index: StreamIndex, events: list[Event], days: Sequence[Day], schema: pa.Schema, matching: EventFilter
) -> Iterator[pa.RecordBatch]:
    if selected := matching.select(events):
        yield event_rows(index.stream, selected, days, schema)
