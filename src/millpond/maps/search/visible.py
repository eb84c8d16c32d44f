"""The visible groups of a snapshot: the newest layer's group of a key hides every older one.

A tombstone hides what is under it and is itself nothing. Looking a key up needs none of this (the newest layer is
asked first); reading everything does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_u8
from millpond.maps.search.group_table import KEY_DATA, KEY_OFFSETS
from millpond.maps.search.groups import Groups

__all__ = ("compare_keys", "tombstones", "visible_groups")


def visible_groups(groups: Groups) -> list[npt.NDArray[np.bool_]]:
    """For each piece, which of its groups have rows and are hidden by no newer layer."""
    alive = [_with_rows(batch) for batch in groups.batches]
    firsts = [batch.column("key")[0].as_py() for batch in groups.batches]
    lasts = [batch.column("key")[-1].as_py() for batch in groups.batches]
    for layer in range(1, len(groups.layers) - 1):
        for piece in range(groups.layers[layer], groups.layers[layer + 1]):
            for newer in range(groups.layers[layer]):
                if firsts[newer] <= lasts[piece] and firsts[piece] <= lasts[newer]:
                    _hide(*_keys(groups, newer), *_keys(groups, piece), alive[piece])
    return alive


def tombstones(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Mask of the groups of a batch that are tombstones."""
    return ~_with_rows(batch)


def _with_rows(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    rows = batch.column("rows")
    offsets = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return np.diff(offsets) > 0


def _keys(groups: Groups, piece: int) -> tuple[int, int, int]:
    return int(groups.table[piece, KEY_OFFSETS]), int(groups.table[piece, KEY_DATA]), groups.batches[piece].num_rows


@kernel
def compare_keys(a, a_length, b, b_length):  # type: ignore[no-untyped-def]
    """Less than 0 where the first key comes before the second, 0 where they are equal, else more."""
    for k in range(min(a_length, b_length)):
        difference = np.int64(load_u8(a + k)) - np.int64(load_u8(b + k))
        if difference != 0:
            return difference
    return a_length - b_length


@kernel
def _hide(offsets, data, count, under_offsets, under_data, under_count, alive):  # type: ignore[no-untyped-def]
    """Both columns ascend: each key of the upper one puts out the equal key under it."""
    low = 0
    for number in range(count):
        start = np.int64(load_i32(offsets + 4 * number))
        length = np.int64(load_i32(offsets + 4 * number + 4)) - start
        high = under_count
        while low < high:
            middle = (low + high) >> 1
            under = np.int64(load_i32(under_offsets + 4 * middle))
            under_length = np.int64(load_i32(under_offsets + 4 * middle + 4)) - under
            if compare_keys(under_data + under, under_length, data + start, length) < 0:
                low = middle + 1
            else:
                high = middle
        if low < under_count:
            under = np.int64(load_i32(under_offsets + 4 * low))
            under_length = np.int64(load_i32(under_offsets + 4 * low + 4)) - under
            if compare_keys(under_data + under, under_length, data + start, length) == 0:
                alive[low] = False
