"""A query in its confined process: DuckDB, whose tables ask the node for their rows.

| question | answer |
|---|---|
| `Define` a map | its definition |
| `Open` a table, from bounds on | the first rows that may be wanted, as a stream of Arrow; nothing at the end |
| `Next` of it | the next ones |
| `Lookup` keys of a map | their values, as a stream of Arrow |
| `Differ`: what differs between refs | the schema of its table, as a stream of Arrow; then it may be opened |

A condition is sent as the bounds that it leaves, and holds for the rows that come.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property, partial
from itertools import count
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.arrow_streams import stream_of
from millpond.arrays.longs import LONG_MAX, LONG_MIN
from millpond.errors import Invalid
from millpond.json_forms import to_json
from millpond.maps.model.columns import askable_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.predicates.bounds import Span
from millpond.maps.predicates.predicate import Predicate, Where, columns_tested, typed_spans
from millpond.maps.predicates.taken import filtered
from millpond.server.confined import THREADS, Ask
from millpond.server.console.tables import cells_of, shown_cell, shown_rows

__all__ = (
    "ENGINE_BYTES", "PAGE_BYTES_MAX", "Bound", "Define", "Differ", "Lookup", "Next", "Open", "Question",
    "answer_query", "bounds_of",
)  # fmt: skip

ENGINE_BYTES: Final = 256 << 20
"""The memory that DuckDB counts; it takes other memory besides."""
PAGE_BYTES_MAX: Final = 8 << 20
_EPOCH = date(1970, 1, 1)
_NUMBER = r"\A[-+][0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\z"
Value: TypeAlias = str | int | float | bool | None
"""A bound of a column: a date is the days since 1970, a time the milliseconds."""


class Bound(msgspec.Struct):
    """The values of a column that a condition leaves: between two, or just some."""

    lower: Value = None
    upper: Value = None
    points: list[Value] | None = None


class Define(msgspec.Struct, tag=True):
    """A question for the definition of a map."""

    map: str


class Open(msgspec.Struct, tag=True):
    """A question that begins to read a table: a map, with wider buckets where it has a `resolution`, or another."""

    scan: int
    """The number under which its rows are asked for."""
    table: str
    other: bool
    bounds: dict[str, Bound]
    columns: list[str]
    resolution: str | None = None


class Next(msgspec.Struct, tag=True):
    """A question for the next rows of a table."""

    scan: int


class Lookup(msgspec.Struct, tag=True):
    """A question for values: `columns` of Arrow are `keys`, and may be `at` and `known_at`; else `at` is for all."""

    map: str
    columns: bytes
    at: int | str | None
    window: str | None = None


class Differ(msgspec.Struct, tag=True):
    """A question for a table of the keys of a map that differ, by its name in the query."""

    name: str
    map: str
    sides: list[str]
    three_dots: bool


Question: TypeAlias = Define | Open | Next | Lookup | Differ


def answer_query(
    ask: Ask, text: str, maps: Sequence[str], tables: Mapping[str, pa.Schema], *, now_ms: int, form: str, rows_max: int
) -> bytes:
    """The rows of a query as JSON for a `page`, as `csv` or `parquet`.

    Raises: as `millpond.maps.sql.query`; `Invalid`, kinds `export_rows` and `answer_too_large`, for too many.
    """
    from millpond.maps.sql import Bounds, query

    numbers = count()
    own = [_Table(ask, numbers, name, schema) for name, schema in tables.items()]
    pond = _Pond(now_ms, [_Map(ask, numbers, name) for name in maps])

    def differing(name: str, map: str, sides: Sequence[str], three_dots: bool) -> _Table:
        question = Differ(name, map, list(sides), three_dots)
        return _Table(ask, numbers, name, _batch_of(ask(msgspec.msgpack.encode(question))).schema)

    table = query(pond, text, own, Bounds(rows_max + 1, ENGINE_BYTES, THREADS), differing=differing)
    if form != "page":
        return _file(table, form, rows_max)
    page = to_json(shown_rows(table, rows_max, None))
    if len(page) > PAGE_BYTES_MAX:
        raise Invalid("the answer is larger than one may be", kind="answer_too_large", bytes=len(page),
                      bytes_max=PAGE_BYTES_MAX, hint="ask for less")  # fmt: skip
    return page


# -- tables that lie in the node ----------------------------------------------------------------------


class _Pond:
    """The maps that a query may name, and the moment at which it began."""

    def __init__(self, now_ms: int, maps: Sequence[_Map]) -> None:
        self._now_ms, self._maps = now_ms, maps

    @property
    def clock(self) -> _Pond:
        return self

    def now_ms(self) -> int:
        return self._now_ms

    def maps(self) -> Sequence[_Map]:
        return self._maps


class _Table:
    """A table whose rows are asked for."""

    def __init__(self, ask: Ask, numbers: Iterator[int], name: str, schema: pa.Schema) -> None:
        self._ask, self._numbers, self.name, self.schema = ask, numbers, name, schema

    def scan(
        self, where: pc.Expression | None, columns: Sequence[str] | None, *, other: bool = True,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        schema, scan = self.schema, next(self._numbers)
        names = schema.names if columns is None else list(columns)
        tested = [] if where is None else [name for name in columns_tested(where, schema) if name not in names]
        bounds = {} if where is None else bounds_of(where, schema)
        first = self._ask(msgspec.msgpack.encode(Open(scan, self.name, other, bounds, names + tested, resolution)))
        shown = pa.schema([schema.field(name) for name in names])
        condition = Predicate(where, (), {})
        return pa.RecordBatchReader.from_batches(shown, self._batches(first, scan, condition, names))

    def _batches(self, data: bytes, scan: int, condition: Predicate, names: list[str]) -> Iterator[pa.RecordBatch]:
        question = msgspec.msgpack.encode(Next(scan))
        while data:
            batch = _batch_of(data)
            yield (batch if condition.expression is None else filtered(batch, condition)).select(names)
            data = self._ask(question)


class _Map:
    """A map whose rows and values are asked for; it stands for its own snapshot."""

    def __init__(self, ask: Ask, numbers: Iterator[int], name: str) -> None:
        self._ask, self._numbers, self.name = ask, numbers, name

    @cached_property
    def definition(self) -> MapDefinition:
        definition: MapDefinition = pickle.loads(self._ask(msgspec.msgpack.encode(Define(self.name))))
        return definition

    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        assert known_at is None, "a page asks maps as they are"
        table = _Table(self._ask, self._numbers, self.name, askable_schema(self.definition))
        return table.scan(where, columns, other=False, resolution=resolution)

    def snapshot(self) -> _Map:
        return self

    def lookup(self, keys: Any, at: Any = None, *, known_at: Any = None, window: str | None = None) -> pa.Array:
        arguments = {"keys": keys, "at": at, "known_at": known_at}
        columns = {
            name: _whole(column) for name, column in arguments.items() if isinstance(column, pa.Array | pa.ChunkedArray)
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        question = Lookup(self.name, bytes(stream_of(batch)), None if "at" in columns else at, window)
        return _batch_of(self._ask(msgspec.msgpack.encode(question))).column(0)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _batch_of(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()


def bounds_of(where: pc.Expression, schema: pa.Schema) -> dict[str, Bound]:
    """The bounds that a condition leaves of the columns of a schema: it holds for no row outside."""
    return {name: _bound(span, schema.field(name).type) for name, span in typed_spans(where, schema).items()}


def _bound(span: Span, kind: pa.DataType) -> Bound:
    value = partial(_value, kind)
    points = None if span.points is None else [value(point) for point in sorted(span.points)]
    return Bound(value(span.lower), value(span.upper), None if points is not None and None in points else points)


def _value(kind: pa.DataType, value: Any) -> Value:
    """A bound as it is sent; None where it cannot be, which bounds nothing."""
    if isinstance(value, date):
        return (value - _EPOCH).days
    if isinstance(value, float):
        return value if pa.types.is_floating(kind) else None
    return value if isinstance(value, str) or (isinstance(value, int) and LONG_MIN <= value <= LONG_MAX) else None


# -- files --------------------------------------------------------------------------------------------


def _file(table: pa.Table, form: str, rows_max: int) -> bytes:
    from pyarrow import csv, parquet

    if table.num_rows > rows_max:
        raise Invalid("a file has more rows than a page exports", kind="export_rows", rows_max=rows_max,
                      hint="narrow the query, or run it with millpond query")  # fmt: skip
    sink = pa.BufferOutputStream()
    try:
        if form == "parquet":
            parquet.write_table(table, sink)
        else:
            names = _no_formulas(pa.array(table.column_names)).to_pylist()
            csv.write_csv(pa.table([_flat(column) for column in table.columns], names), sink)
    except pa.ArrowNotImplementedError as error:
        raise Invalid("a file of this format has no such column", kind="request_invalid", where="format",
                      reason=error, hint="cast it to text in the query") from error  # fmt: skip
    return bytes(sink.getvalue())


def _flat(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    """A column as CSV has it: what is nested or no text as JSON, or as the page shows it."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _flat(column.cast(kind.value_type))
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        return _no_formulas(column.cast(pa.string()))
    interval = pa.types.is_interval(kind)
    if not (interval or pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return column
    cells = map(shown_cell, cells_of(column))
    texts = [None if cell is None else cell if isinstance(cell, str) else to_json(cell).decode() for cell in cells]
    return _no_formulas(pa.array(texts, pa.string()))


def _no_formulas(texts: pa.ChunkedArray[Any] | pa.Array[Any]) -> pa.ChunkedArray[Any] | pa.Array[Any]:
    """Texts behind an apostrophe where a spreadsheet would run them; it takes numbers for what they are."""
    import pyarrow.compute as pc

    quoted = pc.replace_substring_regex(texts, r"\A([-=+@\t\r])", r"'\1")
    return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, quoted)
