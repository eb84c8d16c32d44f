"""A file that one process at a time has locked. The system lets go of it when that process dies."""

from __future__ import annotations

import fcntl
import os
import threading
from math import ceil
from pathlib import Path

__all__ = ("LockFile",)

PAUSE_SECONDS = 0.02
"""The pause between two tries to lock what another process has: the system waits for it for ever, or not at all."""
_held: set[int] = set()


class LockFile:
    """One who may lock a file, made if it is missing. One thread at a time may use it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle: int | None = None

    def acquire(self, seconds: float = 0.0) -> bool:
        """Lock the file; False when others keep it for so long.

        Raises: `OSError` when it cannot be opened.
        """
        assert self._handle is None, "it is held already"
        for number in range(1 + ceil(seconds / PAUSE_SECONDS)):
            if number:
                threading.Event().wait(PAUSE_SECONDS)
            if (handle := self._locked()) is not None:
                self._handle = handle
                _held.add(handle)
                return True
        return False

    def release(self) -> None:
        """Let others lock it. To do so without holding it is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None and handle in _held:  # it is not, in a process that was forked meanwhile
            _held.discard(handle)
            # A forked process may have the open file, too: to close it here would not unlock it.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def _locked(self) -> int | None:
        handle = self._opened()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # else it was removed meanwhile, and others lock another one
                return handle
        except BlockingIOError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return None

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            return os.open(self._file, flags, 0o666)
        except FileNotFoundError:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._file, flags, 0o666)


def _close_held() -> None:
    """Close the files of a parent process: as long as a child has them open, they stay locked when the parent dies."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_held)
