"""The differences between two indexes, read side by side; ranges they share are never opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.ranges.equality import equal_at
from millpond.ranges.gather import rows_at
from millpond.ranges.key_columns import key_column, lower_bound
from millpond.ranges.merge import match_keys
from millpond.ranges.walk import Cursor, check_schemas, shared_bound, unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.ranges.index import Index
    from millpond.stores.objects import Objects

__all__ = ("Difference", "diff", "limited")


@dataclass(frozen=True, slots=True)
class Difference:
    """The keys of one stretch that differ, each part in order; `before` and `after` hold the same keys, row by row."""

    removed: pa.RecordBatch
    added: pa.RecordBatch
    before: pa.RecordBatch
    after: pa.RecordBatch

    def __len__(self) -> int:
        return self.removed.num_rows + self.added.num_rows + self.after.num_rows

    def below(self, stop: bytes) -> Difference:
        """Its keys below `stop`."""
        parts = (self.removed, self.added, self.before, self.after)
        return Difference(*(part.slice(0, lower_bound(key_column(part.column("key")), stop)) for part in parts))

    def first(self, count: int) -> Difference:
        """Its first `count` keys, which are fewer than it has."""
        keys = pa.concat_arrays([part.column("key") for part in (self.removed, self.added, self.after)])
        # Three ascending columns, merged by a sort: a page is small, and it happens once for each.
        order = pc.array_sort_indices(keys)
        return self.below(keys[order[count].as_py()].as_py())


def diff(
    objects: Objects,
    a: Index,
    b: Index,
    *,
    prefix: bytes | str = b"",
    after: bytes | None = None,
    limit: int | None = None,
    same: Sequence[str] | None = None,
    within: KeyRange | None = None,
) -> Iterator[Difference]:
    """The changes that turn `a` into `b`, range by range in the order of keys; none where they are the same.

    Only keys that begin with `prefix`, are above `after` and lie in `within`; at most `limit` of them. A page goes on
    where the last ended: `after` is its `last_key`. Pages joined are the whole, and each opens no more than it shows.
    Rows are compared bit by bit (NaN equals itself, 0.0 and -0.0 differ), in the columns `same`, in all by default.

    Raises: `Invalid` for indexes of different columns; `NotFound`, `Corrupt` for ranges.
    """
    check_schemas([a, b])
    if limit is not None and limit < 0:
        raise Invalid("a limit below zero", kind="range_limit", limit=limit)
    start, stop = starting(prefix)
    if after is not None:
        # The next of all keys behind it.
        start = max(start, after + b"\0")
    if within is not None:
        start = max(start, within.start)
        stop = min((bound for bound in (stop, within.stop) if bound is not None), default=None)
    old, new = Cursor(objects, a), Cursor(objects, b)
    for cursor in (old, new):
        cursor.seek(start)
    return limited(_walk(old, new, stop, same), limit)


def _walk(old: Cursor, new: Cursor, stop: bytes | None, same: Sequence[str] | None) -> Iterator[Difference]:
    while live := unfinished([old, new]):
        # Ids are content: the same id at the same place is a range that nobody need open.
        if len(live) == 2 and old.entry.id == new.entry.id:
            old.skip()  # both stand at the same place of it
            new.skip()
            continue
        # By the index alone: `next_key` may open a range, of which nobody wants anything.
        if stop is not None and all(cursor.entry.first >= stop for cursor in live):
            return
        bound = shared_bound(live)
        none = pa.RecordBatch.from_pylist([], schema=live[0].index.columns)
        before, after = (
            none if cursor.done or cursor.next_key > bound else cursor.take(bound) for cursor in (old, new)
        )
        difference = _compare(before, after, same)
        if stop is not None and stop <= bound:
            difference = difference.below(stop)
        if len(difference):
            yield difference
        if stop is not None and stop <= bound:
            return


def limited(differences: Iterator[Difference], limit: int | None) -> Iterator[Difference]:
    """The first so many keys of differences."""
    if limit is None:
        yield from differences
        return
    while limit > 0 and (next_ := next(differences, None)) is not None:
        if len(next_) > limit:
            next_ = next_.first(limit)
        limit -= len(next_)
        yield next_


def _compare(before: pa.RecordBatch, after: pa.RecordBatch, same: Sequence[str] | None) -> Difference:
    old, new = match_keys(before, after)
    both = (old >= 0) & (new >= 0)
    was, now = old[both], new[both]
    shown = [batch if same is None else batch.select(list(same)) for batch in (before, after)]
    changed = ~equal_at(shown[0], was, shown[1], now)
    return Difference(
        removed=rows_at(before, old[new < 0]),
        added=rows_at(after, new[old < 0]),
        before=rows_at(before, was[changed]),
        after=rows_at(after, now[changed]),
    )
