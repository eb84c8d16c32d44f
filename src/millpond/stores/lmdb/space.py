"""A space in an LMDB environment: one file, one writer at a time, any number of readers in any processes.

Invariants:
* A change that met the end of the map is run again from its start, even if it caught the error and went on.
* A transaction's cursors are searched anew after each change, so that scanning and writing mix safely.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import lmdb

from millpond.errors import Closed, Internal, Unavailable
from millpond.kernel.space import ReadTransaction, Transaction, check_row, transaction_over
from millpond.stores.lmdb.environment import Environment, Limits
from millpond.stores.lmdb.errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.kernel.keys import KeyRange

__all__ = ("Limits", "LmdbSpace")

T = TypeVar("T")

_FULL = "the change met the end of the map"


class _LmdbTransaction:
    """One LMDB transaction; it counts what it writes, so that a scan knows when to search anew."""

    def __init__(self, transaction: lmdb.Transaction, path: Path) -> None:
        self._transaction = transaction
        self._path = path
        self._changes = 0
        self.map_full = False
        self.over = False

    def get(self, key: bytes) -> bytes | None:
        if self.over:
            raise transaction_over()
        if not key:
            return None
        try:
            value = self._transaction.get(key)
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as error:
            raise translated(error, self._path) from error
        return cast("bytes | None", value)

    def put(self, key: bytes, value: bytes) -> None:
        check_row(key, value)
        self._change(lambda: self._transaction.put(key, value))

    def delete(self, key: bytes) -> bool:
        return self.get(key) is not None and self._change(lambda: self._transaction.delete(key))

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if self.over:
            raise transaction_over()
        return self._scan(keys, reverse)

    def _change(self, change: Callable[[], bool]) -> bool:
        if self.over:
            raise transaction_over()
        self._changes += 1
        try:
            return change()
        except lmdb.MapFullError:
            # Remembered as well as raised: whatever the caller does about it, the write must be run again.
            self.map_full = True
            raise
        except lmdb.Error as error:
            raise translated(error, self._path) from error

    def _scan(self, keys: KeyRange, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        try:
            cursor = self._transaction.cursor()
            found = _seek_last(cursor, keys.stop) if reverse else _seek_first(cursor, keys.start)
            while found:
                key, value = cast(tuple[bytes, bytes], cursor.item())
                if not keys.holds(key):
                    return
                changes = self._changes
                yield key, value
                if self.over:
                    raise transaction_over()
                if changes == self._changes:
                    found = cursor.prev() if reverse else cursor.next()
                else:
                    found = _seek_last(cursor, key) if reverse else _seek_first(cursor, key + b"\x00")
        except lmdb.Error as error:
            raise translated(error, self._path) from error


class LmdbSpace:
    """A `Space` in the folder `path`, made if it is missing.

    `durable=False` commits without waiting for the disk: faster, and a power cut may lose the whole file.

    Raises:
        NotFound: `readonly`, and there is nothing to read.
        Corrupt: the file is damaged or was cut short.
        Unavailable: no permission, or it is open for reading only in this process already.
    """

    def __init__(
        self, path: str | Path, *, readonly: bool = False, durable: bool = True, limits: Limits | None = None
    ) -> None:
        self.path = Path(path)
        self.readonly = readonly
        self._environment: Environment | None = Environment.acquire(
            self.path, readonly=readonly, durable=durable, limits=limits
        )

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        with self._opened().read(wait=wait) as lmdb_transaction:
            transaction = _LmdbTransaction(lmdb_transaction, self.path)
            try:
                yield transaction
            finally:
                transaction.over = True

    def last_change(self) -> int:
        """See `kernel.space.CountedSpace`."""
        return self._opened().last_change()

    def write(self, change: Callable[[Transaction], T]) -> T:
        environment = self._opened()
        if self.readonly:
            raise Unavailable("the space was opened for reading only", kind="space_read_only", path=self.path)

        def act(lmdb_transaction: lmdb.Transaction) -> T:
            transaction = _LmdbTransaction(lmdb_transaction, self.path)
            try:
                return _run(change, transaction)
            finally:
                transaction.over = True

        return environment.write(act)

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.release()

    def _opened(self) -> Environment:
        if self._environment is None:
            raise Closed("the space is closed", kind="space_closed", path=self.path)
        return self._environment


def _run(change: Callable[[Transaction], T], transaction: _LmdbTransaction) -> T:
    """Run the change; a full map is told as such whatever the change made of it, for it must be run again."""
    try:
        result = change(transaction)
    except Exception as error:
        if transaction.map_full:
            raise lmdb.MapFullError(_FULL) from error
        if isinstance(error, lmdb.MapFullError):
            raise Internal("another environment was full inside a write", kind="lmdb") from error
        raise
    if transaction.map_full:
        raise lmdb.MapFullError(_FULL)
    return result


def _seek_first(cursor: lmdb.Cursor, start: bytes) -> bool:
    """To the first key that is not less than `start`."""
    return cursor.set_range(start) if start else cursor.first()


def _seek_last(cursor: lmdb.Cursor, stop: bytes | None) -> bool:
    """To the last key before `stop`."""
    if stop is None:
        return cursor.last()
    if not stop:
        return False
    return cursor.prev() if cursor.set_range(stop) else cursor.last()
