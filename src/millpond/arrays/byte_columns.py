"""Columns of byte strings, put together, sorted and taken apart whole: the kernels of writing.

A `Bytes` column is NumPy `offsets` (int64, n + 1) over `data` (uint8). A row of bytes is joined from
*pieces*, left to right; each piece is a column of fixed or varying width, absent where its `valid` is 0.

Invariants:
* `offsets` starts at 0, never falls, and ends at `len(data)`.
* `sort_order` is stable: equal rows keep their order, so "the later row wins" is "the last of a run".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, same_bytes
from millpond.arrays.sorting import order_of_strings, taken

__all__ = (
    "Bytes", "Piece", "bytes_of", "concatenated", "fixed_piece", "join", "plain_long", "ordered_long", "run_ends",
    "sort_order", "take", "take_column", "take_rows", "to_list", "var_piece",
)  # fmt: skip

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bytes:
    """A column of byte strings."""

    offsets: I64
    data: U8

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> I64:
        """The length of each row in bytes."""
        return np.diff(self.offsets)

    def rows(self, start: int, stop: int) -> Bytes:
        """Some of the rows; the bytes are shared."""
        offsets = self.offsets[start : stop + 1]
        return Bytes(offsets - offsets[0], self.data[offsets[0] : offsets[-1]])

    def to_arrow(self) -> pa.Array:
        """As an Arrow binary array (large when it must be); the bytes are shared."""
        wide = int(self.offsets[-1]) > 0x7FFF0000
        offsets = self.offsets if wide else self.offsets.astype(np.int32)
        kind = pa.large_binary() if wide else pa.binary()
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of every row: fixed `width` bytes of `data`, or `offsets` over it; absent where not `valid`."""

    width: int
    data: U8
    offsets: I64
    valid: U8


_NO_OFFSETS: I64 = np.zeros(1, np.int64)
_ALL_VALID: U8 = np.zeros(0, np.uint8)


def bytes_of(array: pa.Array | pa.ChunkedArray) -> Bytes:
    """The byte strings of an Arrow binary or string array; nulls are empty."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(b"" if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) else "")
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    kind = np.int64 if wide else np.int32
    count = len(array)
    if count == 0 or offsets_buffer is None:
        return Bytes(np.zeros(count + 1, np.int64), np.zeros(0, np.uint8))
    offsets = np.frombuffer(offsets_buffer, kind)[array.offset : array.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    return Bytes(offsets - first if first else offsets, data[first:last])


def fixed_piece(values: npt.NDArray[Any], valid: npt.NDArray[Any] | None = None) -> Piece:
    """A piece of the values' own width, in their own byte order: pass big-endian arrays."""
    flat = np.ascontiguousarray(values)
    width = flat.dtype.itemsize * (flat.shape[1] if flat.ndim == 2 else 1)
    return Piece(width, flat.reshape(-1).view(np.uint8), _NO_OFFSETS, _validity(valid))


def var_piece(column: Bytes, valid: npt.NDArray[Any] | None = None) -> Piece:
    """A piece of varying width."""
    return Piece(0, column.data, column.offsets, _validity(valid))


def _validity(valid: npt.NDArray[Any] | None) -> U8:
    return _ALL_VALID if valid is None else np.ascontiguousarray(valid).astype(np.uint8, copy=False)


def plain_long(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Two's complement, big-endian: 8 bytes whose order is wrong for negative numbers."""
    return values.astype(">i8")


def ordered_long(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sign bit flipped, big-endian: 8 bytes in the order of the numbers."""
    return (values.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")


def join(count: int, pieces: Sequence[Piece]) -> Bytes:
    """Rows made of their pieces, left to right."""
    lengths = np.zeros(count, np.int64)
    for piece in pieces:
        _add_lengths(lengths, piece.width, piece.offsets, piece.valid)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    cursor = offsets[:-1].copy()
    for piece in pieces:
        _put_piece(data.ctypes.data, cursor, piece.width, piece.data.ctypes.data, piece.offsets, piece.valid)
    return Bytes(offsets, data)


@kernel
def _add_lengths(lengths, width, offsets, valid):  # type: ignore[no-untyped-def]
    for i in range(len(lengths)):
        if len(valid) == 0 or valid[i]:
            lengths[i] += width if width else offsets[i + 1] - offsets[i]


@kernel
def _put_piece(out, cursor, width, data, offsets, valid):  # type: ignore[no-untyped-def]
    for i in range(len(cursor)):
        if len(valid) and not valid[i]:
            continue
        start = i * width if width else offsets[i]
        stop = start + width if width else offsets[i + 1]
        copy_bytes(out + cursor[i], data + start, stop - start)
        cursor[i] += stop - start


def concatenated(columns: Sequence[Bytes]) -> Bytes:
    """The rows of columns, one column after another."""
    if len(columns) == 1:
        return columns[0]
    offsets = np.zeros(1 + sum(map(len, columns)), np.int64)
    np.cumsum(np.concatenate([column.lengths for column in columns]), out=offsets[1:])
    return Bytes(offsets, np.concatenate([column.data for column in columns]))


def take(column: Bytes, order: I64) -> Bytes:
    """The rows of `column` in `order`."""
    return Bytes(*taken(column.offsets, column.data, order))


def take_rows(rows: pa.RecordBatch, order: I64) -> pa.RecordBatch:
    """The rows of a batch in `order`."""
    return pa.RecordBatch.from_arrays([take_column(column, order) for column in rows.columns], schema=rows.schema)


def take_column(column: pa.Array, order: I64) -> pa.Array:
    """The rows of a column in `order`."""
    if column.null_count == 0 and column.type == pa.binary():
        return take(bytes_of(column), order).to_arrow()
    if column.null_count == 0 and (pa.types.is_int64(column.type) or pa.types.is_float64(column.type)):
        return pa.array(column.to_numpy()[order])
    return column.take(pa.array(order))


def to_list(column: Bytes) -> list[bytes]:
    """As Python byte strings, for LMDB."""
    values: list[bytes] = column.to_arrow().to_numpy(zero_copy_only=False).tolist()
    return values


def sort_order(column: Bytes) -> I64:
    """The stable order that sorts the rows as bytes, shortest prefix first."""
    return order_of_strings(column.offsets, column.data)


@kernel
def _run_ends(offsets, data, tail):  # type: ignore[no-untyped-def]
    count = len(offsets) - 1
    last = np.ones(count, np.uint8)
    for i in range(count - 1):
        length = offsets[i + 1] - offsets[i]
        if length == offsets[i + 2] - offsets[i + 1] and same_bytes(
            data + offsets[i], data + offsets[i + 1], length - tail
        ):
            last[i] = 0
    return last


def run_ends(column: Bytes, tail: int = 0) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a sorted column that end a run of rows equal but for their last `tail` bytes."""
    ends: npt.NDArray[np.bool_] = _run_ends(column.offsets, column.data.ctypes.data, tail).astype(np.bool_)
    return ends
