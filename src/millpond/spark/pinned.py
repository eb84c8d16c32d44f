"""A map as it was when a query was planned: what every task of that query opens, also when it is tried again.

A pond's folder keeps a snapshot while somebody leases it; nodes keep one that was pinned for some hours. Executors
find it in the folder, or fetch what they lack of it into the cache that all processes of their machine share.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.maps.handle import Map
from millpond.maps.lookup import Snapshot
from millpond.maps.snapshots import SnapshotManifest, load_manifest
from millpond.spark.ponds import OpenPond, Place
from millpond.stores.objects import Objects, open_objects

__all__ = ("Shelf", "pin")


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the snapshots of one map lie: in a folder, or on nodes, as `urls#map`."""

    place: Place
    where: str

    def open(self, id_: str) -> Snapshot:
        """The snapshot of that id, memory-mapped.

        Raises: `NotFound` when it is kept no more; `Unavailable` when no node answers.
        """
        if not self.place.remote:
            objects = open_objects(self.where)
            return Snapshot.open(objects, load_manifest(objects, id_))
        from millpond.nodes.pinned import open_pinned

        return open_pinned(self.where, id_, settings=self.place.settings())

    def objects(self, manifest: SnapshotManifest) -> Objects:
        """The files of a snapshot by their names; from nodes each is fetched when it is first read."""
        if not self.place.remote:
            return open_objects(self.where)
        from millpond.nodes.pinned import pinned_objects

        return pinned_objects(self.where, manifest, settings=self.place.settings())


def pin(pond: OpenPond, place: Place, name: str) -> tuple[Shelf, SnapshotManifest]:
    """The map as it is now; it is frozen first if it moved on.

    Raises: `NotFound` for a map that is not there.
    """
    opened = pond.map(name)
    if isinstance(opened, Map):
        return Shelf(place, str(opened.objects.where)), opened.freeze()
    from millpond.nodes.pinned import pin_snapshot

    where = f"{place.where}#{opened.name}"
    return Shelf(place, where), pin_snapshot(where, settings=place.settings())
