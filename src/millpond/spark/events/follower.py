"""Reading events as they come: `session.readStream.format("millpond.events")`.

An offset is the last id of each stream that was read. Ids are the same before and after compression, so a query
reads each event once, whatever is compressed meanwhile.

* Of several streams with news, the one that is furthest behind comes first, and all of them share the micro-batch.
* A stream that appears later is read from its beginning.
* Events that expired before they were read are an error that says so, unless `failOnExpired` is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millpond.clock import Clock, SystemClock
from millpond.errors import Conflict, Invalid, NotFound
from millpond.events.ids import format_id, parse_id
from millpond.events.index import State, StreamIndex
from millpond.events.names import StreamName
from millpond.spark.events.locations import EventsLocation, Streams, read_matching
from millpond.spark.events.plan import EventSlices, Slice, planned, read_pages, rows_of, stream_slices
from millpond.spark.events.reader import in_batches
from millpond.spark.events.selection import FollowSettings, Selection
from millpond.spark.short_errors import short_errors

__all__ = ("STREAMS_MAX", "EventsFollower")

STREAMS_MAX = 10_000
"""Streams that one query follows: each stands in its offset."""
POLL_SECONDS = 0.05

Offset: TypeAlias = "dict[str, Any]"
Cursors: TypeAlias = "dict[StreamName, int]"


@short_errors
class EventsFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams. The driver keeps the place open; tasks open it for as long as they read."""

    def __init__(
        self, location: EventsLocation, selection: Selection, columns: Sequence[str], settings: FollowSettings,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.location, self.selection, self.columns, self.settings = location, selection, list(columns), settings
        self.clock = clock or SystemClock()
        self._opened: tuple[ExitStack, Streams] | None = None
        self._target: Cursors | None = None
        self._seen: dict[StreamName, StreamIndex] = {}
        self._looked_at = -POLL_SECONDS

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_seen": {}}

    # -- offsets, on the driver -----------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The start of a new query."""
        start, indexes = self.settings.start, self._indexes()
        return _offset({name: max(min(start, index.last_id), index.dropped_id) for name, index in indexes.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As many events as the option says, or all."""
        most = self.settings.events_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is nothing new."""
        self._target = {name: index.last_id for name, index in self._indexes().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The last ids that a micro-batch from `start` may reach."""
        cursors = _cursors(start)
        ends = self._ends(cursors)
        if isinstance(limit, ReadMaxRows):
            ends = self._admitted(cursors, ends, limit.max_rows)
        return _offset(cursors | ends)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The last ids that there are."""
        return _offset({name: index.last_id for name, index in self._indexes().items()})

    def _ends(self, cursors: Cursors) -> Cursors:
        """The last ids of streams with news, those first that are furthest behind."""
        ends = {}
        for name, index in self._indexes().items():
            after = cursors.get(name, 0)
            if index.last_id < after:
                raise Conflict(
                    "the checkpoint is of another pond", kind="checkpoint_pond", stream=name,
                    found=format_id(after), last=format_id(index.last_id), hint="begin with a new checkpointLocation",
                )  # fmt: skip
            end = index.last_id if self._target is None else min(index.last_id, self._target.get(name, 0))
            if end > after:
                ends[name] = end
        return dict(sorted(ends.items(), key=lambda item: cursors.get(item[0], 0)))

    def _admitted(self, cursors: Cursors, ends: Cursors, events_max: int) -> Cursors:
        """Ends within which there are so many events: each stream has an equal part of what the others left."""
        admitted, room = {}, max(events_max, 1)
        for behind, (name, end) in enumerate(ends.items()):
            if room <= 0:
                break
            share = max(room // (len(ends) - behind), 1)
            admitted[name], count = self._nth(name, cursors.get(name, 0), end, share)
            room -= count
        return admitted

    def _nth(self, name: StreamName, after: int, end: int, count: int) -> tuple[int, int]:
        """The id of the nth event after one, or the last one if there are fewer; how many there are up to it."""
        seen, more = 0, True
        while more and after < end:
            page = read_matching(self._store, name, after, self.selection.matching)
            numbers = [event.number for event in page.events if event.number <= end][: count - seen]
            seen += len(numbers)
            if seen == count or len(numbers) < len(page.events):
                return (numbers[-1] if numbers else end), seen
            after, more = page.after, page.more
        return end, seen

    def _indexes(self) -> dict[StreamName, StreamIndex]:
        now = self.clock.monotonic()
        if now - self._looked_at >= POLL_SECONDS:
            indexes = {}
            for name in self.selection.streams(self._store):
                index = self._store.index(name)
                if index is not None:
                    indexes[name] = index
                    _check_count(len(indexes))
            self._seen, self._looked_at = indexes, now
        return self._seen

    @property
    def _store(self) -> Streams:
        if self._opened is None:
            stack = ExitStack()
            self._opened = stack, stack.enter_context(self.location.open())
        return self._opened[1]

    # -- reading --------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[EventSlices]:
        """Tasks of about the same number of bytes.

        Raises: `NotFound` when events expired before they were read.
        """
        cursors = _cursors(start)
        slices: list[Slice] = []
        for name, until in _cursors(end).items():
            after = cursors.get(name, 0)
            index = self._store.index(name) if until > after else None
            if until > after and (index is None or self._lacks(index, after)) and self.settings.fail_on_expired:
                raise _expired(name, after)
            if index is not None:
                slices += stream_slices(index, self.selection, after, until)
        return planned(slices)

    def _lacks(self, index: StreamIndex, after: int) -> bool:
        """True when events after an id have expired; a stream that is new to the query begins where it begins."""
        hidden = any(state is State.EXPIRED and day.last_id > after for day, state in index.days())
        return after > 0 and (hidden or index.dropped_id > after)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one task, on an executor.

        Raises: `NotFound` when events expired meanwhile.
        """
        if not isinstance(partition, EventSlices):
            return  # Spark's own: there is nothing to read
        with self.location.open() as store:
            for slice_ in partition.slices:
                for page in read_pages(store, slice_, self.selection.matching):
                    if page.gap and self.settings.fail_on_expired:
                        raise _expired(slice_.stream, slice_.after)
                    rows = rows_of(page, slice_)
                    if rows is not None:
                        yield from in_batches(rows.select(self.columns))

    def stop(self) -> None:
        """Let go of the place."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None


def _check_count(streams: int) -> None:
    if streams > STREAMS_MAX:
        raise Invalid(
            "a query follows too many job sets", kind="events_streams", streams_max=STREAMS_MAX,
            hint="say option('queue', …) and option('job_set', …), or read batches",
        )  # fmt: skip


def _expired(name: StreamName, after: int) -> NotFound:
    return NotFound(
        "events that come next have expired",
        kind="events_expired",
        stream=name,
        after=format_id(after),
        hint="keep events longer (`events.retention`); or go on with what is left: failOnExpired=false",
    )


def _offset(cursors: Cursors) -> Offset:
    queues: dict[str, dict[str, str]] = {}
    for name in sorted(cursors):
        queues.setdefault(name.queue, {})[name.job_set] = format_id(cursors[name])
    return {"after": queues}


def _cursors(offset: Offset) -> Cursors:
    return {
        StreamName(queue, job_set): parse_id(id_)
        for queue, job_sets in offset["after"].items()
        for job_set, id_ in job_sets.items()
    }
