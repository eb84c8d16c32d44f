"""The bytes of a value: `<VALUE_TYPE><VALUE>`, in columns; `one_value.py` reads one at a time.

| type | byte | value |
|---|---|---|
| null | 0 | nothing |
| boolean | 1 | one byte, 0 or 1 |
| double | 3 | IEEE 754, 8 bytes big-endian |
| long | 5 | two's complement, 8 bytes big-endian |
| timestamp | 6 | UTC microseconds as a long |
| string | 7 | UTF-8 |
| xml | 13 | UTF-8 of the fragment |
| binary | 64 | as it is |
| json | 65 | UTF-8 of the text |
| struct | 66 | one byte per field (1: there, 0: null), then each field that is there |

In a struct, fields of fixed size lie as above, others after their length as 4 bytes big-endian.
An empty string is `07`, a null is `00`: they are never confused.
`docs/format/shard.md` draws the same table for readers in other languages.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import Bytes, Piece, bytes_of, fixed_piece, join, var_piece
from millpond.arrays.compiled import kernel
from millpond.errors import Corrupt, Invalid
from millpond.maps.model.columns import MOMENT, scalar_arrow, value_arrow
from millpond.maps.model.definition import ScalarType, ValueType
from millpond.maps.model.one_value import CODES, SCALARS, STRUCT, TYPE_NAMES, WIDTHS, python_value

__all__ = ("decode_values", "encode_values", "present_values", "python_value", "scalar_of")

# -- columns to bytes ---------------------------------------------------------------------------------


def encode_values(array: pa.Array, value: ValueType | None) -> Bytes:
    """Canonical values (`columns.value_arrow`) as `<type><value>`; undeclared values already are."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if value is None:
        return bytes_of(array)
    valid = _valid(array)
    code = STRUCT if value.scalar is None else CODES[value.scalar]
    codes = fixed_piece(np.where(valid, np.uint8(code), np.uint8(0)))
    if value.scalar is not None:
        return join(len(array), [codes, _scalar_piece(array, value.scalar, valid)])
    return join(len(array), [codes, *_struct_pieces(array, value, valid)])


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    mask: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _scalar_piece(array: pa.Array, scalar: ScalarType, valid: npt.NDArray[np.bool_]) -> Piece:
    mask = None if valid.all() else valid
    if scalar not in WIDTHS:
        return var_piece(bytes_of(array), mask)
    return fixed_piece(_fixed_values(array, scalar), mask)


def _fixed_values(array: pa.Array, scalar: ScalarType) -> npt.NDArray[Any]:
    if scalar is ScalarType.BOOLEAN:
        return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False)).astype(np.uint8)
    if scalar is ScalarType.TIMESTAMP:
        array = array.cast(MOMENT).cast(pa.int64())
    filled = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return filled.astype(">f8" if scalar is ScalarType.DOUBLE else ">i8")


def _struct_pieces(array: pa.Array, value: ValueType, valid: npt.NDArray[np.bool_]) -> list[Piece]:
    children = array.flatten()
    presence = [_valid(child) & valid for child in children]
    pieces = [fixed_piece(np.stack(presence, axis=1).astype(np.uint8), valid)]
    for child, (_, scalar), there in zip(children, value.fields, presence, strict=True):
        if scalar not in WIDTHS:
            pieces.append(fixed_piece(bytes_of(child).lengths.astype(">u4"), there))
        pieces.append(_scalar_piece(child, scalar, there))
    return pieces


def scalar_of(arrow: pa.DataType) -> ScalarType | None:
    """The type of a scalar column; None for one of nulls alone.

    Raises: `Invalid` for an Arrow type that is no scalar of `kinds.ScalarType`.
    """
    types = pa.types
    if types.is_null(arrow):
        return None
    if types.is_dictionary(arrow):
        return scalar_of(arrow.value_type)
    for test, scalar in (
        (types.is_boolean, ScalarType.BOOLEAN), (types.is_integer, ScalarType.LONG),
        (types.is_floating, ScalarType.DOUBLE), (types.is_timestamp, ScalarType.TIMESTAMP),
        (types.is_string, ScalarType.STRING), (types.is_large_string, ScalarType.STRING),
        (types.is_binary, ScalarType.BINARY), (types.is_large_binary, ScalarType.BINARY),
    ):  # fmt: skip
        if test(arrow):
            return scalar
    raise Invalid(
        "value column has a type that cannot be stored", kind="value_type_unknown", type=arrow,
        hint="cast it to string, long, double, boolean, timestamp or binary",
    )  # fmt: skip


# -- bytes to columns ---------------------------------------------------------------------------------


def decode_values(column: Bytes, value: ValueType | None) -> pa.Array:
    """`<type><value>` bytes as canonical values.

    Raises: `Corrupt` when a row's type byte is neither the declared one nor null.
    """
    if value is None:
        return column.to_arrow().cast(pa.binary())
    starts = column.offsets[:-1]
    tags = column.data[starts] if len(column) else np.zeros(0, np.uint8)
    valid = tags != 0
    code = STRUCT if value.scalar is None else CODES[value.scalar]
    if not bool(np.all(tags[valid] == code)):
        wrong = int(tags[valid][tags[valid] != code][0])
        raise Corrupt("stored value has another type than its map", kind="value_type_stored", found=wrong, wanted=code)
    if value.scalar is not None:
        return _scalar_column(column.data, starts + 1, column.lengths - 1, valid, value.scalar)
    return _struct_column(column, value, valid)


def _scalar_column(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_], scalar: ScalarType,
) -> pa.Array:  # fmt: skip
    arrow = scalar_arrow(scalar)
    width = WIDTHS.get(scalar, 0)
    if width:
        raw = np.zeros((len(starts), width), np.uint8)
        _copy_fixed(raw, data, starts, valid)
        if width == 1:
            return pa.array(raw.reshape(-1).astype(np.bool_), pa.bool_(), mask=~valid)
        kind = ">f8" if scalar is ScalarType.DOUBLE else ">i8"
        values = raw.reshape(-1).view(kind).astype(kind[1:])
        plain = pa.array(values, mask=None if valid.all() else ~valid)
        return plain.cast(arrow) if scalar is ScalarType.TIMESTAMP else plain
    lengths = np.where(valid, lengths, 0)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _copy_var(out, offsets, data, starts)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    narrow = offsets.astype(np.int32)
    assert offsets[-1] < 1 << 31, "a batch of values is kept under 2 GiB by its readers"
    return pa.Array.from_buffers(arrow, len(starts), [bits, pa.py_buffer(narrow), pa.py_buffer(out)])


@kernel
def _copy_fixed(out, data, starts, valid):  # type: ignore[no-untyped-def]
    for i in range(len(starts)):
        if valid[i]:
            for k in range(out.shape[1]):
                out[i, k] = data[starts[i] + k]


@kernel
def _copy_var(out, offsets, data, starts):  # type: ignore[no-untyped-def]
    for i in range(len(starts)):
        at = offsets[i]
        for k in range(offsets[i + 1] - at):
            out[at + k] = data[starts[i] + k]


def _struct_column(column: Bytes, value: ValueType, valid: npt.NDArray[np.bool_]) -> pa.Array:
    count, fields = len(column), len(value.fields)
    widths = np.array([WIDTHS.get(scalar, 0) for _, scalar in value.fields], np.int64)
    starts = np.zeros((fields, count), np.int64)
    lengths = np.zeros((fields, count), np.int64)
    there = np.zeros((fields, count), np.bool_)
    _struct_positions(column.offsets, column.data, valid, widths, starts, lengths, there)
    children = [
        _scalar_column(column.data, starts[f], lengths[f], there[f], scalar)
        for f, (_, scalar) in enumerate(value.fields)
    ]
    mask = None if valid.all() else pa.array(~valid)
    return pa.StructArray.from_arrays(children, fields=list(value_arrow(value)), mask=mask)


@kernel
def _struct_positions(offsets, data, valid, widths, starts, lengths, there):  # type: ignore[no-untyped-def]
    fields = len(widths)
    for i in range(len(valid)):
        if not valid[i]:
            continue
        flags = offsets[i] + 1
        at = flags + fields
        for f in range(fields):
            if not data[flags + f]:
                continue
            length = widths[f]
            if length == 0:
                for k in range(4):
                    length = (length << 8) | np.int64(data[at + k])
                at += 4
            there[f, i] = True
            starts[f, i] = at
            lengths[f, i] = length
            at += length


# -- for people ---------------------------------------------------------------------------------------


def present_values(encoded: pa.Array) -> tuple[pa.Array, pa.Array]:
    """`(value_type, value)` as text for a column of undeclared values; a null value's text is null."""
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    column = bytes_of(encoded)
    count = len(column)
    tags = column.data[column.offsets[:-1]] if count else np.zeros(0, np.uint8)
    names = pa.array([TYPE_NAMES.get(code, f"type {code}") for code in range(256)])
    values = pa.nulls(count, pa.string())
    for code in np.unique(tags):
        chosen = tags == code
        if code:
            text = _as_text(column, int(code), chosen)
            values = pc.replace_with_mask(values, pa.array(chosen), text)
    missing = _valid(encoded)
    kinds = names.take(pa.array(tags))
    return pc.if_else(pa.array(missing), kinds, None), values


def _as_text(column: Bytes, code: int, chosen: npt.NDArray[np.bool_]) -> pa.Array:
    scalar = SCALARS.get(code, ScalarType.STRING)
    if code == STRUCT:
        raise Corrupt("a struct value is stored in a map without a declared type", kind="value_type_stored")
    starts, lengths = column.offsets[:-1][chosen] + 1, column.lengths[chosen] - 1
    there = np.ones(len(starts), np.bool_)
    decoded = _scalar_column(column.data, starts, lengths, there, scalar)
    if scalar is ScalarType.BINARY:
        return pa.array([base64.b64encode(value).decode() for value in decoded.to_pylist()], pa.string())
    if scalar is ScalarType.TIMESTAMP:
        text = pc.strftime(decoded, format="%Y-%m-%dT%H:%M:%SZ")
        return pc.replace_substring_regex(text, r"000Z$", "Z")  # to the millisecond where that is all there is
    return decoded.cast(pa.string())
