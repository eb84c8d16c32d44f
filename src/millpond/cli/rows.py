"""Rows that a command answers: a table on the screen, JSON lines, or a file. Batch by batch, never all at once.

| name ends in | written as |
|---|---|
| `.parquet` | Parquet, zstd |
| `.csv` | CSV with a header; text in quotes, so that empty and missing differ; times in ISO 8601 with `Z` |
| `.jsonl`, `.ndjson` | one JSON object a line |
| `.arrow`, `.arrows` | Arrow IPC stream |

In JSON, times are ISO 8601 text with `Z`, bytes are base64 text, NaN and the infinities are null.
A file appears under its name when it is whole, not before.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from millpond.cli.terminal import console
from millpond.deferred import pa
from millpond.errors import Invalid, NotFound

__all__ = ("check_writable", "limited", "plain", "show", "write_file")

SCREEN_ROWS_MAX = 1_000

Write: TypeAlias = "Callable[[pa.RecordBatch], None]"


def limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; no batch is asked for that would not be used."""
    room = limit
    for batch in batches:
        if room is not None:
            if room <= 0:
                return
            batch = batch.slice(0, room)
            room -= batch.num_rows
        yield batch
        if room == 0:
            return


def show(schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, as_json: bool, empty: str = "no rows") -> int:
    """Print rows; answers how many. On the screen at most 1,000, and it says when there were more."""
    if as_json:
        return _show_lines(batches)
    rows: list[Sequence[Any]] = []
    more = False
    for batch in batches:
        room = SCREEN_ROWS_MAX - len(rows)
        more = batch.num_rows > room
        rows += zip(*map(_values, batch.slice(0, room).columns), strict=True)
        if more:
            break
    if not rows:
        console.note(empty)
        return 0
    console.print_table(schema.names, ([_shown(cell) for cell in row] for row in rows))
    if more:
        console.say(f"the first {SCREEN_ROWS_MAX:,} rows; --out FILE takes them all")
    return len(rows)


def _show_lines(batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    for batch in batches:
        for row in _rows(batch):
            console.print_json(plain(row))
        count += batch.num_rows
    return count


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    names = batch.schema.names
    return (dict(zip(names, row, strict=True)) for row in zip(*map(_values, batch.columns), strict=True))


def _values(column: pa.Array) -> list[Any]:
    """A column as Python values. A map is a dict; a list of pairs only where it names something twice."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_nested(column.type):
        from millpond.maps.inputs.json_text import with_dicts

        with suppress(ValueError):
            return [with_dicts(value, column.type) for value in values]
    return values


def _shown(cell: Any) -> Any:
    if isinstance(cell, dict | list):
        return json.dumps(plain(cell), ensure_ascii=False)
    return cell if isinstance(cell, int | float | None) else str(plain(cell))


def plain(value: Any) -> Any:
    """A Python value as JSON can say it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.datetime):
        return _instant(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _instant(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    precision = "milliseconds" if value.microsecond else "seconds"
    if value.microsecond % 1000:
        precision = "microseconds"
    return value.astimezone(datetime.UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def check_writable(path: Path) -> None:
    """Find out before long work whether `write_file` can write to `path`.

    Raises: `Invalid` when the ending is not known; `NotFound` when there is no such folder.
    """
    if path.suffix.lower() not in _WRITERS:
        raise Invalid(
            "cannot tell the format of the output", kind="output_format", path=path,
            hint=f"end its name in one of {', '.join(_WRITERS)}",
        )  # fmt: skip
    if not path.parent.is_dir():
        raise NotFound("there is no such folder", kind="folder_not_found", path=path.parent, hint="make it first")


def write_file(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], on_rows: console.Advance = console.unseen
) -> int:
    """Write rows to a file by the ending of its name; answers how many.

    Raises: `Invalid` when the ending is not known; nothing is left under the name when anything fails.
    """
    check_writable(path)
    writer = _WRITERS[path.suffix.lower()]
    unfinished = path.with_name(f".{path.name}.unfinished")
    count = 0
    try:
        with writer(unfinished, schema) as write:
            for batch in batches:
                write(batch)
                count += batch.num_rows
                on_rows(batch.num_rows)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    from pyarrow import csv

    texts = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
    with csv.CSVWriter(path, texts) as writer:
        yield lambda batch: writer.write_batch(_csv_texts(batch, texts))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    simple = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if simple else pa.string()


def _csv_texts(batch: pa.RecordBatch, texts: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else pa.array([_csv_cell(cell) for cell in _values(column)], pa.string())
        for column, field in zip(batch.columns, texts, strict=True)
    ]
    return pa.record_batch(columns, schema=texts)


def _csv_cell(cell: Any) -> str | None:
    value = plain(cell)
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


@contextmanager
def _json_lines(path: Path, _schema: pa.Schema) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda batch: _write_lines(file, batch)


def _write_lines(file: TextIO, batch: pa.RecordBatch) -> None:
    file.writelines(json.dumps(plain(row), ensure_ascii=False) + "\n" for row in _rows(batch))


@contextmanager
def _arrow(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        yield writer.write_batch


_WRITERS = {
    ".parquet": _parquet, ".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".arrow": _arrow,
    ".arrows": _arrow,
}  # fmt: skip
