"""A power cut: what a disk holds when the machine loses power, and not only the process its life.

A file's bytes are durable once the file was synced after they were written; a name is durable once its folder was
synced after that. Everything else may be there or not after a power cut: chance decides it, folder by folder and file
by file. The record listens to `os.fsync`, which is what the code of a pond calls.

Invariants:
* What was synced is in the image: every durable name, with the bytes of its file as they were synced, or as they are.
* What was not synced is, by chance, as it is, or gone: new names are missing, removed and replaced files are back, and
  unsynced bytes are cut short.

LMDB syncs its own files, where nobody can listen: the bytes of `data.mdb` count as synced, its name does not.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ("DurableRecord", "recording")

_LMDB = "data.mdb"
_LOCKS = "lock.mdb"
"""LMDB makes it anew. It is never opened: to close it would release the locks that this process has on it."""


@dataclass(frozen=True, slots=True)
class _Name:
    """The target of a durable name: a file or folder by its number, which no other has while the record lives."""

    inode: int
    folder: bool


@dataclass(slots=True)
class DurableRecord:
    """The durable names and bytes of files. `store` holds each named file once more, so a removed one can come back."""

    store: Path
    names: dict[int, dict[str, _Name]] = field(default_factory=dict)
    synced: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, handle: int) -> None:
        """A file or folder was synced."""
        status = os.fstat(handle)
        if not stat.S_ISDIR(status.st_mode):
            self.synced[status.st_ino] = _state(status)
            return
        found = {}
        with os.scandir(handle) as entries:
            for entry in entries:
                if entry.name != _LOCKS:
                    found[entry.name] = self._name(entry.stat(follow_symlinks=False), entry.name, handle)
        self.names[status.st_ino] = found

    def _name(self, status: os.stat_result, name: str, handle: int) -> _Name:
        folder = stat.S_ISDIR(status.st_mode)
        stored = self.store / str(status.st_ino)
        if not folder and not stored.exists():
            if name == _LMDB:
                os.link(name, stored, src_dir_fd=handle)
            else:  # a shard looks at the number of links of its pointer
                with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=handle)) as file:
                    stored.write_bytes(file.read())
        return _Name(status.st_ino, folder)

    def adopt(self, folder: Path) -> None:
        """Take everything in a folder for durable, as it is after a start."""
        for place in (folder, *folder.rglob("*")):
            if place.name == _LOCKS:
                continue
            handle = os.open(place, os.O_RDONLY)
            try:
                self.note(handle)
            finally:
                os.close(handle)

    def image(self, folder: Path, target: Path, seed: int) -> None:
        """Write to `target` what of a folder is left after a power cut."""
        self._folder(folder, folder.stat().st_ino, target, seed)
        self._forget()

    def _forget(self) -> None:
        """Let go of files that no durable name stands for any more."""
        named = {known.inode for names in self.names.values() for known in names.values()}
        for link in self.store.iterdir():
            if int(link.name) not in named:
                link.unlink()

    def _folder(self, live: Path | None, inode: int, target: Path, seed: int) -> None:
        target.mkdir()
        durable = self.names.get(inode, {})
        there = {} if live is None else {place.name: place for place in live.iterdir()}
        # The kernel writes a folder back when it likes: all of its changes may be on the disk without a sync.
        written_back = live is not None and _half(seed, target)
        for name in sorted(there if written_back else durable):
            known = durable.get(name)
            place = there.get(name)
            status = None if place is None else place.stat()
            if written_back and status is not None:
                known = _Name(status.st_ino, stat.S_ISDIR(status.st_mode))
            assert known is not None
            same = status is not None and status.st_ino == known.inode
            if known.folder:
                self._folder(place if same else None, known.inode, target / name, seed)
            elif name != _LOCKS:
                source = place if same and place is not None else self.store / str(known.inode)
                self._file(source, target / name, seed)

    def _file(self, source: Path, target: Path, seed: int) -> None:
        shutil.copyfile(source, target)
        status = source.stat()
        durable = (
            target.name == _LMDB or source.parent == self.store or self.synced.get(status.st_ino) == _state(status)
        )
        if not durable and _half(seed, target):
            os.truncate(target, status.st_size // 2)


def _half(seed: int, place: Path) -> bool:
    """A choice for a name, the same in every process: some names carry the number of the process."""
    name = str(place.name).replace(str(os.getpid()), "")
    return random.Random(f"{seed}/{name}").random() < 0.5


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


@contextmanager
def recording(record: DurableRecord) -> Iterator[None]:
    """Record the syncs of this process meanwhile."""
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        record.note(handle)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = real
