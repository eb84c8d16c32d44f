"""The form of columns in compressed files: what a compressor does slowly or badly is done before it.

    key: binary                    key: struct<length: int32, bytes: binary>
    EWR                            3, EWRJFKLGA
    JFK                            3, nothing
    LGA                            3, nothing

Offsets ascend, so each is another number, and no compressor makes less than two or three bytes of one; the lengths of
paths and checksums repeat, and become almost nothing. Three more forms spare the compressor what it is slow at:

    constant      c    the bytes of the one value that all rows have
    digits        x    text of hexadecimal digits, two as one byte: checksums, which nothing else makes smaller
    integers      i    what each is above the least of them, in as few bytes as the greatest needs

The metadata of the schema say which columns have which form.

Invariants:
* `unpacked(packed(batch))` is the batch, buffer for buffer. An id is made of what was unpacked.
* Lengths that do not add up to the bytes that there are, are refused, not followed.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import (
    load_i32,
    load_i64,
    load_u8,
    load_u64,
    same_bytes,
    store_i32,
    store_i64,
    store_u64,
)
from millpond.ranges.canonical import canonical
from millpond.ranges.digits import pack_digits, unpack_digits

__all__ = ("PACKED", "packed", "unpacked")

PACKED = b"packed"
"""The item of a schema's metadata that says it."""

_PLAIN, _CONSTANT, _DIGITS, _INTEGERS = "", "c", "x", "i"
# Digits are bounded, so a damaged file cannot make a number of any length.
_FORM = re.compile(r"(\d{1,4})(|c|x|i-?\d{1,19})")
_NARROW = (pa.binary(), pa.string())
_WIDE = (pa.large_binary(), pa.large_string())
_OFFSET_MAX = 0x7FFF_FFFF


def packed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with its columns in these forms; which they are, the metadata say by their places."""
    places = [at for at, column in enumerate(batch.columns) if column.type in (*_NARROW, *_WIDE, pa.int64())]
    # Without a row there is no first value to be constant.
    if not places or not batch.num_rows:
        return batch
    columns, said = batch.columns, []
    for at, column in zip(places, canonical(batch.select(places)).columns, strict=True):
        form, made = _pack_integers(column) if column.type == pa.int64() else _pack(column)
        if made is not None:
            columns[at] = made
            said.append(f"{at}{form}")
    return _with_columns(batch, columns, {PACKED: ",".join(said).encode()}) if said else batch


def _with_columns(batch: pa.RecordBatch, columns: list[pa.Array], more: dict[bytes, bytes]) -> pa.RecordBatch:
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    # The seal stays: it stands beside the forms in the same metadata.
    metadata = {name: text for name, text in (batch.schema.metadata or {}).items() if name != PACKED}
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, {**metadata, **more}))


def unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a file as it was before `packed`.

    Raises: `ValueError` when it is not what `packed` makes.
    """
    said = (batch.schema.metadata or {}).get(PACKED)
    if said is None:
        return batch
    columns = batch.columns
    for word in said.decode("ascii").split(","):
        match = _FORM.fullmatch(word)
        if match is None:
            raise ValueError(f"no form of a column: {word}")
        at, form = int(match[1]), match[2]
        column = batch.column(at)
        columns[at] = _unpack_integers(column, int(form[1:])) if form.startswith(_INTEGERS) else _unpack(column, form)
    return _with_columns(batch, columns, {})


# -- bytes and text -----------------------------------------------------------------------------------


def _pack(array: pa.Array) -> tuple[str, pa.Array]:
    bitmap, buffer, data = array.buffers()
    count = len(array)
    offsets = np.frombuffer(buffer, _offset_type(array.type), count + 1)
    assert array.offset == 0 and offsets[0] == 0, "the column is canonical"
    form, lengths, data = _shortened(array, np.diff(offsets), data)
    # The bytes of all rows belong to the first; the others have none. Offsets of one value compress to nothing.
    places = np.full(count + 1, 0 if data is None else data.size, offsets.dtype)
    # Arrow reads `places[row]` to `places[row + 1]`: the first row ends where the bytes do.
    places[0] = 0
    kind = _packed_type(array.type, form)
    whole = pa.Array.from_buffers(kind.field(1).type, count, [None, pa.py_buffer(places), data])
    children = [pa.array(lengths), whole]
    return form, pa.Array.from_buffers(kind, count, [bitmap], array.null_count, children=children)


def _shortened(array: pa.Array, lengths: Any, data: pa.Buffer | None) -> tuple[str, Any, pa.Buffer | None]:
    """The shortest form of a column; its lengths and its bytes there."""
    # Forms are for columns of paths and checksums, which are narrow.
    if array.type not in _NARROW or data is None or not data.size:
        return _PLAIN, lengths, data
    width = int(lengths[0])
    equal_lengths = len(array) > 1 and not array.null_count and bool((lengths == width).all())
    if equal_lengths and _repeats(data.address, width, data.size):
        return _CONSTANT, lengths, data.slice(0, width)
    # Text only: bytes that happen to be digits are checksums in their short form already.
    if array.type == pa.string() and not bool((lengths & 1).any()):
        pairs = pack_digits(data)
        if pairs is not None:
            return _DIGITS, lengths >> 1, pairs
    return _PLAIN, lengths, data


def _packed_type(kind: pa.DataType, form: str) -> pa.DataType:
    lengths = pa.from_numpy_dtype(_offset_type(kind))
    held = pa.binary() if form == _DIGITS else kind
    return pa.struct([pa.field("length", lengths, nullable=False), pa.field("bytes", held, nullable=False)])


def _offset_type(kind: pa.DataType) -> Any:
    return np.int64 if kind in _WIDE else np.int32


def _unpack(array: pa.Array, form: str) -> pa.Array:
    kind, count = array.type, len(array)
    inner = kind.field(1).type if pa.types.is_struct(kind) and kind.num_fields == 2 else None
    if form == _DIGITS:
        inner = pa.string()
    # The type is checked whole: the file says it, and buffers are read by it.
    if inner not in _NARROW + _WIDE or kind != _packed_type(inner, form) or (form and inner in _WIDE):
        raise ValueError(f"no packed column: {kind}")
    lengths, whole = (array.field(at) for at in range(2))
    data = whole.buffers()[2]
    offsets, size = _offsets(lengths, 2 if form == _DIGITS else 1)
    if form == _CONSTANT:
        held = _repeated(lengths, size, data)
    elif form == _DIGITS:
        held = unpack_digits(_first_bytes(size // 2, data), size)
    else:
        held = _first_bytes(size, data)
    return pa.Array.from_buffers(inner, count, [array.buffers()[0], offsets, held], array.null_count)


def _offsets(lengths: pa.Array, scale: int) -> tuple[pa.Buffer, int]:
    """The offsets of rows whose lengths are given in units of `scale` bytes, and the last of them."""
    width = lengths.type.bit_width // 8
    offsets = pa.allocate_buffer(width * (len(lengths) + 1))
    # Lengths are summed in 64 bits and refused beyond 2^31: offsets may not wrap.
    fill = _narrow_offsets if width == 4 else _wide_offsets
    size = int(fill(_address(lengths), len(lengths), scale, offsets.address))
    if size < 0:
        raise ValueError("lengths are not those of the bytes")
    return offsets, size


def _address(array: pa.Array) -> int:
    """The address of the first of a column's integers."""
    # A batch may be a slice of a file's, so the address moves with the offset.
    return int(array.buffers()[1].address + array.offset * array.type.bit_width // 8) if len(array) else 0


def _first_bytes(size: int, data: pa.Buffer | None) -> pa.Buffer:
    if size > (0 if data is None else data.size):
        raise ValueError("lengths are not those of the bytes")
    return pa.py_buffer(b"") if data is None else data.slice(0, size)


def _repeated(lengths: pa.Array, size: int, data: pa.Buffer | None) -> pa.Buffer:
    """The bytes of a column with one value."""
    width = lengths[0].as_py() if len(lengths) else 0
    # Else `out[:width]` would read behind the one value.
    if data is None or width > data.size or not bool((lengths.to_numpy() == width).all()):
        raise ValueError("lengths are not those of the bytes")
    buffer = pa.allocate_buffer(size)
    out = np.frombuffer(buffer, np.uint8)
    out[:width] = np.frombuffer(data, np.uint8, width)
    done = width
    while 0 < done < size:  # what is written already is copied, twice as much each time
        more = min(done, size - done)
        out[done : done + more] = out[:more]
        done += more
    return buffer


@kernel
def _narrow_offsets(lengths, count, scale, out):  # type: ignore[no-untyped-def]
    """Fill in offsets; answers the last, -1 for a length below zero or a sum that is too large."""
    size = np.int64(0)
    store_i32(out, np.int32(0))
    for row in range(count):
        length = np.int64(load_i32(lengths + 4 * row))
        size += length * scale
        if length < 0 or size > _OFFSET_MAX:
            return np.int64(-1)
        store_i32(out + 4 * row + 4, np.int32(size))
    return size


@kernel
def _wide_offsets(lengths, count, scale, out):  # type: ignore[no-untyped-def]
    size = np.int64(0)
    store_i64(out, np.int64(0))
    for row in range(count):
        length = load_i64(lengths + 8 * row)
        size += length * scale
        if length < 0 or size < 0:
            return np.int64(-1)
        store_i64(out + 8 * row + 8, size)
    return size


@kernel
def _repeats(data, width, size):  # type: ignore[no-untyped-def]
    """True when bytes are those of the first `width` again and again."""
    # Bytes equal to those `width` further on repeat with that period: one comparison of two overlapping stretches.
    return same_bytes(data, data + width, size - width)


# -- integers -----------------------------------------------------------------------------------------


def _pack_integers(array: pa.Array) -> tuple[str, pa.Array | None]:
    """Integers by what they are above the least; None where that needs all bytes, or where there are nulls."""
    values = array.to_numpy(zero_copy_only=False) if not array.null_count else None
    if values is None:
        return _PLAIN, None
    base = int(values.min())
    width = (int(values.max()) - base).bit_length() + 7 >> 3
    # Eight bytes each is what there is already.
    if width > 7:
        return _PLAIN, None
    # Arrow has no values of zero bytes; a column of one number compresses to nothing anyhow.
    width = max(1, width)
    out = pa.allocate_buffer(width * len(values) + 8)  # each is written as eight bytes, over those behind it
    _store_integers(_address(array), len(values), base, width, out.address)
    held = out.slice(0, width * len(values))
    return f"{_INTEGERS}{base}", pa.Array.from_buffers(pa.binary(width), len(values), [None, held], 0)


def _unpack_integers(array: pa.Array, base: int) -> pa.Array:
    kind, count = array.type, len(array)
    if not pa.types.is_fixed_size_binary(kind) or not 0 < kind.byte_width < 8 or array.null_count:
        raise ValueError(f"no packed integers: {kind}")
    # The text of a damaged form may be any number of nineteen digits.
    if not -(1 << 63) <= base < 1 << 63:
        raise ValueError(f"no integer: {base}")
    out = pa.allocate_buffer(8 * count)
    if count:
        data = array.buffers()[1]
        _load_integers(data.address + array.offset * kind.byte_width, count, base, kind.byte_width, out.address)
    return pa.Array.from_buffers(pa.int64(), count, [None, out], 0)


@kernel
def _store_integers(values, count, base, width, out):  # type: ignore[no-untyped-def]
    for row in range(count):
        # Ascending, each store writes over the spare bytes of the one before.
        store_u64(out + row * width, load_u64(values + 8 * row) - np.uint64(base))


@kernel
def _load_integers(data, count, base, width, out):  # type: ignore[no-untyped-def]
    mask = (np.uint64(1) << np.uint64(8 * width)) - np.uint64(1)
    whole = max(np.int64(0), count - (8 - width + width - 1) // width)  # where eight bytes lie within the column
    for row in range(whole):
        store_u64(out + 8 * row, (load_u64(data + row * width) & mask) + np.uint64(base))
    for row in range(whole, count):
        value = np.uint64(0)
        for place in range(width):
            value |= np.uint64(load_u8(data + row * width + place)) << np.uint64(8 * place)
        store_u64(out + 8 * row, value + np.uint64(base))
