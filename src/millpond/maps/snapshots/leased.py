"""Snapshots with the lease that keeps their files: from the moment they are chosen, nobody can collect them.

    with refreeze_leased(space, clock, objects, shard) as leased:
        Snapshot.open(objects, leased.manifest)         # takes a lease of its own

A snapshot that counts may be replaced and collected between reading its name and taking its lease. The lease says so,
and then another one counts, which is taken instead: somebody else got on each time that this has to begin anew.
"""

from __future__ import annotations

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.kernel.space import Space
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.snapshot_pointer import read_current
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.freeze import load_manifest
from millpond.maps.snapshots.leases import Lease, Leased
from millpond.maps.snapshots.refresh import refreeze
from millpond.stores.objects import Objects

__all__ = ("current_leased", "refreeze_leased")


def current_leased(space: Space, objects: Objects, definition: MapDefinition) -> Leased | None:
    """The snapshot that counts; None when the map was never frozen, or what was frozen is gone from the disk.

    Raises: `NotFound`, kind `map_dropped`.
    """
    current = read_current(space, definition)
    while current is not None:
        try:
            return _leased(objects, current.manifest)
        except NotFound:
            newer = read_current(space, definition)
            if newer == current:
                return None  # removed by hand, or quarantined because it was damaged: the shard has all it said
            current = newer
    return None


def refreeze_leased(
    space: Space, clock: Clock, objects: Objects, shard: Shard, *, wait_seconds: float | None = None
) -> Leased:
    """The snapshot of the shard as it is now: the one that counts, or a new one when the shard moved on.

    Raises: as `refreeze`.
    """
    while True:
        options = {} if wait_seconds is None else {"wait_seconds": wait_seconds}
        manifest = refreeze(space, clock, objects, shard, **options)
        try:
            return Leased(manifest, Lease(objects, manifest.id))
        except NotFound:
            current = read_current(space, shard.definition)
            if current is not None and current.manifest == manifest.id:
                raise  # it was not replaced: somebody removes files by hand


def _leased(objects: Objects, id_: str) -> Leased:
    lease = Lease(objects, id_)
    try:
        return Leased(load_manifest(objects, id_), lease)
    except BaseException:
        lease.release()
        raise
