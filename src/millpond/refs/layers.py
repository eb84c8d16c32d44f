"""The layers of a map at a ref: what `maps/layered/head.py` is for `main`, for branches, tags and commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.kernel.space import Transaction
from millpond.maps.layered.head import Head, Layers, collected_at
from millpond.maps.model.snapshot_pointer import Current, Pointer
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.leases import LeasedSnapshot, SnapshotLease
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest
from millpond.refs.map_entries import MapEntry

__all__ = ("RefLayers", "manifest_of", "ref_read_only", "ref_unsupported")


def manifest_of(layers: Layers, entry: MapEntry, ref: str) -> SnapshotManifest | None:
    """The manifest of a map's state; None for a map that was never changed.

    Raises: `NotFound`, kind `ref_collected`, when its commit is older than the history that is kept; `Corrupt`,
    `Invalid` for a format that is newer than this reader.
    """
    if not entry.manifest:
        return None
    with collected_at(entry.name, ref):
        return load_manifest(layers.objects, entry.manifest)


@dataclass(frozen=True, slots=True)
class RefLayers(Layers):
    """The layers of one map at a ref. `state_now` finds the state that counts there."""

    ref: str
    state_now: Callable[[], MapEntry]

    def head(self) -> Head:
        """The head of now.

        Raises: `NotFound` when the ref, or the map on it, is gone; as `manifest_of`.
        """
        entry = self.state_now()
        return Head(self._pointer_of(entry), manifest_of(self, entry, self.ref))

    def _pointer(self) -> Pointer:
        return self._pointer_of(self.state_now())

    @staticmethod
    def _pointer_of(entry: MapEntry) -> Pointer:
        current = Current(entry.manifest, entry.definition.incarnation, entry.version)
        return Pointer(0, current if entry.manifest else None)

    def swap(self, tx: Transaction, head: Head, manifest: SnapshotManifest, *_: object, **__: object) -> None:
        """Refuse: a branch changes by commits, and by what is staged.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, "maintenance")

    def freeze(self, *, wait_seconds: float | None = None) -> SnapshotManifest:
        """The manifest that counts, without a lease; a map that was never changed gets an empty one.

        Raises: as `head`.
        """
        manifest = self.head().manifest
        if manifest is None:
            return freeze(self.objects, self.definition, (), shard_version=0, created_ms=0)
        return manifest

    def current(self) -> LeasedSnapshot:
        """The snapshot of the state that counts, and the lease that keeps its files.

        Raises: as `head`.
        """
        while True:
            manifest = self.freeze()
            try:
                return LeasedSnapshot(manifest, SnapshotLease(self.objects, manifest.id))
            except NotFound as error:
                if self.freeze().id == manifest.id:
                    raise Corrupt(
                        "the manifest of a map is missing", kind="layers_damaged", map=self.definition.name,
                        ref=self.ref, manifest=manifest.id, hint="restore the pond from a copy",
                    ) from error  # fmt: skip


def ref_read_only(name: str, ref: str) -> Invalid:
    """The error for a map that is to be changed at a ref that is no branch."""
    return Invalid(
        "a ref is only read", kind="ref_read_only", map=name, ref=ref,
        hint="change the map on a branch: pond.branch('fix').map(…)",
    )  # fmt: skip


def ref_unsupported(name: str, operation: str) -> Invalid:
    """The error for what is done on `main` alone."""
    return Invalid(
        "this is not done at a ref", kind="ref_unsupported", map=name, operation=operation,
        hint="do it on main; or merge first",
    )  # fmt: skip
