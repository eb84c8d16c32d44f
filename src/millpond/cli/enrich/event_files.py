"""Files of events as typed batches, in this process: every column, with the types that Spark would give them.

CSV and JSON lines are read twice: the types of their columns are those of all rows, not of the first ones. Batches are
of some megabytes, so that memory does not grow with the files. Files of one run are read as one table: a column that
one of them has not is null there.

What is no row (a record with too many cells, a line that is no JSON) is rejected with its position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import NOTHING_REJECTED, rejects_of
from millpond.maps.inputs.formats.columnar import damaged, meant_schema, open_parquet
from millpond.maps.inputs.formats.delimited import csv_form, read_texts
from millpond.maps.inputs.formats.files import Format, InputFile, Piece, read_chunks

__all__ = ("EventBatch", "EventFiles")

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 8 << 20
_TEXT_SHOWN_MAX = 500
_NESTING_MAX = 200


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events of a file, the position of each in it, and the records among them that are none (`faults.REJECTED`).

    `read` is how many of the file's bytes this batch takes.
    """

    file: InputFile
    rows: pa.RecordBatch
    positions: npt.NDArray[np.int64]
    rejected: pa.RecordBatch
    read: int


class EventFiles:
    """Files of events, read as one table. `texts` names columns that are text whatever they look like (lower case)."""

    def __init__(self, files: Sequence[InputFile], *, null: str = "", texts: frozenset[str] = frozenset()) -> None:
        self.files = files
        self._null, self._texts = null, texts

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all files together.

        Raises: `Invalid` when a column is of one type here and of another there, or a file cannot be read.
        """
        schemas = [self._schema_of(file) for file in self.files]
        try:
            return pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise _mixed(str(error), self.files[0].path) from error

    def batches(self) -> Iterator[EventBatch]:
        """Every event, with the columns of `schema`.

        Raises: `Invalid` when a file cannot be read.
        """
        for file in self.files:
            match file.format:
                case Format.PARQUET:
                    yield from self._parquet_batches(file)
                case Format.CSV:
                    yield from self._csv_batches(file)
                case _:
                    yield from self._json_batches(file)

    def _schema_of(self, file: InputFile) -> pa.Schema:
        match file.format:
            case Format.PARQUET:
                with open_parquet(file) as parquet_file:
                    return meant_schema(parquet_file)
            case Format.CSV:
                return self._csv_schema(file)
            case Format.JSON_LINES:
                return self._json_schema(file)
            case _:
                raise Invalid(
                    "events are not read from this format", kind="input_format", path=file.path, format=file.format,
                    hint="one of: parquet, csv, jsonl",
                )  # fmt: skip

    # -- Parquet --------------------------------------------------------------------------------------

    def _parquet_batches(self, file: InputFile) -> Iterator[EventBatch]:
        with open_parquet(file) as parquet_file:
            done, rows = 0, max(parquet_file.metadata.num_rows, 1)
            try:
                for batch in parquet_file.iter_batches(BATCH_ROWS):
                    positions = np.arange(done + 1, done + 1 + batch.num_rows)
                    share = file.size * batch.num_rows // rows
                    done += batch.num_rows
                    yield EventBatch(file, self._shaped(batch), positions, NOTHING_REJECTED, share)
            except (pa.ArrowInvalid, OSError) as error:
                raise damaged(file, error) from error

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns of all files, in their order and of their types."""
        there = set(batch.schema.names)
        columns = [
            batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # -- CSV ------------------------------------------------------------------------------------------

    def _csv_schema(self, file: InputFile) -> pa.Schema:
        form = csv_form(file)
        if len(set(form.names)) < len(form.names):
            twice = next(name for name in form.names if form.names.count(name) > 1)
            raise Invalid(
                "two columns have one name", kind="column_twice", path=file.path, column=twice,
                hint="give each column of the first line a name of its own",
            )  # fmt: skip
        types = _ColumnTypes(form.names, self._texts)
        for arrived in read_texts(Piece(file), form, null=self._null):
            if arrived.rows is not None:
                types.see(arrived.rows)
        return pa.schema([pa.field(name, types.type_of(name)) for name in form.names])

    def _csv_batches(self, file: InputFile) -> Iterator[EventBatch]:
        form, done = csv_form(file), 0
        for arrived in read_texts(Piece(file), form, null=self._null):
            read, done = max(arrived.read - done, 0), max(done, arrived.read)
            if arrived.rows is None:
                yield EventBatch(file, _no_events(self.schema), _positions(1, 0), arrived.rejected, read)
                continue
            columns = {name: arrived.rows.column(name) for name in form.names}
            typed = [
                _converted(columns[field.name], field.type)
                if field.name in columns
                else pa.nulls(arrived.rows.num_rows, field.type)
                for field in self.schema
            ]
            rows = pa.RecordBatch.from_arrays(typed, schema=self.schema)
            yield EventBatch(file, rows, _positions(arrived.positions, rows.num_rows), arrived.rejected, read)

    # -- JSON lines -----------------------------------------------------------------------------------

    def _json_schema(self, file: InputFile) -> pa.Schema:
        schemas = [pa.schema([])]
        for number, block in _blocks(file):
            read = _JsonBlock.read(file, block, number)
            if read.table is not None:
                schemas.append(_without_times(read.table.schema))
        try:
            unified = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise _mixed(str(error), file.path) from error
        return pa.schema([
            pa.field(field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in unified
        ])  # fmt: skip

    def _json_batches(self, file: InputFile) -> Iterator[EventBatch]:
        for number, block in _blocks(file):
            read, rows = _JsonBlock.read(file, block, number, self.schema), _no_events(self.schema)
            if read.table is not None:
                (rows,) = read.table.select(self.schema.names).cast(self.schema).combine_chunks().to_batches()
            yield EventBatch(file, rows, read.positions, read.rejected, len(block))


@dataclass(frozen=True, slots=True)
class _JsonBlock:
    """Some lines of JSON: the objects as a table, the number of the line of each, and the lines that are none."""

    table: pa.Table | None
    positions: npt.NDArray[np.int64]
    rejected: pa.RecordBatch

    @classmethod
    def read(cls, file: InputFile, block: bytes, first: int, schema: pa.Schema | None = None) -> Self:
        """Read the lines of a block, of which `first` is the number of the first.

        Raises: `Invalid` when a column is of several types.
        """
        if first == 1:
            block = block.removeprefix(b"\xef\xbb\xbf")
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if _depth(block) <= _NESTING_MAX:
            with suppress(pa.ArrowInvalid):
                table = _json_table(block, schema)
                if table.num_rows == count:
                    return cls(table, np.arange(first, first + count), NOTHING_REJECTED)
        lines, positions, rejected = _sound_lines(block, first)
        try:
            return cls(_json_table(b"\n".join(lines), schema) if lines else None, positions, rejected)
        except pa.ArrowInvalid as error:
            raise _mixed(str(error), file.path) from error


def _json_table(text: bytes, schema: pa.Schema | None) -> pa.Table:
    return arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(block_size=len(text) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )


def _mixed(reason: str, path: str) -> Invalid:
    return Invalid(
        "a column holds values of several types", kind="events_mixed", path=path, reason=reason.splitlines()[0],
        hint="--spark reads such a column as text",
    )  # fmt: skip


def _no_events(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _positions(positions: Any, count: int) -> npt.NDArray[np.int64]:
    return np.arange(positions, positions + count) if isinstance(positions, int) else np.asarray(positions, np.int64)


def _blocks(file: InputFile) -> Iterator[tuple[int, bytes]]:
    """Whole lines, several megabytes at a time, with the number of the first."""
    number, carry = 1, b""
    for chunk in read_chunks(file, BLOCK_BYTES):
        if number == 1 and not carry and chunk.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            raise Invalid(
                "the file is one JSON array", kind="input_format", path=file.path,
                hint="write one object a line, such as: jq -c '.[]' array.json > events.jsonl",
            )  # fmt: skip
        carry += chunk
        cut = carry.rfind(b"\n") + 1
        if cut:
            yield number, carry[:cut]
            number += carry.count(b"\n", 0, cut)
            carry = carry[cut:]
    if carry:
        yield number, carry


def _sound_lines(block: bytes, first: int) -> tuple[list[bytes], npt.NDArray[np.int64], pa.RecordBatch]:
    """The lines that are JSON objects, their numbers, and the others, rejected."""
    lines: list[bytes] = []
    numbers: list[int] = []
    refused: list[tuple[int, str, object]] = []
    for number, line in enumerate(block.split(b"\n"), first):
        if not line.strip():
            continue
        problem = _problem(line)
        if problem is None:
            lines.append(line)
            numbers.append(number)
        else:
            refused.append((number, problem, line[:_TEXT_SHOWN_MAX].decode(errors="replace")))
    return lines, np.array(numbers, np.int64), rejects_of(refused)


def _problem(line: bytes) -> str | None:
    """The reason why a line is no event, None if it is one. Arrow's reader recurses, and stops at the first bad
    line.
    """
    if line.count(b"{") + line.count(b"[") > _NESTING_MAX and _depth(line) > _NESTING_MAX:
        return f"line is nested deeper than {_NESTING_MAX}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"line is no JSON: {error}"
    return None if isinstance(record, dict) else "line is no JSON object"


def _depth(line: bytes) -> int:
    """Nesting depth of brackets, those in text included: rather too deep than not deep enough."""
    signs = np.frombuffer(line, np.uint8)
    steps = np.isin(signs, np.frombuffer(b"{[", np.uint8)).astype(np.int64)
    steps -= np.isin(signs, np.frombuffer(b"}]", np.uint8))
    return int(np.cumsum(steps).max(initial=0))


def _without_times(schema: pa.Schema) -> pa.Schema:
    """JSON has no times: text that looks like one is text."""
    return pa.schema([pa.field(field.name, _without_time(field.type)) for field in schema])


def _without_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _without_time(inner.type)) for inner in kind])
    return pa.list_(_without_time(kind.value_type)) if pa.types.is_list(kind) else kind


_NAIVE, _INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
_CANDIDATES = (pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), _NAIVE, _INSTANT)
_PLAIN_NUMBER = r"^[+-]?[0-9]+$"
_BOOLEAN = r"^(?i:true|false)$"


class _ColumnTypes:
    """The types of columns, as far as cells were seen.

    A column is of the first of these types that every cell of it is: whole number (32 bits, else 64), number, boolean,
    date, time without a zone, time with one; else it is text. A column without any cell is text.
    """

    def __init__(self, names: Sequence[str], texts: frozenset[str]) -> None:
        self._left: dict[str, tuple[pa.DataType, ...]] = {
            name: () if name.lower() in texts else _CANDIDATES for name in names
        }
        self._seen: set[str] = set()

    def see(self, batch: pa.RecordBatch) -> None:
        """Take the cells of a batch of text columns into account."""
        for name in batch.schema.names:
            cells = batch.column(name).drop_null()
            if len(cells):
                self._seen.add(name)
                self._left[name] = tuple(kind for kind in self._left[name] if _cast(cells, kind) is not None)

    def type_of(self, name: str) -> pa.DataType:
        left = self._left[name] if name in self._seen else ()
        return left[0] if left else pa.string()


def _converted(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column of text as the type that was found for it."""
    column = cells if kind == pa.string() else _cast(cells, kind)
    assert column is not None, "every cell was seen"
    return column


def _cast(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any] | None:
    """The cells in a type, or None when one of them is not of it."""
    pattern = _PLAIN_NUMBER if pa.types.is_integer(kind) else _BOOLEAN if pa.types.is_boolean(kind) else None
    if pattern is not None and not pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py():
        return None  # Arrow reads 0x1F as a number, and 1 as a boolean
    try:
        return pc.ascii_lower(cells).cast(kind) if pa.types.is_boolean(kind) else _unsigned(cells, kind).cast(kind)
    except pa.ArrowInvalid:
        return None


def _unsigned(cells: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Without the plus signs that Arrow does not read."""
    return pc.replace_substring_regex(cells, r"^\+", "") if pa.types.is_integer(kind) else cells
