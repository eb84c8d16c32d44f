"""Snapshot leases: a reader holds a file lock, released by the system when its process ends.

    leases/<manifest id>.lock    held (shared) by everybody who has that snapshot open
    pins/<manifest id>.json      until when it is kept for somebody who will come: a job that is planned, not begun;
                                 and which entry of the log was the last that shaped it, where that is known
    pins/<id>.<holder>.json      the pin of one holder, which ends it: another's is another file
    writing.lock                 held (shared) by whoever writes files that no manifest names yet; who collects holds it
                                 alone

Locks are `flock`s: the machine lets go of them when a process dies, however it dies. They exist only where objects
are files of this machine; elsewhere (a bucket) `collect` goes by age alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from millpond.errors import NotFound
from millpond.json_forms import JsonForm
from millpond.maps.snapshots.manifest import SnapshotManifest, manifest_name
from millpond.stores.objects import Objects

__all__ = (
    "LeasedSnapshot", "SnapshotLease", "collecting", "end_lease", "pin", "pinned_at", "pinned_entry", "pinned_until",
    "unpin", "writing",
)  # fmt: skip

_WRITING = "writing.lock"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class _Pin:
    """Until when a snapshot stays, and the last entry that shaped it; 0: not at all, and not known."""

    until_ms: int = 0
    entry: int = 0


_PIN = JsonForm(_Pin)


class SnapshotLease:
    """The right to read a snapshot's files: they stay until it is released, or garbage.

    Raises: `NotFound` when the snapshot is gone already.
    """

    __slots__ = ("__weakref__", "_finalizer")

    def __init__(self, objects: Objects, id_: str) -> None:
        self._finalizer: weakref.finalize[[int], SnapshotLease] | None = None
        file = _file(objects, id_)
        if file is None or not objects.collected:
            return  # nobody would see it: the files stay for the grace time of collections
        try:
            lock = _lock(file, fcntl.LOCK_SH)
        except OSError as error:
            if error.errno in _READ_ONLY:
                return  # who may not write here cannot be seen to read; age alone protects it
            raise
        self._finalizer = weakref.finalize(self, os.close, lock)
        # Who collects takes the manifest away first, holding the lease alone: seeing it now means that all is there.
        if not objects.exists(manifest_name(id_)):
            self.release()
            raise NotFound(
                "there is no such snapshot", kind="snapshot_not_found", object=manifest_name(id_),
                where=objects.where, hint="it was replaced: ask for the one that counts now",
            )  # fmt: skip

    def release(self) -> None:
        """Let go. Doing so twice is harmless."""
        if self._finalizer is not None:
            self._finalizer()


@contextmanager
def writing(objects: Objects) -> Iterator[None]:
    """Keep files that no manifest names yet from those who collect, until they are named or given up."""
    file = objects.local_path(_WRITING)
    handle = None if file is None else _lock(file, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def collecting(objects: Objects) -> Iterator[bool]:
    """True while nobody writes, and nobody begins to; False when somebody does, or may where no lock is seen: then
    nothing may be collected.
    """
    if not objects.collected:
        yield False
        return
    file = objects.local_path(_WRITING)
    try:
        handle = None if file is None else _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        if handle is not None:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class LeasedSnapshot:
    """A snapshot and its lease, released at the end of a `with`; until then its files stay."""

    manifest: SnapshotManifest
    lease: SnapshotLease

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lease.release()


def _file(objects: Objects, id_: str) -> Path | None:
    return objects.local_path(f"leases/{id_}.lock")


def _lock(file: Path, how: int) -> int:
    """Open and lock a file that may be taken away at the same moment; the descriptor."""
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its folder was taken away
            continue
        try:
            fcntl.flock(handle, how)
            if _is_at(handle, file):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(handle: int, file: Path) -> bool:
    """True when the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _pin_name(id_: str, holder: str = "") -> str:
    return f"pins/{id_}.{holder}.json" if holder else f"pins/{id_}.json"


def pin(objects: Objects, id_: str, until_ms: int, entry: int = 0, *, holder: str = "") -> None:
    """Keep a snapshot's files until then, whether or not somebody has it open; a later pin stays.

    `entry`: the position of the last entry of the log that shaped it, 0 when that is not known. `holder`: the id of
    who may `unpin` it.

    Raises: `NotFound` when the snapshot is gone already.
    """
    lease = SnapshotLease(objects, id_)
    try:
        name = _pin_name(id_, holder)
        row = _pin(objects, name)
        new = _Pin(max(until_ms, row.until_ms), entry or row.entry)
        if new != row:
            objects.put(name, _PIN.encode(new))
    finally:
        lease.release()


def unpin(objects: Objects, id_: str, holder: str) -> None:
    """End the pin of a holder; those of others stay."""
    objects.delete(_pin_name(id_, holder))


def pinned_until(objects: Objects, id_: str) -> int:
    """Until when a snapshot is kept for those who will come; 0 when nobody said so."""
    return max((_pin(objects, name).until_ms for name in _pins(objects, id_)), default=0)


def pinned_entry(objects: Objects, id_: str) -> int:
    """The last entry of the log that shaped a pinned snapshot; 0 when that is not known."""
    return _pin(objects, _pin_name(id_)).entry


def pinned_at(objects: Objects, entry: int, now_ms: int) -> list[str]:
    """The snapshots that are pinned now and that this entry of the log was the last to shape."""
    ids = [info.name.removeprefix("pins/").removesuffix(".json") for info in list(objects.list("pins"))]
    pins = {id_: _pin(objects, _pin_name(id_)) for id_ in ids if "." not in id_}
    return [id_ for id_, pin_ in pins.items() if pin_.entry == entry and pin_.until_ms > now_ms]


def _pins(objects: Objects, id_: str) -> list[str]:
    return [info.name for info in list(objects.list("pins", prefix=f"pins/{id_}."))]


def _pin(objects: Objects, name: str) -> _Pin:
    try:
        return _PIN.stored(
            objects.get(name).to_pybytes(), "the pin of a snapshot cannot be read", kind="snapshot_pin_damaged",
            object=name, where=objects.where, hint="remove it, and plan the jobs that read the snapshot again",
        )  # fmt: skip
    except NotFound:
        return _Pin()


def end_lease(objects: Objects, id_: str, now_ms: int) -> bool:
    """Take a snapshot's manifest away unless somebody holds it or it is pinned; whether it is away."""
    file = _file(objects, id_)
    if file is None:
        return _take_away(objects, id_, now_ms)
    try:
        handle = _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        if not _take_away(objects, id_, now_ms):
            return False
        file.unlink(missing_ok=True)
    finally:
        os.close(handle)
    return True


def _take_away(objects: Objects, id_: str, now_ms: int) -> bool:
    # Whoever pins holds the lease meanwhile, so what is read here counts.
    if pinned_until(objects, id_) > now_ms:
        return False
    objects.delete(manifest_name(id_), *_pins(objects, id_))
    return True
