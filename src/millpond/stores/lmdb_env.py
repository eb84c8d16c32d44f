"""One LMDB environment, opened once a process, that grows by itself.

LMDB forbids opening a file twice in one process and resizing it while a transaction is open. So environments
are shared by path with a count of their users, and readers and the writer pass a gate that growth closes.

Invariants:
* `write(act)` commits what `act` did as a whole or not at all; when the map was full it is doubled and
  `act` runs again from the start, so `act` must not keep what it did in an earlier run;
* a full disk raises `Unavailable`, damaged bytes `Corrupt`; both name the file, and nothing is changed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import lmdb

from millpond.errors import Closed, Corrupt, MillpondError, Unavailable

__all__ = ("Environment",)

Result = TypeVar("Result")
TABLES_MAX = 16
READERS_MAX = 510
GROWTH_WAIT_SECONDS = 60.0
DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)

_shared: dict[tuple[int, str], Environment] = {}
_sharing = threading.Lock()


class _Gate:
    """Many may pass at once; closing waits until all have left and keeps newcomers out."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._closed = False

    def enter(self) -> None:
        with self._change:
            while self._closed:
                self._change.wait()
            self._inside += 1

    def leave(self) -> None:
        with self._change:
            self._inside -= 1
            if not self._inside:
                self._change.notify_all()

    @contextmanager
    def closed(self, inside: int) -> Iterator[None]:
        """Hold the gate closed once at most `inside` (the caller's own passes) are left within."""
        with self._change:
            while self._closed:
                self._change.wait()
            self._closed = True
            if not self._change.wait_for(lambda: self._inside <= inside, GROWTH_WAIT_SECONDS):
                self._closed = False
                self._change.notify_all()
                raise Unavailable(
                    "the map file must grow, but readers hold it open", kind="readers_hold_map",
                    hint="finish or close running scans, then try again",
                )  # fmt: skip
        try:
            yield
        finally:
            with self._change:
                self._closed = False
                self._change.notify_all()


class Environment:
    """An open LMDB environment, shared by all who `acquire` the same folder in this process."""

    def __init__(self, folder: Path, map_bytes: int, *, sync: bool = True) -> None:
        self.folder = folder
        self._gate = _Gate()
        self._users = 1
        data = folder / "data.mdb"
        size = data.stat().st_size if data.exists() else 0
        with self._translated():
            self._env = lmdb.open(
                str(folder), map_size=max(map_bytes, 2 * size), max_dbs=TABLES_MAX, max_readers=READERS_MAX,
                max_spare_txns=16, sync=sync, metasync=sync, readahead=True,
            )  # fmt: skip

    @classmethod
    def acquire(cls, folder: Path, map_bytes: int) -> Environment:
        """Open the environment in `folder`, or share the one this process has open. Give it back with `release`."""
        place = (os.getpid(), str(folder.resolve()))
        with _sharing:
            known = _shared.get(place)
            if known is not None:
                known._users += 1  # noqa: SLF001
                return known
            folder.mkdir(parents=True, exist_ok=True)
            opened = _shared[place] = cls(folder, map_bytes)
            return opened

    def release(self) -> None:
        """Give it back; the last user closes it."""
        with _sharing:
            self._users -= 1
            if self._users == 0:
                _shared.pop((os.getpid(), str(self.folder.resolve())), None)
                with self._gate.closed(0):
                    self._env.close()

    @property
    def handle(self) -> lmdb.Environment:
        """The environment of the `lmdb` package, for opening tables."""
        return self._env

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """A read transaction: one unchanging view."""
        self._gate.enter()
        try:
            with self._translated():
                tx = self._begin()
            try:
                yield tx
            except lmdb.Error as error:
                raise self._translate(error) from error
            finally:
                tx.abort()
        finally:
            self._gate.leave()

    def _begin(self) -> lmdb.Transaction:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:
            # Another process let the file grow: adopt its size.
            self._resize(0, inside=1)
            return self._env.begin()

    def write(self, act: Callable[[lmdb.Transaction], Result]) -> Result:
        """Run `act` in a write transaction and commit; on an exception nothing is changed."""
        while True:
            self._gate.enter()
            try:
                with self._translated(), self._env.begin(write=True) as tx:
                    return act(tx)
            except lmdb.MapFullError:
                wanted = 2 * int(self._env.info()["map_size"])
            except lmdb.MapResizedError:
                wanted = 0
            finally:
                self._gate.leave()
            self._resize(wanted, inside=0)

    def _resize(self, map_bytes: int, inside: int) -> None:
        with self._gate.closed(inside):
            self._env.set_mapsize(map_bytes)

    def copy_compact(self, folder: Path) -> None:
        """Write a copy without free pages into `folder`, and sync it."""
        with self._translated():
            self._env.copy(str(folder), compact=True)
            with (folder / "data.mdb").open("rb") as written:
                os.fsync(written.fileno())

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.MapFullError, lmdb.MapResizedError, MillpondError):
            raise
        except lmdb.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: lmdb.Error) -> MillpondError:
        told = str(error)
        file = self.folder / "data.mdb"
        if isinstance(error, lmdb.DiskError) or os.strerror(errno.ENOSPC) in told or os.strerror(errno.EFBIG) in told:
            return Unavailable(
                "no space is left on the disk", kind="disk_full", file=file, hint="free some space and try again"
            )
        if isinstance(error, DAMAGE):
            return Corrupt("the file is damaged", kind="file_damaged", file=file, reason=told)
        if isinstance(error, lmdb.ReadersFullError):
            return Unavailable("too many readers", kind="readers_full", file=file, hint="close some readers")
        if "closed" in told.lower():
            return Closed("the environment was closed", kind="environment_closed", file=file)
        return Unavailable("LMDB could not do it", kind="lmdb", file=file, reason=told)
