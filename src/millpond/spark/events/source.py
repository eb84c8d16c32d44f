"""The data source `format("millpond.events")`.

    session.read.format("millpond.events").option("queue", "etl").option("job_set", "nightly").load()
    frame.write.format("millpond.events").mode("append").save()

| option | read | write | meaning |
|---|---|---|---|
| `pond` (or the path) | yes | yes | the pond's folder or URLs, or a Redis; else the session's `spark.millpond.pond` |
| `queue`, `job_set` | yes | yes | one queue, one job set; by default all, or the columns of each row |
| `columns` | yes | | names of the columns that are wanted, by commas |
| `day`, `from_day`, `to_day` | batch | | days, such as `2026-11-22` |
| `after`, `until` | batch | | ids: events after the one, up to the other |
| `filters` | yes | | events by kind, job and header: `kind=failed&kind=lost&header.team=etl`; a node sends no others |
| `startingTimestamp` | yes | | events that were appended at this time or later; a stream: where a new query begins |
| `pushdown` | batch | | `true`: take Spark's filters too, see `docs/spark.md` |
| `startingPosition` | stream | | `earliest`, or `latest`: where a new query begins |
| `maxEventsPerTrigger` | stream | | about how many events a micro-batch takes |
| `failOnExpired` | stream | | `false`: go on when events have expired that were not read |
| `source` | | batch | the name of the source: the same rows written again change nothing |
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millpond.errors import Invalid
from millpond.events.ids import ID_MAX
from millpond.events.rows import EVENTS
from millpond.spark.events.columns import form_of
from millpond.spark.events.locations import events_location
from millpond.spark.events.reader import EventsReader, PushingEventsReader
from millpond.spark.events.selection import FollowSettings, selection_of, starting_position
from millpond.spark.events.sinks import EventsEpochWriter, EventsWriter
from millpond.spark.locations import Location, Rights
from millpond.spark.options import check_options, comma_list, number, switch
from millpond.spark.short_errors import short_errors

if TYPE_CHECKING:
    from millpond.spark.events.follower import EventsFollower

__all__ = ("EventsSource",)

_BOTH = ("pond", "path", "queue", "job_set", "filters", "startingTimestamp")
_BATCH = ("columns", "day", "from_day", "to_day", "after", "until", "pushdown", "source")
_STREAM = ("startingPosition", "maxEventsPerTrigger", "failOnExpired")
_OPTIONS = (*_BOTH, *_BATCH, *_STREAM)


@short_errors
class EventsSource(DataSource):
    """The streams of events of a pond, to read from or to append to."""

    default: Location | None = None
    rights: Rights = Rights()

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_options(options, _OPTIONS)
        self.location = events_location(options, self.default, self.rights)

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "millpond.events"

    def schema(self) -> StructType:
        """The columns of events, or those that are wanted."""
        self._followed()  # said wrongly, it should fail where the frame is made
        names = comma_list(self.options.get("columns")) or EVENTS.names
        for name in names:
            _check_column(name)
        return from_arrow_schema(pa.schema([EVENTS.field(name) for name in names]))

    def reader(self, schema: StructType) -> EventsReader:
        """A reader of the columns of `schema`.

        Raises: `Invalid` for what is not understood.
        """
        _check_schema(schema)
        reader_type = PushingEventsReader if switch(self.options, "pushdown", default=False) else EventsReader
        selection = selection_of(self.options)
        selection = replace(selection, after=max(selection.after, starting_position(self.options)))
        return reader_type(self.location, selection, schema.names)

    def streamReader(self, schema: StructType) -> EventsFollower:  # noqa: N802 - Spark's name
        """A reader of events as they come, of the columns of `schema`.

        Raises: `Invalid` for what is not understood.
        """
        try:
            from millpond.spark.events.follower import EventsFollower
        except ModuleNotFoundError as error:
            raise Invalid("reading a stream needs PySpark 4.2 or later", kind="spark_too_old") from error
        _check_schema(schema)
        for name in ("day", "from_day", "to_day", "after", "until"):
            if name in self.options:
                raise Invalid(
                    "a stream is read as a whole", kind="option_value", option=name,
                    hint="filter its rows, or read a batch",
                )  # fmt: skip
        return EventsFollower(self.location, selection_of(self.options), schema.names, self._followed())

    def _followed(self) -> FollowSettings:
        return FollowSettings(
            start=self._start(), events_max=number(self.options, "maxEventsPerTrigger"),
            fail_on_expired=switch(self.options, "failOnExpired", default=True),
        )  # fmt: skip

    def _start(self) -> int:
        """The id after which a new query begins."""
        position = self.options.get("startingPosition", "earliest").strip().lower()
        if position not in ("earliest", "latest") or (
            "startingPosition" in self.options and "startingTimestamp" in self.options
        ):
            raise Invalid(
                "a stream begins at earliest or latest, or at a time", kind="option_value", option="startingPosition",
                value=repr(position), hint="for a time, option('startingTimestamp', …) alone",
            )  # fmt: skip
        return ID_MAX if position == "latest" else starting_position(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> EventsWriter:
        """A writer of rows that look like `schema`."""
        form = form_of(schema, self.options.get("queue"), self.options.get("job_set"))
        _check_mode(overwrite, "mode('append')")
        return EventsWriter(self.location, form, self.options.get("source", ""))

    def streamWriter(self, schema: StructType, overwrite: bool) -> EventsEpochWriter:  # noqa: N802 - Spark's name
        """A writer of an epoch's rows that look like `schema`."""
        form = form_of(schema, self.options.get("queue"), self.options.get("job_set"))
        _check_mode(overwrite, "outputMode('append')")
        return EventsEpochWriter(self.location, form)


def _check_mode(overwrite: bool, mode: str) -> None:
    if overwrite:
        raise Invalid("events are appended, they do not replace others", kind="mode_unsupported", hint=f"use {mode}")


def _check_column(name: str) -> None:
    if name not in EVENTS.names:
        raise Invalid(
            "not a column of events", kind="column_type", column=name, hint=f"columns: {', '.join(EVENTS.names)}"
        )


def _check_schema(schema: StructType) -> None:
    types = from_arrow_schema(EVENTS)
    for field in schema.fields:
        _check_column(field.name)
        if field.dataType != types[field.name].dataType:
            raise Invalid(
                "not a column of events", kind="column_type", column=field.name, type=field.dataType.simpleString(),
                hint=f"columns: {types.simpleString()}",
            )  # fmt: skip
