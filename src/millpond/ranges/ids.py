"""Ids: the hash of canonical columns and of a format number, never of the bytes of a file.

Which bytes a library writes for the same columns is its own affair: another version pads otherwise, orders its headers
otherwise, compresses. An id must not follow it, for commits are named by the ids of what they hold. So what is hashed
is drawn in `docs/format/ranges.md`, down to the byte, and made here from canonical arrays alone:

    "millpond range 2" · nothing     · the schema · the rows · each column, depth first
    "millpond index 2" · boundaries  · the schema · the rows · each column, depth first

The hash is SHA-256, whole. An id stands for content (a range that is there already is not written, a merge takes over
what has the same id), so two contents of one id would be lost data, and whoever loads data may choose it: a hash that
is fast but not built against that, or one cut to fewer bits, is not enough. Processors have instructions for SHA-256;
`hashlib` releases the interpreter's lock while it runs.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.types as is_type

from millpond.ranges.canonical import bare, canonical, decoded

__all__ = (
    "BLOCKS_FORMAT", "FILTERS_FORMAT", "FORMAT", "FORMATS", "ID_BYTES", "PACKED_FORMAT", "Subject", "columns_id",
    "schema_code", "type_code",
)  # fmt: skip

FORMAT = 2
"""The number of the form that is hashed and of the files that hold it. Another form is another number."""

BLOCKS_FORMAT = 3
"""Files of the same form that is hashed, in blocks: ranges of several batches, and indexes that list them."""
FILTERS_FORMAT = 4
"""The same where the filter of a range stands in its own file, and indexes that have it there."""
PACKED_FORMAT = 5
"""Blocks that are packed and compressed, each for itself, and indexes that list such."""
FORMATS = (FORMAT, BLOCKS_FORMAT, FILTERS_FORMAT, PACKED_FORMAT)

ID_BYTES = 32

Subject: TypeAlias = Literal["range", "index"]

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_UNITS = {"s": "s", "ms": "m", "us": "u", "ns": "n"}
# The letters of Arrow's C data interface: one published alphabet for types.
_LETTERS = {
    pa.null(): "n", pa.bool_(): "b", pa.int8(): "c", pa.uint8(): "C", pa.int16(): "s", pa.uint16(): "S",
    pa.int32(): "i", pa.uint32(): "I", pa.int64(): "l", pa.uint64(): "L", pa.float16(): "e", pa.float32(): "f",
    pa.float64(): "g", pa.binary(): "z", pa.large_binary(): "Z", pa.string(): "u", pa.large_string(): "U",
    pa.date32(): "tdD", pa.date64(): "tdm", pa.month_day_nano_interval(): "tin",
}  # fmt: skip


def columns_id(
    subject: Subject, columns: pa.RecordBatch | pa.Table, about: bytes = b"", *, format_number: int = FORMAT
) -> str:
    """The id of columns, in hexadecimal digits; `about` is what belongs to the content besides them.

    However the columns lie in memory (slices, chunks, dictionaries, bitmaps that say nothing), equal content has one
    id.

    Raises: `Invalid` for a null where the schema admits none.
    """
    batch = _one_batch(columns)
    batch = canonical(batch, bare(batch.schema))
    # The schema too: the bytes of columns do not tell whether they are numbers or times.
    schema = schema_code(batch.schema)
    # Subject and format go first: an index and a range of the same bytes have two ids.
    digest = hashlib.sha256(f"millpond {subject} {format_number}".encode())
    # The number of rows is hashed, since columns of nulls have no bytes to tell it.
    for part in (about, schema, _U64.pack(batch.num_rows)):
        _update(digest, part)
    for column in batch.columns:
        _update_array(digest, column)
    return digest.hexdigest()


def _one_batch(columns: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(columns, pa.Table):
        pieces = [decoded(piece) for piece in columns.to_batches()]
        return pa.concat_batches(pieces) if pieces else pa.RecordBatch.from_pylist([], bare(columns.schema))
    return decoded(columns)


@lru_cache(maxsize=256)
def schema_code(schema: pa.Schema) -> bytes:
    """The schema as bytes: of each field its name, type, nullability and children."""
    return _fields_code(list(bare(schema)))


def _fields_code(fields: list[pa.Field]) -> bytes:
    out = [_U32.pack(len(fields))]
    for field in fields:
        children = [field.type.field(at) for at in range(field.type.num_fields)]
        for text in (field.name.encode(), type_code(field.type).encode()):
            out += [_U32.pack(len(text)), text]
        out += [bytes([field.nullable]), _fields_code(children)]
    return b"".join(out)


def type_code(kind: pa.DataType) -> str:
    """The type in the letters of Arrow's C data interface.

    >>> type_code(pa.int64()), type_code(pa.timestamp("ms", "UTC")), type_code(pa.list_(pa.string()))
    ('l', 'tsm:UTC', '+l')
    """
    if is_type.is_timestamp(kind):
        return f"ts{_UNITS[kind.unit]}:{kind.tz or ''}"
    if is_type.is_time(kind):
        return f"tt{_UNITS[kind.unit]}"
    if is_type.is_duration(kind):
        return f"tD{_UNITS[kind.unit]}"
    if is_type.is_decimal(kind):
        width = "" if kind.bit_width == 128 else f",{kind.bit_width}"
        return f"d:{kind.precision},{kind.scale}{width}"
    if is_type.is_fixed_size_binary(kind):
        return f"w:{kind.byte_width}"
    if is_type.is_fixed_size_list(kind):
        return f"+w:{kind.list_size}"
    if is_type.is_list(kind) or is_type.is_large_list(kind):
        return "+l" if is_type.is_list(kind) else "+L"
    return "+s" if is_type.is_struct(kind) else _LETTERS[kind]


def _update(digest: Any, part: Any) -> None:
    """Hash bytes behind their length, so that no two sequences of parts make the same bytes."""
    view = memoryview(part)
    # Without lengths, "ab" and "c" would hash as "a" and "bc".
    digest.update(_U64.pack(view.nbytes))
    digest.update(view)


def _update_array(digest: Any, array: pa.Array) -> None:
    """Hash a canonical array: its length, its bitmap (empty: no null), its buffers, its children."""
    kind, buffers = array.type, array.buffers()
    digest.update(_U64.pack(len(array)))
    # Arrow may leave out the buffers of an empty array, or have some.
    if len(array) == 0 or is_type.is_null(kind):
        return
    # A bitmap of ones says nothing, so it is as none.
    _update(digest, buffers[0] if array.null_count else b"")
    if is_type.is_struct(kind):
        for at in range(kind.num_fields):
            _update_array(digest, array.field(at))
        return
    if is_type.is_fixed_size_list(kind):
        _update_array(digest, array.values)
        return
    _update(digest, buffers[1] or b"")
    if is_type.is_list(kind) or is_type.is_large_list(kind):
        _update_array(digest, array.values)
    elif kind.num_buffers == 3:
        _update(digest, buffers[2] or b"")
