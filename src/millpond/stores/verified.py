"""Files that this process has compared with their names, which are checksums of their content.

A file that is mapped into memory is read where it lies, so nothing would notice that the disk gave other bytes than
were written. Whoever opens one reads it whole, once: a file of the same identity is not read again. Its identity is the
place, inode, size and time of change; a file that was written anew, or damaged through the file system, has another.

What this does not see: bytes that go bad on the disk after the check and are read again when memory was short. Only
`millpond verify` does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.kernel.cache import Cache

__all__ = ("VERIFIED_FILES_MAX", "is_verified", "verify_once")

VERIFIED_FILES_MAX = 100_000
"""Identities remembered, some 200 bytes each; the oldest are forgotten first, and their files read again."""

Identity = tuple[str, int, int, int, int]

_verified: Cache[Identity, bool] = Cache(VERIFIED_FILES_MAX)


def is_verified(file: Path) -> bool:
    """True when this process has compared the file, as it is now, with its name."""
    identity = _identity(file)
    return identity is not None and identity in _verified


def verify_once(file: Path, whole: Callable[[], bool]) -> bool:
    """True when the content is what the name says; `whole` finds out, unless this process knows it already."""
    # Taken before the bytes are read: a change in between gives the file an identity that nobody has verified.
    identity = _identity(file)
    if identity in _verified:
        return True
    if not whole():
        return False
    if identity is not None:
        _verified.put(identity, True)
    return True


def _identity(file: Path) -> Identity | None:
    """The identity of a file; None of a copy that was removed after it was mapped."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
