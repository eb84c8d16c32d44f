"""Rows compared where they lie: nothing is taken out of its batch to be compared with a row of another.

Invariants:
* Rows are the same when their canonical bits are: NaN equals itself, 0.0 and -0.0 differ.
* A column that differs is looked at no further: each column compares the rows that all before it found the same.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as is_type

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, same_bytes
from millpond.ranges.canonical import equal_rows
from millpond.ranges.gather import rows_at

__all__ = ("equal_at",)

_Rows: TypeAlias = npt.NDArray[np.int64]


def equal_at(a: pa.RecordBatch, a_rows: _Rows, b: pa.RecordBatch, b_rows: _Rows) -> npt.NDArray[np.bool_]:
    """Place by place, true where a row of `a` and a row of `b`, batches of one schema, hold the same."""
    assert len(a_rows) == len(b_rows) and a.schema.equals(b.schema)
    out = np.ones(len(a_rows), np.bool_)
    others = []
    for at, field in enumerate(a.schema):
        left, right = a.column(at), b.column(at)
        # Nulls need what `canonical` does, and no column of the hot path has any.
        if left.null_count or right.null_count or not len(left) or not len(right):
            others.append(at)
        elif is_type.is_integer(field.type):
            left, right = (column.to_numpy() for column in (left, right))
            out &= left[a_rows] == right[b_rows]
        elif field.type in (pa.binary(), pa.string()):
            _compare_bytes(*_places(left), a_rows, *_places(right), b_rows, out)
        else:
            others.append(at)
    if others:
        # Only rows that are equal so far are taken out of their batches.
        rest = np.flatnonzero(out)
        out[rest] = equal_rows(rows_at(a.select(others), a_rows[rest]), rows_at(b.select(others), b_rows[rest]))
    return out


def _places(array: pa.Array) -> tuple[int, int]:
    """The addresses of the first offset of an array, sliced or not, and of its bytes."""
    _, offsets, data = array.buffers()
    return offsets.address + 4 * array.offset, 0 if data is None else data.address


@kernel
def _compare_bytes(a_offsets, a, a_rows, b_offsets, b, b_rows, out):  # type: ignore[no-untyped-def]
    for at in range(len(out)):
        # Another column has found that the rows differ.
        if not out[at]:
            continue
        mine, other = a_offsets + 4 * a_rows[at], b_offsets + 4 * b_rows[at]
        start, begin = np.int64(load_i32(mine)), np.int64(load_i32(other))
        length = np.int64(load_i32(mine + 4)) - start
        out[at] = length == np.int64(load_i32(other + 4)) - begin and same_bytes(a + start, b + begin, length)
