"""Small acts on local files that must survive a crash: the old or the new, never half.

Invariants:
* a temporary name is taken by one writer alone, of all threads, processes and machines: it is made exclusively, and a
  name that exists already is passed over;
* an unfinished file is locked while its writer lives, so a sweep can tell it from what a dead one left;
* what a removal left half removed is out of sight, under a name that no later removal needs.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from millpond.errors import Unavailable

__all__ = (
    "DISK_FULL",
    "append_line",
    "begin_writing",
    "check_room",
    "is_out_of_files",
    "out_of_files",
    "checksum_file",
    "disk_errors",
    "make_folder",
    "move",
    "remove_tree",
    "sweep_leftovers",
    "sum_of",
    "sweep_unfinished",
    "sync",
    "unfinished_file",
    "whole_file",
    "write_file_atomically",
)

_BUFFER_BYTES = 1 << 20
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a disk, a quota or a limit that is full."""
_NO_FILES = (errno.EMFILE, errno.ENFILE)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NUMBERS = itertools.count()
"""Of this process's temporary names: they make a collision rare, and making each name exclusively rules it out."""
_MADE_AGAIN_MAX = 10
_UNFINISHED, _GONE = ".unfinished", ".gone"


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, which lines of other processes do not mix with; the file is no truth: it is not synced.

    Raises: `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line + b"\n")
    finally:
        os.close(file)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk into `Unavailable`, naming the place."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise Unavailable(
                "no space is left on the disk", kind="disk_full", file=path, hint="free some space and try again"
            ) from error
        if is_out_of_files(error):
            raise out_of_files(path, error) from error
        raise


def check_room(folder: Path, size: int) -> None:
    """Insist that a disk has room for so many bytes.

    Raises: `Unavailable`, kind `disk_full`.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise Unavailable(
            "no space is left on the disk", kind="disk_full", file=folder, wanted=size, free=free,
            hint="free some space there and try again",
        )  # fmt: skip


def is_out_of_files(error: Exception) -> bool:
    """True when the process, or the system, may open no more files."""
    return getattr(error, "kind", "") == "limit_reached" or getattr(error, "errno", None) in _NO_FILES


def out_of_files(path: Path, error: OSError) -> Unavailable:
    """The error of a process that may open no more files."""
    return Unavailable(
        "the process may open no more files", kind="limit_reached", path=path, reason=error.strerror,
        hint="raise the limit on open files (ulimit -n, LimitNOFILE)",
    )  # fmt: skip


def sync(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def begin_writing(handle: int) -> None:
    """Let the system begin to write a file's bytes to the disk, so that a sync soon finds them there."""
    if hasattr(os, "posix_fadvise"):  # Linux writes what it is to drop
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, durably; one that is there already is fine.

    `mode` is the folder's, less what the umask takes away; those above it have what the umask leaves.
    """
    for _ in range(_MADE_AGAIN_MAX):
        with suppress(FileNotFoundError):  # one above it was removed meanwhile, as copies may be at any time
            return _make_missing(folder, mode)
    return _make_missing(folder, mode)


def _make_missing(folder: Path, mode: int) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode if path is folder else 0o777, exist_ok=True)
        # Without this a power cut may take the folder, with files in it that were synced.
        sync(path.parent)


def write_file_atomically(
    file: Path, data: bytes | memoryview, *, through: Path | None = None, mode: int = 0o666
) -> None:
    """Write a whole file under its name, durably: after a crash it is the old or the new one. As `whole_file`.

    Raises: `Unavailable` when the disk is full; the file is as it was then.
    """
    with whole_file(file, through=through, mode=mode) as unfinished:
        unfinished.write(data)


@contextmanager
def whole_file(file: Path, *, through: Path | None = None, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to, which has its name when the block ends, durably; after an error or a crash it is the old one.

    Any number of threads and processes may write one name: the file is always what one of them wrote. The bytes are
    written in the folder `through` first (of the same file system), or beside the file under a hidden name. `mode` is
    the file's from the moment it is made, less what the umask takes away: a secret is never open to others.

    Raises: `Unavailable` when the disk is full; the file is as it was then.
    """
    beside = through is None
    with (
        disk_errors(file),
        unfinished_file(through or file.parent, f".{file.name}." if beside else "", mode) as unfinished,
    ):
        yield unfinished
        unfinished.flush()
        # First the bytes, then the name, then the folder that holds the name: a crash in between leaves the old file.
        os.fsync(unfinished.fileno())
        os.replace(unfinished.name, file)  # noqa: PTH105 - the name of an open file is text
        sync(file.parent)


@contextmanager
def unfinished_file(folder: Path, prefix: str = "", mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file under a name of its own, locked while its writer lives; removed on an error, unless it was renamed."""
    with _exclusive_file(folder, prefix, mode) as unfinished:
        try:
            yield unfinished
        except BaseException:
            # After a rename there is no such name any more.
            with suppress(FileNotFoundError):
                os.unlink(unfinished.name)  # noqa: PTH108
            raise


def _exclusive_file(folder: Path, prefix: str, mode: int = 0o666) -> BinaryIO:
    for number in _NUMBERS:
        try:
            name = folder / f"{prefix}{os.getpid()}-{number}{_UNFINISHED}"
            file = open(name, "xb", opener=lambda path, flags: os.open(path, flags, mode))  # noqa: SIM115
        except FileExistsError:  # of a process that died, or of another machine
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # swept before it was locked
    raise AssertionError("numbers do not end")


def sweep_unfinished(folder: Path, pattern: str = "*") -> int:
    """Remove the unfinished files of writers that died; how many."""
    return sum(_remove_abandoned(path) for path in folder.glob(pattern))


def _remove_abandoned(path: Path) -> bool:
    """Remove a file unless its writer lives, or has just given it its name; whether it was removed."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the opening and the lock the name may have passed to another writer's file.
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return False
            path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def move(source: Path, target: Path) -> None:
    """Rename within one file system, durably."""
    source.rename(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder and what is in it, if it is there: first out of sight, then piece by piece.

    What cannot be removed now (a file in use on a network's disk, say) is left out of sight for `sweep_leftovers`.
    """
    for number in _NUMBERS:
        hidden = folder.with_name(f".{folder.name}.{os.getpid()}-{number}{_GONE}")
        try:
            folder.rename(hidden)
        except FileNotFoundError:
            return  # it was not there, or another thread is removing it
        except OSError as error:
            if error.errno not in _TAKEN or not os.path.lexists(hidden):
                raise
            continue  # the leftover of a process that had our number
        shutil.rmtree(hidden, ignore_errors=True)
        return


def sweep_leftovers(folder: Path, within: str = ".") -> None:
    """Remove what was left half removed, or half written, right in the folders that a pattern names."""
    for hidden in folder.glob(f"{within}/.*{_GONE}"):
        shutil.rmtree(hidden, ignore_errors=True)
    sweep_unfinished(folder, f"{within}/.*{_UNFINISHED}")


def checksum_file(file: Path, start: int = 0, stop: int | None = None) -> str:
    """xxh3_128 of a file's bytes `[start, stop)`, all by default, as hexadecimal digits."""
    with file.open("rb", buffering=0) as source:
        handle = source.fileno()
        return sum_of(handle, start, os.fstat(handle).st_size if stop is None else stop).hexdigest()


def sum_of(handle: int, start: int, stop: int) -> xxhash.xxh3_128:
    """The xxh3_128 of an open file's bytes `[start, stop)`, to go on with."""
    summed = xxhash.xxh3_128()
    # One buffer, again and again: it stays in the processor's cache, and the system hands out no new pages.
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, max(stop - start, 1))))
    while start < stop and (size := os.preadv(handle, [buffer[: stop - start]], start)):
        summed.update(buffer[:size])
        start += size
    return summed
