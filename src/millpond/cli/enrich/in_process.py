"""Events looked up in this process: batches in, the same batches with what maps know of each event, out.

Keys and times are read as `load` reads them, so an event that cannot be looked up is reported as a row that cannot be
loaded: its column, its value, what is wrong with it. It is a reject, or (`miss`) an event of which nothing is known.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millpond.cli.enrich.by_spark import Enriched, Inputs, Output, check_columns, format_of, output_of
from millpond.cli.enrich.event_files import EventBatch, EventFiles
from millpond.cli.rows import write_file
from millpond.cli.terminal import console
from millpond.cli.terminal.console import Advance
from millpond.cli.terminal.messages import ColumnLookup
from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid
from millpond.maps.inputs.faults import REJECTED, Faults, rejected_rows
from millpond.maps.inputs.formats.files import find_files
from millpond.maps.inputs.keys import NEVER_STORED
from millpond.maps.inputs.rejects import RejectWriter
from millpond.maps.inputs.scalars import Convert
from millpond.maps.inputs.spans import Buckets
from millpond.maps.inputs.tags import key_reader
from millpond.maps.inputs.zones import NAME_THE_ZONE, instants_in, time_form
from millpond.maps.loads.load_files import guard_rejects
from millpond.maps.model.columns import INSTANT
from millpond.maps.protocols import MapLike, PondLike
from millpond.maps.snapshots.snapshot import answer_type
from millpond.times.instants import clear_instant

__all__ = ("Enriching", "Rejects", "enrich_here")


@dataclass(frozen=True, slots=True)
class Rejects:
    """The treatment of events that cannot be looked up: a miss; or rejects, up to a limit, written to a file."""

    miss: bool = False
    most: int = 0
    path: Path | None = None


class Enriching:
    """A pass over events, a context manager: write its `batches`, then read what was counted.

    Raises: on entry `Invalid` when a column cannot hold keys or times; on exit when there were too many rejects.
    """

    def __init__(
        self, pond: PondLike, events: EventFiles, lookups: Sequence[ColumnLookup], *, zone: str | None = None,
        rejects: Rejects | None = None, flat: bool = False, clock: Clock | None = None, known_at: str | None = None,
    ) -> None:  # fmt: skip
        self.matches: Counter[str] = Counter({lookup.into: 0 for lookup in lookups})
        self.rows = 0
        self._events, self._rejects, self._flat = events, rejects or Rejects(), flat
        clock = clock or SystemClock()
        self._lookups = [
            _Lookup(lookup, pond.map(lookup.map), events.schema, zone, clock, known_at) for lookup in lookups
        ]
        self._rejected = RejectWriter(
            self._rejects.path, max_rejects=self._rejects.most, outcome="cannot be looked up, nothing was written",
            others="to go on without them: --max-rejects N; to take them for misses: --on-invalid miss",
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._rejected.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rejected.__exit__(kind, error, trace)

    @property
    def rejected(self) -> int:
        """Events that were left out."""
        return self._rejected.count

    @property
    def schema(self) -> pa.Schema:
        """The columns that are written."""
        fields = [lookup.field for lookup in self._lookups]
        return pa.schema([*self._events.schema, *(inner for field in fields for inner in self._spread(field))])

    def _spread(self, answer: pa.Field) -> list[pa.Field]:
        """A struct `weather` becomes the columns `weather_temp`, `weather_wind_speed` … when they shall be flat."""
        if not self._flat or not pa.types.is_struct(answer.type):
            return [answer]
        return [pa.field(f"{answer.name}_{inner.name}", inner.type) for inner in answer.type]

    def _columns(self, answers: pa.Array[Any]) -> list[pa.Array[Any]]:
        return answers.flatten() if self._flat and pa.types.is_struct(answers.type) else [answers]

    def batches(self, advance: Advance) -> Iterator[pa.RecordBatch]:
        """Every event that can be looked up, with the answers.

        Raises: `Invalid` when there are more rejects than there may be.
        """
        for batch in self._events.batches():
            self._rejected.write(batch.rejected, source=batch.file.path)
            yield self._answered(batch)
            advance(batch.rows.num_rows, batch.read)
        if self._rejected.count > self._rejects.most:
            self._rejected.fail()  # before what was written gets its name

    def _answered(self, batch: EventBatch) -> pa.RecordBatch:
        rows, faults = batch.rows, Faults(batch.rows.num_rows)
        answers = [lookup.answers(rows, faults) for lookup in self._lookups]
        columns = list(rows.columns)
        if faults.reasons and not self._rejects.miss:
            rejected = rejected_rows(rows, faults)
            places = batch.positions[rejected.column("row").to_numpy()]
            self._rejected.write(
                rejected.set_column(0, REJECTED.field("row"), pa.array(places)), source=batch.file.path
            )
            good = pa.array(~faults.bad)
            columns, answers = ([column.filter(good) for column in some] for some in (columns, answers))
        for lookup, answer in zip(self._lookups, answers, strict=True):
            self.matches[lookup.lookup.into] += len(answer) - answer.null_count
            columns += self._columns(answer)
        made = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self.rows += made.num_rows
        return made


def enrich_here(
    pond: PondLike, inputs: Inputs, lookups: Sequence[ColumnLookup], out: str, *, flat: bool | None = None,
    rejects: Rejects | None = None, quiet: bool = False, clock: Clock | None = None,
    known_at: str | None = None,
) -> Enriched:  # fmt: skip
    """Look every event up in this process and write it with what was found.

    Raises: `Invalid` for files of an unknown format, columns that are not there, too many rejects.
    """
    clock, output = clock or SystemClock(), output_of(out)
    began = clock.monotonic()
    files = find_files(inputs.paths, inputs.file_format or format_of(inputs.paths[0]))
    guard_rejects(rejects.path if rejects else None, files)
    events = EventFiles(
        files, null=inputs.null, texts=frozenset(lookup.key.lower() for lookup in lookups if lookup.textual)
    )
    check_columns(events.schema.names, lookups)
    spread = output.flat if flat is None else flat
    work = Enriching(
        pond, events, lookups, zone=inputs.zone, rejects=rejects, flat=spread, clock=clock, known_at=known_at
    )
    total = sum(file.size for file in files)
    with work, console.progress(f"enriching into {out}", total=total, unit="events", quiet=quiet) as advance:
        _write(output, work, advance)
    return Enriched(work.rows, work.matches, clock.monotonic() - began, work.rejected)


def _write(output: Output, work: Enriching, advance: Advance) -> None:
    """Write the events to the file, or to a file in the folder, which replaces what was there, as Spark does it."""
    path = Path(output.path)
    if output.single:
        write_file(path, work.schema, work.batches(advance))
        return
    path = path.resolve()  # what a link names is replaced, not the link
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        write_file(folder / "part-00000.zstd.parquet", work.schema, work.batches(advance))
        folder.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        folder.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Lookup:
    """One map, open, and how to read its keys and times from events."""

    def __init__(
        self, lookup: ColumnLookup, map_: MapLike, schema: pa.Schema, zone: str | None, clock: Clock,
        known_at: str | None,
    ) -> None:  # fmt: skip
        self.lookup = lookup
        self.definition = map_.definition
        self.key = _column_of(schema, lookup.key)
        self.time = None if lookup.time is None else _column_of(schema, lookup.time)
        self._keys: Convert = key_reader(self.definition)
        self._instants = instants_in(time_form(zone), "ms")
        self._now = clear_instant(clock.now_ms())
        self.moment = next((name for name in schema.names if name.lower() == (known_at or "").lower()), None)
        self._check(schema)
        self._lookup: Any = _lookup_in(map_, lookup.window, known_at)
        self._options: dict[str, Any] = {} if known_at is None else {"known_at": known_at}

    @property
    def field(self) -> pa.Field:
        return pa.field(self.lookup.into, answer_type(self.definition))

    def _check(self, schema: pa.Schema) -> None:
        """Refuse columns of which no value can be a key or a time, before any event is read."""
        self._converted(pa.nulls(0, schema.field(self.key).type), self.key, self._keys)
        for name in (self.time, self.moment):
            if name is not None:
                self._converted(pa.nulls(0, schema.field(name).type), name, self._instants)

    def _converted(self, column: pa.Array[Any], name: str, convert: Convert) -> Any:
        try:
            return convert(column)
        except Invalid as error:
            values = {"map": self.definition.name, "column": name} | error.values
            hint = NAME_THE_ZONE if error.kind == "time_naive" else error.hint
            raise Invalid(error.message, kind=error.kind, hint=hint, **values) from error

    def answers(self, rows: pa.RecordBatch, faults: Faults) -> pa.Array[Any]:
        """The value found for each event; null for the events in `faults`, which cannot be looked up."""
        keys = self._read(rows, self.key, self._keys, faults)
        at: Any = self._now if self.definition.kind.timed else None
        if self.time is not None:
            at = self._read(rows, self.time, self._instants, faults).cast(INSTANT)
        moment = self._options
        if self.moment is not None:
            moment = {"known_at": self._read(rows, self.moment, self._instants, faults).cast(INSTANT)}
        return self._lookup(keys, at, **moment)

    def _read(self, rows: pa.RecordBatch, name: str, convert: Convert, faults: Faults) -> pa.Array[Any]:
        column = rows.column(name)
        converted = self._converted(column, name, convert)
        for mask, problem in converted.faults:
            if problem not in NEVER_STORED:  # a key that no row can have is a miss, as in every lookup
                faults.add_values(mask, column, name, problem)
        return converted.values


def _lookup_in(map_: MapLike, window: str | None, known_at: str | None) -> Any:
    """The lookup in a map: in one snapshot for all events, or as it was known then.

    Raises: as `Buckets.check`.
    """
    if window is not None:
        Buckets(window=window).check(map_.definition, None)
    return partial((map_ if known_at is not None else map_.snapshot()).lookup, window=window)


def _column_of(schema: pa.Schema, name: str) -> str:
    """The column as the events write it; names are alike in any case, as in Spark."""
    return next(column for column in schema.names if column.lower() == name.lower())
