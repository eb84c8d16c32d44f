"""An LMDB environment that grows its map safely, shared by all who use its folder in this process.

LMDB forbids opening a file twice in one process, and moving its map while a transaction reads from it. So
environments are shared, and transactions pass a gate that stays closed while the map is moved.

Invariants:
* `_open` counts this process's transactions by thread; the map is moved only while there are none.
* Nobody waits for a transaction of its own thread: that is refused at once. So is a write whose thread holds a read
  open that the map's growth waits for: each would wait for the other.
* A write commits what it did as a whole or not at all; when the map was full it is undone, the map doubled, and the
  write run again from its start.
* `_SHARED` holds one environment for each open file, by device and inode, until its last user and its last
  transaction are gone. A file is opened and closed under a lock of its own: a slow disk delays nobody else.

Writers of several processes wait for each other on LMDB's own lock, which the system frees when one dies.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import lmdb

from millpond.clock import SystemClock
from millpond.errors import Closed, NotFound, Unavailable
from millpond.kernel.space import WouldBlock, already_writing
from millpond.retry import Backoff, retry
from millpond.stores.files import disk_errors, make_folder, sync
from millpond.stores.lmdb.errors import is_open_already, translated
from millpond.stores.lmdb.file_ahead import FileAhead
from millpond.stores.lmdb.probe import refuse_truncated
from millpond.stores.lmdb.write_queue import Group, Request, WriteQueue

__all__ = ("Environment", "Limits", "Reading", "free_dead_readers", "open_environment")

_READERS_POOLED = 16
_OWNER_ONLY = 0o600
_LOCK_SLOT_BYTES = 64  # LMDB's: one a reader, two for the rest
_ENTRY_SECONDS_MAX = 0.001
"""The time a caller that must not wait tries the lock of the gate: it is microseconds, or while a map moves."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Size limits of an environment.

    `map_bytes` is address space reserved at first, not disk: large, because a map that need not grow never waits
    for its readers. It doubles when it fills up, to `map_bytes_max` at most. `readers_max` counts the read
    transactions of all processes at one time; each costs 64 bytes. `tables_max` is the number of named tables.

    `grow_seconds_max`: how long a full map waits for this process's readers to finish before the write is given up.
    `gate_seconds_max`: how long new readers wait for that; longer, so that they go on when the write gives up.
    """

    map_bytes: int = 1 << 34
    map_bytes_max: int = 1 << 42
    readers_max: int = 1024
    tables_max: int = 16
    grow_seconds_max: float = 60.0
    gate_seconds_max: float = 90.0


class Environment:
    """An open environment: `acquire` it, `read` and `write`, and `release` it."""

    def __init__(self, environment: lmdb.Environment, path: Path, readonly: bool, limits: Limits) -> None:
        """Take over an open `environment`. Call `acquire` instead: one file is opened once."""
        self.path = path
        self.readonly = readonly
        self.process = os.getpid()
        self._limits = limits
        self.users = 0
        self._environment = environment
        self._page_bytes: int = environment.stat()["psize"]
        self._file_lock = _lock_of(_identity(path))
        self._entry = threading.RLock()  # the lock of the gate, taken by itself where nobody waits
        self._gate = threading.Condition(self._entry)
        durable: bool = environment.flags()["sync"]
        self._writers = WriteQueue(self._entry, self._stuck, gathers=durable)
        self._file = FileAhead(path / "data.mdb") if durable else None
        self._open: dict[int, int] = {}
        self._growers = 0
        self._closed = False

    @classmethod
    def acquire(
        cls, path: Path, *, readonly: bool = False, durable: bool = True, limits: Limits | None = None
    ) -> Environment:
        """The environment at `path`: the one this process has open, or a new one, made if it is missing.

        Raises:
            NotFound: `readonly`, and there is nothing to read.
            Corrupt: the file is damaged or was cut short.
            Unavailable: no permission, or the process has it open for reading only.
        """
        # The name's lock: of several who find no file, one makes it. The file's lock: it may have several names.
        with _lock_of(os.path.realpath(path)):
            if not _exists(path):
                return _shared(_open(path, readonly, durable, limits or Limits()))
            identity = _identity(path)
            with _lock_of(identity):
                environment = _SHARED.get(identity)
                if environment is None or environment.process != os.getpid():
                    return _shared(_open(path, readonly, durable, limits or Limits()))
                if environment.readonly and not readonly:
                    hint = "close it, then open it for writing"
                    raise Unavailable("it is open for reading only", kind="space_read_only", hint=hint, path=path)
                environment.users += 1
                return environment

    def release(self) -> None:
        """Give it back; the last to do so closes it, or the end of the last transaction does."""
        with self._file_lock:
            assert self.users > 0
            self.users -= 1
        self._close_unused()

    @property
    def handle(self) -> lmdb.Environment:
        """The environment of the `lmdb` package, to open tables and to ask for figures."""
        return self._environment

    def last_change(self) -> int:
        """The number of the last transaction that was written, by this process or another: it costs no transaction.

        LMDB tells it while that transaction is synced, when new readers still see the one before.

        Raises: as `read`.
        """
        # Who closes or moves the map holds the lock of the gate, so a transaction is not needed to keep it in place.
        self._refuse_forked()
        with self._entry:
            if self._closed:
                raise self._over()
            return int(self._environment.info()["last_txnid"])

    def free_dead_readers(self) -> int:
        """Free the slots of processes that died; how many."""
        with self._entry:
            return 0 if self._closed else int(self._environment.reader_check())

    def read(self, *, wait: bool = True) -> Reading:
        """A transaction that reads one unchanging moment; use it as a context manager.

        Raises:
            WouldBlock: without `wait`, when the map is being moved, or about to be.
            Unavailable: there are too many readers, another process grew the map under this thread's reader, or the map
                was about to be moved for longer than `gate_seconds_max`.
            Corrupt: the file is damaged.
        """
        return Reading(self, wait)

    def write(self, act: Callable[[lmdb.Transaction], T]) -> T:
        """Run `act` in a transaction and commit it; nothing of it stays if it raises. `act` may be run again.

        Raises:
            Internal: `act` itself called `write`.
            Unavailable: the disk is full, the map may not grow, or this thread reads while the map must grow.
            Corrupt: the file is damaged.
        """
        self._refuse_nested()
        self._writers.enter(Request(act, alone=True))
        try:
            self._grow_early()
            while (done := self._attempt(act)) is None:
                self._grow()
        finally:
            self._writers.leave()
        return done[0]

    def write_together(self, act: Callable[[lmdb.Transaction], T]) -> T:
        """As `write`, in one commit with what other threads write meanwhile; `act` may be run by one of them.

        Raises: as `write`; also `Uncertain`, when the thread that committed for all was interrupted.
        """
        self._refuse_nested()
        request = Request(act)
        if self._writers.enter(request):
            try:
                self._lead(Group(request))
            finally:
                self._writers.leave()
        return request.result()

    def _lead(self, group: Group) -> None:
        """Commit a request with all others that are queued; alone, when that does not fit."""

        def run(transaction: lmdb.Transaction) -> None:
            if self._file is not None:
                self._file.write_ahead(used)
            self._writers.take(group)
            group.run(self._environment, transaction)

        used = self._grow_early()
        try:
            while self._attempt(run) is None:
                if not group.others:
                    self._grow()
                elif not group.split():
                    self._writers.dissolve(group)
        except BaseException as error:
            if not group.fail_others(error):
                self._writers.dissolve(group)
            raise
        finally:
            self._writers.settle(group)

    def _refuse_nested(self) -> None:
        self._refuse_forked()
        if self._writers.is_writing():
            raise already_writing()

    def _stuck(self) -> Unavailable | None:
        """The error of a thread that waits to write, while the map waits for its reader to end."""
        return self._own_reader_error() if self._growers and threading.get_ident() in self._open else None

    def _attempt(self, act: Callable[[lmdb.Transaction], T]) -> tuple[T] | None:
        """The result of `act`, committed; None when it was undone: the map was full, or one of several failed."""
        transaction = self._begin(write=True, wait=True)
        try:
            result = act(transaction)
            transaction.commit()
        except lmdb.MapFullError:
            return None
        except lmdb.Error as error:
            raise translated(error, self.path) from error
        else:
            return (result,)
        finally:
            transaction.abort()  # harmless after the commit
            self._leave()

    def _begin(self, *, write: bool, wait: bool) -> lmdb.Transaction:
        checked = False
        while True:
            self._enter(wait)
            try:
                return self._environment.begin(write=write)
            except lmdb.MapResizedError:
                self._leave()
                if not wait:
                    raise self._would_block() from None
                with self._quiet():
                    self._set_size(0)  # another process grew the map: take over its size
            except lmdb.Error as error:
                self._leave()
                # Readers that died hold their slots until somebody looks.
                if not isinstance(error, lmdb.ReadersFullError) or checked or not self._environment.reader_check():
                    raise translated(error, self.path) from error
                checked = True

    def _refuse_forked(self) -> None:
        if self.process != os.getpid():
            raise self._forked()

    def _would_block(self) -> WouldBlock:
        return WouldBlock("the map is being moved", hint="read where waiting is allowed", path=self.path)

    def _own_reader_error(self) -> Unavailable:
        hint = "end the read transaction of this thread before it writes"
        return Unavailable("the map cannot move under a reader", kind="space_in_use", hint=hint, path=self.path)

    def _enter(self, wait: bool) -> None:
        self._refuse_forked()
        thread = threading.get_ident()
        if not self._entry.acquire(timeout=-1 if wait else _ENTRY_SECONDS_MAX):
            raise self._would_block()
        try:
            # A thread that has a transaction is let in although others wait to move the map: they wait for it.
            if self._growers and thread not in self._open:
                self._await_gate(wait)
            if self._closed:
                raise self._over()
            self._open[thread] = self._open.get(thread, 0) + 1
        finally:
            self._entry.release()

    def _await_gate(self, wait: bool) -> None:
        if not wait:
            raise self._would_block()
        if not self._gate.wait_for(lambda: not self._growers, self._limits.gate_seconds_max):
            hint = "end long read transactions of this process, then try again"
            raise Unavailable("the map waits for long to be moved", kind="space_in_use", hint=hint, path=self.path)

    def _forked(self) -> Closed:
        hint = "open it in this process; start processes by spawn, not by fork"
        return Closed("it was opened by a parent process", kind="space_forked", hint=hint, path=self.path)

    def _over(self) -> Closed:
        return Closed("the environment was closed", kind="space_closed", hint="open it again", path=self.path)

    def _leave(self, thread: int | None = None) -> None:
        with self._entry:
            thread = threading.get_ident() if thread is None else thread
            left = self._open.pop(thread) - 1
            assert left >= 0
            if left:
                self._open[thread] = left
            if self._growers:
                self._gate.notify_all()
        if not self.users:
            self._close_unused()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Pause the gate with no transaction open, keeping new ones out while waiting for the old to end."""
        with self._gate:
            if threading.get_ident() in self._open:
                raise self._own_reader_error()
            self._growers += 1
            self._writers.wake()  # those whose readers the map waits for will not get their turn to write
            try:
                if not self._gate.wait_for(lambda: not self._open, self._limits.grow_seconds_max):
                    hint = "end long read transactions, then try again"
                    raise Unavailable("readers keep the map in use", kind="space_in_use", hint=hint, path=self.path)
                yield
            finally:
                self._growers -= 1
                self._gate.notify_all()

    def _grow(self) -> None:
        with self._quiet():
            size = self._environment.info()["map_size"]
            if size * 2 > self._limits.map_bytes_max:
                hint = "allow more with `map_bytes_max`"
                raise Unavailable("the map may not grow", kind="space_full", hint=hint, path=self.path, map_bytes=size)
            self._set_size(size * 2)

    def _grow_early(self) -> int:
        """Double a map that is more than half full, when nobody has to be waited for; the bytes of its pages."""
        with self._entry:
            info = self._environment.info()
            used: int = (info["last_pgno"] + 1) * self._page_bytes
            half_full = used * 2 > info["map_size"] and info["map_size"] * 2 <= self._limits.map_bytes_max
            if half_full and not self._open and self.process == os.getpid():
                self._set_size(info["map_size"] * 2)
            return used

    def _set_size(self, size: int) -> None:
        assert not self._open
        try:
            self._environment.set_mapsize(size)
        except lmdb.Error as error:
            raise translated(error, self.path) from error

    def _close_unused(self) -> None:
        with self._file_lock, self._gate:
            if self._closed or self.users or self._open or self.process != os.getpid():
                return
            self._closed = True
            self._environment.close()
            with _SHARED_LOCK:
                for identity in [own for own, held in _SHARED.items() if held is self]:
                    del _SHARED[identity]


class Reading:
    """A read transaction for the length of a `with`: a class, because single questions are asked by the million."""

    __slots__ = ("_environment", "_thread", "_transaction", "_wait")

    def __init__(self, environment: Environment, wait: bool) -> None:
        self._environment, self._wait = environment, wait

    def __enter__(self) -> lmdb.Transaction:
        self._thread = threading.get_ident()  # the end may come in another one: a generator that was handed on
        self._transaction = self._environment._begin(write=False, wait=self._wait)  # noqa: SLF001
        return self._transaction

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transaction.abort()
        self._environment._leave(self._thread)  # noqa: SLF001
        if isinstance(error, lmdb.Error):
            raise translated(error, self._environment.path) from error


_SHARED: dict[tuple[int, int], Environment] = {}
_LOCKS: WeakValueDictionary[Hashable, threading.RLock] = WeakValueDictionary()
_SHARED_LOCK = threading.RLock()
"""Of the two tables above, for as long as it takes to look something up: nobody touches a disk while holding it."""


def free_dead_readers() -> int:
    """Free the slots of dead processes in the files that are open here, which grow while one is held; how many."""
    with _SHARED_LOCK:
        return sum(environment.free_dead_readers() for environment in list(_SHARED.values()))


_CLOCK = SystemClock()
_UNTIL_CLOSED = Backoff(first_seconds=0.001, seconds_max=0.05, attempts_max=100)
"""The time in which LMDB closes a file, whoever had it: a thread, or the collector of what nobody holds."""


def open_environment(opened: Callable[[], lmdb.Environment]) -> lmdb.Environment:
    """Open an environment, also of a file that has the inode of one that is just being closed: a removed file gives it
    up in the middle of that, and py-lmdb refuses to open the next file of that inode until it is through."""

    def pause(error: Exception, failures: int, chance: float) -> float | None:
        is_closing = isinstance(error, lmdb.Error) and is_open_already(error)
        return _UNTIL_CLOSED(error, failures, chance) if is_closing else None

    return retry(opened, pause, _CLOCK)


def _lock_of(identity: Hashable) -> threading.RLock:
    """The lock of a file or a name, the same for all who want it at one time; forgotten with its last user. Its thread
    may take it again: the end of a forgotten reader may come wherever garbage is collected.
    """
    with _SHARED_LOCK:
        return _LOCKS.setdefault(identity, threading.RLock())


def _shared(environment: Environment) -> Environment:
    """A new environment, with its first user, for whoever else wants the file."""
    environment.users = 1
    identity = _identity(environment.path)
    with _SHARED_LOCK:
        _SHARED[identity] = environment
    return environment


def _open(path: Path, readonly: bool, durable: bool, limits: Limits) -> Environment:
    if readonly and not _exists(path):
        raise NotFound("there is no environment here", kind="space_not_found", path=path)
    try:
        new = not _exists(path)
        if not readonly:
            make_folder(path)
            with disk_errors(path):
                _reserve_lock(path / "lock.mdb", limits.readers_max)
        environment = open_environment(lambda: _reserve(path, readonly, durable, limits))
        if new and durable:
            sync(path)  # LMDB syncs what is in its file, and not the file's name
    except lmdb.Error as error:
        raise translated(error, path) from error
    except OSError as error:
        raise Unavailable("the folder cannot be used", kind="no_access", path=path, reason=error.strerror) from error
    try:
        refuse_truncated(path, (environment.info()["last_pgno"] + 1) * environment.stat()["psize"])
    except BaseException:
        environment.close()
        raise
    return Environment(environment, path, readonly, limits)


def _reserve(path: Path, readonly: bool, durable: bool, limits: Limits) -> lmdb.Environment:
    """Open the file with as much address space as is wanted, or as the process may have."""
    map_bytes = limits.map_bytes
    while True:
        try:
            return lmdb.open(
                str(path),
                map_size=map_bytes,
                readonly=readonly,
                create=not readonly,
                sync=durable,
                max_readers=limits.readers_max,
                max_dbs=limits.tables_max,
                max_spare_txns=_READERS_POOLED,
                mode=_OWNER_ONLY,
            )
        except lmdb.Error as error:
            scarce = getattr(error, "code", None) == errno.ENOMEM or isinstance(error, lmdb.MemoryError)
            if not scarce or map_bytes <= 1 << 20:
                raise
            map_bytes //= 2


def _reserve_lock(file: Path, readers_max: int) -> None:
    """Give the lock file its place on the disk: LMDB writes it through memory, where a full disk kills the process."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
    try:
        # An existing file keeps its size, which tells other processes how many readers there may be.
        size = os.fstat(handle).st_size or _LOCK_SLOT_BYTES * (readers_max + 2)
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def _exists(path: Path) -> bool:
    return (path / "data.mdb").is_file()


def _identity(path: Path) -> tuple[int, int]:
    stat = (path / "data.mdb").stat()
    return stat.st_dev, stat.st_ino
