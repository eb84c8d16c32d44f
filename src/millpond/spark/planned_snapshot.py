"""A map as it was when a query was planned: what every task of that query opens, also when it is tried again.

A pond's folder keeps a snapshot while somebody leases it; nodes keep one that was pinned for some hours, and when one
is lost another stands in that has the same rows. Executors find it in the folder, or fetch what they lack of it into
the cache that all processes of their machine share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.maps.map import Map
from millpond.maps.snapshots.freeze import SnapshotManifest, load_manifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.spark.places import OpenPond, Place
from millpond.stores.objects import open_objects

if TYPE_CHECKING:
    from millpond.client.snapshots.pin import SnapshotPin

__all__ = ("PlannedSnapshots", "pin")


@dataclass(frozen=True, slots=True)
class PlannedSnapshots:
    """The snapshots of one map: `where` is a folder or, of nodes, a `SnapshotPin` as JSON."""

    place: Place
    where: str

    def _pin(self) -> SnapshotPin:
        from millpond.client.snapshots.pin import SnapshotPin

        return SnapshotPin.from_json(self.where)

    def open(self, id_: str) -> Snapshot:
        """The snapshot of that id, memory-mapped.

        Raises: `NotFound` when it is kept no more; `Unavailable` when no node answers.
        """
        if not self.place.remote:
            objects = open_objects(self.where)
            return Snapshot.open(objects, load_manifest(objects, id_))
        from millpond.client.snapshots.planned import open_pinned

        return open_pinned(self._pin(), id_, settings=self.place.settings())

    def spans(self, manifest: SnapshotManifest, whole: GroupSpan, bytes_max: int) -> list[GroupSpan]:
        """Cut a snapshot into pieces of about `bytes_max` bytes."""
        if not self.place.remote:
            return spans(open_objects(self.where), manifest, whole, bytes_max)
        from millpond.client.snapshots.planned import pinned_spans

        return pinned_spans(self._pin(), manifest.id, whole, bytes_max, settings=self.place.settings())

    def rows(self, manifest: SnapshotManifest, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        """The canonical rows of a piece; from nodes, files are fetched when they are first read."""
        if not self.place.remote:
            return thaw(open_objects(self.where), manifest, span)
        from millpond.client.snapshots.planned import pinned_rows

        return pinned_rows(self._pin(), manifest.id, span, settings=self.place.settings())


def pin(pond: OpenPond, place: Place, name: str) -> tuple[PlannedSnapshots, SnapshotManifest]:
    """The map as it is now; it is frozen first if it moved on.

    Raises: `NotFound` for a map that is not there.
    """
    opened = pond.map(name)
    if isinstance(opened, Map):
        return PlannedSnapshots(place, str(opened.objects.where)), opened.freeze()
    from millpond.client.connections import node_urls
    from millpond.client.snapshots.pin import SnapshotPin
    from millpond.client.snapshots.planned import plan_snapshot

    where, manifest = plan_snapshot(SnapshotPin(node_urls(place.where), opened.name), settings=place.settings())
    return PlannedSnapshots(place, where.to_json()), manifest
