"""Changes walked beside an index: which of its ranges they leave alone, and what they make of the others.

Changes are ascending batches with the columns of the index and `deleted`, a mask: a row is put, or its key deleted.
Besides, whole *spans* of keys may be cleared: what the index holds there goes, but for keys that are put.

    Unchanged   a range that no change and no span meets; it was not opened
    Cleared     a range that lies in a span; it was not opened
    Changed     rows of the index and of the changes, side by side

`fold` writes what they make; `differences` shows it.

Invariants:
* `fold` makes what writing the entries anew would make, id for id.
* A put that is equal to the row in the index, in the columns `same`, is no change: the index's row stays.
* Nothing is written twice or opened that no change meets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.ranges.diff import Difference
from millpond.ranges.equality import equal_at
from millpond.ranges.gather import gathered, rows_at
from millpond.ranges.key_columns import key_column, lower_bound, upper_bound
from millpond.ranges.merge import match_keys
from millpond.ranges.spans import NO_SPANS, Spans
from millpond.ranges.walk import Cursor
from millpond.ranges.writer import RangeWriter

if TYPE_CHECKING:
    from millpond.kernel.keys import KeyRange
    from millpond.ranges.index import Index, RangeEntry
    from millpond.stores.objects import Objects

__all__ = ("Changed", "Cleared", "Folded", "Unchanged", "differences", "fold", "walk_changes")


@dataclass(frozen=True, slots=True)
class Folded:
    """The index that changes made, and how many keys were added, changed and removed."""

    index: Index
    added: int
    changed: int
    removed: int

    @property
    def total(self) -> int:
        """Keys that differ from the index before."""
        return self.added + self.changed + self.removed


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A range that is left as it is. `last`: nothing follows it."""

    entry: RangeEntry
    last: bool
    cursor: Cursor

    def rows(self) -> pa.RecordBatch:
        """Its rows; opens it."""
        return self.cursor.take(self.entry.last)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A range whose rows all go."""

    entry: RangeEntry
    cursor: Cursor

    def rows(self) -> pa.RecordBatch:
        """Its rows; opens it."""
        return self.cursor.take(self.entry.last)


@dataclass(frozen=True, slots=True)
class Changed:
    """Rows of the index, and the changes of the same stretch of keys; either may be empty."""

    base: pa.RecordBatch
    changes: pa.RecordBatch
    spans: Spans

    def compare(self, same: Sequence[str]) -> _Compared:
        """The fate of each key of the two."""
        return _Compared(self, same)


class _Compared:
    """The union of the keys of two batches: the row of each in both, and its fate as masks over the union."""

    def __init__(self, step: Changed, same: Sequence[str]) -> None:
        self.base = step.base
        deleted = step.changes.column("deleted").to_numpy(zero_copy_only=False)
        self.puts = step.changes.drop_columns(["deleted"])
        self.base_rows, self.put_rows = match_keys(self.base, self.puts)
        here, said = self.base_rows >= 0, self.put_rows >= 0
        # A span clears what the index holds, and a put within it stays: so spans first, then puts.
        gone = np.zeros(len(here), np.bool_)
        gone[said] = deleted[self.put_rows[said]]
        put = said & ~gone
        if step.spans:
            cleared = step.spans.holds(key_column(self.base.column("key")))
            gone[here] |= cleared[self.base_rows[here]]
            gone &= ~put
        # Equality costs most, so it is asked of the keys alone that both have.
        both = np.flatnonzero(here & put)
        names = list(same)
        equal = equal_at(
            self.base.select(names), self.base_rows[both], self.puts.select(names), self.put_rows[both]
        )  # fmt: skip
        self.added = put & ~here
        self.changed = np.zeros(len(here), np.bool_)
        self.changed[both[~equal]] = True
        self.removed = here & gone
        self.stays = here & ~gone & ~self.changed

    def outcome(self) -> pa.RecordBatch:
        """The rows that there are afterwards."""
        present = self.stays | self.added | self.changed
        # Rows of the second batch are counted behind those of the first: `gathered` takes them as one.
        rows = np.where(self.stays, self.base_rows, self.put_rows + self.base.num_rows)[present]
        return gathered([self.base, self.puts], rows)

    def difference(self) -> Difference:
        """The keys whose fate is not to stay."""
        return Difference(
            removed=rows_at(self.base, self.base_rows[self.removed]),
            added=rows_at(self.puts, self.put_rows[self.added]),
            before=rows_at(self.base, self.base_rows[self.changed]),
            after=rows_at(self.puts, self.put_rows[self.changed]),
        )


class _Feed:
    """Ascending batches, taken piece by piece."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.batch: pa.RecordBatch | None = None
        self._load()

    def _load(self) -> None:
        self.batch = next((batch for batch in self._batches if batch.num_rows), None)
        if self.batch is not None:
            self.keys = key_column(self.batch.column("key"))

    @property
    def first(self) -> bytes | None:
        """The first key to come."""
        return None if self.batch is None else self.keys[0]

    @property
    def last(self) -> bytes:
        """The last key of the batch to come."""
        return self.keys[len(self.keys) - 1]

    def take(self, bound: bytes) -> pa.RecordBatch:
        """The rows of the batch to come up to, and with, a key."""
        return self._cut(upper_bound(self.keys, bound))

    def take_below(self, bound: bytes) -> pa.RecordBatch:
        """The rows of the batch to come up to, and without, a key."""
        return self._cut(lower_bound(self.keys, bound))

    def _cut(self, stop: int) -> pa.RecordBatch:
        batch = self.batch
        assert batch is not None
        # Loaded when it is used up, so that `first` always speaks of the next row.
        if stop == batch.num_rows:
            self._load()
            return batch
        self.batch = batch.slice(stop)
        self.keys = key_column(self.batch.column("key"))
        return batch.slice(0, stop)


def walk_changes(
    objects: Objects, base: Index, changes: Iterable[pa.RecordBatch], spans: Spans = NO_SPANS,
    *, schema: pa.Schema, within: KeyRange | None = None,
) -> Iterator[Unchanged | Cleared | Changed]:  # fmt: skip
    """The index and the changes side by side, in the order of keys; `schema` is that of the changes.

    Only from `within.start` on, and up to the range or batch in which `within.stop` lies.
    """
    cursor, feed = Cursor(objects, base), _Feed(changes)
    no_rows, no_changes = (pa.RecordBatch.from_pylist([], schema=kind) for kind in (base.schema, schema))
    if within is not None:
        cursor.seek(within.start)
    stop = None if within is None else within.stop
    while not cursor.done or feed.batch is not None:
        first = feed.first
        if stop is not None and (first is None or first >= stop) and (cursor.done or cursor.entry.first >= stop):
            return
        if cursor.done:
            # No range is left to be opened for it, so a batch is taken as it comes.
            yield Changed(no_rows, feed.take(feed.last), spans)
            continue
        entry = cursor.entry
        if first is None or first > entry.last:
            # A range in which the cursor has moved on was cut already, so it cannot be taken over whole.
            if cursor.at_start and not spans.meets(entry.first, entry.last):
                yield Unchanged(entry, first is None and cursor.in_last, cursor)
                # Not `skip`: whoever got the range may have read it, and then the cursor is in the next one already.
                cursor.seek(entry.last + b"\0")
                continue
            if cursor.at_start and spans.covers(entry.first, entry.last):
                yield Cleared(entry, cursor)
                cursor.seek(entry.last + b"\0")
                continue
        if first is not None and cursor.at_start and first < entry.first:
            # what comes between two ranges need not open the second
            yield Changed(no_rows, feed.take_below(entry.first), spans)
            continue
        # Neither side leaves its current batch: so both have one batch for the stretch.
        bound = entry.last if first is None else min(entry.last, feed.last)
        rows = cursor.take(bound) if cursor.next_key <= bound else no_rows
        made = feed.take(bound) if first is not None and first <= bound else no_changes
        yield Changed(rows, made, spans)


def fold(
    objects: Objects, base: Index, changes: Iterable[pa.RecordBatch], spans: Spans = NO_SPANS, *, same: Sequence[str],
    compression: str | None = None,
) -> Folded:  # fmt: skip
    """Write what changes make of an index; ranges that they leave alone are taken over unread.

    `same`: the columns by which a put is no change.

    Raises: `Invalid` for keys out of order or other columns; `NotFound`, `Corrupt`; `Unavailable`.
    """
    added = changed = removed = 0
    schema = base.schema.append(pa.field("deleted", pa.bool_(), nullable=False))
    with RangeWriter(objects, base.schema, base.boundaries, compression=compression) as writer:
        for step in walk_changes(objects, base, changes, spans, schema=schema):
            if isinstance(step, Unchanged):
                # the last range may have ended for want of entries
                if writer.at_boundary and (step.last or step.entry is not base.entries[-1]):
                    writer.adopt(step.entry)
                else:
                    writer.append(step.rows())
            elif isinstance(step, Cleared):
                # The index knows how many there are, so nobody reads what goes.
                removed += step.entry.count
            else:
                compared = step.compare(same)
                writer.append(compared.outcome())
                # Counted as it is written: a second walk would read all again.
                added += int(compared.added.sum())
                changed += int(compared.changed.sum())
                removed += int(compared.removed.sum())
        return Folded(writer.finish(), added, changed, removed)


def differences(
    objects: Objects, base: Index, changes: Iterable[pa.RecordBatch], spans: Spans = NO_SPANS, *, same: Sequence[str],
    within: KeyRange | None = None,
) -> Iterator[Difference]:  # fmt: skip
    """The differences that changes make of an index, stretch by stretch; ranges that they leave alone are not opened.

    The changes lie within the bounds already; what the index holds outside of them is left out.
    """
    schema = base.schema.append(pa.field("deleted", pa.bool_(), nullable=False))
    for step in walk_changes(objects, base, changes, spans, schema=schema, within=within):
        if isinstance(step, Unchanged):
            continue
        if isinstance(step, Cleared):
            none = step.cursor.index.schema.empty_table().to_batches()
            empty = none[0] if none else pa.RecordBatch.from_pylist([], schema=base.schema)
            difference = Difference(step.rows(), empty, empty, empty)
        else:
            difference = step.compare(same).difference()
        if within is not None and within.stop is not None:
            difference = difference.below(within.stop)
        if len(difference):
            yield difference
