"""Reading a map into a DataFrame, and the data source that `format("millpond")` names.

A read is planned once: the map is frozen if it moved on, and the snapshot that counts then is what all tasks read,
one task for each group of ranges. Tasks open files of the snapshot only, never the shard.

Say what you want with `option("columns", "key, temp")` (or a schema) and `option("where", "key = 'JFK'")`: other
columns are not sent, and rows of other keys not even looked at. Spark does not tell Python sources which columns a
query uses. It may tell its filters, but what it tells for one query it keeps for the next query over the same frame,
and for the other side of a join of a frame with itself (Spark 4.1 to 4.3). So filters are taken from Spark only with
`option("pushdown", "true")`, for a frame that one query uses once, and where the session allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millpond.arrays.deferred_pandas import defer_pandas
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.model.columns import askable_schema, presented_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.display import check_columns
from millpond.maps.snapshots.freeze import SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.spark.epochs import EpochWriter
from millpond.spark.filters import Pushed, push_condition, push_filters
from millpond.spark.locations import Location, Rights, opened
from millpond.spark.options import (
    OPTIONS,
    changes_settings,
    check_options,
    comma_list,
    load_settings,
    number,
    pond_option,
    switch,
)
from millpond.spark.planned_past import NodesRows, rows_known_at
from millpond.spark.planned_snapshot import PlannedSnapshots
from millpond.spark.short_errors import short_errors
from millpond.spark.sinks import MapWriter
from millpond.spark.views import CHANGE_COLUMNS, ChangesView, TableView, as_spark_holds, with_change_columns
from millpond.spark.write_jobs import LoadSettings, check_rows
from millpond.times.instants import parse_instant

if TYPE_CHECKING:
    from millpond.spark.branch_changes import BranchChangesReader
    from millpond.spark.changes import ChangesReader

__all__ = ("MapReader", "MapSource", "PushingReader", "RangeGroup", "StreamedReader")

TASK_BYTES = 16 << 20
"""About as much of a snapshot as one task reads; fewer bytes make more tasks than they are worth."""

_PINNED = ("ref", "known_at")
"""The options that name a state of the map that never changes."""


@short_errors
class MapSource(DataSource):
    """One map of one pond, to read from or to write to."""

    default: Location | None = None
    rights: Rights = Rights()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        defer_pandas()  # this process plans for Spark, and does little else
        check_options(options, OPTIONS)
        self.location = pond_option(options, self.default, self.rights).at(options.get("branch"), options.get("ref"))
        self.map = options.get("map")
        if not self.map:
            raise Invalid("no map is named", kind="map_unnamed", hint="say option('map', name)")

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "millpond"

    def _definition(self, location: Location) -> MapDefinition:
        with opened(None, location) as pond:
            return location.map(pond, str(self.map)).definition

    def schema(self) -> StructType:
        """The map's columns as people see them, or those that are wanted."""
        definition = self._definition(self.location)
        # Said wrongly, it should fail where the frame is made, and not in the query that reads it.
        push_condition(definition, self.options.get("where"))
        if "known_at" in self.options:
            parse_instant(self.options["known_at"])
        names = check_columns(definition, comma_list(self.options.get("columns")))
        shown = askable_schema(definition)
        schema = pa.schema([shown.field(name) for name in names])
        marked = changes_settings(self.options).marked
        return from_arrow_schema(with_change_columns(definition, schema) if marked else schema)

    def reader(self, schema: StructType) -> MapReader | StreamedReader:
        """A reader of the columns of `schema`."""
        known_at = self.options.get("known_at")
        if changes_settings(self.options).marked:
            raise _changes_unsupported(str(self.map), "a batch reads a state")
        with opened(None, self.location) as pond:
            name = str(self.map)
            at = self.location
            planned = at.pin(pond, name) if known_at is None else rows_known_at(pond, at, name, known_at)
        if isinstance(planned, NodesRows):
            _check_schema(planned.definition, schema)
            return StreamedReader(planned, schema.names, self.options.get("where"))
        shelf, manifest = planned
        _check_schema(manifest.definition, schema)
        pushed = push_condition(manifest.definition, self.options.get("where"))
        reader_type = PushingReader if switch(self.options, "pushdown", default=False) else MapReader
        return reader_type(shelf, manifest, schema.names, pushed, number(self.options, "partitions"))

    def streamReader(self, schema: StructType) -> ChangesReader | BranchChangesReader:  # noqa: N802 - Spark's name
        """A reader of the changes of the map, on `main` or on a branch, of the columns of `schema`.

        Raises: `Invalid` for what is not understood.
        """
        try:
            from millpond.spark.branch_changes import BranchChangesReader
            from millpond.spark.changes import ChangesReader
        except ModuleNotFoundError as error:
            raise Invalid("reading a stream needs PySpark 4.2 or later", kind="spark_too_old") from error
        at = [f"{name}={self.options[name]}" for name in _PINNED if self.options.get(name, "main") != "main"]
        if at:
            raise Invalid(
                "a state of the past has no changes", kind="ref_unsupported", map=self.map, at=", ".join(at),
                hint="read it in a batch, or follow a branch: branch=",
            )  # fmt: skip
        settings, branch = changes_settings(self.options), self.location.branch
        definition = self._definition(self.location.at(None, f"{branch}@") if branch else self.location)
        if settings.marked and not branch:
            raise _changes_unsupported(definition.name, "a stream of main has rows as they were loaded")
        columns = [name for name in schema.names if not (settings.marked and name in CHANGE_COLUMNS.names)]
        _check_schema(definition, StructType([schema[name] for name in columns]))
        show = TableView(definition, schema.names, push_condition(definition, self.options.get("where")).where)
        if branch:
            return BranchChangesReader(self.location, definition, ChangesView(show), settings)
        return ChangesReader(self.location, definition, show, settings)

    def writer(self, schema: StructType, overwrite: bool) -> MapWriter:
        """A writer of rows that look like `schema`."""
        definition, settings = self._to_write(schema, overwrite, stream=False)
        return MapWriter(self.location, definition, settings)

    def streamWriter(self, schema: StructType, overwrite: bool) -> EpochWriter:  # noqa: N802 - Spark's name
        """A writer of an epoch's rows that look like `schema`."""
        definition, settings = self._to_write(schema, overwrite, stream=True)
        return EpochWriter(self.location, definition, settings)

    def _to_write(self, schema: StructType, overwrite: bool, *, stream: bool) -> tuple[MapDefinition, LoadSettings]:
        if overwrite:
            mode = "outputMode('append')" if stream else "mode('append')"
            raise Invalid(
                "rows are merged into a map, they do not replace it", kind="mode_unsupported", map=self.map,
                hint=f"use {mode}; to start anew, drop the map and create it again",
            )  # fmt: skip
        if "known_at" in self.options:
            raise Invalid(
                "what was known is only read", kind="ref_read_only", map=self.map, known_at=self.options["known_at"],
                hint="leave known_at out",
            )  # fmt: skip
        settings = load_settings(self.options, SystemClock(), stream=stream)
        with opened(None, self.location) as pond:
            definition = self.location.map(pond, str(self.map)).definition
            return check_rows(schema, definition, settings.columns, partial(self.location.alter, pond)), settings


def _changes_unsupported(name: str, reason: str) -> Invalid:
    return Invalid(
        "changes are read as a stream of a branch", kind="changes_unsupported", map=name, reason=reason,
        hint="say readStream and name a branch, or leave out the option 'changes'",
    )  # fmt: skip


def _check_schema(definition: MapDefinition, schema: StructType) -> None:
    check_columns(definition, schema.names)
    types = from_arrow_schema(askable_schema(definition))
    for field in schema.fields:
        expected = types[field.name].dataType
        if field.dataType != expected:
            raise Invalid(
                "column has another type", kind="column_type", column=field.name, map=definition.name,
                type=field.dataType.simpleString(), hint=f"it is {expected.simpleString()}",
            )  # fmt: skip


class RangeGroup(InputPartition):
    """The input of one task."""

    def __init__(self, span: GroupSpan) -> None:
        super().__init__(span)
        self.span = span


@short_errors
class MapReader(DataSourceReader):
    """One read of one snapshot."""

    def __init__(
        self,
        shelf: PlannedSnapshots,
        manifest: SnapshotManifest,
        columns: Sequence[str],
        pushed: Pushed,
        tasks: int | None,
    ) -> None:
        self.shelf = shelf
        self.manifest = manifest
        self.columns = list(columns)
        self.pushed = pushed
        self.tasks = tasks

    def partitions(self) -> Sequence[RangeGroup]:
        """One for each group of ranges."""
        size = sum(layer.size for layer in self.manifest.layers)
        bytes_max = max(size // self.tasks, 1) if self.tasks else TASK_BYTES
        return [RangeGroup(span) for span in self.shelf.spans(self.manifest, self.pushed.span, bytes_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, on an executor."""
        assert isinstance(partition, RangeGroup)
        shown = TableView(self.manifest.definition, self.columns, self.pushed.where)
        for rows in self.shelf.rows(self.manifest, partition.span):
            yield from shown(rows)


@short_errors
class StreamedReader(DataSourceReader):
    """One read of rows that a node streams, by one task. Filters stay with Spark."""

    def __init__(self, rows: NodesRows, columns: Sequence[str], where: str | None) -> None:
        self.rows, self.columns, self.where = rows, list(columns), where

    def partitions(self) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All rows, on an executor."""
        return map(as_spark_holds, self.rows.scan(self.where, self.columns))


@short_errors
class PushingReader(MapReader):
    """A read that takes filters from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that a snapshot can skip by; answer the others."""
        definition = self.manifest.definition
        self.pushed, rest = push_filters(self.pushed, definition, presented_schema(definition), filters)
        return rest
