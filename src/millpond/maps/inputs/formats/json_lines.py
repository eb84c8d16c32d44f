"""JSON lines: one object a line, each value with the type that JSON gives it. A file that is one array is read too.

Arrow's parser reads blocks of lines where that cannot change a value: each column it is asked for has one scalar type,
given to the parser, so that text which looks like a time stays text and no number becomes another. A block that is not
like that (types that differ, nested values, whole numbers that a double may not hold, a line that is no JSON) is read
line by line. What is kept as JSON keeps the digits of its numbers; others are the nearest double.

A line that is no object, or nests deeper than `nesting.NESTING_MAX`, is rejected; the others are read on. A column
that a line leaves out is null there, as long as any line of the load has it: Spark writes no nulls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import Arrived, Positions, rejects_of
from millpond.maps.inputs.formats.files import InputFile, Piece, read_chunks
from millpond.maps.inputs.mapping import ColumnMapping, Columns, find_columns, nested_columns, omitted_columns
from millpond.maps.inputs.nesting import decode_json, lines_are_shallow
from millpond.maps.inputs.tables import batch_of_dicts
from millpond.maps.model.definition import MapDefinition, ScalarType
from millpond.maps.model.tags import TAGS

__all__ = ("json_types", "omitted_in_lines", "read_json_lines", "split_json_lines")

BLOCK_BYTES = 8 << 20
ARRAY_BYTES_MAX = 256 << 20
_SAMPLE_LINES = 50
_TEXT_SHOWN_MAX = 500
_NUMBER_SHOWN_MAX = 40
_MARK = b"\xef\xbb\xbf"
"""With which some programs begin UTF-8."""
_NUMBERS = (ScalarType.LONG, ScalarType.DOUBLE)
_EXACT_FLOAT = 2.0**53
"""Below it each whole number is a double of its own."""
_ARROW_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def read_json_lines(
    piece: Piece, definition: MapDefinition, mapping: ColumnMapping | None, omitted: Mapping[str, Sequence[str]]
) -> Iterator[Arrived]:  # fmt: skip
    """The rows of a JSON lines file, or of a piece of one, with the columns that the map needs.

    `omitted` as `omitted_in_lines` tells.

    Raises: `Invalid` when a column is missing, or the file is an array too large to be read whole.
    """
    reading = _Reading(definition, mapping, omitted)
    position, read = 1, 0
    for block in _blocks(piece):
        read += len(block)
        if position == 1:
            block = block.removeprefix(_MARK)
            if piece.start == 0 and block.lstrip()[:1] == b"[":
                yield reading.values(_array(piece.file, reading.loads))
                return
        arrived = reading.block(block, position)
        position += _line_count(block)
        yield replace(arrived, last=position - 1, read=0 if piece.file.compression else read)


def _line_count(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _blocks(piece: Piece) -> Iterator[bytes]:
    """Whole lines, several megabytes at a time."""
    carry: list[bytes] = []
    for chunk in _chunks(piece):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join([*carry, chunk[:cut]])
            carry = []
        if cut < len(chunk):
            carry.append(chunk[cut:])
    if carry:
        yield b"".join(carry)


def _chunks(piece: Piece) -> Iterable[bytes]:
    if piece.start == 0 and piece.stop is None:
        return read_chunks(piece.file, BLOCK_BYTES)
    whole = pa.memory_map(piece.file.path).read_buffer()[piece.start : piece.stop]
    return (whole[at : at + BLOCK_BYTES].to_pybytes() for at in range(0, whole.size, BLOCK_BYTES))


def _array(file: InputFile, loads: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    """The values of a file that is one array, counted from 1."""
    text, size = [], 0
    for chunk in read_chunks(file, BLOCK_BYTES):
        text.append(chunk)
        size += len(chunk)
        if size > ARRAY_BYTES_MAX:
            raise Invalid(
                "the file is one JSON array, too large to be read whole", kind="input_format", path=file.path,
                hint="write one object a line, such as: jq -c '.[]' array.json > rows.jsonl",
            )  # fmt: skip
    try:
        return list(enumerate(decode_json(b"".join(text).removeprefix(_MARK), loads), 1))
    except ValueError as error:
        raise Invalid(
            "the file begins like a JSON array and is none", kind="input_damaged", path=file.path, reason=error,
            hint="write one object a line",
        ) from error  # fmt: skip


class _Reading:
    """State shared by the blocks of one file: the columns seen so far, and the exactness values must have."""

    def __init__(
        self, definition: MapDefinition, mapping: ColumnMapping | None, omitted: Mapping[str, Sequence[str]]
    ) -> None:  # fmt: skip
        self.definition = definition
        self.mapping = mapping
        self.omitted = omitted
        self.seen: dict[str, None] = {}
        self.fields_seen = {name: dict.fromkeys(fields) for name, fields in omitted.items() if fields}
        """The fields of each column's objects."""
        value = definition.value
        self.json = value is not None and ScalarType.JSON in (value.scalar, *(scalar for _, scalar in value.fields))
        self.loads = _loads_exactly if self.json else _loads
        self.form_of = nested_columns(definition, mapping)

    def block(self, block: bytes, position: int) -> Arrived:
        """The rows of some lines, the first of which stands at `position`."""
        batch = None if self.json else self._by_arrow(block)
        if batch is not None:
            return Arrived(self._needed(batch), position)
        return self._by_line(block, position)

    def _by_arrow(self, block: bytes) -> pa.RecordBatch | None:
        """The rows, or None where only a look at each line tells what they are."""
        if not lines_are_shallow(block):
            return None
        types = _sampled_types(block)
        try:
            table = arrow_json.read_json(
                pa.BufferReader(block),
                read_options=arrow_json.ReadOptions(block_size=len(block) + 1),
                parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema(list(types.items()))),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != _line_count(block):
            return None
        columns = self._columns(table.schema.names)
        as_written, (_, numbers) = self._as_written(columns), self._single(columns)
        for name in columns.read.intersection(table.schema.names):
            kind = table.schema.field(name).type
            inferred = name not in types and not pa.types.is_null(kind)
            misfits = pa.types.is_boolean(kind) and name in numbers
            if inferred or misfits or (
                pa.types.is_floating(kind) and (name in as_written or _may_be_rounded(table.column(name)))
            ):  # fmt: skip
                return None
        batches = table.combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else None

    def _as_written(self, columns: Columns) -> set[str | None]:
        """The columns in which whole numbers and others stay apart: they become text, or tell their own type."""
        value = self.definition.value
        if value is None or value.scalar is ScalarType.STRING:
            return {columns.value}
        types = dict(value.fields)
        return {column for field, column in columns.fields if types.get(field) is ScalarType.STRING}

    def _by_line(self, block: bytes, position: int) -> Arrived:
        good: list[tuple[int, Any]] = []
        bad: list[tuple[int, str, object]] = []
        for number, line in enumerate(block.split(b"\n"), position):
            if not line.strip():
                continue
            try:
                good.append((number, _decode(line, self.loads)))
            except ValueError as error:
                reason = f"line is no JSON: {error}"
                bad.append((number, reason, line[:_TEXT_SHOWN_MAX].decode(errors="replace")))
        return self.values(good, bad)

    def values(self, records: list[tuple[int, Any]], bad: list[tuple[int, str, object]] | None = None) -> Arrived:
        """The rows of some values with their positions."""
        bad = bad or []
        rows = [(position, value) for position, value in records if isinstance(value, dict)]
        bad += [
            (position, "line is no JSON object", value) for position, value in records if not isinstance(value, dict)
        ]
        columns = self._columns(dict.fromkeys(name for _, row in rows for name in row)) if rows else None
        if columns is not None:
            single, numbers = self._single(columns)
            misfits = [
                (position, reason, row) for position, row in rows if (reason := _misfit(row, single, numbers))
            ]  # fmt: skip
            there = {position for position, _, _ in misfits}
            rows, bad = [row for row in rows if row[0] not in there], bad + misfits
        rejected = rejects_of(sorted(bad, key=lambda reject: reject[0]))
        if columns is None or not rows:
            return Arrived(None, rejected=rejected)
        names, fields = columns.read, {columns.value, *(column for _, column in columns.fields)}
        dicts = [{name: self._cell(name, row.get(name), name in fields) for name in names} for _, row in rows]
        for name in names:
            if self.form_of(name) != TAGS:
                self._complete(name, dicts)
        positions: Positions = [position for position, _ in rows]
        return Arrived(self._needed(batch_of_dicts(dicts, form_of=self._tags_of)), positions, rejected=rejected)

    def _single(self, columns: Columns) -> tuple[list[str], set[str]]:
        """The columns of single values, and those of numbers."""
        value = self.definition.value
        if self.definition.query is not None:
            return [], set()
        whole = columns.value if value is None or value.scalar is None else None
        types = {} if value is None else dict(value.fields)
        numbers = {column for field, column in columns.fields if types.get(field) in _NUMBERS}
        if value is not None and value.scalar in _NUMBERS and columns.value is not None:
            numbers.add(columns.value)
        return [name for name in columns.read if name != whole and not self.form_of(name)], numbers

    def _cell(self, name: str, value: Any, of_value: bool) -> Any:
        """`of_value`: it is the value of the map, or a field of one."""
        form = self.form_of(name)
        if of_value and isinstance(value, dict) and not form:
            return {field: self._field(field, inner) for field, inner in value.items()}
        if of_value or form != "json" or value is None or isinstance(value, str):
            return self._field(name, value)
        return json.dumps(_rounded(value), ensure_ascii=False)

    def _field(self, name: str, value: Any) -> Any:
        """The value of a map, or a field of one: as text where it is kept as JSON."""
        if self.form_of(name) != "json" or value is None or isinstance(value, str):
            return _rounded(value)
        text = _WRITER.encode(value)
        with suppress(msgspec.DecodeError):  # NaN and infinity are no JSON: the row tells so later
            text = msgspec.json.format(text, indent=0)
        return text.decode()

    def _tags_of(self, name: str) -> str:
        """The form of columns of tags; JSON is text by now."""
        return TAGS if self.form_of(name) == TAGS else ""

    def _complete(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Give one object every field that was seen so far, as columns that a block leaves out are null in it."""
        objects = [row for row in rows if isinstance(row[name], dict)]
        if objects:
            seen = self.fields_seen.setdefault(name, {})
            seen |= dict.fromkeys(field for row in objects for field in row[name])
            objects[0][name] = dict.fromkeys(seen) | objects[0][name]

    def _columns(self, names: Iterable[str]) -> Columns:
        """The columns that the map needs, of all that were seen."""
        self.seen |= dict.fromkeys(names)
        alike = {name.lower() for name in self.seen}
        elsewhere = (name for name in self.omitted if name.lower() not in alike)
        return find_columns([*self.seen, *elsewhere], self.definition, self.mapping)

    def _needed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the map needs: those not in this block are null."""
        names = sorted(self._columns(()).read)
        there = set(batch.schema.names)
        columns = [batch.column(name) if name in there else pa.nulls(batch.num_rows) for name in names]
        return pa.RecordBatch.from_arrays(columns, names=names)


def _misfit(row: dict[str, Any], single: Collection[str], numbers: Collection[str]) -> str:
    """The reason for which a value of a row cannot stand in its column beside others; nothing if all can."""
    for name in single:
        cell = row.get(name)
        if isinstance(cell, (dict, list)):
            return f"{name} is {'an object' if isinstance(cell, dict) else 'a list'}, and no single value"
    for name in numbers:
        cell = row.get(name)
        if isinstance(cell, bool):
            return f"{name} {str(cell).lower()} is not a number"
    return ""


def _may_be_rounded(numbers: pa.ChunkedArray) -> bool:
    """True when a whole number that no double holds may be among those that Arrow read as doubles, or one too large."""
    return bool(pc.any(pc.greater_equal(pc.abs(numbers), _EXACT_FLOAT)).as_py())


def _double(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:_NUMBER_SHOWN_MAX]} is too large for a double")
    return number


def _as_written(text: str) -> float | Decimal:
    """The double, unless it would be written otherwise."""
    number = _double(text)
    try:
        return number if repr(number) == text else Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:_NUMBER_SHOWN_MAX]} has an exponent that no number has") from None


def _rounded(value: Any) -> Any:
    """The value with the doubles nearest to its numbers."""
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: _rounded(inner) for name, inner in value.items()}
        case list():
            return [_rounded(inner) for inner in value]
    return value


_loads = partial(json.loads, parse_float=_double)
_loads_exactly = partial(json.loads, parse_float=_as_written, parse_constant=Decimal)
_WRITER = msgspec.json.Encoder(decimal_format="number")


def _decode(line: bytes, loads: Callable[[Any], Any] = _loads) -> Any:
    record = decode_json(line, loads)
    if b"\\u" in line:
        json.dumps(record, ensure_ascii=False, default=str).encode()  # half a surrogate pair is no text
    return record


def omitted_in_lines(
    files: Iterable[InputFile], definition: MapDefinition, mapping: ColumnMapping | None
) -> dict[str, list[str]]:  # fmt: skip
    """The columns that some lines of JSON have, and others may leave out; those of objects by the objects' column.

    The files are read until each is there: as a rule in the first lines, otherwise to their end.

    Raises: `Invalid` when a file is an array too large to be read whole.
    """
    sought = {name.lower() for name in omitted_columns(definition, mapping)}
    stated = None if mapping is None else mapping.value
    whole = (stated if isinstance(stated, str) else "value").lower()
    there: dict[str, list[str]] = {}

    def take(names: Iterable[str]) -> Iterator[str]:
        for name in names:
            if name.lower() in sought:
                sought.remove(name.lower())
                yield name

    for file in files:
        for record in _records_with(file, sought):
            there |= {column: [] for column in take(record)}
            for column, value in record.items():
                if column.lower() == whole and isinstance(value, dict) and (fields := [*take(value)]):
                    there[column] = [*there.get(column, ()), *fields]
    return there


def _records_with(file: InputFile, sought: Collection[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file that may have a column of these names, as long as there are some."""
    for number, block in enumerate(_blocks(Piece(file)) if sought else ()):
        if number == 0 and block.removeprefix(_MARK).lstrip()[:1] == b"[":
            yield from (record for _, record in _array(file, _loads) if isinstance(record, dict))
            return
        if not _may_have(block, sought):
            continue
        for line in block.split(b"\n"):
            if not sought:
                return
            if _may_have(line, sought):
                yield from (record for record in _decoded([line]) if isinstance(record, dict))


def _may_have(text: bytes, sought: Iterable[str]) -> bool:
    lowered = text.lower()
    return any(not name.isascii() or name.encode() in lowered for name in sought)


def json_types(file: InputFile) -> pa.Schema:
    """The columns of a file with the types of their values in its beginning; of no type where those differ, or nest.

    Raises: `Invalid` when the file is an array too large to be read whole.
    """
    block = next(_blocks(Piece(file)), b"").removeprefix(_MARK)
    records = (
        (record for _, record in _array(file, _loads)) if block.lstrip()[:1] == b"[" else _decoded(block.split(b"\n"))
    )
    return pa.schema(list(_types(records).items()))


def _decoded(lines: Iterable[bytes]) -> Iterator[Any]:
    """The values of those lines that are JSON."""
    for line in lines:
        with suppress(ValueError):
            yield _decode(line)


def _sampled_types(block: bytes) -> dict[str, pa.DataType]:
    """The Arrow types of the scalar columns of the first lines, as far as they agree."""
    types = _types(_decoded(block.split(b"\n", _SAMPLE_LINES)[:_SAMPLE_LINES]))
    return {name: kind for name, kind in types.items() if not pa.types.is_null(kind)}


def _types(records: Iterable[Any]) -> dict[str, pa.DataType]:
    kinds_of: dict[str, set[type]] = {}
    for record in records:
        if isinstance(record, dict):
            for name, value in record.items():
                kinds_of.setdefault(name, set()).add(type(value))
    types: dict[str, pa.DataType] = {}
    for name, kinds in kinds_of.items():
        sampled = kinds - {type(None)}
        if sampled == {int, float}:
            sampled = {float}
        types[name] = _ARROW_TYPES.get(sampled.pop(), pa.null()) if len(sampled) == 1 else pa.null()
    return types


def split_json_lines(file: InputFile, bytes_max: int) -> list[Piece]:
    """Pieces of about `bytes_max` that begin and end between lines."""
    if file.compression or file.size <= bytes_max:
        return [Piece(file)]
    whole = pa.memory_map(file.path).read_buffer()
    if whole[:1024].to_pybytes().lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        return [Piece(file)]
    starts = [0]
    for begin in range(bytes_max, file.size, bytes_max):
        cut = _line_start(whole, begin)
        if starts[-1] < cut < file.size:
            starts.append(cut)
    stops: list[int | None] = [*starts[1:], None]
    return [Piece(file, start, stop) for start, stop in zip(starts, stops, strict=True)]


def _line_start(whole: Any, at: int) -> int:
    """The first place at or after `at` where a line begins."""
    while at < whole.size:
        block = whole[at : at + (64 << 10)].to_pybytes()
        line_end: int = block.find(b"\n")
        if line_end >= 0:
            return at + line_end + 1
        at += len(block)
    return at
