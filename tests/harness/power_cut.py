"""A power cut: what of a folder is on the disk when nothing is there that was not synced.

While `watched`, two images of a folder are kept: the live one, and the durable one. A file's bytes become durable when
the file is synced, the names in a folder when the folder is; those of an LMDB environment when it has committed. That
is the least that POSIX promises; file systems keep more, sooner.

    with power_cut.watched(folder):
        …
        power_cut.restore(target)                          what is there after the power came back
        power_cut.restore(target, names_survive=True)      the same, by a disk that wrote all names, but no bytes

Invariants:
* what was in the folder when the watch began is durable;
* a file whose name is durable, and whose bytes are not, is empty.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.stores.lmdb.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("PowerCut", "watched")


class PowerCut:
    """The durable image of a folder: bytes by inode, and the names in each folder, by inode, with theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        for place in (folder, *folder.rglob("*")):
            self.synced(place)

    def synced(self, place: Path) -> None:
        """Take over a file's bytes, or the names in a folder, as they are now."""
        inode = place.stat().st_ino
        if place.is_dir():
            self._names[inode] = {entry.name: entry.inode() for entry in os.scandir(place)}
        else:
            self._bytes[inode] = place.read_bytes()

    def restore(self, target: Path, *, names_survive: bool = False) -> Path:
        """Write the image into a new folder, and return it."""
        if names_survive:
            self._restore_live(self.folder, target)
        else:
            self._restore(self.folder.stat().st_ino, target)
        return target

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._names.get(inode, {}).items():
            if child in self._names:
                self._restore(child, target / name)
            else:
                (target / name).write_bytes(self._bytes.get(child, b""))

    def _restore_live(self, folder: Path, target: Path) -> None:
        target.mkdir()
        for entry in os.scandir(folder):
            if entry.is_dir():
                self._restore_live(Path(entry.path), target / entry.name)
            else:
                (target / entry.name).write_bytes(self._bytes.get(entry.inode(), b""))


@contextmanager
def watched(folder: Path, seen: Callable[[PowerCut], None] | None = None) -> Iterator[PowerCut]:
    """Keep the durable image of a folder; `seen` is called after each sync of this process."""
    image = PowerCut(folder)
    fsync, attempt = os.fsync, Environment._attempt  # noqa: SLF001
    one_at_a_time = threading.Lock()

    def durable(place: Path) -> None:
        with one_at_a_time:
            if place.is_relative_to(folder) and place.exists():
                image.synced(place)
                if seen is not None:
                    seen(image)

    def synced(handle: int) -> None:
        fsync(handle)
        durable(Path(f"/proc/self/fd/{handle}").readlink())

    def committed(environment: Environment, act: Any) -> Any:
        done = attempt(environment, act)
        if done is not None and environment.handle.flags()["sync"]:
            durable(environment.path / "data.mdb")
        return done

    os.fsync = synced  # type: ignore[assignment]
    Environment._attempt = committed  # type: ignore[method-assign, assignment]  # noqa: SLF001
    try:
        yield image
    finally:
        os.fsync, Environment._attempt = fsync, attempt  # type: ignore[method-assign]  # noqa: SLF001
