"""Parts that this process has accepted: they are not checked again while their files are as they were.

A part is validated where it comes in, and what lies in a folder is validated before it is merged, unless this process
did so before and nobody wrote to the files since. A part that this process sealed is accepted by that: what its writer
wrote need not be read again to know it. Every other part is read, also one that a task wrote on a disk that is shared.

The manifests of the last ones are retained as well, when the parts are small: to parse the manifest of a small part
again at every step takes as long as to check its rows.

Invariant: a stamp is taken before the file is read, so a file that changes meanwhile does not match it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from millpond.kernel.cache import Cache
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartManifest, read_manifest, verify_part
from millpond.maps.parts.validate import validate_part

__all__ = ("AcceptedParts",)

PARTS_MAX = 10_000
MANIFESTS_MAX = 1_000
"""Twice as many as are merged together."""
BESIDE_ROWS_MAX = 16 << 10
"""The most bytes that a part whose manifest is retained has beside its rows: the manifest, and its keys."""


class _Stamp(NamedTuple):
    """A file as the system knows it, wherever it is moved."""

    device: int
    inode: int
    size: int
    changed_ns: int


class AcceptedParts:
    """The parts that were accepted, by id; threads may share it."""

    def __init__(self) -> None:
        self._stamps: Cache[str, _Stamp] = Cache(PARTS_MAX)
        self._manifests: Cache[_Stamp, PartManifest] = Cache(MANIFESTS_MAX)

    def verify(self, file: Path, definition: MapDefinition) -> PartManifest:
        """The manifest of a part of a map, which is whole and holds what it states.

        Raises: `Corrupt` naming the fault.
        """
        stamp = _stamp(file)
        if stamp is not None:
            manifest = self._manifests.get(stamp) or read_manifest(file)
            if self._is_known(manifest, stamp, definition):
                return manifest
        manifest = verify_part(file)
        validate_part(file, manifest, definition)
        self._remember(manifest, stamp)
        return manifest

    def accept(self, file: Path, manifest: PartManifest, definition: MapDefinition) -> None:
        """Validate a part that was compared with its checksums while it came.

        Raises: `Corrupt` naming the fault.
        """
        stamp = _stamp(file)
        validate_part(file, manifest, definition)
        self._remember(manifest, stamp)

    def note_sealed(self, parts: Iterable[PartFile]) -> None:
        """Accept parts that this process sealed a moment ago."""
        for part in parts:
            self._remember(part.manifest, _stamp(part.file))

    def _is_known(self, manifest: PartManifest, stamp: _Stamp, definition: MapDefinition) -> bool:
        """True for the same file, of the same map: other rows may be sound for another one."""
        same = self._stamps.get(manifest.id) == stamp
        return same and (manifest.map, manifest.incarnation) == (definition.name, definition.incarnation)

    def _remember(self, manifest: PartManifest, stamp: _Stamp | None) -> None:
        if stamp is None:
            return
        self._stamps.put(manifest.id, stamp)
        if stamp.size - manifest.data_bytes <= BESIDE_ROWS_MAX:
            self._manifests.put(stamp, manifest)


def _stamp(file: Path) -> _Stamp | None:
    """The file as the system knows it; None when it is missing."""
    try:
        status = file.stat()
    except OSError:
        return None
    return _Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
