"""Snapshots with the lease that keeps their files: from the moment they are chosen, nobody can collect them.

    with map.snapshots.refreeze() as leased:
        Snapshot.open(map.objects, leased.manifest)         # takes a lease of its own

A snapshot that counts may be replaced and collected between reading its name and taking its lease. The lease says so,
and then another one counts, which is taken instead: somebody else got on each time that this has to begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.kernel.space import Space
from millpond.maps.model.snapshot_pointer import Current, read_current
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.freeze import SnapshotManifest, load_manifest
from millpond.maps.snapshots.leases import LeasedSnapshot, SnapshotLease
from millpond.maps.snapshots.refresh import refreeze
from millpond.stores.objects import Objects

__all__ = ("MapSnapshots", "leased")


@dataclass(frozen=True, slots=True)
class MapSnapshots:
    """The snapshots of one map, in the folder of its pond."""

    space: Space
    clock: Clock
    objects: Objects
    shard: Shard
    memory_max: int

    def current(self) -> LeasedSnapshot | None:
        """The snapshot that counts; None when the map was never frozen, or what was frozen is gone from the disk.

        Raises: `NotFound`, kind `map_dropped`.
        """
        current = self._named()
        while current is not None:
            try:
                return leased(self.objects, current.manifest)
            except NotFound:
                newer = self._named()
                if newer == current:
                    return None  # removed by hand, or quarantined because it was damaged: the shard has all it said
                current = newer
        return None

    def freeze(self, *, wait_seconds: float | None = None) -> SnapshotManifest:
        """The manifest of the shard as it is now, without a lease.

        Raises: as `refresh.refreeze`.
        """
        options = {} if wait_seconds is None else {"wait_seconds": wait_seconds}
        return refreeze(
            self.space, self.clock, self.objects, self.shard, memory_max=self.memory_max, **options
        )  # fmt: skip

    def refreeze(self, *, wait_seconds: float | None = None) -> LeasedSnapshot:
        """The snapshot of the shard as it is now: the one that counts, or a new one when the shard moved on.

        Raises: as `refresh.refreeze`.
        """
        while True:
            manifest = self.freeze(wait_seconds=wait_seconds)
            try:
                return LeasedSnapshot(manifest, SnapshotLease(self.objects, manifest.id))
            except NotFound:
                current = self._named()
                if current is not None and current.manifest == manifest.id:
                    raise  # it was not replaced: somebody removes files by hand

    def _named(self) -> Current | None:
        return read_current(self.space, self.shard.definition)


def leased(objects: Objects, id_: str) -> LeasedSnapshot:
    """The snapshot of an id, whose files stay.

    Raises: `NotFound` when it is gone; `Corrupt`.
    """
    lease = SnapshotLease(objects, id_)
    try:
        return LeasedSnapshot(load_manifest(objects, id_), lease)
    except BaseException:
        lease.release()
        raise
