"""Walking indexes side by side in the order of their keys, opening only the ranges that must be read, and verifying
those.

    cursors = [Cursor(objects, index) for index in …]
    …  cursor.seek(key)                          on to the first key that is not below; opens nothing
    while live := unfinished(cursors):
        …  cursor.skip()                         a range that need not be read
        bound = shared_bound(live)
        …  cursor.take(bound)                    the rows up to there, of the current range alone

    pieces = take_stretch(cursors, stop)         all of that at once, up to a key

Cursors only move forward. A cursor that was sought into the middle of a range opens it when its rows or its next key
are wanted, not before: a walk that leaves the range by another `seek` never reads it.

Why a range that two indexes share is always met by both at once: every bound is the last key of a range, so no walk
ever stops inside a range unless another index has a range that ends there; a shared range holds no such key but its
own last.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.ranges.key_columns import KeyColumn, key_column, lower_bound, upper_bound
from millpond.ranges.reader import open_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from millpond.ranges.index import Index, RangeEntry
    from millpond.stores.objects import Objects

__all__ = ("Cursor", "check_schemas", "shared_bound", "take_all", "take_stretch", "unfinished")

_HELD_MAX = 4  # ranges of a walk that a cache holds: pages read the same few again, a long walk none


class Cursor:
    """A place in an index: a range of it, and a row there."""

    def __init__(self, objects: Objects, index: Index) -> None:
        self.index = index
        self._objects = objects
        self._range_no = self._row = 0
        self._floor: bytes | None = None  # sought, and not looked for in the current range yet
        self._batch: pa.RecordBatch | None = None
        self._keys: KeyColumn | None = None
        self._opened = 0

    @property
    def done(self) -> bool:
        """True when all was taken or skipped."""
        return self._range_no == len(self.index.entries)

    @property
    def entry(self) -> RangeEntry:
        """The current range."""
        return self.index.entries[self._range_no]

    @property
    def at_start(self) -> bool:
        """True when all of the current range is still to come."""
        return self._row == 0 and self._floor is None

    @property
    def in_last(self) -> bool:
        """True when the current range is the last of the index."""
        return self._range_no == len(self.index.entries) - 1

    @property
    def next_key(self) -> bytes:
        """The first key to come; at the start of a range, knowing it opens nothing.

        Raises: `NotFound`, `Corrupt`.
        """
        # The index tells, so a range that is skipped in the end is never opened.
        if self._keys is None and self.at_start:
            return self.entry.first
        return self._open()[1][self._row]

    def coming(self, after: int) -> RangeEntry | None:
        """The range so many places after the current one, None behind the last."""
        at = self._range_no + after
        return self.index.entries[at] if at < len(self.index.entries) else None

    def skip(self) -> None:
        """Leave the current range without reading what is left of it."""
        self._move_to(self._range_no + 1)

    def seek(self, key: bytes) -> None:
        """Move on to the first key that is not below `key`, if it lies ahead; nothing is opened."""
        if self.done or (self.entry.first >= key and self.at_start):
            return
        if self.entry.last < key:
            self._move_to(bisect_left(self.index.entries, key, self._range_no, key=attrgetter("last")))
        if self._range_no == len(self.index.entries) or key <= self.entry.first:
            return
        if self._keys is not None:
            # The range is open, so the row is found now; else the key waits until a row is wanted.
            self._row = max(self._row, lower_bound(self._keys, key))
        elif self._floor is None or self._floor < key:
            self._floor = key

    def take(self, bound: bytes) -> pa.RecordBatch:
        """The rows to come of the current range up to and with the key `bound`, which leaves the walk behind them.

        Raises: `NotFound`, `Corrupt`.
        """
        batch, keys = self._open()
        # Not before the row of now: a bound below it would give a stretch of negative length.
        stop = len(keys) if self.entry.last <= bound else max(self._row, upper_bound(keys, bound))
        taken = batch.slice(self._row, stop - self._row)
        self._row = stop
        if stop == len(keys):
            self._move_to(self._range_no + 1)
        return taken

    def _open(self) -> tuple[pa.RecordBatch, KeyColumn]:
        if self._batch is None or self._keys is None:
            self._opened += 1
            # What is written anew gets a new name, which must not vouch for damage.
            stored = open_range(self._objects, self.entry, verify=True, keep=self._opened <= _HELD_MAX)
            self._batch = self.index.show(stored)
            self._keys = key_column(self._batch.column("key"))
        if self._floor is not None:
            self._row = lower_bound(self._keys, self._floor)
            self._floor = None
        return self._batch, self._keys

    def _move_to(self, range_no: int) -> None:
        self._range_no = range_no
        self._row = 0
        self._batch = self._keys = self._floor = None


def unfinished(cursors: Sequence[Cursor]) -> list[Cursor]:
    """The cursors that still have something, in their order."""
    return [cursor for cursor in cursors if not cursor.done]


def shared_bound(live: Sequence[Cursor]) -> bytes:
    """The key up to which all may go without leaving their current ranges."""
    return min(cursor.entry.last for cursor in live)


def take_all(cursors: Sequence[Cursor], bound: bytes) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of all cursors up to and with the key `bound`, each with the number of its cursor; none without rows.

    Raises: `NotFound`, `Corrupt`.
    """
    return [
        (number, cursor.take(bound))
        for number, cursor in enumerate(cursors)
        if not cursor.done and cursor.next_key <= bound
    ]


def take_stretch(cursors: Sequence[Cursor], stop: bytes | None) -> list[tuple[int, pa.RecordBatch]] | None:
    """As `take_all`, of all that comes up to their shared bound, and below the key `stop`; None when nothing does.

    Raises: as `take_all`.
    """
    live = [cursor for cursor in unfinished(cursors) if stop is None or cursor.next_key < stop]
    if not live:
        return None
    bound = shared_bound(live)
    pieces = [(cursors.index(cursor), cursor.take(bound)) for cursor in live if cursor.next_key <= bound]
    if stop is None or bound < stop:
        return pieces
    return [(number, batch.slice(0, lower_bound(key_column(batch.column("key")), stop))) for number, batch in pieces]


def check_schemas(indexes: Sequence[Index]) -> None:
    """Refuse to read indexes side by side that hold different columns.

    Raises: `Invalid`.
    """
    for index in indexes[1:]:
        if not index.columns.equals(indexes[0].columns):
            raise Invalid(
                "the indexes hold different columns", kind="range_schema", index=index.id,
                expected=indexes[0].columns, actual=index.columns,
            )  # fmt: skip
