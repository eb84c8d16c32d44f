"""Rows taken out of several batches into one, column by column, without putting the batches together first.

Invariants:
* Rows are counted over all batches, one behind the other, and come in the order in which they are named.
* Rows that lie side by side in a batch are copied at once: a state that changed little costs little more than a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as is_type

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, load_i32, store_i32

__all__ = ("gathered", "rows_at")

_I64: TypeAlias = npt.NDArray[np.int64]
_OFFSET_MAX = 0x7FFF_FFFF


def rows_at(batch: pa.RecordBatch, rows: _I64) -> pa.RecordBatch:
    """Some rows of a batch; those that lie side by side are a slice of it."""
    if not len(rows):
        return batch.slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first == len(rows) - 1 and bool((rows == np.arange(first, last + 1)).all()):
        return batch.slice(first, len(rows))
    return batch.take(pa.array(rows))


def gathered(batches: Sequence[pa.RecordBatch], rows: _I64) -> pa.RecordBatch:
    """Rows of batches of one schema, counted over all of them, as one batch."""
    starts = np.zeros(len(batches) + 1, np.int64)
    np.cumsum([batch.num_rows for batch in batches], out=starts[1:])
    for number, batch in enumerate(batches):
        if not len(rows) or (rows.min() >= starts[number] and rows.max() < starts[number + 1]):
            return rows_at(batch, rows - starts[number])
    # Some columns are joined whole before rows are taken of them: so there is as little as may be.
    batches, starts, rows = _trimmed(batches, starts, rows)
    runs = _runs_of(starts, np.ascontiguousarray(rows, np.int64))
    columns = [_column([batch.column(at) for batch in batches], runs) for at in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _trimmed(batches: Sequence[pa.RecordBatch], starts: _I64, rows: _I64) -> tuple[list[pa.RecordBatch], _I64, _I64]:
    """The batches from the first row that is wanted of each to the last, and the rows counted over these."""
    trimmed, new_starts, counted = [], [0], np.empty(len(rows), np.int64)
    for number, batch in enumerate(batches):
        here = (rows >= starts[number]) & (rows < starts[number + 1])
        of_batch = rows[here] - starts[number]
        first, stop = (int(of_batch.min()), int(of_batch.max()) + 1) if len(of_batch) else (0, 0)
        counted[here] = of_batch - first + new_starts[-1]
        trimmed.append(batch.slice(first, stop - first))
        new_starts.append(new_starts[-1] + stop - first)
    return trimmed, np.array(new_starts, np.int64), counted


def _runs_of(starts: _I64, rows: _I64) -> _I64:
    """The stretches of rows that lie side by side in one batch: its number, the first row there, how many."""
    runs = np.empty((len(rows), 3), np.int64)
    return runs[: _find_runs(starts, rows, runs)]


@kernel
def _find_runs(starts, rows, runs):  # type: ignore[no-untyped-def]
    count, following, stop = 0, np.int64(-1), np.int64(-1)
    for at in range(len(rows)):
        row = rows[at]
        # A run ends where rows do not follow each other, and where a batch ends: the next row lies in other memory.
        if row != following or row == stop:
            # From the first on: batches are few, one for each index side by side, so a search would hardly be faster.
            source = 0
            while row >= starts[source + 1]:
                source += 1
            stop = starts[source + 1]
            runs[count, 0] = source
            runs[count, 1] = row - starts[source]
            runs[count, 2] = 0
            count += 1
        runs[count - 1, 2] += 1
        following = row + 1
    return count


def _column(parts: list[pa.Array], runs: _I64) -> pa.Array:
    kind = parts[0].type
    # Bitmaps, and values of other widths, are left to Arrow. Ranges of the hot paths hardly have them.
    if not any(part.null_count for part in parts):
        if kind in (pa.binary(), pa.string()):
            joined = _bytes(parts, runs)
            if joined is not None:
                return joined
        elif is_type.is_primitive(kind) and kind.bit_width == 64:
            return _words(parts, runs)
    places = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    rows = np.repeat(places[runs[:, 0]] + runs[:, 1], runs[:, 2]) + _within(runs[:, 2])
    return pa.concat_arrays(parts).take(pa.array(rows))


def _within(counts: _I64) -> _I64:
    """0, 1, 2 … for each count, one after another."""
    stops = np.cumsum(counts)
    return np.arange(stops[-1]) - np.repeat(stops - counts, counts)


def _words(parts: list[pa.Array], runs: _I64) -> pa.Array:
    count = int(runs[:, 2].sum())
    out = pa.allocate_buffer(8 * count)
    # The offset is counted in rows: a slice has the buffers of its whole column.
    sources = np.array([_address(part, 1) + 8 * part.offset for part in parts], np.int64)
    _copy_words(sources, runs, out.address)
    return pa.Array.from_buffers(parts[0].type, count, [None, out], 0)


def _bytes(parts: list[pa.Array], runs: _I64) -> pa.Array | None:
    """The rows of columns of bytes; None when they are too many for one array."""
    count = int(runs[:, 2].sum())
    offsets = pa.allocate_buffer(4 * (count + 1))
    places = np.array([_address(part, 1) + 4 * part.offset for part in parts], np.int64)
    size = _copy_offsets(places, runs, offsets.address)
    # Before a byte is copied: the offsets of 32 bits went beyond their range, the sum of 64 bits did not.
    if size > _OFFSET_MAX:
        return None
    data = pa.allocate_buffer(size)
    sources = np.array([_address(part, 2) for part in parts], np.int64)
    _copy_data(places, sources, runs, data.address)
    return pa.Array.from_buffers(parts[0].type, count, [None, offsets, data], 0)


def _address(array: pa.Array, buffer: int) -> int:
    content = array.buffers()[buffer]
    # A column without bytes may have no buffer. Nothing is copied from there.
    return 0 if content is None else int(content.address)


@kernel
def _copy_words(sources, runs, out):  # type: ignore[no-untyped-def]
    for at in range(len(runs)):
        length = 8 * runs[at, 2]
        copy_bytes(out, sources[runs[at, 0]] + 8 * runs[at, 1], length)
        out += length


@kernel
def _copy_offsets(places, runs, out):  # type: ignore[no-untyped-def]
    """Write the offsets of the rows, which begin at 0; answers the last of them, whole also where it is too large."""
    size = np.int64(0)
    store_i32(out, np.int32(0))
    for at in range(len(runs)):
        place = places[runs[at, 0]] + 4 * runs[at, 1]
        # The bytes of a run are copied as they lie, so that all of its offsets move by the same.
        shift = size - np.int64(load_i32(place))
        for row in range(1, runs[at, 2] + 1):
            size = np.int64(load_i32(place + 4 * row)) + shift
            out += 4
            store_i32(out, np.int32(size))
    return size


@kernel
def _copy_data(places, sources, runs, out):  # type: ignore[no-untyped-def]
    for at in range(len(runs)):
        place = places[runs[at, 0]] + 4 * runs[at, 1]
        start = np.int64(load_i32(place))
        length = np.int64(load_i32(place + 4 * runs[at, 2])) - start
        copy_bytes(out, sources[runs[at, 0]] + start, length)
        out += length
