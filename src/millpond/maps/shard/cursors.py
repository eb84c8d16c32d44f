"""Walks of an LMDB cursor: from a bound backwards, between two keys, over a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import lmdb

__all__ = ("Pair", "backwards", "between", "delete_pairs", "prefixed")

Pair = tuple[bytes, bytes]
"""A row of a table: its key and its value."""


def backwards(cursor: lmdb.Cursor, bound: bytes) -> Iterator[Pair]:
    """Rows ≤ `bound`, greatest first, all duplicates of each."""
    positioned = cursor.set_range(bound)
    if positioned and cursor.key() != bound:
        positioned = cursor.prev()
    elif not positioned:
        positioned = cursor.last()
    if positioned:
        yield from cursor.iterprev()


def between(cursor: lmdb.Cursor, first: bytes, last: bytes | None) -> Iterator[Pair]:
    """Rows from `first` to `last`, both held; None: to the end."""
    if not (cursor.set_range(first) if first else cursor.first()):
        return
    for row, stored in cursor.iternext():
        if last is not None and row > last:
            return
        yield row, stored


def prefixed(cursor: lmdb.Cursor, prefix: bytes) -> Iterator[Pair]:
    """Rows whose key starts with `prefix`."""
    if not cursor.set_range(prefix):
        return
    for row, stored in cursor.iternext():
        if not row.startswith(prefix):
            return
        yield row, stored


def delete_pairs(tx: lmdb.Transaction, db: Any, keys: list[bytes], values: list[bytes] | None = None) -> int:
    """Delete rows by their keys, and where a key may have several, by their values too; how many there were."""
    return sum(map(tx.delete, keys, repeat(b"") if values is None else values, repeat(db)))
