"""Events through Spark: files in, one pass over them with every lookup, files out.

* CSV is read with its header; the types of columns are found in the data, but what a map keeps as text is read as
  text: `007` stays `007`.
* Several workers write several files. For a single file they are joined, in order, when all are whole; a file appears
  under its name when it is complete, not before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.cli import rows
from millpond.cli.terminal import console
from millpond.cli.terminal.quiet import quiet_spark
from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid, NotFound
from millpond.kernel.worker import repeating
from millpond.maps.inputs.formats.files import find_files, paths_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from millpond.cli.terminal.messages import ColumnLookup
    from millpond.spark.locations import PondLike

__all__ = (
    "Enriched",
    "Inputs",
    "Output",
    "bytes_of",
    "check_columns",
    "check_locations",
    "enrich_files",
    "enrich_frame",
    "only_for_spark",
    "format_of",
    "output_of",
    "read_events",
    "running",
    "write_events",
)

_HERE = "file://"
LOOK_SECONDS = 0.5
"""The time between two looks at what Spark is at."""
_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".gz": "",
    ".bz2": "", ".zst": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of events: their format, unless their names tell; what CSV writes for null; the zone of bare times."""

    paths: tuple[str, ...]
    file_format: str | None = None
    null: str = ""
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Enriched:
    """Counts of an enrichment: the events, and for each filled column the events for which something was found."""

    rows: int
    matches: Mapping[str, int]
    seconds: float
    rejected: int = 0


def only_for_spark(inputs: Inputs, out: str) -> bool:
    """True for what this process does not read or write: other file systems, patterns with braces, partitions."""
    if any("://" in path for path in (*inputs.paths, out)) or any("{" in path for path in inputs.paths):
        return True
    return any(folder.is_dir() and any(folder.glob("*=*/")) for folder in map(Path, inputs.paths))


def bytes_of(inputs: Inputs) -> int:
    """The size of the files together."""
    return sum(file.size for file in find_files(inputs.paths, inputs.file_format or format_of(inputs.paths[0])))


@contextmanager
def running(
    master: str | None, *, quiet: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session for one command: a new one with Spark's `settings`, or the one that this process has already."""
    from pyspark.sql import SparkSession as Session

    from millpond import spark

    there = Session.getActiveSession()
    if there is not None:
        yield there
        return
    location = master or "local[*]"
    with console.working(f"starting Spark on {location}", quiet=quiet), quiet_spark():
        level = "error" if os.environ.get("MILLPOND_TRACEBACK") else "off"
        started = spark.start(location, settings=settings, log_level=level)
    try:
        yield started
    finally:
        started.stop()


def check_locations(inputs: Inputs, out: str, rejects: Path | None = None) -> None:
    """Find out before Spark is started whether there is something to read, and a place to write to.

    Raises: `NotFound` for a file or folder that is not there; `Invalid` for an unknown format, and for a place of what
    is read.
    """
    for path in inputs.paths:
        if "://" not in path and not any(mark in path for mark in "*?[{") and not Path(path).exists():
            raise NotFound("file does not exist", kind="file_not_found", path=path)
    if inputs.file_format is None:
        format_of(inputs.paths[0])
    output_of(out)
    _check_not_read(inputs, Path(out.removeprefix(_HERE)))
    if rejects is not None:
        _check_not_read(inputs, rejects)


def _check_not_read(inputs: Inputs, written: Path) -> None:
    """Refuse to write over events that are read, by whatever name.

    Raises: `Invalid`.
    """
    paths = [path.removeprefix(_HERE) for path in inputs.paths if written.exists()]
    for file in (file for path in paths if "://" not in path and "{" not in path for file in paths_of(path)):
        if written.samefile(file) or written.resolve() in file.resolve().parents:
            raise Invalid(
                "the output would replace events that are read", kind="output_of_input", path=written, events=file,
                hint="write a new file or folder, such as --out enriched.parquet",
            )  # fmt: skip


def enrich_files(
    session: SparkSession, pond: PondLike, inputs: Inputs, lookups: Sequence[ColumnLookup], out: str, *,
    flat: bool | None = None, on_invalid: str = "error", quiet: bool = False, clock: Clock | None = None,
    known_at: str | None = None,
) -> Enriched:  # fmt: skip
    """Look every event up with Spark and write it with what was found.

    Raises: `Invalid` for files of an unknown format and columns that are not there.
    """
    clock = clock or SystemClock()
    frame = read_events(session, inputs, frozenset(lookup.key for lookup in lookups if lookup.textual))
    began = clock.monotonic()
    enriched = enrich_frame(frame, pond, lookups, zone=inputs.zone, on_invalid=on_invalid, known_at=known_at)
    with _stages_shown(session, f"enriching into {out}", clock, quiet=quiet):
        done = write_events(enriched, lookups, out, flat=flat)
    return Enriched(done["rows"], {lookup.into: done[lookup.into] for lookup in lookups}, clock.monotonic() - began)


@contextmanager
def _stages_shown(session: SparkSession, what: str, clock: Clock, *, quiet: bool) -> Iterator[None]:
    """Show on a terminal how many tasks of Spark's newest stage have ended, and the rows that they read."""
    from millpond.spark.private_api import active_stage

    with console.stages(quiet=quiet) as show:

        def look() -> None:
            stage = active_stage(session)
            if stage is not None:
                show(f"{what}, stage {stage.id}", stage.rows, (stage.ended, stage.tasks))

        with repeating("the stages of Spark", look, LOOK_SECONDS, clock):
            yield


def enrich_frame(
    frame: DataFrame,
    pond: PondLike,
    questions: Sequence[ColumnLookup],
    *,
    zone: str | None = None,
    on_invalid: str = "error",
    known_at: str | None = None,
) -> DataFrame:
    """The frame with a column for each lookup. `zone` is that of times without one; they are refused by default.

    Raises: `Invalid` when a column is not there, or is there already.
    """
    from millpond import spark

    check_columns(frame.columns, questions)
    options: dict[str, Any] = {} if on_invalid == "error" else {"on_invalid": on_invalid}
    if known_at is not None:
        named = known_at.lower() in map(str.lower, frame.columns)
        options["known_at"] = _instants(frame, known_at, zone) if named else known_at
    lookups = [
        spark.Lookup(
            lookup.map,
            key=f"`{lookup.key}`",
            at=_instants(frame, lookup.time, zone),
            into=lookup.into,
            window=lookup.window,
            **options,
        )
        for lookup in questions
    ]
    return spark.enrich(frame, lookups, pond=pond)


def _instants(frame: DataFrame, column: str | None, zone: str | None) -> Column | str | None:
    """The column to ask with: times without a zone become instants when a zone is given."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import TimestampNTZType, TimestampType

    from millpond.maps.inputs.zones import NAME_THE_ZONE

    if column is None:
        return None
    name = f"`{column}`"
    if not isinstance(frame.select(name).schema[0].dataType, TimestampNTZType):
        return name
    if zone is None:
        raise Invalid("times have no zone", kind="time_naive", column=column, hint=NAME_THE_ZONE)
    return sql.convert_timezone(sql.lit(zone), sql.lit("UTC"), sql.col(name)).cast(TimestampType())


def check_columns(names: Sequence[str], lookups: Sequence[ColumnLookup]) -> None:
    """Refuse lookups by columns that events have not, or into columns that they have.

    Raises: `Invalid`.
    """
    taken = {name.lower() for name in names}
    for lookup in lookups:
        for column in (lookup.key, lookup.time):
            if column is not None and column.lower() not in {name.lower() for name in names}:
                raise Invalid(
                    "events have no such column", kind="column_missing", column=column, map=lookup.map,
                    hint=f"there are: {', '.join(names)}",
                )  # fmt: skip
        if lookup.into.lower() in taken:
            raise Invalid(
                "column is there already", kind="column_taken", column=lookup.into, map=lookup.map,
                hint=f"--with '{lookup.map} on {lookup.key} … as ANOTHER_NAME'",
            )  # fmt: skip
        taken.add(lookup.into.lower())


# -- in -----------------------------------------------------------------------------------------------


def read_events(session: SparkSession, inputs: Inputs, textual: frozenset[str] = frozenset()) -> DataFrame:
    """Files of events as one frame. The columns named in `textual` are text, whatever they look like.

    Raises: `Invalid` for an unknown format.
    """
    kind = inputs.file_format or format_of(inputs.paths[0])
    paths = [_url(path) for path in inputs.paths]
    if kind == "parquet":
        return session.read.parquet(*paths)
    if kind == "jsonl":
        return session.read.json(paths)
    if kind != "csv":
        raise Invalid(
            "format is not known", kind="input_format", format=kind, hint="one of: parquet, csv, jsonl"
        )  # fmt: skip
    form = _csv_form(inputs)
    schema = _csv_schema(session, paths, form, textual)
    return session.read.csv(paths, schema=schema, **form)


def _csv_form(inputs: Inputs) -> dict[str, Any]:
    """Spark's options for CSV as `load` reads it: delimiter, quotes doubled within quotes, line ends within them."""
    from millpond.maps.inputs.formats.delimited import csv_form, holds_long_records

    options: dict[str, Any] = {"header": True, "nullValue": inputs.null, "escape": '"'}
    if any("://" in path or "{" in path for path in inputs.paths):
        return options
    files = find_files(inputs.paths, "csv")
    # Records of several lines keep Spark from cutting a file into pieces, so only where there are some.
    return options | {"sep": csv_form(files[0]).delimiter, "multiLine": any(map(holds_long_records, files))}


def _url(path: str) -> str:
    """A path of this machine, whatever file system Spark takes for its own and wherever it was started."""
    return path if "://" in path else f"{_HERE}{Path(path).absolute()}"


def _csv_schema(session: SparkSession, paths: list[str], form: dict[str, Any], textual: frozenset[str]) -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    # Spark would read a time without a zone as UTC; so it stays what it is, and is refused where a time is needed.
    setting = "spark.sql.timestampType"
    session.conf.set(setting, "TIMESTAMP_NTZ")
    try:
        inferred = session.read.csv(paths, inferSchema=True, **form).schema
    finally:
        session.conf.unset(setting)
    text = {name.lower() for name in textual}
    return StructType([StructField(f.name, StringType()) if f.name.lower() in text else f for f in inferred.fields])


def format_of(path: str) -> str:
    """The format that a file's name tells; a folder holds Parquet.

    Raises: `Invalid` when it tells none.
    """
    for suffix in reversed(Path(path).suffixes):
        format_ = _FORMATS.get(suffix.lower())
        if format_:
            return format_
        if format_ is None:
            break
    if Path(path).is_dir():
        return "parquet"
    raise Invalid(
        "cannot tell the format of the events",
        kind="input_format",
        path=path,
        hint="say --format parquet, csv or jsonl",
    )


# -- out ----------------------------------------------------------------------------------------------


_PART_NAMES = ("part-", "_", ".")
"""The names of files in a folder that Spark, or a run here, wrote."""


@dataclass(frozen=True, slots=True)
class Output:
    """The destination of events: one file, or a folder with a file of each task."""

    path: str
    single: bool

    @property
    def flat(self) -> bool:
        return self.single and self.path.lower().endswith(".csv")


def output_of(out: str) -> Output:
    """The place that is meant: a name with an ending is a file.

    Raises: `Invalid` when the ending is not known, or a folder would be lost; `NotFound` when there is no such folder.
    """
    if "://" in out:
        return Output(out, single=False)
    if out.endswith("/") or not Path(out).suffix:
        _check_replaced(Path(out))
        return Output(out, single=False)
    rows.check_writable(Path(out))
    return Output(out, single=True)


def _check_replaced(folder: Path) -> None:
    """Refuse to put a folder in the place of what no earlier run wrote."""
    if folder.exists() and not folder.is_dir():
        raise Invalid(
            "the output is no folder, and its name has no ending", kind="output_format", path=folder,
            hint="write a file, such as --out enriched.csv, and show it with: cat enriched.csv",
        )  # fmt: skip
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    foreign = next((name for name in names if not name.startswith(_PART_NAMES)), None)
    if foreign is not None:
        raise Invalid(
            "the folder holds something else, which would be lost", kind="output_folder", path=folder, found=foreign,
            hint="name a new folder, or one that an earlier run wrote",
        )  # fmt: skip


def write_events(
    frame: DataFrame, lookups: Sequence[ColumnLookup], out: str, *, flat: bool | None = None
) -> dict[str, int]:
    """Write events, in one pass; answers how many `rows`, and for each column how many found something.

    Raises: `Invalid` when the format of `out` is not known; `NotFound` when its folder is not there.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    output = output_of(out)
    # Spark's default is a type of time that Parquet gave up, and that readers take for one without a zone
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    observed = Observation()
    counts = [sql.count(sql.col(f"`{lookup.into}`")).alias(lookup.into) for lookup in lookups]
    counted = frame.observe(observed, sql.count(sql.lit(1)).alias("rows"), *counts)
    written = _flattened(counted, lookups) if (output.flat if flat is None else flat) else counted
    if output.single:
        _write_single(written, Path(output.path))
    else:
        written.write.mode("overwrite").option("compression", "zstd").parquet(_url(output.path))
    return dict(observed.get)


def _flattened(frame: DataFrame, lookups: Sequence[ColumnLookup]) -> DataFrame:
    """A struct `weather` becomes the columns `weather_temp`, `weather_wind_speed` …"""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StructType

    filled = {lookup.into for lookup in lookups}
    columns = []
    for field in frame.schema.fields:
        if field.name in filled and isinstance(field.dataType, StructType):
            columns += [
                sql.col(f"`{field.name}`.`{inner}`").alias(f"{field.name}_{inner}") for inner in field.dataType.names
            ]
        else:
            columns.append(sql.col(f"`{field.name}`"))
    return frame.select(*columns)


def _write_single(frame: DataFrame, path: Path) -> None:
    from pyarrow import dataset

    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        parts = folder / "parts"
        frame.write.option("compression", "zstd").parquet(_url(str(parts)))
        files = sorted(str(part) for part in parts.glob("part-*.parquet"))
        joined = dataset.dataset(files, format="parquet")
        rows.write_file(path, joined.schema, joined.to_batches())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
