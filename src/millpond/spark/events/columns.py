"""Rows as events. Those that are read are in `millpond.events.rows`; one that is written has no id and no day.

Invariants:
* what is read of events that were written as rows is what was written, with times in whole milliseconds;
* rows as they are staged have an order of their own, the same whatever order they came in.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from millpond.errors import Invalid
from millpond.events.event import NO_HEADERS, NewEvent

__all__ = ("ORDER", "STAGED", "RowForm", "event_of", "form_of")

STAGED = pa.schema(
    [
        ("queue", pa.string()), ("job_set", pa.string()), ("source", pa.string()), ("position", pa.int64()),
        ("time_ms", pa.int64()), ("kind", pa.string()), ("payload", pa.binary()), ("headers", pa.string()),
    ]
)  # fmt: skip
"""Rows on their way to the driver, and the order in which they are appended."""
ORDER = [(name, "ascending") for name in STAGED.names]

_KAFKA = ("topic", "partition", "offset")
_NAMED = ("source", "position")
_TEXT = (StringType,)
_WHOLE = (ShortType, IntegerType, LongType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "queue": (_TEXT, "string"), "job_set": (_TEXT, "string"), "time": ((TimestampType,), "timestamp"),
    "payload": ((BinaryType, StringType), "binary or string"), "kind": (_TEXT, "string"),
    "headers": ((MapType,), "map<string,string>"), "topic": (_TEXT, "string"), "partition": (_WHOLE, "int"),
    "offset": (_WHOLE, "bigint"), "source": (_TEXT, "string"), "position": (_WHOLE, "bigint"),
}  # fmt: skip
_HEADERS = msgspec.json.Decoder(dict[str, str])
_JSON = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form of rows that are written: their columns, and what stands for a queue and a job set that are none."""

    columns: tuple[str, ...]
    queue: str | None = None
    job_set: str | None = None

    @property
    def has_source(self) -> bool:
        """True when each row tells the position of the message that it came from."""
        return "topic" in self.columns or "source" in self.columns

    def staged(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are staged.

        Raises: `Invalid` when a row lacks what an event needs.
        """
        count = rows.num_rows
        times = _whole(rows, "time").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns = [
            self._name(rows, "queue", self.queue), self._name(rows, "job_set", self.job_set), self._source(rows),
            self._position(rows), pa.array(times.to_numpy(zero_copy_only=False) // 1_000, pa.int64()),
            self._or_empty(rows, "kind", pa.string()), self._or_empty(rows, "payload", pa.binary()),
            _header_texts(rows.column("headers")) if "headers" in self.columns else pa.repeat("", count),
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays([_as(column, count) for column in columns], schema=STAGED)

    def _name(self, rows: pa.RecordBatch, name: str, stated: str | None) -> pa.Array:
        return pa.repeat(stated, rows.num_rows) if stated is not None else _whole(rows, name).cast(pa.string())

    def _source(self, rows: pa.RecordBatch) -> pa.Array:
        if "topic" in self.columns:
            topics, partitions = _whole(rows, "topic"), _whole(rows, "partition").cast(pa.string())
            named = pc.binary_join_element_wise(topics.cast(pa.string()), partitions, "/")
            return pc.binary_join_element_wise("kafka", named, ":")
        return _whole(rows, "source").cast(pa.string()) if "source" in self.columns else pa.repeat("", rows.num_rows)

    def _position(self, rows: pa.RecordBatch) -> pa.Array:
        name = "offset" if "topic" in self.columns else "position"
        return _whole(rows, name).cast(pa.int64()) if self.has_source else pa.array(np.zeros(rows.num_rows, "i8"))

    def _or_empty(self, rows: pa.RecordBatch, name: str, type_: pa.DataType) -> pa.Array:
        empty = b"" if pa.types.is_binary(type_) else ""
        if name not in self.columns:
            return pa.repeat(pa.scalar(empty, type_), rows.num_rows)
        return pc.fill_null(rows.column(name).cast(type_), empty)


def _as(column: pa.Array, count: int) -> pa.Array:
    assert len(column) == count and not column.null_count
    return column


def _whole(rows: pa.RecordBatch, name: str) -> pa.Array:
    column = rows.column(name)
    if column.null_count:
        raise Invalid(
            "an event cannot be written: a column is null", kind="event_column_null", column=name,
            rows=column.null_count, hint="leave such rows out, or give them a value",
        )  # fmt: skip
    return column


def _header_texts(maps: pa.Array) -> pa.Array:
    """Headers as JSON, in the order of their names; those that are null are left out."""
    texts = []
    for items in maps.to_pylist():
        headers = {name: text for name, text in items or () if text is not None}
        texts.append(_JSON.encode(headers).decode() if headers else "")
    return pa.array(texts, pa.string())


def event_of(time_ms: int, kind: str, payload: bytes, headers: str) -> NewEvent:
    """The event of a staged row."""
    return NewEvent(time_ms, payload, kind, _HEADERS.decode(headers) if headers else NO_HEADERS)


def form_of(schema: StructType, queue: str | None, job_set: str | None) -> RowForm:
    """The form of rows with this schema.

    Raises: `Invalid` naming a column that is missing, unknown or of another type.
    """
    names = set(schema.names)
    for name in ("topic", "partition", "offset", "source", "position"):
        group = _KAFKA if name in _KAFKA else _NAMED
        if name in names and not names.issuperset(group):
            raise _bad_column("columns of the source come together", name, f"give all of {', '.join(group)}, or none")
    if names.issuperset((*_KAFKA, *_NAMED)):
        raise _bad_column("a row has one source", "source", f"give {', '.join(_KAFKA)}, or {', '.join(_NAMED)}")
    columns = {"queue": queue, "job_set": job_set}
    for name in ("queue", "job_set", "time", "payload"):
        if name not in names and columns.get(name) is None:
            also = f", or say option('{name}', …)" if name in columns else ""
            raise _bad_column("a column is missing", name, f"events have {name} of type {_TYPES[name][1]}{also}")
    for field in schema.fields:
        if field.name not in _TYPES:
            raise _bad_column("events have no such column", field.name, f"columns: {', '.join(_TYPES)}; drop others")
        types, shown = _TYPES[field.name]
        if not isinstance(field.dataType, types):
            raise _bad_column("a column has another type", field.name, f"it is {shown}", field.dataType.simpleString())
        if columns.get(field.name) is not None:
            raise _bad_column("a name is given twice", field.name, "as a column or as an option")
    return RowForm(tuple(schema.names), queue, job_set)


def _bad_column(reason: str, column: str, hint: str, type_: str | None = None) -> Invalid:
    return Invalid(reason, kind="event_column", column=column, type=type_, hint=hint)
