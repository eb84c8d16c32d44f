"""Import of events from a file of Parquet, such as an exported one: history keeps its times, and gets new ids.

| column | |
|---|---|
| `time` | required: a timestamp with a zone |
| `payload` | required: binary or text |
| `queue`, `job_set` | text; not needed where they are named for the whole file |
| `kind`, `headers` | text, and a map of texts; empty by default |

Invariants:
* the source of the events is the content of the file, their position the row: the same file again adds nothing, and an
  import that was stopped goes on;
* memory: a batch of rows. Rows of one stream that follow one another are appended together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import Invalid, NotFound
from millpond.events.event import NO_HEADERS, Appended, NewEvent
from millpond.events.names import StreamName
from millpond.stores.files import checksum_file

if TYPE_CHECKING:
    import os

    from millpond.events.interface import EventsLike

__all__ = ("Imported", "import_file")

BATCH_ROWS = 10_000
APPEND_BYTES = 4 << 20


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "queue": (_is_text, "text"), "job_set": (_is_text, "text"),
    "time": (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "a timestamp with a zone"),
    "kind": (_is_text, "text"),
    "payload": (
        lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind), "binary or text"
    ),
    "headers": (pa.types.is_map, "a map of texts"),
}  # fmt: skip
_TO = {"time": pa.timestamp("ms", tz="UTC"), "payload": pa.binary()}


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import: events that are new, and that were there before; the new ones as in `Appended`."""

    events: int = 0
    repeated: int = 0
    past_retention: int = 0

    def __add__(self, done: Appended) -> Imported:
        """The outcome with one append more."""
        return Imported(
            self.events + done.count, self.repeated + done.repeated, self.past_retention + done.past_retention
        )


def import_file(
    streams: EventsLike, file: str | os.PathLike[str], queue: str | None = None, job_set: str | None = None, *,
    advance: Callable[[int], object] = lambda _count: None,
) -> Imported:  # fmt: skip
    """Append the events of a file of Parquet, in its order, with the times that they have; each file once.

    `queue` and `job_set` are those of all events, in place of the columns of these names. `advance` is called with the
    number of events that were appended.

    Raises:
        Invalid: the file, a column or an event is not understood. `NotFound`: there is no such file.
        Uncertain: some may be stored. Import the file again.
    """
    path, names = Path(file), {"queue": queue, "job_set": job_set}
    source, done = f"file:{_checksum(path)}", Imported()
    row = 0
    for stream, events in _appends(path, {name: text for name, text in names.items() if text is not None}):
        done += streams.append(*stream, events, source=source, positions=range(row, row + len(events)))
        row += len(events)
        advance(len(events))
    return done


def _checksum(file: Path) -> str:
    if not file.is_file():
        raise NotFound("file does not exist", kind="file_not_found", path=file)
    return checksum_file(file)


def _appends(file: Path, names: dict[str, str]) -> Iterator[tuple[StreamName, list[NewEvent]]]:
    """The events of a file that are appended together, in its order, each time with their stream."""
    for batch in _batches(file, names):
        rows = zip(*(_values(batch, name, names) for name in _TYPES), strict=True)
        for stream, group in groupby(rows, key=lambda values: StreamName(values[0], values[1])):
            events: list[NewEvent] = []
            size = 0
            for _, _, time, kind, payload, headers in group:
                events.append(NewEvent(time, payload, kind, dict(headers) if headers else NO_HEADERS))
                size += len(payload)
                if size >= APPEND_BYTES:
                    yield stream, events
                    events, size = [], 0
            if events:
                yield stream, events


def _batches(file: Path, columns: dict[str, str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as parquet_file:
            schema = parquet_file.schema_arrow
            names = [name for name in _TYPES if name in schema.names and name not in columns]
            _check_columns(schema, names, columns)
            yield from parquet_file.iter_batches(BATCH_ROWS, columns=names)
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise Invalid(
            "the file is no Parquet that can be read", kind="input_damaged", path=file,
            reason=str(error).splitlines()[0], hint="copy it again",
        ) from error  # fmt: skip


def _check_columns(schema: pa.Schema, names: list[str], defaults: dict[str, str]) -> None:
    for name, (fits, type_) in _TYPES.items():
        if name not in names and name not in ("kind", "headers", *defaults):
            hint = f"give --{name.replace('_', '-')}" if name in ("queue", "job_set") else f"it is {type_}"
            raise Invalid("a column is missing", kind="event_column", column=name, hint=hint)
        if name in names and schema.names.count(name) > 1:
            raise Invalid("a column is there twice", kind="event_column", column=name, hint="leave one of them out")
        if name in names and not fits(schema.field(name).type):
            raise Invalid(
                "a column has another type", kind="event_column", column=name, type=schema.field(name).type,
                hint=f"it is {type_}",
            )  # fmt: skip


def _values(batch: pa.RecordBatch, name: str, defaults: dict[str, str]) -> list[Any]:
    if name in defaults or name not in batch.schema.names:
        return [defaults.get(name, "")] * batch.num_rows
    column = batch.column(name)
    if column.null_count and name not in ("kind", "headers"):
        raise Invalid(
            "an event cannot be written: a column is null", kind="event_column_null", column=name,
            rows=column.null_count, hint="leave such rows out, or give them a value",
        )  # fmt: skip
    try:
        if name == "time":
            return list(column.cast(_TO[name], safe=False).cast(pa.int64()).to_pylist())
        values = column.cast(_TO[name]).to_pylist() if name in _TO else column.to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise Invalid(
            "a column has a value that is none of its type", kind="event_column", column=name,
            reason=str(error).splitlines()[0], hint=f"it is {_TYPES[name][1]}",
        ) from error  # fmt: skip
    return ["" if value is None else value for value in values] if name == "kind" else list(values)
