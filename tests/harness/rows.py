"""A model's rows as the Arrow tables that people load, and as what readers show of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import pyarrow as pa

from millpond.maps.model.columns import INSTANT, MOMENT, canonical_schema, scalar_arrow, value_arrow
from millpond.maps.model.definition import MapDefinition, ValueType
from millpond.maps.model.one_value import NULL
from millpond.maps.model.values import encode_values, scalar_of
from tests.harness.models import Row, bits_of

__all__ = ("canonical_of", "encode_mixed", "presented", "presented_rows", "shown_value", "table_of")

_TYPE_NAMES = (
    (pa.types.is_null, "null"), (pa.types.is_boolean, "boolean"), (pa.types.is_integer, "long"),
    (pa.types.is_floating, "double"), (pa.types.is_timestamp, "timestamp"), (pa.types.is_string, "string"),
    (pa.types.is_binary, "binary"),
)  # fmt: skip


def table_of(definition: MapDefinition, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table that `load` takes: text keys, aware timestamps, `value` of its own type.

    The values of an undeclared map must be of one type within a table, except nulls.
    """
    columns: dict[str, pa.Array] = {}
    for index, name in enumerate(definition.kind.address):
        values = [address[index] for address, _ in rows]
        columns[name] = (
            _instants(values) if name in ("effective_time", "start", "end") else pa.array(values, _plain(name))
        )
    if definition.kind.valued:
        kind = None if definition.value is None else value_arrow(definition.value)
        columns["value"] = _values([value for _, value in rows], kind)
    return pa.table(columns)


def _instants(instants: Sequence[object]) -> pa.Array:
    return pa.array(instants, pa.int64()).cast(INSTANT)


def _plain(name: str) -> pa.DataType:
    return pa.string() if name == "key" else pa.int64()


def _values(values: Sequence[object], kind: pa.DataType | None) -> pa.Array:
    if kind is None:
        array = pa.array(values)
        return array.cast(MOMENT) if pa.types.is_timestamp(array.type) else array
    return pa.array(values, kind)


def canonical_of(definition: MapDefinition, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as canonical columns (`maps/model/columns.py`) in the order given; undeclared values may have any types."""
    columns: list[pa.Array] = []
    for index, name in enumerate(definition.kind.address):
        values = [address[index] for address, _ in rows]
        columns.append(_utf8(values) if name == "key" else pa.array(values, pa.int64()))
    if definition.kind.valued:
        columns.append(_canonical_values(definition, [value for _, value in rows]))
    return pa.RecordBatch.from_arrays(columns, schema=canonical_schema(definition))


def _utf8(keys: Sequence[str | int]) -> pa.Array:
    return pa.array([str(key).encode() for key in keys], pa.binary())


def _canonical_values(definition: MapDefinition, values: Sequence[object]) -> pa.Array:
    if definition.value is not None:
        return _values(values, value_arrow(definition.value))
    return pa.concat_arrays([pa.array([], pa.binary()), *(encode_mixed(_values([value], None)) for value in values)])


def presented(definition: MapDefinition, rows: Iterable[Row]) -> list[object]:
    """Rows as `scan` shows them (`columns.presented_schema`), sorted by address, comparable by `==`."""
    ordered = sorted(rows, key=lambda row: row[0])
    shown = [address + shown_value(definition, value) for address, value in ordered]
    return [bits_of(row) for row in shown]


def shown_value(definition: MapDefinition, value: object) -> tuple[object, ...]:
    """A value as the columns in which `scan` shows it."""
    if not definition.kind.valued:
        return ()
    if definition.value is None:
        return _as_text(value)
    if definition.value.scalar is not None:
        return (value,)
    fields = value if isinstance(value, dict) else {}
    return tuple(fields.get(name) for name, _ in definition.value.fields)


def _as_text(value: object) -> tuple[str, str | None]:
    """`value_type, value` of an undeclared map: bytes in base64, instants in ISO 8601."""
    array = _values([value], None)
    name = next(name for is_kind, name in _TYPE_NAMES if is_kind(array.type))
    first = array[0].as_py()
    if name == "binary":
        return name, base64.b64encode(first).decode()
    if name == "timestamp":
        precision = "microseconds" if first.microsecond % 1000 else "milliseconds"
        return name, first.isoformat(timespec=precision).replace("+00:00", "Z")
    return name, array.cast(pa.string())[0].as_py()


def presented_rows(definition: MapDefinition, table: pa.Table) -> list[object]:
    """A scanned table in the form of `presented`."""
    address = len(definition.kind.address)
    columns = [_longs(column) if index < address else column for index, column in enumerate(table.columns)]
    rows_ = zip(*(column.to_pylist() for column in columns), strict=True)
    return [bits_of(row) for row in sorted(rows_, key=lambda row: row[:address])]


def _longs(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(INSTANT).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def encode_mixed(array: pa.Array) -> pa.Array:
    """Any scalar column as canonical values of an undeclared map: each row `<type><value>`.

    Raises: `Invalid` for an Arrow type that is no scalar of `kinds.ScalarType`.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    scalar = scalar_of(array.type)
    if scalar is None:
        return pa.array([NULL] * len(array), pa.binary())
    return encode_values(array.cast(scalar_arrow(scalar)), ValueType(scalar=scalar)).to_arrow()
