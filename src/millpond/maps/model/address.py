"""The address of a row as bytes whose order is the order of the rows.

keyed kinds   escaped key · 00 · each time, sign bit flipped, 8 bytes big-endian
ranged kinds  start · end [· effective_time], likewise

Escaping writes byte 00 of a key as `01 01` and byte 01 as `01 02`, so that the closing 00 sorts before every
continuation: no key is ever confused with another key's prefix, and byte order is key order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import Bytes, bytes_of, fixed_piece, join, ordered_long, var_piece
from millpond.arrays.compiled import kernel
from millpond.maps.model.definition import MapDefinition

__all__ = ("address_bytes", "escape", "long_column", "times_of", "unescape")


def long_column(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """An int64 column as NumPy, without a copy where Arrow allows."""
    column: npt.NDArray[np.int64] = rows.column(name).to_numpy(zero_copy_only=False)
    return column


def times_of(definition: MapDefinition, rows: pa.RecordBatch) -> list[npt.NDArray[np.int64]]:
    """The int64 address columns, in order: all but `key`."""
    return [long_column(rows, name) for name in definition.kind.address if name != "key"]


def address_bytes(definition: MapDefinition, rows: pa.RecordBatch) -> Bytes:
    """The address of every row."""
    longs = [fixed_piece(ordered_long(column)) for column in times_of(definition, rows)]
    if not definition.kind.keyed:
        return join(rows.num_rows, longs)
    key = escape(bytes_of(rows.column("key")))
    closing = fixed_piece(np.zeros(rows.num_rows, np.uint8))
    return join(rows.num_rows, [var_piece(key), closing, *longs])


def escape(column: Bytes) -> Bytes:
    """Keys with their bytes 00 and 01 escaped; a column without them is given back as it is."""
    if not bool(np.any(column.data < 2)):
        return column
    low = np.concatenate([[0], np.cumsum(column.data < 2, dtype=np.int64)])
    extra = low[column.offsets]
    offsets = column.offsets + extra - extra[0]
    out = np.empty(int(offsets[-1]), np.uint8)
    _escape(out, column.data)
    return Bytes(offsets, out)


@kernel
def _escape(out, data):  # type: ignore[no-untyped-def]
    at = 0
    for byte in data:
        if byte < 2:
            out[at] = 1
            out[at + 1] = byte + 1
            at += 2
        else:
            out[at] = byte
            at += 1


def unescape(column: Bytes, tail: int) -> Bytes:
    """The keys within addresses that end in a closing 00 and `tail` more bytes."""
    offsets = np.zeros(len(column) + 1, np.int64)
    _unescaped_lengths(offsets, column.offsets, column.data, tail + 1)
    np.cumsum(offsets, out=offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _unescape(out, offsets, column.offsets, column.data)
    return Bytes(offsets, out)


@kernel
def _unescaped_lengths(lengths, offsets, data, tail):  # type: ignore[no-untyped-def]
    for i in range(len(offsets) - 1):
        stop = offsets[i + 1] - tail
        count = stop - offsets[i]
        for k in range(offsets[i], stop):
            if data[k] == 1:
                count -= 1
        # An escape pair is 01 01 or 01 02: the second 01 was counted as an escape of its own.
        k = offsets[i]
        while k < stop:
            if data[k] == 1:
                if data[k + 1] == 1:
                    count += 1
                k += 1
            k += 1
        lengths[i + 1] = count


@kernel
def _unescape(out, out_offsets, offsets, data):  # type: ignore[no-untyped-def]
    for i in range(len(offsets) - 1):
        k = offsets[i]
        for at in range(out_offsets[i], out_offsets[i + 1]):
            if data[k] == 1:
                out[at] = data[k + 1] - 1
                k += 2
            else:
                out[at] = data[k]
                k += 1
