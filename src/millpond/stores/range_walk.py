"""Walking indexes side by side in the order of their keys, opening only the ranges that must be read, and verifying
those.

    cursors = [Cursor(objects, index) for index in …]
    while live := unfinished(cursors):
        …  cursor.skip()                         a range that need not be read
        bound = shared_bound(live)
        …  cursor.take(bound)                    the rows up to there, of the current range alone

Why a range that two indexes share is always met by both at once: every bound is the last key of a range, so no walk
ever stops inside a range unless another index has a range that ends there; a shared range holds no such key but its
own last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.stores.range_keys import KeyColumn, key_column, upper_bound
from millpond.stores.range_reader import open_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from millpond.stores.objects import Objects
    from millpond.stores.range_index import Index, RangeEntry

__all__ = ("Cursor", "check_schemas", "shared_bound", "unfinished")


class Cursor:
    """A place in an index: a range of it, and a row there."""

    def __init__(self, objects: Objects, index: Index) -> None:
        self.index = index
        self._objects = objects
        self._range_no = self._row = 0
        self._batch: pa.RecordBatch | None = None
        self._keys: KeyColumn | None = None

    @property
    def done(self) -> bool:
        """Whether all was taken or skipped."""
        return self._range_no == len(self.index.entries)

    @property
    def entry(self) -> RangeEntry:
        """The current range."""
        return self.index.entries[self._range_no]

    @property
    def at_start(self) -> bool:
        """Whether nothing was taken from the current range yet."""
        return self._row == 0

    @property
    def in_last(self) -> bool:
        """Whether the current range is the last of the index."""
        return self._range_no == len(self.index.entries) - 1

    @property
    def next_key(self) -> bytes:
        """The first key that was not taken; knowing it opens nothing."""
        return self.entry.first if self._keys is None else self._keys[self._row]

    def skip(self) -> None:
        """Leave the current range without reading it."""
        assert self.at_start, "only whole ranges are skipped"
        self._move_on()

    def take(self, bound: bytes) -> pa.RecordBatch:
        """The rows of the current range up to and with the key `bound`, which leaves the walk behind them.

        Raises: `NotFound`, `Corrupt`.
        """
        if self._batch is None or self._keys is None:
            # What is written anew gets a new name, which must not vouch for damage.
            self._batch = open_range(self._objects, self.entry, verify=True)
            self._keys = key_column(self._batch.column("key"))
        stop = len(self._keys) if self.entry.last <= bound else upper_bound(self._keys, bound)
        taken = self._batch.slice(self._row, stop - self._row)
        self._row = stop
        if stop == len(self._keys):
            self._move_on()
        return taken

    def _move_on(self) -> None:
        self._range_no += 1
        self._row = 0
        self._batch = self._keys = None


def unfinished(cursors: Sequence[Cursor]) -> list[Cursor]:
    """The cursors that still have something, in their order."""
    return [cursor for cursor in cursors if not cursor.done]


def shared_bound(live: Sequence[Cursor]) -> bytes:
    """How far all may go without leaving their current ranges."""
    return min(cursor.entry.last for cursor in live)


def check_schemas(indexes: Sequence[Index]) -> None:
    """Refuse to read indexes side by side that hold different columns.

    Raises: `Invalid`.
    """
    for index in indexes[1:]:
        if not index.schema.equals(indexes[0].schema):
            raise Invalid(
                "the indexes hold different columns", kind="range_schema", index=index.id,
                expected=indexes[0].schema, actual=index.schema,
            )  # fmt: skip
