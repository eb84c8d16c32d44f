"""LMDB's errors as errors of Millpond: one table for every environment that is opened."""

from __future__ import annotations

import errno
from pathlib import Path

import lmdb

from millpond.errors import Closed, Corrupt, Internal, MillpondError, NotFound, Unavailable
from millpond.stores.files import DISK_FULL

__all__ = ("is_open_already", "translated")

_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
)
# LMDB reports a write that the disk took only a part of, its usual way to meet a full disk, as EIO.
_DISK = DISK_FULL | {errno.EIO}
_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_open_already(error: lmdb.Error) -> bool:
    """True when this process has the file open, under any name, or py-lmdb has not finished closing it."""
    return "already open" in str(error)


def translated(error: lmdb.Error, path: Path) -> MillpondError:
    """The error to raise `from` LMDB's own, which happened in the environment at `path`."""
    code = getattr(error, "code", None)
    if isinstance(error, _DAMAGED):
        return Corrupt(
            "the file is damaged", kind="space_damaged", hint="restore it from a copy", file=path / "data.mdb"
        )
    if isinstance(error, lmdb.PanicError):
        hint = "see to the disk, then open it again"
        return Closed("the environment stopped after a failed write", kind="space_failed", hint=hint, path=path)
    if isinstance(error, lmdb.DiskError) or code in _DISK:
        return Unavailable(
            "the disk did not take the write; nothing was changed",
            kind="disk_full",
            hint="free some space, or see to the disk, and try again",
            path=path,
            reason=str(error),
        )
    if isinstance(error, lmdb.ReadersFullError):
        hint = "end some, or allow more with `readers_max`"
        return Unavailable("too many read transactions are open", kind="readers_full", hint=hint, path=path)
    if isinstance(error, lmdb.ReadonlyError) or code in _ACCESS:
        return Unavailable(
            "no permission to use the files", kind="no_access", hint="check their owner", path=path, reason=str(error)
        )
    return _of_opening(error, path, code)


def _of_opening(error: lmdb.Error, path: Path, code: int | None) -> MillpondError:
    if code == errno.ENOENT:
        return NotFound("there is no environment here", kind="space_not_found", path=path)
    if code in (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN) or isinstance(error, lmdb.MemoryError):
        hint = "raise the process limits on memory and open files (ulimit -v, -n)"
        return Unavailable(
            "the system has no more memory or files", kind="limit_reached", hint=hint, path=path, reason=str(error)
        )
    if is_open_already(error):
        hint = "close the other one; processes that inherit an open one must be started by spawn, not by fork"
        return Unavailable("the environment is open in this process already", kind="space_open", hint=hint, path=path)
    return Internal("LMDB failed unexpectedly", kind="lmdb", path=path, reason=str(error))
