"""The form of columns in compressed files: what a compressor does slowly or badly is done before it.

    key: binary                    key: struct<length: int32, bytes: binary>
    EWR                            3, EWRJFKLGA
    JFK                            3, nothing
    LGA                            3, nothing

Offsets ascend, so each is another number, and no compressor makes less than two or three bytes of one; the lengths of
paths and checksums repeat, and become almost nothing. More forms spare the compressor what it is slow at:

    constant      c    the bytes of the one value that all rows have
    digits        x    text of hexadecimal digits, two as one byte: checksums, which nothing else makes smaller
    integers      i    what each is above the least of them, in as few bytes as the greatest needs

`deep` packs what is within lists and structs, too, lists as bytes; and it leaves out hashes, which the keys tell:

    hashed        h    bytes without the eight in front, which are the hash of the others
    first         f    nothing, of numbers that are the first eight bytes of the column `key`

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
import pyarrow.compute as pc
import pyarrow.types as is_type

from millpond.arrays.compiled import kernel
from millpond.arrays.key_hash import hash_key
from millpond.arrays.memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u64,
    same_bytes,
    store_i32,
    store_i64,
    store_u64,
    swap_u64,
)
from millpond.arrays.xxh3 import byte_column, hash_keys
from millpond.ranges.canonical import canonical
from millpond.ranges.digits import pack_digits, unpack_digits

__all__ = ("PACKED", "packed", "unpacked")

PACKED = b"packed"
"""The item of a schema's metadata that says it."""

_PLAIN, _CONSTANT, _DIGITS, _INTEGERS, _HASHED, _FIRST = "", "c", "x", "i", "h", "f"
# Digits are bounded, so a damaged file cannot make a number of any length.
_FORM = re.compile(r"(\d{1,4}(?:\.\d{1,4}){0,64})(|c|x|h|f|i-?\d{1,19})")
_NARROW = (pa.binary(), pa.string())
_WIDE = (pa.large_binary(), pa.large_string())
_OFFSET_MAX = 0x7FFF_FFFF
_HASH_BYTES = 8


def packed(batch: pa.RecordBatch, *, deep: bool = False) -> pa.RecordBatch:
    """A batch with its columns in these forms; which they are, the metadata say by their places."""
    # Without a row there is no first value to be constant.
    if not batch.num_rows:
        return batch
    packer = _Packer(deep)
    columns = packer.columns(canonical(batch))
    said = ",".join(f"{place}{form}" for place, form in packer.forms.items())
    return _with_columns(batch, columns, {PACKED: said.encode()}) if said else batch


def unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a file as it was before `packed`.

    Raises: `ValueError` when it is not what `packed` makes.
    """
    said = (batch.schema.metadata or {}).get(PACKED)
    if said is None:
        return batch
    forms: dict[str, str] = {}
    for word in said.decode("ascii").split(","):
        match = _FORM.fullmatch(word)
        if match is None:
            raise ValueError(f"no form of a column: {word}")
        forms[match[1]] = match[2]
    left_out = [place for place, form in forms.items() if form == _FIRST]
    for place in left_out:
        del forms[place]
    columns = [_unpack(column, str(at), forms) for at, column in enumerate(batch.columns)]
    if forms:
        raise ValueError(f"forms of no columns: {forms}")
    for place in left_out:
        columns[int(place)] = _left_out(columns[batch.schema.get_field_index("key")])
    return _with_columns(batch, columns, {})


def _with_columns(batch: pa.RecordBatch, columns: list[pa.Array], more: dict[bytes, bytes]) -> pa.RecordBatch:
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    # The seal stays: it stands beside the forms in the same metadata.
    metadata = {name: text for name, text in (batch.schema.metadata or {}).items() if name != PACKED}
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, {**metadata, **more}))


class _Packer:
    """Packs canonical columns; `forms` says how, by their places."""

    def __init__(self, deep: bool) -> None:
        self._deep = deep
        self.forms: dict[str, str] = {}

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The columns of a batch in their forms."""
        key = batch.column("key") if self._deep and "key" in batch.schema.names else None
        firsts = None if key is None or key.type != pa.binary() else _firsts(key)
        columns = []
        for at, column in enumerate(batch.columns):
            numbers = column.type == pa.uint64() and not column.null_count
            if firsts is not None and numbers and (column.to_numpy() == firsts).all():
                self.forms[str(at)] = _FIRST
                columns.append(pa.nulls(len(column)))
            else:
                columns.append(self._pack(column, str(at)))
        return columns

    def _pack(self, array: pa.Array, place: str) -> pa.Array:
        kind, form, made = array.type, _PLAIN, None
        if not len(array):
            return array
        if kind == pa.int64():
            form, made = _pack_integers(array)
        elif kind in (*_NARROW, *_WIDE):
            form, made = _pack_bytes(array, hashed=self._deep)
        elif self._deep and is_type.is_struct(kind):
            return _struct(array, [self._pack(array.field(n), f"{place}.{n}") for n in range(kind.num_fields)])
        elif self._deep and (is_type.is_list(kind) or is_type.is_large_list(kind)):
            made = _pack_list(array, self._pack(array.values, f"{place}.0"))
        if made is None:
            return array
        self.forms[place] = form
        return made


def _unpack(array: pa.Array, place: str, forms: dict[str, str]) -> pa.Array:
    """A column as it was; takes its form, and those within, from `forms`."""
    form, kind = forms.pop(place, None), array.type
    if form is None:
        if is_type.is_struct(kind) and any(within.startswith(f"{place}.") for within in forms):
            return _struct(array, [_unpack(array.field(n), f"{place}.{n}", forms) for n in range(kind.num_fields)])
        return array
    if form.startswith(_INTEGERS):
        return _unpack_integers(array, int(form[1:]))
    whole = kind.field(1).type if is_type.is_struct(kind) and kind.num_fields == 2 else None
    # The type is checked whole: the file says it, and buffers are read by it.
    if whole is None or kind != _packed_type(pa.from_numpy_dtype(_offset_type(whole)), whole):
        raise ValueError(f"no packed column: {kind}")
    if is_type.is_list(whole) or is_type.is_large_list(whole):
        return _unpack_list(array, place, forms)
    return _unpack_bytes(array, form)


def _struct(array: pa.Array, children: list[pa.Array]) -> pa.Array:
    """A struct with its fields in other forms."""
    kind = pa.struct([field.with_type(child.type) for field, child in zip(array.type, children, strict=True)])
    return pa.Array.from_buffers(kind, len(array), [array.buffers()[0]], array.null_count, children=children)


def _packed_type(lengths: pa.DataType, whole: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("length", lengths, nullable=False), pa.field("bytes", whole, nullable=False)])


def _lengths_and_whole(array: pa.Array, lengths: Any, whole: pa.Array) -> pa.Array:
    kind = _packed_type(pa.from_numpy_dtype(lengths.dtype), whole.type)
    bitmap, children = array.buffers()[0], [pa.array(lengths), whole]
    return pa.Array.from_buffers(kind, len(array), [bitmap], array.null_count, children=children)


def _first_has(size: int, lengths: Any) -> pa.Buffer:
    """Offsets of which the first row has all: those of one value compress to nothing."""
    places = np.full(len(lengths) + 1, size, lengths.dtype)
    # Arrow reads `places[row]` to `places[row + 1]`: the first row ends where the bytes do.
    places[0] = 0
    return pa.py_buffer(places)


def _lengths(array: pa.Array) -> Any:
    """The lengths of the values of a canonical column."""
    offsets = np.frombuffer(array.buffers()[1], _offset_type(array.type), len(array) + 1)
    assert array.offset == 0 and offsets[0] == 0, "the column is canonical"
    return np.diff(offsets)


def _offset_type(kind: pa.DataType | None) -> Any:
    return np.int64 if kind in _WIDE or (kind is not None and is_type.is_large_list(kind)) else np.int32


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


# -- lists --------------------------------------------------------------------------------------------


def _pack_list(array: pa.Array, items: pa.Array) -> pa.Array:
    lengths = _lengths(array)
    offsets = _first_has(len(items), lengths)
    whole = pa.Array.from_buffers(_list_of(array.type, items), len(array), [None, offsets], 0, children=[items])
    return _lengths_and_whole(array, lengths, whole)


def _unpack_list(array: pa.Array, place: str, forms: dict[str, str]) -> pa.Array:
    lengths, whole = array.field(0), array.field(1)
    offsets, size = _offsets(lengths, 1)
    items = _unpack(whole[0].values, f"{place}.0", forms)
    if len(items) != size:
        raise ValueError("lengths are not those of the items")
    buffers = [array.buffers()[0], offsets]
    return pa.Array.from_buffers(
        _list_of(whole.type, items), len(array), buffers, array.null_count, children=[items]
    )  # fmt: skip


def _list_of(kind: pa.DataType, items: pa.Array) -> pa.DataType:
    """The type of a list with its items in another form."""
    field = kind.value_field.with_type(items.type)
    return pa.large_list(field) if is_type.is_large_list(kind) else pa.list_(field)


# -- bytes and text -----------------------------------------------------------------------------------


def _pack_bytes(array: pa.Array, *, hashed: bool) -> tuple[str, pa.Array]:
    others = _without_hashes(array) if hashed and array.type == pa.binary() else None
    if others is not None:
        lengths, data = _lengths(others), others.buffers()[2]
        form, kind = _HASHED, array.type
    else:
        form, lengths, data = _shortened(array, _lengths(array), array.buffers()[2])
        kind = pa.binary() if form == _DIGITS else array.type
    # The bytes of all rows belong to the first; the others have none.
    offsets = _first_has(0 if data is None else data.size, lengths)
    return form, _lengths_and_whole(array, lengths, pa.Array.from_buffers(kind, len(array), [None, offsets, data]))


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


def _unpack_bytes(array: pa.Array, form: str) -> pa.Array:
    lengths, whole = array.field(0), array.field(1)
    kind, data = whole.type, whole.buffers()[2]
    kinds = {_PLAIN: (*_NARROW, *_WIDE), _CONSTANT: _NARROW, _DIGITS: (pa.binary(),), _HASHED: (pa.binary(),)}
    if kind not in kinds[form]:
        raise ValueError(f"no packed column: {kind}")
    offsets, size = _offsets(lengths, 2 if form == _DIGITS else 1)
    if form == _CONSTANT:
        held = _repeated(lengths, size, data)
    elif form == _DIGITS:
        kind, held = pa.string(), unpack_digits(_first_bytes(size // 2, data), size)
    else:
        held = _first_bytes(size, data)
    made = pa.Array.from_buffers(kind, len(array), [array.buffers()[0], offsets, held], array.null_count)
    return _with_hashes(made) if form == _HASHED else made


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
def _repeats(data, width, size):  # type: ignore[no-untyped-def]
    """True when bytes are those of the first `width` again and again."""
    # Bytes equal to those `width` further on repeat with that period: one comparison of two overlapping stretches.
    return same_bytes(data, data + width, size - width)


# -- hashes -------------------------------------------------------------------------------------------


def _firsts(keys: pa.Array) -> Any:
    """The first eight bytes of each key as a number; None where one has fewer."""
    column, out = byte_column(keys), np.empty(len(keys), np.uint64)
    there = not keys.null_count and _read_firsts(column.offsets, column.data, len(keys), out)
    return out if there else None


def _left_out(keys: pa.Array) -> pa.Array:
    firsts = _firsts(keys) if keys.type == pa.binary() else None
    if firsts is None:
        raise ValueError("keys are too short for what was left out")
    return pa.array(firsts)


def _without_hashes(array: pa.Array) -> pa.Array | None:
    """Bytes without the hash in front of each, of the others; None where one has none."""
    firsts = _firsts(array)
    # Bytes of others are hardly ever so: the first row tells.
    if firsts is None or hash_key(array[0].as_py()[_HASH_BYTES:]) != firsts[0]:
        return None
    others = pc.binary_slice(array, _HASH_BYTES, _OFFSET_MAX)  # without an end it fails in Arrow 26
    return others if (hash_keys(others) == firsts).all() else None


def _with_hashes(others: pa.Array) -> pa.Array:
    count, column = len(others), byte_column(others)
    size = others.buffers()[2].size + _HASH_BYTES * count
    if size > _OFFSET_MAX:
        raise ValueError("lengths are not those of the bytes")
    offsets, data = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(size)
    _write_hashed(hash_keys(others), column.offsets, column.data, offsets.address, data.address)
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, data], 0)


@kernel
def _read_firsts(offsets, data, count, out):  # type: ignore[no-untyped-def]
    for row in range(count):
        start = np.int64(load_i32(offsets + 4 * row))
        if load_i32(offsets + 4 * row + 4) - start < _HASH_BYTES:
            return False
        out[row] = swap_u64(load_u64(data + start))
    return True


@kernel
def _write_hashed(hashes, offsets, data, out_offsets, out):  # type: ignore[no-untyped-def]
    at = np.int64(0)
    for row in range(len(hashes)):
        start = np.int64(load_i32(offsets + 4 * row))
        length = load_i32(offsets + 4 * row + 4) - start
        store_i32(out_offsets + 4 * row, np.int32(at))
        store_u64(out + at, swap_u64(hashes[row]))
        copy_bytes(out + at + _HASH_BYTES, data + start, length)
        at += _HASH_BYTES + length
    store_i32(out_offsets + 4 * len(hashes), np.int32(at))


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
    above = (values - base).astype("<i8").view(np.uint8).reshape(-1, 8)
    held = pa.py_buffer(np.ascontiguousarray(above[:, :width]))
    return f"{_INTEGERS}{base}", pa.Array.from_buffers(pa.binary(width), len(values), [None, held], 0)


def _unpack_integers(array: pa.Array, base: int) -> pa.Array:
    kind, count = array.type, len(array)
    if not is_type.is_fixed_size_binary(kind) or not 0 < kind.byte_width < 8 or array.null_count:
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
