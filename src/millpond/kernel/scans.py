"""Scans that skip: they look at one key of each group, however many there are in it; and rows by the block.

A driver may read and write many rows for less than one by one costs. One that does has methods of these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, cast

from millpond.kernel.keys import KeyRange, Part, Prefix
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("delete_rows", "first_parts", "first_rows", "put_rows")


class _BlockReads(Protocol):
    """A transaction that reads many rows for less than a scan of them costs."""

    def first_rows(self, keys: KeyRange, limit: int, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """As the function of this name."""


def first_rows(tx: ReadTransaction, keys: KeyRange, limit: int, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
    """The first rows of a scan, up to a limit; by the driver's own means, where it has some."""
    # Asked of the transaction itself: one around it that notes what is read (`versions/entry_lookups.py`) has no such
    # method, so it sees the scan.
    own = getattr(tx, "first_rows", None)
    if own is not None:
        return cast("_BlockReads", tx).first_rows(keys, limit, reverse=reverse)
    return list(islice(tx.scan(keys, reverse=reverse), limit))


class _BlockWrites(Protocol):
    """A transaction that writes many rows for less than a put of each costs."""

    def put_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """As the function of this name."""


def put_rows(tx: Transaction, rows: Sequence[tuple[bytes, bytes]]) -> None:
    """Put rows, the keys with their values, in their order; by the driver's own means, where it has some.

    Raises: `Invalid`, as a put does.
    """
    if getattr(tx, "put_rows", None) is not None:
        cast("_BlockWrites", tx).put_rows(rows)
        return
    for key, value in rows:
        tx.put(key, value)


class _BlindDeletes(Protocol):
    """A transaction that deletes rows without reading them."""

    def delete_rows(self, keys: Iterable[bytes]) -> None:
        """As the function of this name."""


def delete_rows(tx: Transaction, keys: Iterable[bytes]) -> None:
    """Delete keys that may be there or not; by the driver's own means, where it need not read them for it."""
    if getattr(tx, "delete_rows", None) is not None:
        cast("_BlindDeletes", tx).delete_rows(keys)
        return
    for key in keys:
        tx.delete(key)


def first_parts(tx: ReadTransaction, prefix: Prefix) -> Iterator[Part]:
    """The first parts of the keys under a prefix, each once, in order: it costs one look for each.

    The prefix's own key has no parts, and is left out.
    """
    keys = prefix.range()
    keys = KeyRange(prefix.packed + b"\x00", keys.stop)  # behind the prefix's own key: no code begins with 00
    while (key := next(tx.keys(keys), None)) is not None:
        part = prefix.unpack(key)[0]
        yield part
        # Behind all keys with this part, however many: they are not read.
        behind = prefix[part].range().stop
        assert behind is not None
        keys = KeyRange(behind, keys.stop)
