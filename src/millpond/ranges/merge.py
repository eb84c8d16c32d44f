"""Merging indexes, newest first, into one: only the ranges that hold something new are read and written.

Invariants:
* Of several rows of one key the newest index's counts, whole.
* The outcome is what writing the merged entries anew would make, id for id. A range is taken over unread only where
  the writer stands at a boundary and no other index has a key within it: then it would end where it ends now.
* The last range of an index may have ended for want of entries; it is taken over only as the last of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Invalid
from millpond.ranges.gather import gathered
from millpond.ranges.key_columns import key_column, merge_keys
from millpond.ranges.walk import Cursor, check_schemas, shared_bound, unfinished
from millpond.ranges.writer import RangeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.ranges.index import Boundaries, Index
    from millpond.stores.objects import Objects

    Tombstones = Callable[[pa.RecordBatch], pa.Array | npt.NDArray[np.bool_]]

__all__ = ("match_keys", "merge")


def merge(
    objects: Objects,
    newest_first: Sequence[Index],
    *,
    drop_tombstones: Tombstones | None = None,
    boundaries: Boundaries | None = None,
) -> Index:
    """One index of the entries of several; boundaries are those of the oldest unless others are given.

    `drop_tombstones` says of a batch which rows only mark a deletion, as a mask; those are left out. Pass it only when
    the oldest of `newest_first` is the oldest there is. The oldest itself holds none: it is not read to find out.

    Raises: `Invalid` for indexes of different columns; `NotFound`, `Corrupt` for ranges; `Unavailable`.
    """
    if not newest_first:
        raise Invalid("there is nothing to merge", kind="range_merge")
    check_schemas(newest_first)
    oldest = newest_first[-1]
    cursors = [Cursor(objects, index) for index in newest_first]
    with RangeWriter(objects, oldest.schema, boundaries or oldest.boundaries) as writer:
        while live := unfinished(cursors):
            first = min(live, key=lambda cursor: cursor.next_key)
            clean = drop_tombstones is None or first is cursors[-1]
            if clean and _untouched(first, live, writer):
                writer.adopt(first.entry)
                first.skip()
                continue
            bound = shared_bound(live)
            merged = _overlay([cursor.take(bound) for cursor in live if cursor.next_key <= bound])
            writer.append(merged if drop_tombstones is None else _without(merged, drop_tombstones))
        return writer.finish()


def _untouched(cursor: Cursor, live: Sequence[Cursor], writer: RangeWriter) -> bool:
    """True when the current range would be written anew as it is."""
    return (
        cursor.at_start
        and writer.at_boundary
        and cursor.index.boundaries == writer.boundaries
        and (not cursor.in_last or len(live) == 1)
        and all(other.next_key > cursor.entry.last for other in live if other is not cursor)
    )


def _overlay(newest_first: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all, one a key: the newest."""
    *newer, merged = newest_first
    for batch in reversed(newer):
        mine, other = match_keys(batch, merged)
        merged = gathered([batch, merged], np.where(mine >= 0, mine, other + batch.num_rows))
    return merged


def _without(batch: pa.RecordBatch, tombstones: Tombstones) -> pa.RecordBatch:
    gone: Any = tombstones(batch)
    if isinstance(gone, pa.Array):
        gone = gone.to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(~gone)) if gone.any() else batch


def match_keys(a: pa.RecordBatch, b: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The union of two batches' keys in order: for each the row in `a` and the row in `b`, -1 where it is not."""
    left, right = key_column(a.column("key")), key_column(b.column("key"))
    a_rows = np.empty(len(left) + len(right), np.int64)
    b_rows = np.empty_like(a_rows)
    count = merge_keys(left.offsets, left.data, right.offsets, right.data, a_rows, b_rows)
    return a_rows[:count], b_rows[:count]
