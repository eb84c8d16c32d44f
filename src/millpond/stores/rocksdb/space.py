"""A space in a RocksDB folder: one process, many rows, writes that are appended rather than put in place.

RocksDB has batches and frozen views, but rocksdict has no transactions: a write's function runs over an `Overlay`, and
its changes are stored as one batch, which RocksDB appends to its log whole or not at all.

A transaction reads through **one iterator**, made when it begins: RocksDB's iterators see the moment of their creation.
rocksdict's snapshots do not do: their own iterators (as of 0.3.29) show what was written after them.

Invariants:
* One function runs at a time, and its batch is stored before the next begins: writes are serializable.
* An iterator that is not valid is never moved: rocksdict would end the process.
* When the log did not take a batch, nobody knows if it will be there after the next start: the write is `Uncertain`,
  and the space answers nothing until it is opened again, which tells.
* An iterator ends with its transaction, for it keeps the folder locked, and old files on the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rocksdict import DbClosedError, Options, Rdict, RdictIter, WriteBatch, WriteOptions

from millpond.errors import Closed, Corrupt, Internal, MillpondError, Unavailable, Uncertain
from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.page import behind
from millpond.kernel.space import ReadTransaction, Transaction, already_writing

__all__ = ("RocksSpace",)

T = TypeVar("T")

CHUNK_ROWS_MAX = 1024
CHUNK_BYTES_MAX = 1 << 20
"""The bytes a scan reads ahead: several scans share the transaction's one iterator, each comes back to its place."""


class _Moment:
    """A `ReadTransaction` over an iterator, which is to be used by one thread."""

    def __init__(self, iterator: RdictIter, path: Path) -> None:
        self._iterator, self._path = iterator, path

    def end(self) -> None:
        """Let go of the iterator."""
        del self._iterator

    def get(self, key: bytes) -> bytes | None:
        with _translated(self._path):
            return self._iterator.value() if self._seek_first(key) and self._iterator.key() == key else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows, size = self._chunk(keys, reverse, 16), 16
        while rows:
            yield from rows
            keys = behind(keys, rows[-1][0], reverse=reverse)
            size = min(size * 4, CHUNK_ROWS_MAX)
            rows = self._chunk(keys, reverse, size)

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        return (key for key, _ in self.scan(keys, reverse=reverse))

    def _chunk(self, keys: KeyRange, reverse: bool, size: int) -> list[tuple[bytes, bytes]]:
        """The first rows of a range, or the last ones from the last on."""
        with _translated(self._path):
            return self._read(keys, reverse, size)

    def _read(self, keys: KeyRange, reverse: bool, size: int) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        held = 0
        there = self._seek_last(keys.stop) if reverse else self._seek_first(keys.start)
        while there and len(rows) < size and held < CHUNK_BYTES_MAX:
            key, value = self._iterator.key(), self._iterator.value()
            if not keys.holds(key):
                break
            rows.append((key, value))
            held += len(key) + len(value)
            if reverse:
                self._iterator.prev()
            else:
                self._iterator.next()
            there = self._valid()
        return rows

    def _seek_first(self, start: bytes) -> bool:
        self._iterator.seek(start)
        return self._valid()

    def _seek_last(self, stop: bytes | None) -> bool:
        """To the last key before `stop`."""
        if stop is None:
            self._iterator.seek_to_last()
            return self._valid()
        self._iterator.seek_for_prev(stop)
        if self._valid() and self._iterator.key() == stop:
            self._iterator.prev()
        return self._valid()

    def _valid(self) -> bool:
        """True when the iterator is at a row; what kept it from one, if anything, is raised."""
        if self._iterator.valid():
            return True
        self._iterator.status()
        return False


class RocksSpace:
    """A `Space` in the folder `path`, made if it is missing; it belongs to this object until it is closed.

    `durable=False` commits without waiting for the disk: a power cut may lose the last writes, but no part of one.
    `options` are RocksDB's own, in raw mode, in place of its defaults.

    Raises:
        Unavailable: it is open already, here or in another process; there is no permission.
        Corrupt: the files are damaged.
    """

    def __init__(self, path: str | Path, *, durable: bool = True, options: Options | None = None) -> None:
        self.path = Path(path)
        # Without a word for the column family, rocksdict opens an existing folder with the options stored in it.
        families = {"default": options} if options is not None else None
        options = options or Options(raw_mode=True)
        options.create_if_missing(True)
        self._sync = WriteOptions()
        self._sync.sync = durable
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._over: Closed | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        with _translated(self.path):
            self._db = Rdict(str(self.path), options, column_families=families)

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        with self._begin() as transaction:
            yield transaction

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self._writer == threading.get_ident():
            raise already_writing()
        with self._writing, self._begin() as transaction:
            self._writer = threading.get_ident()
            try:
                result = change(transaction)
                self._store(transaction)
            finally:
                self._writer = None
        return result

    def close(self) -> None:
        self._end(Closed("the space is closed", kind="space_closed", path=self.path))

    @contextmanager
    def _begin(self) -> Iterator[Overlay]:
        if self._over is not None:
            raise self._over
        with _translated(self.path):
            moment = _Moment(self._db.iter(), self.path)
        transaction = Overlay(moment)
        try:
            yield transaction
        finally:
            transaction.end()
            moment.end()

    def _store(self, transaction: Overlay) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in transaction.changes():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if batch.is_empty():
            return
        try:
            self._db.write(batch, self._sync)
        except Exception as error:
            hint = "see to the disk, then open it again"
            self._end(Closed("a write failed", kind="space_failed", hint=hint, path=self.path))
            raise Uncertain(
                "the disk did not take the write, or not surely", kind="commit_lost", path=self.path, reason=str(error),
                hint="open the space again, and look whether it was made",
            ) from error  # fmt: skip

    def _end(self, over: Closed) -> None:
        if self._over is None:
            self._over = over
            with suppress(Exception):  # what was committed is in the log; after a failed write it fails once more
                self._db.close()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise what RocksDB says as errors of ours: rocksdict has one class for nearly all, and a text."""
    try:
        yield
    except DbClosedError as error:
        raise Closed("the space is closed", kind="space_closed", path=path) from error
    except Exception as error:
        if isinstance(error, MillpondError):
            raise
        raise _error_of(path, error) from error


def _unusable(path: Path, error: Exception) -> MillpondError:
    return Unavailable("the folder cannot be used", kind="no_access", path=path, reason=str(error))


def _error_of(path: Path, error: Exception) -> MillpondError:
    text = str(error)
    if text.startswith("Corruption"):
        hint = "restore it from a copy"
        return Corrupt("the files are damaged", kind="space_damaged", hint=hint, folder=path, reason=text)
    if "lock" in text.lower():
        hint = "close the other one: a RocksDB folder belongs to one process"
        return Unavailable("the space is open already", kind="space_open", hint=hint, path=path, reason=text)
    if text.startswith("IO error") or "os error" in text:
        return _unusable(path, error)
    return Internal("RocksDB failed unexpectedly", kind="rocksdb", path=path, reason=text)
