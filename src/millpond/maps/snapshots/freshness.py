"""Freshness of an open snapshot, proven with each lookup: without reading a file but the shard's, and in microseconds.

A `Stamp` is what the space says of a map (its row of the catalogue, the pointer to its snapshot) as the bytes that are
there, and the version of its shard. While the stamp is the one that a snapshot was opened with, that snapshot shows all
that is merged: whoever merges, by this process or another, raises the version; whoever freezes, drops or alters changes
a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millpond.kernel.signal import last_change_of
from millpond.kernel.space import Space, moment_of
from millpond.maps.model.catalogue import map_key, same_map
from millpond.maps.model.keyspaces import SNAPSHOT
from millpond.maps.model.snapshot_pointer import parse_pointer

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.shard.shard import Shard
    from millpond.maps.snapshots.manifest import SnapshotManifest

__all__ = ("Freshness", "Stamp")


Row: TypeAlias = bytes | None


class Stamp(NamedTuple):
    """One moment of a map. The shard's version is read last: it may be newer than the rows, never older."""

    definition: Row
    register: Row
    version: int


class Freshness:
    """The stamps of one map."""

    __slots__ = ("_definition", "_definition_key", "_last_change", "_latest", "_pointer_key", "_shard", "_space")

    def __init__(self, space: Space, definition: MapDefinition, shard: Shard | None) -> None:
        self._space, self._definition, self._shard = space, definition, shard
        self._last_change = last_change_of(space)
        self._latest: tuple[int | None, Stamp] = None, Stamp(None, None, 0)
        self._definition_key = map_key(definition.name)
        self._pointer_key = SNAPSHOT.pack(definition.name)

    def stamp(self) -> Stamp:
        """The stamp of now.

        Raises: `NotFound`, kind `map_dropped`, when the shard is gone.
        """
        change = self._last_change()
        moment, stamp = self._latest
        if change is None or change != moment:
            with self._space.read() as tx:
                stamp = Stamp(tx.get(self._definition_key), tx.get(self._pointer_key), 0)
                self._latest = moment_of(tx), stamp
        return stamp if self._shard is None else Stamp(stamp.definition, stamp.register, self._shard.version)

    def proving(self, manifest: SnapshotManifest) -> Stamp | None:
        """The stamp of now, if it proves that a snapshot shows all of the map; None when something moved meanwhile.

        Raises: `NotFound`, kind `map_dropped`.
        """
        with self._space.read() as tx:
            same_map(tx, self._definition)
        stamp = self.stamp()
        current = parse_pointer(self._definition.name, stamp.register).current
        # A layered map has no other version than that of its manifest, which its pointer names.
        version = manifest.shard_version if self._shard is not None else 0
        there = (manifest.incarnation, manifest.id, manifest.shard_version, version)
        if current is None or stamp.definition is None:
            return None
        named = (current.incarnation, current.manifest, current.shard_version, stamp.version)
        return stamp if named == there else None
