"""Kernels that take values from where they were found into fresh Arrow arrays.

A gathered column is read through a table with one line per piece: address of values (or offsets), of bytes, of
validity, and validity's offset. `found` holds positions in search order, `order` says which row of the answer each
belongs to; both sides of every copy are walked in the order that the snapshot likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, load_i32, load_i64, load_u8, prefetch
from millpond.arrays.radix import I64
from millpond.errors import Invalid
from millpond.maps.search.groups import Groups, gather_table
from millpond.maps.search.kernels import AHEAD
from millpond.maps.search.validate import check_offsets

__all__ = ("ANSWER_BYTES_MAX", "RowColumn", "gather")

ANSWER_BYTES_MAX = (1 << 31) - 1
"""The limit of Arrow's 32-bit offsets: one answer holds less than 2 GiB of text."""

_PIECE = 32
_NUMBER = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column of rows over all pieces of a snapshot, ready to be gathered from.

    `kind` is the type of the answer: of the width of what is stored, so that int64 can be answered as timestamps.
    """

    kind: pa.DataType
    table: npt.NDArray[np.int64]
    fields: tuple[RowColumn, ...] = ()

    @classmethod
    def of(cls, groups: Groups, arrays: Sequence[pa.Array], kind: pa.DataType) -> RowColumn:
        """The column that `arrays` hold, one for each piece.

        Raises: `Corrupt`, naming the file whose offsets lead astray.
        """
        if _is_bytes(kind):
            for array, name in zip(arrays, groups.names, strict=True):
                check_offsets(array, name)
        if not pa.types.is_struct(kind):
            return cls(kind, gather_table(groups, arrays, _width(kind)))
        fields = (
            cls.of(groups, [array.field(number) for array in arrays], field.type) for number, field in enumerate(kind)
        )
        return cls(kind, gather_table(groups, arrays, 0), tuple(fields))


def _width(kind: pa.DataType) -> int:
    """Bytes from one element of the first buffer to the next; 0: bits."""
    if pa.types.is_boolean(kind):
        return 0
    return 4 if _is_bytes(kind) else 8


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind)


def gather(column: RowColumn, order: I64, rows: I64, bytes_max: int = ANSWER_BYTES_MAX) -> pa.Array:
    """The column's values at the positions, null where there is none, as one fresh array.

    Raises: `Invalid` when the answer would hold more bytes of text than `bytes_max`.
    """
    kind, table, count = column.kind, column.table, len(rows)
    valid = np.zeros(count, np.uint8)
    if column.fields:
        children = [gather(field, order, rows, bytes_max) for field in column.fields]
        missing = _take_validity(table, order, rows, valid)
        mask = pa.array(valid == 0) if missing else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if _is_bytes(kind):
        return _gather_bytes(table, kind, order, rows, valid, min(bytes_max, ANSWER_BYTES_MAX))
    if pa.types.is_boolean(kind):
        flags = np.zeros(count, np.uint8)
        missing = _take_bits(table, order, rows, flags, valid)
        return _array(kind, count, missing, valid, [_bits(flags)])
    assert kind.bit_width == 64, kind
    values = np.zeros(count, np.int64)
    missing = _take_longs(table, order, rows, values, valid)
    return _array(kind, count, missing, valid, [pa.py_buffer(values)])


def _bits(flags: npt.NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _array(kind: pa.DataType, count: int, missing: int, valid: npt.NDArray[np.uint8], buffers: list[Any]) -> pa.Array:
    validity = _bits(valid) if missing else None
    return pa.Array.from_buffers(kind, count, [validity, *buffers], null_count=missing)


def _gather_bytes(
    table: npt.NDArray[np.int64], kind: pa.DataType, order: I64, rows: I64, valid: npt.NDArray[np.uint8],
    bytes_max: int,
) -> pa.Array:  # fmt: skip
    offsets = np.zeros(len(rows) + 1, np.int64)
    missing = _measure(table, order, rows, offsets, valid)
    if offsets[-1] > bytes_max:
        raise Invalid(
            "the answer is too large for one array", kind="answer_too_large", bytes=int(offsets[-1]),
            bytes_max=bytes_max, hint="ask for fewer keys at once",
        )  # fmt: skip
    data = np.empty(int(offsets[-1]), np.uint8)
    _take_bytes(table, order, rows, offsets, data.ctypes.data)
    narrow = pa.py_buffer(offsets.astype(np.int32))
    return _array(kind, len(rows), missing, valid, [narrow, pa.py_buffer(data)])


@kernel
def _is_bit(address, number):  # type: ignore[no-untyped-def]
    return (load_u8(address + (number >> 3)) >> np.uint8(number & 7)) & np.uint8(1)


@kernel
def _there(table, position):  # type: ignore[no-untyped-def]
    """True when there is a row, and its value is not null."""
    if position < 0:
        return False
    piece = position >> _PIECE
    return table[piece, 2] == 0 or _is_bit(table[piece, 2], table[piece, 3] + (position & _NUMBER)) == 1


@kernel
def _ask_ahead(table, rows, ahead, width):  # type: ignore[no-untyped-def]
    """Ask for a value that is needed soon."""
    if ahead < len(rows) and rows[ahead] >= 0:
        prefetch(table[rows[ahead] >> _PIECE, 0] + width * (rows[ahead] & _NUMBER))


@kernel
def _take_longs(table, order, rows, values, valid):  # type: ignore[no-untyped-def]
    missing = 0
    for i in range(len(rows)):
        _ask_ahead(table, rows, i + AHEAD, 8)
        position = rows[i]
        if _there(table, position):
            values[order[i]] = load_i64(table[position >> _PIECE, 0] + 8 * (position & _NUMBER))
            valid[order[i]] = 1
        else:
            missing += 1
    return missing


@kernel
def _take_bits(table, order, rows, flags, valid):  # type: ignore[no-untyped-def]
    missing = 0
    for i in range(len(rows)):
        position = rows[i]
        if _there(table, position):
            piece = position >> _PIECE
            flags[order[i]] = _is_bit(table[piece, 0], table[piece, 3] + (position & _NUMBER))
            valid[order[i]] = 1
        else:
            missing += 1
    return missing


@kernel
def _take_validity(table, order, rows, valid):  # type: ignore[no-untyped-def]
    missing = 0
    for i in range(len(rows)):
        if _there(table, rows[i]):
            valid[order[i]] = 1
        else:
            missing += 1
    return missing


@kernel
def _measure(table, order, rows, offsets, valid):  # type: ignore[no-untyped-def]
    """Output offsets per row."""
    missing = 0
    for i in range(len(rows)):
        _ask_ahead(table, rows, i + AHEAD, 4)
        position = rows[i]
        if _there(table, position):
            at = table[position >> _PIECE, 0] + 4 * (position & _NUMBER)
            offsets[order[i] + 1] = load_i32(at + 4) - load_i32(at)
            valid[order[i]] = 1
        else:
            missing += 1
    for row in range(len(rows)):
        offsets[row + 1] += offsets[row]
    return missing


@kernel
def _take_bytes(table, order, rows, offsets, data):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        position = rows[i]
        if _there(table, position):
            piece = position >> _PIECE
            start = np.int64(load_i32(table[piece, 0] + 4 * (position & _NUMBER)))
            at = offsets[order[i]]
            copy_bytes(data + at, table[piece, 1] + start, offsets[order[i] + 1] - at)
