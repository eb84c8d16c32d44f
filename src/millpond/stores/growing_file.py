"""A file that grows as its bytes come, and is summed while it does: nothing is read again, but what an earlier process
left, by the one that continues it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import xxhash

from millpond.errors import Corrupt
from millpond.stores.files import disk_errors, sum_of

__all__ = ("Bytes", "GrowingFile", "write_all")

Bytes: TypeAlias = bytes | memoryview

_VECTORS_MAX = 1000  # of one write: systems take 1,024


class GrowingFile:
    """One file, and the number of its bytes that have come. One thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        """A file of which nothing has come, and that is not open."""
        self.path = path
        self.size = 0
        self._summed: xxhash.xxh3_128 | None = xxhash.xxh3_128()
        self._handle = -1

    @classmethod
    def left(cls, path: Path) -> GrowingFile:
        """The file as an earlier process left it.

        Raises: `OSError` when there is none.
        """
        file = cls(path)
        file.size, file._summed = path.stat().st_size, None
        return file

    def open(self) -> None:
        """Open the file, or make it.

        Raises: `Unavailable` when the disk is full.
        """
        with disk_errors(self.path):
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def resume(self, total: int) -> bool:
        """Open the file to take the rest of so many bytes; False when it has more of them.

        Raises: `Corrupt` when it is shorter than it was; as `open`.
        """
        if self.size > total:
            return False
        self.open()
        if os.fstat(self._handle).st_size < self.size:
            raise Corrupt(
                "a file that was being received is shorter now", kind="part_damaged", file=self.path.name,
                folder=self.path.parent,
            )  # fmt: skip
        os.ftruncate(self._handle, self.size)
        if self._summed is None:
            self._summed = sum_of(self._handle, 0, self.size)
        return True

    def write(self, chunks: Sequence[Bytes]) -> None:
        """Take the next bytes. What is written partly before an error is not counted.

        Raises: `Unavailable` when the disk is full.
        """
        assert self._summed is not None, "it is open"
        with disk_errors(self.path):
            size = write_all(self._handle, chunks, self.size)
        for chunk in chunks:
            self._summed.update(chunk)
        self.size += size

    def checksum(self) -> str:
        """The xxh3_128 of what has come, as hexadecimal digits."""
        assert self._summed is not None, "it is open"
        return self._summed.hexdigest()

    def sync(self) -> None:
        """Make what has come durable; the name is not yet."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file; what came stays. To close twice is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def remove(self) -> None:
        """Give the disk back."""
        self.close()
        self.path.unlink(missing_ok=True)


def write_all(handle: int, chunks: Sequence[Bytes], offset: int) -> int:
    """Write as they lie in memory, and count; the system may take less at once than it is given."""
    total = 0
    for first in range(0, len(chunks), _VECTORS_MAX):
        some = chunks[first : first + _VECTORS_MAX]
        size = sum(len(chunk) for chunk in some)
        written = os.pwritev(handle, some, offset + total) if size else 0
        rest = memoryview(b"".join(some))[written:] if written < size else memoryview(b"")
        while rest:
            count = os.pwrite(handle, rest, offset + total + size - len(rest))
            rest = rest[count:]
        total += size
    return total
