"""The events of a pond as a table of SQL: `select kind, count(*) from events where queue = 'etl' group by kind`.

A query reads what its conditions leave, as far as streams and days can tell:

| a condition on | leaves |
|---|---|
| `queue`, `job_set` | those streams; both by their values: without a list of the others |
| `id`, `appended`, `day` | the part of each stream |
| `kind`, `job` | those events |

`time` and the rest are looked at event by event: a producer may give any time. Rows come page by page.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.events.filters import ALL, EventFilter, filter_of
from millpond.events.ids import ID_MAX, is_id, parse_id, position_before
from millpond.events.index import Day, StreamIndex
from millpond.events.interface import EventsLike
from millpond.events.names import StreamName
from millpond.events.rows import TABLE, read_rows
from millpond.maps.predicates.predicate import columns_tested, typed_spans
from millpond.tables.rows import Left, scanned

__all__ = ("EventTable",)

STREAMS_NAMED_MAX = 1_000
"""Streams that are looked up by their names; those of more are listed."""
_EPOCH = datetime.date(1970, 1, 1)


class EventTable:
    """The events of a pond, which are opened when the first of them is read; of streams that `may` be read."""

    name = "events"
    schema = TABLE

    def __init__(self, events: Callable[[], EventsLike], may: Callable[[StreamName], bool] = lambda _: True) -> None:
        self._events, self._may = events, may

    def scan(self, where: pc.Expression | None, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        """The events that satisfy a condition, batch by batch.

        Raises: as `Events.read`, with the batches.
        """
        names = TABLE.names if columns is None else columns
        return scanned(TABLE, self._batches(where, names), where, columns)

    def _batches(self, where: pc.Expression | None, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        events, spans = self._events(), {} if where is None else typed_spans(where, TABLE)
        bounds, tested = _EventSpans(spans), [] if where is None else columns_tested(where, TABLE)
        schema = pa.schema([field for field in TABLE if field.name in tested or field.name in names])
        for index in (index for index in bounds.indexes(events) if self._may(index.stream)):
            after, until = bounds.bounds([day for day, _ in index.days()])
            yield from read_rows(events, index, after, until, schema=schema, matching=bounds.matching)


class _EventSpans(Left):
    """The spans of the columns of events."""

    __slots__ = ()

    def indexes(self, events: EventsLike) -> Iterator[StreamIndex]:
        if self.nothing:
            return
        queues, job_sets = self.span("queue").points, self.span("job_set").points
        if queues is not None and job_sets is not None and len(queues) * len(job_sets) <= STREAMS_NAMED_MAX:
            indexes = (events.index(*names) for names in product(sorted(queues), sorted(job_sets)))
            yield from (index for index in indexes if index is not None)
            return
        for queue in (None,) if queues is None else sorted(queues):
            for index in events.indexes(queue):
                if all(self.holds(part, name) for part, name in index.stream._asdict().items()):
                    yield index

    def bounds(self, days: Sequence[Day]) -> tuple[int, int]:
        """The places of a stream between which its wanted events are: after the one, up to the other."""
        ids, appended, dates = self.span("id"), self.span("appended"), self.span("day")
        after = [0] if appended.lower is None else [position_before(appended.lower)]
        until = [ID_MAX] if appended.upper is None else [position_before(appended.upper + 1)]
        after += [parse_id(ids.lower) - 1] if is_id(ids.lower or "") else []
        until += [parse_id(ids.upper)] if is_id(ids.upper or "") else []
        after += [day.last_id for day in days if dates.lower is not None and day.day < _number(dates.lower)]
        until += [day.first_id - 1 for day in days if dates.upper is not None and day.day > _number(dates.upper)]
        return max(after), min(until)

    @property
    def matching(self) -> EventFilter:
        """The filter that events pass before they become rows."""
        values = {name: points for name in ("kind", "job") if (points := self.span(name).points)}
        try:
            return filter_of(values)
        except Invalid:  # they are too many: the rows are filtered
            return ALL


def _number(day: datetime.date) -> int:
    return (day - _EPOCH).days
