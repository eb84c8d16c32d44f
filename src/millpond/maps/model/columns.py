"""The canonical columns of a map's rows, in Arrow.

Between reading input and writing bytes, and between reading bytes and answering, rows travel as record
batches of exactly these columns:

| column | type | kinds |
|---|---|---|
| `key` | binary (UTF-8 of the text) | keyed |
| `key_start`, `key_end` | int64 | ranged |
| `effective_time`, `start`, `end` | int64, UTC milliseconds | as in `kinds.COLUMNS` |
| `value` | see below | all but session |

A declared value type gives `value` its Arrow type (`value_arrow`). Without one, `value` is binary holding
`<VALUE_TYPE><VALUE>` (`values.py`), never null: a null value is the single byte 00.
Addresses are never null. `presented` turns canonical rows into what people see: text keys, aware
timestamps, one column per struct field, and `value_type, value` as text for undeclared maps.

Times of an address count milliseconds, values of type `timestamp` microseconds.
"""

from __future__ import annotations

import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.model.definition import Kind, MapDefinition, ScalarType, ValueType
from millpond.maps.model.tags import TAGS, tags_arrow

__all__ = (
    "INSTANT", "MOMENT", "RAW_DIGEST", "UPDATED", "askable_schema", "canonical_schema", "check_columns",
    "presented_schema", "scalar_arrow", "value_arrow",
)  # fmt: skip

INSTANT = pa.timestamp("ms", tz="UTC")
"""The times by which rows are found."""

MOMENT = pa.timestamp("us", tz="UTC")
"""The times that are values."""

RAW_DIGEST = b"millpond.raw_digest"
"""In the metadata of canonical rows of a table by query: the digest of the raw rows that they are of."""

UPDATED = "updated"
"""The column of the time at which a row was put, UTC milliseconds: only maintenance and folds of layers see it."""

_SCALARS: dict[ScalarType, pa.DataType] = {
    ScalarType.STRING: pa.string(),
    ScalarType.LONG: pa.int64(),
    ScalarType.DOUBLE: pa.float64(),
    ScalarType.BOOLEAN: pa.bool_(),
    ScalarType.TIMESTAMP: MOMENT,
    ScalarType.BINARY: pa.binary(),
    ScalarType.JSON: pa.string(),
}


def scalar_arrow(scalar: ScalarType) -> pa.DataType:
    """The Arrow type of a scalar value."""
    return _SCALARS[scalar]


def value_arrow(value: ValueType | None) -> pa.DataType:
    """The Arrow type of the canonical `value` column."""
    if value is None:
        return pa.binary()
    if value.scalar is not None:
        return _SCALARS[value.scalar]
    return pa.struct([pa.field(name, _SCALARS[scalar]) for name, scalar in value.fields])


def canonical_schema(definition: MapDefinition, *, updates: bool = False) -> pa.Schema:
    """The schema that every batch of canonical rows has; with `updates`, of rows that tell when they were put."""
    fields = [
        pa.field(name, pa.binary() if name == "key" else pa.int64(), nullable=False) for name in definition.kind.address
    ]
    if definition.kind.valued:
        fields.append(pa.field("value", value_arrow(definition.value), nullable=definition.value is not None))
    if updates:
        fields.append(pa.field(UPDATED, pa.int64(), nullable=False))
    return pa.schema(fields)


def check_columns(rows: pa.RecordBatch, schema: pa.Schema, name: str) -> None:
    """Refuse rows that do not have the canonical schema of the map of this name.

    Raises: `Invalid`.
    """
    if not rows.schema.equals(schema):
        raise Invalid(
            "rows do not have the map's columns", kind="rows_schema", map=name, found=rows.schema.names,
            wanted=schema.names,
        )  # fmt: skip


def presented_schema(definition: MapDefinition) -> pa.Schema:
    """The schema people see: in `scan`, SQL, Spark reads."""
    kind = definition.kind
    fields = [pa.field(name, _presented_address(kind, name)) for name in kind.address]
    if not kind.valued:
        return pa.schema(fields)
    shown = definition.shown
    if shown is None:
        fields += [pa.field("value_type", pa.string()), pa.field("value", pa.string())]
    else:
        fields += [pa.field(name, _SCALARS[scalar]) for name, scalar in shown.parts]
    return pa.schema(fields)


def askable_schema(definition: MapDefinition) -> pa.Schema:
    """The columns that people may name: those they see, and where keys are tags, a map of them."""
    schema = presented_schema(definition)
    return schema.append(pa.field(TAGS, tags_arrow())) if definition.tagged else schema


def _presented_address(kind: Kind, name: str) -> pa.DataType:
    if name == "key":
        return pa.string()
    return pa.int64() if name in ("key_start", "key_end") else INSTANT
