"""A transaction of a space over one of LMDB's.

Invariants:
* Cursors are searched anew after each change, so that scanning and writing mix safely.
* Rows come in the order of their keys, long ones among them (`long_keys.py`).
* A change that met the end of the map is remembered as well as raised: whatever its caller does about it, the write is
  run again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import cast

import lmdb

from millpond.kernel.keys import KeyRange, starting
from millpond.kernel.space import KEY_BYTES_MAX, VALUE_BYTES_MAX, check_row, transaction_over
from millpond.stores.lmdb.errors import translated
from millpond.stores.lmdb.long_keys import (
    GROUP_BYTES,
    PLAIN_KEY_BYTES_MAX,
    bucket_key,
    find_row,
    is_bucket,
    rows_in,
    with_row,
    without_row,
)

__all__ = ("LmdbTransaction",)

_key, _value = itemgetter(0), itemgetter(1)
_KEYS_LISTED = 10_000
"""Keys that `delete_range` holds in memory at one time."""


class LmdbTransaction:
    """One LMDB transaction; it counts what it writes, so that a scan knows when to search anew."""

    __slots__ = ("_changes", "_path", "_transaction", "map_full", "moment", "over")

    def __init__(self, transaction: lmdb.Transaction, path: Path, *, moment: int | None = None) -> None:
        self._transaction = transaction
        self._path = path
        self._changes = 0
        self.moment = moment
        self.map_full = False
        self.over = False

    def get(self, key: bytes) -> bytes | None:
        if 0 < len(key) <= PLAIN_KEY_BYTES_MAX:
            return self._stored(key)
        return find_row(self._stored(bucket_key(key)), key) if self._is_long(key) else None

    def put(self, key: bytes, value: bytes) -> None:
        check_row(key, value)
        if len(key) <= PLAIN_KEY_BYTES_MAX:
            self._change(self._transaction.put, key, value)
        else:
            bucket = bucket_key(key)
            content = with_row(self._stored(bucket), key, value)
            self._change(self._transaction.put, bucket, content)

    def put_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put rows, the keys with their values: the loop over them is LMDB's binding's, not ours."""
        lengths = [len(key) for key, _ in rows]
        plain = bool(rows) and min(lengths) > 0 and max(lengths) <= PLAIN_KEY_BYTES_MAX
        if plain and max(map(len, map(_value, rows))) <= VALUE_BYTES_MAX:
            self._change(lambda: self._transaction.cursor().putmulti(rows) is not None)
            return
        for key, value in rows:
            self.put(key, value)

    def delete(self, key: bytes) -> bool:
        if 0 < len(key) <= PLAIN_KEY_BYTES_MAX:
            return self._change(self._transaction.delete, key)
        if self.get(key) is None:
            return False
        bucket = bucket_key(key)
        content = without_row(self._stored(bucket) or b"", key)
        if content is None:
            return self._change(self._transaction.delete, bucket)
        return self._change(self._transaction.put, bucket, content)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._refuse_over()
        plain = [key for key in keys if 0 < len(key) <= PLAIN_KEY_BYTES_MAX]
        try:
            values = dict(self._transaction.cursor().getmulti(plain))
        except lmdb.Error as error:
            raise translated(error, self._path) from error
        return [values.get(key) if 0 < len(key) <= PLAIN_KEY_BYTES_MAX else self.get(key) for key in keys]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._refuse_over()
        return self._scan(keys, reverse, lmdb.Cursor.value)

    def first_rows(self, keys: KeyRange, limit: int, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """The first rows of a scan, up to a limit: the loop over them is LMDB's binding's, not ours.

        Long keys need the scan itself; so whatever meets one is read by it.
        """
        self._refuse_over()
        try:
            cursor = self._transaction.cursor()
            if not (_seek_last(cursor, keys.stop) if reverse else _seek_first(cursor, keys.start)):
                return []
            # In pieces that grow: a range that is empty, or short, costs no rows of those behind it.
            iterator, piece = cursor.iterprev() if reverse else cursor.iternext(), 1
            rows: list[tuple[bytes, bytes]] = []
            while len(rows) < limit:
                more = list(islice(iterator, min(piece, limit - len(rows))))
                rows += more
                if len(more) < piece or not keys.holds(more[-1][0]):
                    break
                piece *= 8
        except lmdb.Error as error:
            raise translated(error, self._path) from error
        if max(map(len, map(_key, rows)), default=0) >= GROUP_BYTES:
            return list(islice(self.scan(keys, reverse=reverse), limit))
        if rows and not keys.holds(rows[-1][0]):
            inside = bisect_left(rows, True, key=lambda row: not keys.holds(row[0]))
            del rows[inside:]
        return rows

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        self._refuse_over()
        return (key for key, _ in self._scan(keys, reverse, _no_value))

    def delete_range(self, keys: KeyRange, limit: int | None = None) -> int:
        rows = self.keys(keys)
        count = 0
        # Listed before they are deleted, for each change makes a scan search anew.
        while some := list(islice(rows, _KEYS_LISTED if limit is None else min(_KEYS_LISTED, limit - count))):
            for key in some:
                self.delete(key)
            count += len(some)
        return count

    def _is_long(self, key: bytes) -> bool:
        self._refuse_over()
        return PLAIN_KEY_BYTES_MAX < len(key) <= KEY_BYTES_MAX

    def _refuse_over(self) -> None:
        if self.over:
            raise transaction_over()

    def _stored(self, stored: bytes) -> bytes | None:
        if self.over:
            raise transaction_over()
        try:
            return cast("bytes | None", self._transaction.get(stored))
        except lmdb.Error as error:
            raise translated(error, self._path) from error

    def _change(self, change: Callable[..., bool], *row: bytes) -> bool:
        self._refuse_over()
        self._changes += 1
        try:
            return change(*row)
        except lmdb.MapFullError:
            self.map_full = True
            raise
        except lmdb.Error as error:
            raise translated(error, self._path) from error

    def _scan(
        self, keys: KeyRange, reverse: bool, value_at: Callable[[lmdb.Cursor], bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            cursor = self._transaction.cursor()
            positioned = _seek_last(cursor, keys.stop) if reverse else _seek_first(cursor, keys.start)
            while positioned:
                key = cast(bytes, cursor.key())
                if len(key) >= GROUP_BYTES:
                    group = key[:GROUP_BYTES]
                    if not _meets(keys, group):
                        return
                    yield from self._group_rows(group, keys, reverse)
                    self._refuse_over()
                    positioned = _seek_last(cursor, group) if reverse else _seek_behind(cursor, group)
                    continue
                if not keys.holds(key):
                    return
                changes = self._changes
                yield key, value_at(cursor)
                self._refuse_over()
                if changes == self._changes:
                    positioned = cursor.prev() if reverse else cursor.next()
                else:
                    positioned = _seek_last(cursor, key) if reverse else _seek_first(cursor, key + b"\x00")
        except lmdb.Error as error:
            raise translated(error, self._path) from error

    def _group_rows(self, group: bytes, keys: KeyRange, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a group that are in the range. Only their keys are held meanwhile, and each is looked up anew."""
        for key in sorted(filter(keys.holds, self._group_keys(group)), reverse=reverse):
            value = self.get(key)
            if value is not None:  # else it was deleted meanwhile
                yield key, value

    def _group_keys(self, group: bytes) -> Iterator[bytes]:
        cursor = self._transaction.cursor()
        positioned = cursor.set_range(group)
        while positioned:
            stored = cast(bytes, cursor.key())
            if not stored.startswith(group):
                return
            if is_bucket(stored):
                yield from (key for key, _ in rows_in(cast(bytes, cursor.value())))
            else:
                yield stored
            positioned = cursor.next()


def _no_value(_: lmdb.Cursor) -> bytes:
    """A placeholder for a value where only keys are wanted: LMDB copies each value that is looked at."""
    return b""


def _meets(keys: KeyRange, group: bytes) -> bool:
    """True when a key of the group can lie in the range: a bound that is no longer than a group splits none."""
    return keys.start[:GROUP_BYTES] <= group and (keys.stop is None or group < keys.stop)


def _seek_first(cursor: lmdb.Cursor, start: bytes) -> bool:
    """To the first key that is not less than `start`, or to the group in which it lies."""
    return cursor.set_range(start[:GROUP_BYTES]) if start else cursor.first()


def _seek_behind(cursor: lmdb.Cursor, group: bytes) -> bool:
    """To the first key after a group."""
    behind = starting(group).stop
    return behind is not None and cursor.set_range(behind)


def _seek_last(cursor: lmdb.Cursor, stop: bytes | None) -> bool:
    """To the last key before `stop`, or to the group in which `stop` lies."""
    if stop is not None and len(stop) > GROUP_BYTES:
        stop = starting(stop[:GROUP_BYTES]).stop
    if stop is None:
        return cursor.last()
    if not stop:
        return False
    return cursor.prev() if cursor.set_range(stop) else cursor.last()
