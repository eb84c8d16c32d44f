"""Locks between the processes of one machine, and between the threads of each of them.

A lock is a file that the kernel lets go of when its holder dies. Files know nothing of threads, so every process
keeps one thread lock per file beside it; a thread that holds a lock may take it again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from millpond.errors import Unavailable

__all__ = ("alone",)

_threads: dict[tuple[int, str], threading.RLock] = {}
_files: dict[tuple[int, str], filelock.BaseFileLock] = {}
_registry = threading.Lock()


@contextmanager
def alone(file: Path, seconds: float, busy: Unavailable) -> Iterator[None]:
    """Pause the lock in `file`; wait for it up to `seconds`.

    Raises: `busy` when somebody else keeps it longer.
    """
    place = (os.getpid(), str(file.resolve()))
    with _registry:
        thread_lock = _threads.setdefault(place, threading.RLock())
        file_lock = _files.setdefault(place, filelock.FileLock(file, thread_local=False))
    if not thread_lock.acquire(timeout=seconds):
        raise busy
    try:
        try:
            file_lock.acquire(timeout=seconds)
        except filelock.Timeout:
            raise busy from None
        try:
            yield
        finally:
            file_lock.release()
    finally:
        thread_lock.release()
