"""What differs between two indexes, read side by side; ranges they share are never opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.stores.range_arrays import equal_rows
from millpond.stores.range_merge import match_keys
from millpond.stores.range_walk import Cursor, check_schemas, shared_bound, unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from millpond.stores.objects import Objects
    from millpond.stores.range_index import Index

__all__ = ("Difference", "diff")


@dataclass(frozen=True, slots=True)
class Difference:
    """The keys of one stretch that differ, each part in order; `before` and `after` hold the same keys, row by row."""

    removed: pa.RecordBatch
    added: pa.RecordBatch
    before: pa.RecordBatch
    after: pa.RecordBatch

    def __len__(self) -> int:
        return self.removed.num_rows + self.added.num_rows + self.after.num_rows


def diff(objects: Objects, a: Index, b: Index) -> Iterator[Difference]:
    """What turns `a` into `b`, stretch by stretch in the order of keys; nothing where they are the same.

    Rows are compared bit by bit: NaN equals itself, 0.0 and -0.0 differ.

    Raises: `Invalid` for indexes of different columns; `NotFound`, `Corrupt` for ranges.
    """
    check_schemas([a, b])
    return _walk(Cursor(objects, a), Cursor(objects, b))


def _walk(old: Cursor, new: Cursor) -> Iterator[Difference]:
    while live := unfinished([old, new]):
        if len(live) == 2 and old.at_start and new.at_start and old.entry.id == new.entry.id:
            old.skip()
            new.skip()
            continue
        bound = shared_bound(live)
        none = pa.RecordBatch.from_pylist([], schema=live[0].index.schema)
        before, after = (
            none if cursor.done or cursor.next_key > bound else cursor.take(bound) for cursor in (old, new)
        )
        found = _compare(before, after)
        if len(found):
            yield found


def _compare(before: pa.RecordBatch, after: pa.RecordBatch) -> Difference:
    old, new = match_keys(before, after)
    both = (old >= 0) & (new >= 0)
    was, now = _rows(before, old[both]), _rows(after, new[both])
    changed = np.flatnonzero(~equal_rows(was, now))
    return Difference(
        removed=_rows(before, old[new < 0]),
        added=_rows(after, new[old < 0]),
        before=_rows(was, changed),
        after=_rows(now, changed),
    )


def _rows(batch: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Some rows of a batch, in order; all of them are the batch itself."""
    return batch if len(chosen) == batch.num_rows else batch.take(pa.array(chosen))
