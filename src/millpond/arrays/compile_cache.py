"""The folder in which compiled kernels are stored between processes.

The first of these that this process can write to:

1. what `NUMBA_CACHE_DIR` names;
2. the package itself, beside each module (`__pycache__`);
3. the user's cache, `$XDG_CACHE_HOME/millpond` or `~/.cache/millpond`;
4. `millpond-<uid>` in the folder for temporary files.

Where none can be written to, kernels are compiled anew by every process.

Invariants:
* Machine code is loaded only from folders that nobody else could have written: 3 and 4 belong to this user and are
  closed to others (0700), or they are not used. Numba unpickles what it finds there, so a folder that another user
  made first would run that user's code.
* One process at a time stores in a folder, or looks there: numba reads an index, adds to it and writes it, so of two at
  once one would find the other's machine code where it left its own.
* What a package brings along (an image in which `millpond warm` ran) serves also where it cannot be written to: it
  is copied.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ("CacheLocation", "adopt", "cache_location", "one_at_a_time")

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """A folder for compiled kernels; `beside` is True when it is the package's own, a folder beside each module."""

    folder: Path
    beside: bool = False


@functools.cache
def cache_location() -> CacheLocation | None:
    """The place of this process; None where nothing can be written to.

    It is found once: a process compiles into one place.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named and _writable(Path(named)):
        return CacheLocation(Path(named))
    if _writable(_PACKAGE / "__pycache__"):
        return CacheLocation(_PACKAGE, beside=True)
    return next((CacheLocation(folder) for folder in _own_folders() if _private(folder) and _writable(folder)), None)


def _own_folders() -> list[Path]:
    """Folders that this user could have, best first."""
    caches = os.environ.get("XDG_CACHE_HOME")
    folders = [Path(caches) / "millpond"] if caches else []
    with suppress(RuntimeError):  # no HOME, and no such user
        folders.append(Path.home() / ".cache" / "millpond")
    return [*folders, Path(tempfile.gettempdir()) / f"millpond-{os.geteuid()}"]


def _private(folder: Path) -> bool:
    """True when the folder is there, or could be made, and nobody but this user can write to it or read it."""
    try:
        if not folder.parent.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()  # a link that another user left here leads to a place of that user's choice
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _writable(folder: Path) -> bool:
    """True when a file can be made there. Permissions alone do not tell: the file system may be read-only, or full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def adopt(module: Path, name: str, line: int, folder: Path) -> None:
    """Copy what the package holds of the kernel `name`, defined at `line` of `module`, into `folder`.

    The index is copied last: numba reads a kernel that it names, and compiles one that it does not.
    """
    brought = sorted((module.parent / "__pycache__").glob(f"{module.stem}.{name}-{line}.*.nb[ci]"))
    for source in brought:
        copy = folder / source.name
        if copy.exists():
            continue
        unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
        with suppress(OSError):  # then it is compiled
            shutil.copyfile(source, unfinished)
            unfinished.replace(copy)


def one_at_a_time(dispatcher: Any) -> None:
    """Let what numba stores of a function, and looks up, wait for other processes that do so in its folder."""
    file = dispatcher._cache._cache_file  # noqa: SLF001, numba has no other door to it
    folder = dispatcher.stats.cache_path
    file.save, file.load = (functools.partial(_alone, folder, act) for act in (file.save, file.load))


def _alone(folder: str, act: Callable[..., Any], *arguments: Any) -> Any:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # nothing was stored there
        return act(*arguments)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        return act(*arguments)
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has the lock as well, until it is given back
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
