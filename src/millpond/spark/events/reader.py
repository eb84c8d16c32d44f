"""Reading events in a batch: planned once, by the index of each stream; events that come later are not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millpond.spark.events.locations import EventsLocation
from millpond.spark.events.plan import EventSlices, planned, read_pages, rows_of, slices_of
from millpond.spark.events.selection import Selection
from millpond.spark.short_errors import short_errors

__all__ = ("EventsReader", "PushingEventsReader", "in_batches")

BATCH_ROWS = 65_536


@short_errors
class EventsReader(DataSourceReader):
    """One read of the events that a selection describes."""

    def __init__(self, location: EventsLocation, selection: Selection, columns: Sequence[str]) -> None:
        self.location, self.selection, self.columns = location, selection, list(columns)

    def partitions(self) -> Sequence[EventSlices]:
        """Tasks of about the same number of bytes. A read of nothing has none."""
        with self.location.open() as store:
            return planned(slices_of(store, self.selection))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of one task; those that have expired since it was planned are left out."""
        if not isinstance(partition, EventSlices):
            return  # Spark's own: there is nothing to read
        with self.location.open() as store:
            for slice_ in partition.slices:
                for page in read_pages(store, slice_, self.selection.matching):
                    rows = rows_of(page, slice_)
                    if rows is not None:
                        yield from in_batches(rows.select(self.columns))


class PushingEventsReader(EventsReader):
    """A read that takes filters from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters on queue, job set, kind, day and id; answer the others."""
        self.selection, rest = self.selection.pushed(filters)
        return rest


def in_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a moderate size."""
    for start in range(0, rows.num_rows, BATCH_ROWS):
        yield rows.slice(start, BATCH_ROWS)
