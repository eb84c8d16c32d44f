"""Small acts on local files that must survive a crash: the old or the new, never half."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import xxhash

from millpond.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = (
    "checksum_file",
    "disk_errors",
    "move",
    "remove_tree",
    "sync",
    "sweep_removed",
    "write_file_atomically",
)

_BUFFER_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full disk into `Unavailable`, naming the place."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable(
                "no space is left on the disk", kind="disk_full", file=place, hint="free some space and try again"
            ) from error
        raise


def sync(place: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file_atomically(file: Path, data: bytes | memoryview) -> None:
    """Write a whole file under its name, durably: after a crash it is the old or the new one."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk_errors(file):
        try:
            with unfinished.open("wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
            unfinished.replace(file)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync(file.parent)


def move(source: Path, target: Path) -> None:
    """Rename within one file system, durably."""
    source.rename(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder and what is in it, if it is there: first out of sight, then piece by piece."""
    hidden = folder.with_name(f".{folder.name}.{os.getpid()}.gone")
    try:
        folder.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def sweep_removed(folder: Path, within: str) -> None:
    """Remove what a crash left half removed in the folders that a pattern names."""
    for hidden in folder.glob(f"{within}/.*.gone"):
        shutil.rmtree(hidden, ignore_errors=True)


def checksum_file(file: Path) -> str:
    """xxh3_128 of the file's bytes, as hexadecimal digits."""
    summed = xxhash.xxh3_128()
    # One buffer, again and again: it stays in the processor's cache, and the system hands out no new pages.
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, max(file.stat().st_size, 1))))
    with file.open("rb", buffering=0) as source:
        while size := source.readinto(buffer):
            summed.update(buffer[:size])
    return summed.hexdigest()
