"""The form of columns of varying length in compressed files: lengths, and all bytes in the first row.

    key: binary                    key: struct<length: int32, bytes: binary>
    EWR                            3, EWRJFKLGA
    JFK                            3, nothing
    LGA                            3, nothing

Offsets ascend, so each is another number, and no compressor makes less than two or three bytes of one; the lengths of
paths and checksums repeat, and become almost nothing. A file with such columns says so in the metadata of its schema.

Invariants:
* `unpacked(packed(batch))` is the batch, buffer for buffer. An id is made of what was unpacked.
* Lengths that do not add up to the bytes that there are, are refused, not followed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from millpond.ranges.canonical import canonical

__all__ = ("PACKED", "packed", "unpacked")

PACKED = b"packed"
"""The item of a schema's metadata that says it."""

_NARROW = (pa.binary(), pa.string())
_WIDE = (pa.large_binary(), pa.large_string())


def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with its columns of varying length in this form; which they are, the metadata say by their places."""
    places = [at for at, column in enumerate(batch.columns) if column.type in _NARROW + _WIDE]
    if not places or not batch.num_rows:
        return batch
    columns = batch.columns
    for at, column in zip(places, canonical(batch.select(places)).columns, strict=True):
        columns[at] = _pack(column)
    return _with_columns(batch, columns, {PACKED: ",".join(map(str, places)).encode()})


def _with_columns(batch: pa.RecordBatch, columns: list[pa.Array], more: dict[bytes, bytes]) -> pa.RecordBatch:
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    metadata = {name: text for name, text in (batch.schema.metadata or {}).items() if name != PACKED}
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, {**metadata, **more}))


def _pack(array: pa.Array) -> pa.Array:
    bitmap, buffer, data = array.buffers()
    count = len(array)
    offsets = np.frombuffer(buffer, _offset_type(array.type), count + 1)
    assert array.offset == 0 and offsets[0] == 0, "the column is canonical"
    places = np.full(count + 1, offsets[-1], offsets.dtype)
    places[0] = 0
    whole = pa.Array.from_buffers(array.type, count, [None, pa.py_buffer(places), data])
    children = [pa.array(np.diff(offsets)), whole]
    return pa.Array.from_buffers(_packed_type(array.type), count, [bitmap], array.null_count, children=children)


def _packed_type(kind: pa.DataType) -> pa.DataType:
    lengths = pa.from_numpy_dtype(_offset_type(kind))
    return pa.struct([pa.field("length", lengths, nullable=False), pa.field("bytes", kind, nullable=False)])


def _offset_type(kind: pa.DataType) -> Any:
    return np.int64 if kind in _WIDE else np.int32


def unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a file as it was before `packed`.

    Raises: `ValueError` when it is not what `packed` makes.
    """
    said = (batch.schema.metadata or {}).get(PACKED)
    if said is None:
        return batch
    columns = batch.columns
    for at in map(int, said.split(b",")):
        columns[at] = _unpack(batch.column(at))
    return _with_columns(batch, columns, {})


def _unpack(array: pa.Array) -> pa.Array:
    kind, count = array.type, len(array)
    inner = kind.field(1).type if pa.types.is_struct(kind) and kind.num_fields == 2 else None
    if inner not in _NARROW + _WIDE or kind != _packed_type(inner):
        raise ValueError(f"no packed column: {kind}")
    lengths, whole = (array.field(at) for at in range(2))
    widths, data = lengths.to_numpy(), whole.buffers()[2]
    size = int(widths.sum(dtype=np.int64))
    if widths.min(initial=0) < 0 or size > (0 if data is None else data.size):
        raise ValueError("lengths are not those of the bytes")
    offsets = np.zeros(count + 1, widths.dtype)
    np.cumsum(widths, out=offsets[1:])  # the last is `size`, which the file holds: it fits
    held = pa.py_buffer(b"") if data is None else data.slice(0, size)
    return pa.Array.from_buffers(inner, count, [array.buffers()[0], pa.py_buffer(offsets), held], array.null_count)
