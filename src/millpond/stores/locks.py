"""Locks between the processes of one machine, and between the threads of each of them.

A lock is a file that the kernel lets go of when its holder dies. Files know nothing of threads, so every process
keeps the state of each file beside it: one thread holds it alone, and may take it again; or several hold it *together*,
as one holder to other processes.

Invariants:
* while a thread holds a lock alone, nobody else holds it in any process; while threads hold it together, they are of
  one process, and no name is held by two of them;
* who waits to be alone is let in before others that would come together, so that a stream of them ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from millpond.errors import Unavailable

__all__ = ("Names", "alone", "together")


class Names:
    """Names, each held by one thread of this process at a time: those that hold different ones do not wait."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, names: AbstractSet[str]) -> Iterator[None]:
        """Wait until nobody holds any of them, and hold them all: nobody waits while holding some."""
        with self._changed:
            self._changed.wait_for(lambda: self._held.isdisjoint(names))
            self._held |= names
        try:
            yield
        finally:
            with self._changed:
                self._held -= names
                self._changed.notify_all()


class _Lock:
    """One lock file, as this process holds it. `moving`: a thread is taking the file, or giving it back."""

    def __init__(self, file: Path) -> None:
        import filelock  # it imports asyncio, and not every process locks a file

        self._file = filelock.FileLock(file, thread_local=False)
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._depth = 0
        self._queued = 0
        self._held: list[AbstractSet[str]] = []
        self._moving = False

    def acquire(self, seconds: float) -> bool:
        """Hold it alone; False when that takes longer."""
        thread = threading.get_ident()
        with self._changed:
            if self._owner == thread:
                self._depth += 1
                return True
            self._queued += 1
            try:
                free = self._changed.wait_for(lambda: self._is_free() and not self._held, seconds)
            finally:
                self._queued -= 1
                self._changed.notify_all()
            if not free:
                return False
            self._moving = True
        with self._moved():
            if not self._locked(seconds):
                return False
            self._owner, self._depth = thread, 1
        return True

    def release(self) -> None:
        """Let go of it, as often as it was acquired."""
        with self._changed:
            self._depth -= 1
            if self._depth:
                return
            self._moving = True
        with self._moved():
            self._file.release()
            self._owner = None

    def join(self, names: AbstractSet[str], seconds: float) -> bool:
        """Hold it together with threads that hold other names; False when that takes longer."""

        def is_open() -> bool:
            return self._is_free() and not self._queued and all(names.isdisjoint(held) for held in self._held)

        with self._changed:
            assert self._owner != threading.get_ident(), "it would wait for itself"
            if not self._changed.wait_for(is_open, seconds):
                return False
            if self._held:
                self._held.append(names)
                return True
            self._moving = True
        with self._moved():
            if not self._locked(seconds):
                return False
            self._held.append(names)
        return True

    def leave(self, names: AbstractSet[str]) -> None:
        """Hold it together no more; the last one gives the file back."""
        with self._changed:
            if len(self._held) > 1:
                self._held.remove(names)
                self._changed.notify_all()
                return
            self._moving = True
        with self._moved():
            self._file.release()
            self._held.remove(names)

    def _is_free(self) -> bool:
        return self._owner is None and not self._moving

    def _locked(self, seconds: float) -> bool:
        import filelock

        try:
            self._file.acquire(timeout=seconds)
        except filelock.Timeout:
            return False
        return True

    @contextmanager
    def _moved(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._moving = False
                self._changed.notify_all()


_locks: dict[tuple[int, str], _Lock] = {}
_registry = threading.Lock()


@lru_cache(maxsize=4096)
def _resolved(file: str) -> str:
    """The one name of a file: to find it takes a look at every folder above."""
    return os.path.realpath(file)


def _lock_of(file: Path) -> _Lock:
    key = (os.getpid(), _resolved(str(file)) if file.is_absolute() else str(file.resolve()))
    with _registry:
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = _Lock(file)
        return lock


@contextmanager
def alone(file: Path, seconds: float, busy: Unavailable) -> Iterator[None]:
    """Hold the lock in `file` alone; wait for it up to `seconds`.

    Raises: `busy` when somebody else keeps it longer.
    """
    lock = _lock_of(file)
    if not lock.acquire(seconds):
        raise busy
    try:
        yield
    finally:
        lock.release()


@contextmanager
def together(file: Path, names: AbstractSet[str], seconds: float, busy: Unavailable) -> Iterator[None]:
    """Hold the lock in `file` with other threads of this process that hold other names; wait for it up to `seconds`.

    A thread that holds it together must not take it alone: it would wait for itself.

    Raises: `busy` when somebody else keeps it longer.
    """
    lock = _lock_of(file)
    if not lock.join(names, seconds):
        raise busy
    try:
        yield
    finally:
        lock.leave(names)
