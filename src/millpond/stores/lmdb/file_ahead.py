"""The file of an LMDB environment, longer than its pages need.

LMDB writes new pages behind the end of its file. A sync of a file that became longer also waits for the journal of the
file system, and of a group of eight writes every second makes it longer. So the file grows by zeros, many pages at a
time, and the commits that follow write over them.

Invariants:
* Zeros are written only behind the end of the file, where no page can be; not into another file that took its name.
* They are written in a write transaction, so nobody else makes the file longer meanwhile; its commit syncs them.
* They may be missing. What the disk refuses is LMDB's to report, when it needs the place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ("FileAhead",)

AHEAD_BYTES_MIN = 64 * 1024
AHEAD_BYTES_MAX = 1024 * 1024
"""A file grows by a quarter of what it has, between these two."""

_LEFT_BYTES_MIN = 32 * 1024
"""The zeros that must be left for a commit."""


class FileAhead:
    """A file that is written ahead; the process opens it only for that."""

    def __init__(self, file: Path) -> None:
        """Begin with a file that is there, of an unknown size."""
        self._file = file
        self._inode = _inode(file.stat())
        self._end = 0

    def write_ahead(self, used: int) -> None:
        """Let the file be longer than the `used` bytes of its pages, if the disk allows."""
        if used + _LEFT_BYTES_MIN <= self._end:
            return
        self._end = used + min(max(used // 4, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)
        with suppress(OSError), self._file.open("r+b", buffering=0) as file:
            status = os.fstat(file.fileno())
            start = max(status.st_size, used)
            if start < self._end and _inode(status) == self._inode:
                file.seek(start)
                file.write(bytes(self._end - start))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
