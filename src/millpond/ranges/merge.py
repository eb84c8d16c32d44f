"""Merging indexes, newest first, into one: only the ranges that hold something new are read and written.

Invariants:
* Of several rows of one key the newest index's counts, whole; or one row is made of them, as an `overlay` says.
* The outcome is what writing the merged entries anew would make, id for id. A range is taken over unread only where
  the writer stands at a boundary and no other index has a key within it: then it would end where it ends now.
* The last range of an index may have ended for want of entries; it is taken over only as the last of all.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Invalid
from millpond.ranges.canonical import canonical, row_sizes
from millpond.ranges.gather import gathered
from millpond.ranges.key_columns import key_column, merge_keys
from millpond.ranges.walk import Cursor, check_schemas, shared_bound, take_all, unfinished
from millpond.ranges.writer import BYTES_AT_ONCE_MAX, RangeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond.ranges.index import Boundaries, Index
    from millpond.stores.objects import Objects

    Tombstones = Callable[[pa.RecordBatch], pa.Array | npt.NDArray[np.bool_]]
    Pieces = list[tuple[int, pa.RecordBatch]]
    Overlay = Callable[[Pieces], Iterator[pa.RecordBatch]]

__all__ = ("match_keys", "merge", "write_merged")

PIECE_BYTES = 4 << 20
"""About so many bytes of rows are put together at once: a range may have large ones."""


def merge(
    objects: Objects,
    newest_first: Sequence[Index],
    *,
    drop_tombstones: Tombstones | None = None,
    overlay: Overlay | None = None,
    boundaries: Boundaries | None = None,
    bytes_at_once: int = BYTES_AT_ONCE_MAX,
) -> Index:
    """One index of the entries of several; boundaries are those of the oldest unless others are given.

    `drop_tombstones` says of a batch which rows only mark a deletion, as a mask; those are left out. Pass it only when
    the oldest of `newest_first` is the oldest there is. The oldest itself holds none: it is not read to find out.
    `overlay` makes of the rows of some indexes, of the same stretch of keys, those of the outcome: it takes the number
    of each index and its rows, newest first. `bytes_at_once`: as of `write`.

    Raises: `Invalid` for indexes of different columns; `NotFound`, `Corrupt` for ranges; `Unavailable`.
    """
    if not newest_first:
        raise Invalid("there is nothing to merge", kind="range_merge")
    oldest = newest_first[-1]
    limits = boundaries or oldest.boundaries
    with RangeWriter(objects, oldest.columns, limits, bytes_at_once=bytes_at_once) as writer:
        write_merged(writer, objects, newest_first, drop_tombstones=drop_tombstones, overlay=overlay)
        return writer.finish()


def write_merged(
    writer: RangeWriter, objects: Objects, newest_first: Sequence[Index], *, drop_tombstones: Tombstones | None = None,
    overlay: Overlay | None = None, after: bytes | None = None, upto: bytes | None = None,
) -> None:  # fmt: skip
    """Write what `merge` does of the keys behind `after`, up to and with `upto`; None: of all.

    Raises: likewise.
    """
    check_schemas(newest_first)
    cursors = [Cursor(objects, index) for index in newest_first]
    if after is not None:
        for cursor in cursors:
            # The next of all keys behind it.
            cursor.seek(after + b"\0")
    # Also cursors whose keys all lie behind `upto` are live: a range is taken over by the rule for the whole.
    while live := unfinished(cursors):
        first = min(live, key=lambda cursor: cursor.next_key)
        if upto is not None and first.next_key > upto:
            return
        # A range of any but the oldest may hold tombstones, and has to be read for them.
        clean = (drop_tombstones is None or first is cursors[-1]) and (upto is None or first.entry.last <= upto)
        if clean and _untouched(first, live, writer):
            writer.adopt(first.entry)
            first.skip()
            continue
        bound = shared_bound(live) if upto is None else min(shared_bound(live), upto)
        for merged in (overlay or _newest)(take_all(cursors, bound)):
            writer.append(merged if drop_tombstones is None else _without(merged, drop_tombstones))


def _untouched(cursor: Cursor, live: Sequence[Cursor], writer: RangeWriter) -> bool:
    """True when the current range would be written anew as it is."""
    return (
        cursor.at_start
        and cursor.index.shown is None
        and writer.at_boundary
        and cursor.index.boundaries == writer.boundaries
        # The last range of an index ends where its rows do, not at a key that ends ranges: it would take other rows.
        and (not cursor.in_last or len(live) == 1)
        and all(other.next_key > cursor.entry.last for other in live if other is not cursor)
    )


def _newest(pieces: Pieces) -> Iterator[pa.RecordBatch]:
    """The rows of all, one a key: the newest; in pieces of about `PIECE_BYTES`."""
    merged, *older = (batch for _, batch in pieces)
    if not older:
        yield merged
    while older:
        below = older.pop(0)
        mine, other = match_keys(merged, below)
        # Of a key that both have, the newer row; the rows of `below` are counted behind those of `merged`.
        rows = np.where(mine >= 0, mine, other + merged.num_rows)
        if older:
            merged = gathered([merged, below], rows)
            continue
        # `row_sizes` reads canonical columns, and a stretch is a slice of its range.
        sizes = np.concatenate([row_sizes(canonical(batch)) for batch in (merged, below)])[rows]
        for first, stop in _pieces(sizes):
            yield gathered([merged, below], rows[first:stop])


def _pieces(sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Stretches of rows of about `PIECE_BYTES`; a larger row is alone, so that it is not copied."""
    large = sizes > PIECE_BYTES
    # A piece ends where the sum passes a multiple of the size, and on both sides of a large row.
    ends = np.cumsum(np.where(large, 0, sizes)) // PIECE_BYTES
    begins = np.flatnonzero((ends[1:] != ends[:-1]) | large[1:] | large[:-1]) + 1
    return pairwise([0, *begins.tolist(), len(sizes)]) if len(sizes) else iter(())


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
