"""A space in an LMDB environment: one file, one commit at a time, any number of readers in any processes.

Writes of several threads share a commit (`write_queue.py`); those of several processes follow one another.

Invariants:
* A change that met the end of the map is run again from its start, even if it caught the error and went on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import lmdb

from millpond.errors import Closed, Internal, Unavailable
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.stores.lmdb.environment import Environment, Limits, Reading
from millpond.stores.lmdb.transaction import LmdbTransaction

__all__ = ("Limits", "LmdbSpace")

T = TypeVar("T")

_FULL = "the change met the end of the map"


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

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        return _Moment(self._opened().read(wait=wait), self.path)

    def last_change(self) -> int:
        return self._opened().last_change()

    def write(self, change: Callable[[Transaction], T]) -> T:
        environment = self._opened()
        if self.readonly:
            raise Unavailable("the space was opened for reading only", kind="space_read_only", path=self.path)

        def act(lmdb_transaction: lmdb.Transaction) -> T:
            transaction = LmdbTransaction(lmdb_transaction, self.path)
            try:
                return _run(change, transaction)
            finally:
                transaction.over = True

        return environment.write_together(act)

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.release()

    def _opened(self) -> Environment:
        if self._environment is None:
            raise Closed("the space is closed", kind="space_closed", path=self.path)
        return self._environment


class _Moment:
    """A read transaction for the length of a `with`: a class, for a generator costs as much as the read."""

    __slots__ = ("_path", "_reading", "_transaction")

    def __init__(self, reading: Reading, path: Path) -> None:
        self._reading, self._path = reading, path

    def __enter__(self) -> LmdbTransaction:
        inner = self._reading.__enter__()
        self._transaction = LmdbTransaction(inner, self._path, moment=inner.id())
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction.over = True
        self._reading.__exit__(kind, error, trace)


def _run(change: Callable[[Transaction], T], transaction: LmdbTransaction) -> T:
    """Run the change; a full map is reported as such whatever the change made of it, for it must be run again."""
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
