"""An overlay: the puts and deletes of a transaction, over a moment of a space that does not change.

    overlay      b = 2,  c deleted
    base         a = 1,  b = 1,  c = 1,  d = 1
    together     a = 1,  b = 2,          d = 1

A driver whose storage has snapshots and batches, but no transactions that read what they wrote, makes them of this: it
runs a write's function over an overlay of a snapshot, and then stores `changes` in one batch.

Invariants:
* The base is only read; what is put or deleted is in the overlay alone, until the driver stores it.
* `get`, `scan` and the others answer as if the changes had been made: a scan sees each change that lies ahead of it.
* After `end` nothing is answered, not even by scans that were begun before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sortedcontainers import SortedDict

from millpond.kernel.keys import KeyRange
from millpond.kernel.space import ReadTransaction, check_row, transaction_over

__all__ = ("Overlay",)


class Overlay:
    """A `Transaction` over any `ReadTransaction`."""

    def __init__(self, base: ReadTransaction) -> None:
        self._base = base
        self._changed: dict[bytes, bytes | None] = {}  # sorted from the first scan on
        self._count = 0  # of changes, so that a scan knows when to look for the next one anew
        self._over = False

    def end(self) -> None:
        """Refuse every use from now on."""
        self._over = True

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The keys that were put, with their values, and those that were deleted, with None; in their order."""
        changed = self._changed
        return iter(changed.items() if isinstance(changed, SortedDict) else sorted(changed.items()))

    def get(self, key: bytes) -> bytes | None:
        self._refuse_over()
        return self._changed[key] if key in self._changed else self._base.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._refuse_over()
        # The others at one go: a base behind a network has one answer for all.
        elsewhere = [key for key in keys if key not in self._changed]
        rows = dict(zip(elsewhere, self._base.get_many(elsewhere), strict=True))
        return [rows[key] if key in rows else self._changed[key] for key in keys]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._refuse_over()
        return self._scan(self._base.scan(keys, reverse=reverse), keys, reverse)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        self._refuse_over()
        # Any value but None, which means a delete: those of the base are not read for their keys.
        base = ((key, b"") for key in self._base.keys(keys, reverse=reverse))
        return (key for key, _ in self._scan(base, keys, reverse))

    def put(self, key: bytes, value: bytes) -> None:
        check_row(key, value)
        self._refuse_over()
        # A copy, if it is no bytes yet: it is stored at the end, when the caller may have changed it.
        self._change(key, bytes(value))

    def delete(self, key: bytes) -> bool:
        # What is not there is not deleted: the driver would store that for nothing.
        if self.get(key) is None:
            return False
        self._change(key, None)
        return True

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """Delete keys without a look at the base; see `kernel.scans.delete_rows`."""
        self._refuse_over()
        for key in keys:
            self._change(key, None)

    def delete_range(self, keys: KeyRange, limit: int | None = None) -> int:
        # Listed first: after each change a scan looks for the next one anew.
        gone = list(islice(self.keys(keys), limit))
        for key in gone:
            self._change(key, None)
        return len(gone)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._changed[key] = value
        self._count += 1

    def _sorted(self) -> SortedDict[bytes, bytes | None]:
        # Only for those who scan: most writes do not, and to keep an order costs more than the write.
        if not isinstance(self._changed, SortedDict):
            self._changed = SortedDict(self._changed)
        return self._changed

    def _refuse_over(self) -> None:
        if self._over:
            raise transaction_over()

    def _scan(
        self, base: Iterator[tuple[bytes, bytes]], keys: KeyRange, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the base, with the changes of the range merged in; a change comes in the place of its row."""
        row, count = next(base, None), self._count
        own = self._next_change(keys, None, reverse)
        while row is not None or own is not None:
            key: bytes
            value: bytes | None
            # The nearer one, in the direction of the scan; of a row and a change of it the change, which is newer.
            if own is None or (row is not None and row[0] != own and (row[0] < own) is not reverse):
                assert row is not None
                key, value = row
            else:
                key, value = own, self._changed[own]
            if row is not None and row[0] == key:
                row = next(base, None)
            if value is not None:
                yield key, value
                self._refuse_over()
            # Whoever scans may write between two rows, and to any place: then the next change is looked for again.
            if own == key or count != self._count:
                own, count = self._next_change(keys, key, reverse), self._count

    def _next_change(self, keys: KeyRange, after: bytes | None, reverse: bool) -> bytes | None:
        """The first changed key of the range behind `after`, in the direction of a scan."""
        if not self._changed:
            return None
        changed = self._sorted()
        if reverse:
            stop = keys.stop if after is None else after
            at = (len(changed) if stop is None else changed.bisect_left(stop)) - 1
        else:
            at = changed.bisect_left(keys.start) if after is None else changed.bisect_right(after)
        change: bytes | None = changed.peekitem(at)[0] if 0 <= at < len(changed) else None
        return change if change is not None and keys.holds(change) else None
