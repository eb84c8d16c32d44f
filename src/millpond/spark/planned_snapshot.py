"""A map as it was when a query was planned: what every task of that query opens, also when it is tried again.

A pond's folder keeps a snapshot while somebody leases it, a bucket keeps all; nodes keep one that was pinned for some
hours, and when one is lost another stands in that has the same rows. Executors find it in the folder, or fetch what
they lack of it into the cache that all processes of their machine share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from millpond.client.snapshots.pin import SnapshotPin
from millpond.client.snapshots.planned import open_pinned, pinned_objects, pinned_rows, pinned_spans
from millpond.maps.snapshots.freeze import SnapshotManifest, load_manifest
from millpond.maps.snapshots.leases import SnapshotLease
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.spark.locations import Location, SparkNodes
from millpond.stores.objects import Objects

if TYPE_CHECKING:
    from millpond.maps.map import Map

__all__ = ("FolderSnapshots", "NodesSnapshots", "PlannedSnapshots", "snapshots_of")


class PlannedSnapshots(Protocol):
    """The snapshots of one map; they travel to the executors."""

    def __hash__(self) -> int: ...

    @property
    def entry(self) -> int:
        """The entry of the log that shaped the map last; 0 where nobody needs it."""

    def at_entry(self, entry: int) -> PlannedSnapshots:
        """The snapshots of the same map as a later entry left it."""

    def open(self, id_: str, share: HashShare | None = None) -> Snapshot:
        """The snapshot of that id, or a share of it, memory-mapped.

        Raises: `NotFound` when it is kept no more; `Unavailable` when no node answers.
        """

    def keep(self, id_: str) -> None:
        """Keep the snapshot of that id while this process lives, where it can: for a stream that asks no other."""

    def spans(self, manifest: SnapshotManifest, whole: GroupSpan, bytes_max: int) -> list[GroupSpan]:
        """Cut a snapshot into pieces of about `bytes_max` bytes."""

    def rows(self, manifest: SnapshotManifest, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        """The canonical rows of a piece; from nodes, files are fetched when they are first read."""

    def files(self, manifest: SnapshotManifest) -> Objects:
        """The files of a snapshot of the map, and of others of it that this process asked for; from nodes likewise."""


@dataclass(frozen=True, slots=True)
class FolderSnapshots:
    """Snapshots among the files of a map, in a folder or a bucket; `where` they are, by an address. `memory_max`: as
    that of the pond that the driver opened.
    """

    where: str
    memory_max: int
    objects: Objects = field(compare=False)
    entry: ClassVar[int] = 0

    def at_entry(self, entry: int) -> FolderSnapshots:
        """These: they have them all."""
        return self

    def open(self, id_: str, share: HashShare | None = None) -> Snapshot:
        """The snapshot of that id."""
        manifest = load_manifest(self.objects, id_)
        return Snapshot.open(self.objects, manifest, share=share, memory_max=self.memory_max)

    def keep(self, id_: str) -> None:
        """Hold a lease, which is seen by those who collect files on this machine."""
        _retained(self, id_)

    def spans(self, manifest: SnapshotManifest, whole: GroupSpan, bytes_max: int) -> list[GroupSpan]:
        """Pieces of a snapshot."""
        return spans(self.objects, manifest, whole, bytes_max)

    def rows(self, manifest: SnapshotManifest, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        """The canonical rows of a piece."""
        return thaw(self.objects, manifest, span)

    def files(self, manifest: SnapshotManifest) -> Objects:
        """The files of the map."""
        return self.objects


@cache
def _retained(shelf: FolderSnapshots, id_: str) -> SnapshotLease:
    return SnapshotLease(shelf.objects, id_)


def snapshots_of(location: Location, pond_map: Map) -> FolderSnapshots:
    """The snapshots of a map that is open in a folder or a bucket."""
    where = f"{location.where} {pond_map.objects.where}"
    return FolderSnapshots(where, pond_map.loading.memory_max, pond_map.objects)


@dataclass(frozen=True, slots=True)
class NodesSnapshots:
    """Snapshots on nodes, pinned there."""

    location: SparkNodes
    pin: SnapshotPin

    @property
    def entry(self) -> int:
        """The entry of the log that shaped the map last: what stands in for a lost snapshot is known by it."""
        return self.pin.entry

    def at_entry(self, entry: int) -> NodesSnapshots:
        """Snapshots of the map as that entry left it."""
        return replace(self, pin=replace(self.pin, entry=entry))

    def open(self, id_: str, share: HashShare | None = None) -> Snapshot:
        """The snapshot of that id, fetched as far as this machine lacks it."""
        return open_pinned(self.pin, id_, share=share, settings=self.location.settings())

    def keep(self, id_: str) -> None:
        """Do nothing: it is pinned there for some hours."""

    def spans(self, manifest: SnapshotManifest, whole: GroupSpan, bytes_max: int) -> list[GroupSpan]:
        """Pieces of a snapshot."""
        return pinned_spans(self.pin, manifest.id, whole, bytes_max, settings=self.location.settings())

    def rows(self, manifest: SnapshotManifest, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        """The canonical rows of a piece."""
        return pinned_rows(self.pin, manifest.id, span, settings=self.location.settings())

    def files(self, manifest: SnapshotManifest) -> Objects:
        """The files on this machine, each fetched when it is first read."""
        return pinned_objects(self.pin, manifest, settings=self.location.settings())
