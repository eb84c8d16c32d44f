"""Parts whose files this process has summed: they are not summed again while they are as they were.

A part is checked where it comes in. What lies in a folder for a while is checked again before it is merged, unless
this process summed the same files and nobody wrote to them since: to sum once more what was summed a moment ago only
reads the same pages of memory.

Invariant: a stamp is taken before the files are summed, so a file that changes meanwhile does not match it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TypeAlias

from millpond.maps.parts.part import PartManifest, read_manifest, verify_part

__all__ = ("SummedParts",)

PARTS_MAX = 10_000
_FILES = ("data.mdb", "touched.arrow")

_Stamp: TypeAlias = "tuple[tuple[int, int, int, int], ...]"


class SummedParts:
    """The parts that were checked, by id; threads may share it."""

    def __init__(self) -> None:
        self._stamps: OrderedDict[str, _Stamp] = OrderedDict()
        self._lock = threading.Lock()

    def verify(self, folder: Path) -> PartManifest:
        """The manifest of a part that is whole.

        Raises: `Corrupt` naming the file that is damaged.
        """
        stamp = _stamp(folder)
        if stamp is not None:
            manifest = read_manifest(folder)
            with self._lock:
                if self._stamps.get(manifest.id) == stamp:
                    return manifest
        manifest = verify_part(folder)
        self._remember(manifest.id, stamp)
        return manifest

    def note(self, part: str, folder: Path) -> None:
        """Remember a part that was summed while it came, and that nobody else has written to."""
        self._remember(part, _stamp(folder))

    def _remember(self, part: str, stamp: _Stamp | None) -> None:
        if stamp is None:
            return
        with self._lock:
            self._stamps[part] = stamp
            self._stamps.move_to_end(part)
            while len(self._stamps) > PARTS_MAX:
                self._stamps.popitem(last=False)


def _stamp(folder: Path) -> _Stamp | None:
    """The files as the system knows them, wherever their folder is moved; None when one is missing."""
    try:
        found = [(folder / name).stat() for name in _FILES]
    except OSError:
        return None
    return tuple((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) for status in found)
