"""Arrow arrays with one way to be: the same content always lies in the same bytes.

Arrow leaves freedom: an array may be a slice, carry a validity bitmap that says nothing, hide bytes below its
nulls. Files named by their content cannot. After `canonical`:

* An array begins at offset 0; offsets begin at 0; buffers hold what is used.
* There is a bitmap only where there is a null; the bits after the last row are 0.
* Dictionaries are decoded: they are a way to lie in memory, not content.
* Below a null lie zeros, or nothing in columns of varying length; what is inside a null struct is null itself
  (or zero where the field admits no null).

`row_sizes` and `equal_rows` build on that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as is_type

from millpond.arrays.compiled import kernel
from millpond.errors import Invalid

__all__ = ("bare", "canonical", "check_types", "decoded", "equal_rows", "row_sizes")

_Mask = npt.NDArray[np.bool_]


def check_types(schema: pa.Schema) -> None:
    """Refuse columns of types that ranges do not keep.

    Raises: `Invalid`, naming the column.
    """
    if len(set(schema.names)) != len(schema.names):
        raise Invalid("two columns have one name", kind="range_schema", schema=schema.names)
    # Large binary would double the offsets of every range for keys that are never 2 GiB.
    if "key" not in schema.names or schema.field("key").type != pa.binary():
        raise Invalid("entries need a column `key` of type binary", kind="range_schema", schema=schema.names)
    for field in schema:
        if not _is_canonical(field.type):
            raise Invalid(
                "ranges do not keep columns of this type", kind="range_column_type", column=field.name,
                type=field.type,
                hint="cast views, extension types and inner dictionaries to plain ones; write maps as lists of structs",
            )  # fmt: skip


def _is_canonical(kind: pa.DataType) -> bool:
    # Arrow gives such a column no child to walk over, and its rows no bytes to be named by.
    if is_type.is_fixed_size_list(kind) and kind.list_size == 0:
        return False
    if is_type.is_list(kind) or is_type.is_large_list(kind) or is_type.is_fixed_size_list(kind):
        return _is_canonical(kind.value_type)
    if is_type.is_struct(kind):
        return all(_is_canonical(field.type) for field in kind)
    # An inner dictionary has as many layouts as orders of its values.
    if isinstance(kind, pa.BaseExtensionType) or is_type.is_dictionary(kind):
        return False
    if _is_bytes(kind) or is_type.is_null(kind) or is_type.is_boolean(kind):
        return True
    return (is_type.is_primitive(kind) or is_type.is_decimal(kind) or is_type.is_fixed_size_binary(kind)) and (
        kind.bit_width > 0
    )


def bare(schema: pa.Schema) -> pa.Schema:
    """The schema by names, types and nullability alone: remarks of a producer do not make other content.

    Columns that are dictionaries have the type of their values; the items of lists have no names of their own.
    """
    plain = [field.with_type(field.type.value_type) if is_type.is_dictionary(field.type) else field for field in schema]
    # Whether a producer says that keys may be null is a remark: none is null in a range.
    return pa.schema([_bare(field).with_nullable(field.nullable and field.name != "key") for field in plain])


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, its columns that are dictionaries written out."""
    if not any(is_type.is_dictionary(field.type) for field in batch.schema):
        return batch
    columns = [column.dictionary_decode() if is_type.is_dictionary(column.type) else column for column in batch.columns]
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _bare(field: pa.Field) -> pa.Field:
    kind = field.type
    if is_type.is_struct(kind):
        kind = pa.struct([_bare(inner) for inner in kind])
    elif is_type.is_fixed_size_list(kind):
        kind = pa.list_(_item(kind), kind.list_size)
    elif is_type.is_list(kind):
        kind = pa.list_(_item(kind))
    elif is_type.is_large_list(kind):
        kind = pa.large_list(_item(kind))
    return pa.field(field.name, kind, field.nullable)


def _item(kind: pa.DataType) -> pa.Field:
    """Arrow takes two lists for one type whatever they call their items; so must what is named by it."""
    # Parquet calls it `element`, Arrow `item`: the same rows would have two ids.
    return _bare(kind.value_field).with_name("item")


def canonical(batch: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """The batch with its one way to lie in memory; buffers that lie so already are shared, not copied.

    `schema` may differ from the batch's in nullability and remarks.

    Raises: `Invalid` for a null where the schema admits none.
    """
    schema = schema or batch.schema
    # Nothing is dead at the top: a batch has no nulls of its own.
    columns = [_canonical(batch.column(at), field, None) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _canonical(array: pa.Array, field: pa.Field, dead: _Mask | None) -> pa.Array:
    """`dead` marks the rows that hold nothing because something around them is null."""
    kind, count = field.type, len(array)
    if count == 0 or is_type.is_null(kind):
        return pa.nulls(count, kind) if count else pa.array([], kind)
    alive = _alive(array, field, dead)
    # A field that admits no null has no bitmap, even inside of a struct that is null.
    bitmap = None if alive is None or not field.nullable else _bits(alive)
    nulls = 0 if bitmap is None or alive is None else count - int(alive.sum())
    if is_type.is_struct(kind):
        # What hides below a null struct is content to Arrow, and not to a reader.
        below = None if alive is None else ~alive
        children = [_canonical(array.field(at), inner, below) for at, inner in enumerate(kind)]
        return pa.Array.from_buffers(kind, count, [bitmap], nulls, children=children)
    if is_type.is_fixed_size_list(kind):
        # Each row has a fixed number of items, so a dead row has as many dead ones.
        below = None if alive is None else np.repeat(~alive, kind.list_size)
        # The values of a slice are those of the whole array: Arrow moves the offset of the parent only.
        held = array.values.slice(array.offset * kind.list_size, count * kind.list_size)
        child = _canonical(held, kind.value_field, below)
        return pa.Array.from_buffers(kind, count, [bitmap], nulls, children=[child])
    if is_type.is_list(kind) or is_type.is_large_list(kind):
        # The items of dead rows are cut out by the offsets, so no item below is dead.
        offsets, array, start, stop = _offsets(array, alive)
        child = _canonical(array.values.slice(start, stop - start), kind.value_field, None)
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets)], nulls, children=[child])
    if _is_bytes(kind):
        offsets, array, start, stop = _offsets(array, alive)
        # Arrow leaves the buffer out where all values are empty.
        data = array.buffers()[2]
        held = pa.py_buffer(b"") if data is None else data.slice(start, stop - start)
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), held], nulls)
    return pa.Array.from_buffers(kind, count, [bitmap, _fixed(array, alive)], nulls)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def _alive(array: pa.Array, field: pa.Field, dead: _Mask | None) -> _Mask | None:
    """The rows that hold something; None when all do."""
    alive: _Mask | None = None if dead is None else ~dead
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        # A null is allowed below a null: nobody can see it.
        if not field.nullable and not valid.all() and (dead is None or not (valid | dead).all()):
            raise Invalid("a null in a column that admits none", kind="range_null", column=field.name)
        alive = valid if alive is None else valid & alive
    return None if alive is None or alive.all() else alive


def _bits(mask: _Mask) -> pa.Buffer:
    # `packbits` fills the last byte with zeros: the bits after the last row are the same everywhere.
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _fixed(array: pa.Array, alive: _Mask | None) -> pa.Buffer:
    """The values of a column of fixed width, zero where nothing is."""
    values, count = array.buffers()[1], len(array)
    if is_type.is_boolean(array.type):
        # A slice may begin within a byte, so bits are moved and not copied.
        raw = np.frombuffer(values, np.uint8)[array.offset // 8 : (array.offset + count + 7) // 8]
        bits = np.unpackbits(raw, bitorder="little")[array.offset % 8 :][:count].astype(np.bool_)
        return _bits(bits if alive is None else bits & alive)
    width = array.type.bit_width // 8
    held = values.slice(array.offset * width, count * width)
    if alive is None:
        return held
    # A copy: the buffer is shared with whoever gave the batch.
    rows = np.frombuffer(held, np.uint8).reshape(count, width).copy()
    rows[~alive] = 0
    return pa.py_buffer(rows)


def _offsets(array: pa.Array, alive: _Mask | None) -> tuple[npt.NDArray[Any], pa.Array, int, int]:
    """Offsets from 0 on, and the array whose content `[start, stop)` they are over: without what hides below nulls."""
    raw = _raw_offsets(array)
    if alive is not None:
        lengths = np.diff(raw)
        # Most writers leave nothing below nulls: only then are the bytes copied.
        if lengths[~alive].any():
            array = array.filter(pa.array(alive))
            raw_offsets = _raw_offsets(array)
            lengths[~alive] = 0
            offsets = np.zeros(len(raw), raw.dtype)
            np.cumsum(lengths, out=offsets[1:])
            return offsets, array, int(raw_offsets[0]), int(raw_offsets[-1])
    # A slice keeps the offsets of the whole, which would name the rows before it.
    return (raw - raw[0] if raw[0] else raw), array, int(raw[0]), int(raw[-1])


def _raw_offsets(array: pa.Array) -> npt.NDArray[Any]:
    # Arrow allows an empty array to have no offsets at all.
    if len(array) == 0:
        return np.zeros(1, _offset_type(array.type))
    offsets = np.frombuffer(array.buffers()[1], _offset_type(array.type), array.offset + len(array) + 1)
    return offsets[array.offset :]


def _offset_type(kind: pa.DataType) -> type[np.integer[Any]]:
    wide = is_type.is_large_list(kind) or is_type.is_large_binary(kind) or is_type.is_large_string(kind)
    return np.int64 if wide else np.int32


def row_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes of each row of a canonical batch, as `docs/format/ranges.md` counts them (bitmaps are not counted)."""
    out = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        out += _sizes(column)
    return out


def _sizes(array: pa.Array) -> Any:
    """One number for all rows, or one each."""
    kind = array.type
    if is_type.is_null(kind):
        return 0
    if is_type.is_boolean(kind):
        # A bit, counted as a byte: sizes decide where ranges end, and need no more care.
        return 1
    if is_type.is_struct(kind):
        return sum((_sizes(array.field(at)) for at in range(kind.num_fields)), 0)
    if is_type.is_fixed_size_list(kind):
        inner = _sizes(array.values)
        return inner * kind.list_size if np.isscalar(inner) else inner.reshape(-1, kind.list_size).sum(axis=1)
    if not (_is_bytes(kind) or is_type.is_list(kind) or is_type.is_large_list(kind)):
        return kind.bit_width // 8
    if len(array) == 1:
        return _total(array)  # one row may have millions of items
    offsets = _raw_offsets(array).astype(np.int64)
    # One offset belongs to each row; the first of the column to none.
    offset_bytes = _offset_type(kind)().itemsize
    inner = 1 if _is_bytes(kind) else _sizes(array.values)
    if np.isscalar(inner):
        return offset_bytes + np.diff(offsets) * inner
    # Items are summed once, and each row is the difference of two sums: no loop over rows.
    summed = np.concatenate(([0], np.cumsum(inner)))
    return offset_bytes + summed[offsets[1:]] - summed[offsets[:-1]]


def _total(array: pa.Array) -> int:
    """The sum of `_sizes` of a canonical array."""
    kind, count = array.type, len(array)
    if is_type.is_null(kind):
        return 0
    if is_type.is_boolean(kind):
        return count
    if is_type.is_struct(kind):
        return sum(_total(array.field(at)) for at in range(kind.num_fields))
    if is_type.is_fixed_size_list(kind):
        return _total(array.values)
    if not (_is_bytes(kind) or is_type.is_list(kind) or is_type.is_large_list(kind)):
        return int(kind.bit_width // 8 * count)
    below = int(_raw_offsets(array)[-1]) if _is_bytes(kind) else _total(array.values)
    return int(_offset_type(kind)().itemsize * count + below)


def equal_rows(a: pa.RecordBatch, b: pa.RecordBatch) -> _Mask:
    """Row by row, whether two batches of one schema and length hold the same: bit by bit, so NaN equals itself."""
    # Only canonical arrays may be compared as bits: hidden bytes would differ.
    assert a.num_rows == b.num_rows and a.schema.equals(b.schema)
    a, b = canonical(a), canonical(b)
    out = np.ones(a.num_rows, np.bool_)
    for left, right in zip(a.columns, b.columns, strict=True):
        out &= _equal(left, right)
    return out


def _equal(a: pa.Array, b: pa.Array) -> Any:
    """Canonical arrays: equal rows have equal bits, so nothing but bits is looked at."""
    kind, count = a.type, len(a)
    if count == 0 or is_type.is_null(kind):
        return np.ones(count, np.bool_)
    same = _valid(a) == _valid(b)
    if is_type.is_struct(kind):
        for at in range(kind.num_fields):
            same &= _equal(a.field(at), b.field(at))
        return same
    if is_type.is_fixed_size_list(kind):
        return same & _equal(a.values, b.values).reshape(count, -1).all(axis=1)
    if is_type.is_boolean(kind):
        return same & (_unpacked(a) == _unpacked(b))
    if _is_bytes(kind):
        data_a, data_b = (np.frombuffer(x.buffers()[2] or b"", np.uint8) for x in (a, b))
        return same & _equal_bytes(_raw_offsets(a), data_a, _raw_offsets(b), data_b)
    if is_type.is_list(kind) or is_type.is_large_list(kind):
        return same & _equal_lists(a, b)
    rows_a, rows_b = (np.frombuffer(x.buffers()[1], np.uint8).reshape(count, -1) for x in (a, b))
    return same & (rows_a == rows_b).all(axis=1)


def _valid(array: pa.Array) -> _Mask:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def _unpacked(array: pa.Array) -> _Mask:
    return np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")[: len(array)].astype(np.bool_)


def _equal_lists(a: pa.Array, b: pa.Array) -> _Mask:
    """Lists of one length are compared child by child; others differ already."""
    lengths = np.diff(_raw_offsets(a))
    same = lengths == np.diff(_raw_offsets(b))
    if not same.any():
        return same
    chosen = pa.array(same)
    field = a.type.value_field
    parts = [x.filter(chosen) for x in (a, b)]
    inner = [_canonical(x.values.slice(_raw_offsets(x)[0], _raw_offsets(x)[-1] - _raw_offsets(x)[0]), field, None)
             for x in parts]  # fmt: skip
    # As for sizes: a list is equal when no wrong item was counted between its ends.
    wrong = np.concatenate(([0], np.cumsum(~_equal(inner[0], inner[1]))))
    stops = np.cumsum(lengths[same])
    same[same] = wrong[stops] == wrong[stops - lengths[same]]
    return same


@kernel
def _equal_bytes(a_offsets, a, b_offsets, b):  # type: ignore[no-untyped-def]
    count = len(a_offsets) - 1
    out = np.empty(count, np.bool_)
    for row in range(count):
        start, other = a_offsets[row], b_offsets[row]
        length = a_offsets[row + 1] - start
        out[row] = length == b_offsets[row + 1] - other
        for k in range(length if out[row] else 0):
            if a[start + k] != b[other + k]:
                out[row] = False
                break
    return out
