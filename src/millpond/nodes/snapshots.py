"""Publication of a node's maps: the current snapshot, and the files that it names.

A snapshot is frozen when somebody asks for one, the map moved on, and the last freeze is
`client.min_time_to_keep_snapshots` ago; or at once, for who says that only the newest will do. Everybody else gets the
one that counts, so however many ask, a map is frozen about once in that time.

Snapshots of one map differ from node to node, in their layers and their ids, though they hold the same rows. What two
nodes have in common is the log: the last entry that shaped the rows tells which snapshot of one node can stand in for
which of another.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import NotFound, Unavailable
from millpond.maps.snapshots.bounds import snapshot_bounds
from millpond.maps.snapshots.leases import LeasedSnapshot, pin, pinned_at, pinned_entry
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.subset import leased_subset, subset_objects
from millpond.nodes.ponds_at_refs import is_at_ref
from millpond.stores.objects import FolderObjects, Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.clock import Clock
    from millpond.maps.map import Map
    from millpond.maps.snapshots.freeze import SnapshotManifest

__all__ = ("PIN_MS_MAX", "Publisher")

PIN_MS_MAX = 24 * 3_600_000
"""The longest time that a reader may keep a snapshot from being removed."""

_FILE = re.compile(
    r"(subsets/[0-9a-f]{16}/)?"
    r"((ranges|indexes)/[0-9a-f]{64}\.arrow|intervals/[0-9a-f]{40}\.arrow|manifests/[0-9a-f]{40}\.json)"
)


def _unknown(name: str, version: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Publisher:
    """The snapshots of maps, for readers elsewhere."""

    clock: Clock
    keep_ms: int
    shaped: Callable[[str, int], int] = _unknown
    """The last entry of the log that shaped a version of a map, 0 when it is unknown: see `LocalPeer.shaped`."""

    def same_rows(self, pond_map: Map, entry: int, *, pin_ms: int) -> SnapshotManifest:
        """A snapshot of a map as it was after an entry of the log and before the next about it; kept for `pin_ms`.

        Raises: `NotFound`, kind `snapshot_moved`, when the map moved on, or has not come so far; as `manifest`.
        """
        objects, now = _folder(pond_map), self.clock.now_ms()
        until = now + min(pin_ms, PIN_MS_MAX)
        for id_ in pinned_at(objects, entry, now):
            with suppress(NotFound):
                pin(objects, id_, until, entry)
                return load_manifest(objects, id_)
        with self._whole(pond_map, fresh=True) as leased:
            if self.shaped(pond_map.name, leased.manifest.shard_version) != entry:
                raise NotFound(
                    "the map is not as it was after that entry of the log", kind="snapshot_moved", map=pond_map.name,
                    entry=entry, hint="begin the job again: it will be planned on the map as it is now",
                )  # fmt: skip
            pin(objects, leased.manifest.id, until, entry)
        return leased.manifest

    def manifest(
        self, pond_map: Map, *, keys: Sequence[str | None] | None = None, window: Sequence[object] | None = None,
        fresh: bool = False, pin_ms: int = 0,
    ) -> SnapshotManifest:  # fmt: skip
        """The current snapshot of a map, or a subset of it; retained for `pin_ms` (at most `PIN_MS_MAX`) from now on.

        Raises: `Invalid` for bounds it cannot have; `Unavailable` when the disk is full, or somebody else freezes for
        long.
        """
        subset = snapshot_bounds(pond_map.definition, keys, window)
        with self._whole(pond_map, fresh) as whole:
            if subset is None:
                if pin_ms > 0:
                    entry = 0 if is_at_ref(pond_map) else self.shaped(pond_map.name, whole.manifest.shard_version)
                    self._pin(_folder(pond_map), whole.manifest, pin_ms, entry)
                return whole.manifest
            with leased_subset(
                _folder(pond_map), whole.manifest, subset, now_ms=self.clock.now_ms(),
                memory_max=pond_map.snapshots.memory_max,
            ) as leased:  # fmt: skip
                if pin_ms > 0:
                    self._pin(subset_objects(_folder(pond_map), subset), leased.manifest, pin_ms, 0)
                return leased.manifest

    def _pin(self, objects: FolderObjects, manifest: SnapshotManifest, pin_ms: int, entry: int) -> None:
        pin(objects, manifest.id, self.clock.now_ms() + min(pin_ms, PIN_MS_MAX), entry)

    def entry(self, pond_map: Map, manifest: SnapshotManifest) -> int:
        """The last entry of the log that shaped a snapshot that is pinned; 0 when that is not known."""
        return 0 if manifest.bounds else pinned_entry(_folder(pond_map), manifest.id)

    def _whole(self, pond_map: Map, fresh: bool) -> LeasedSnapshot:
        """The snapshot that counts, kept from being collected."""
        current = pond_map.snapshots.current()
        if current is None:
            return pond_map.snapshots.refreeze()
        age = self.clock.now_ms() - current.manifest.created_ms
        if current.manifest.shard_version == pond_map.rows.version or (0 <= age < self.keep_ms and not fresh):
            return current
        try:
            newer = pond_map.snapshots.refreeze(wait_seconds=None if fresh else 0)
        except Unavailable as error:
            if fresh or error.kind != "map_busy":
                current.lease.release()
                raise
            return current  # the next one is being frozen: who asks later gets it
        except BaseException:
            current.lease.release()
            raise
        current.lease.release()
        return newer

    def file(self, objects: Objects, file: str) -> Path:
        """Path of a file of the snapshots of a map. No other file can be named.

        Raises: `NotFound` for any other name, and for a file that is not there.
        """
        assert isinstance(objects, FolderObjects), "a pond is a folder"
        path, allowed = objects.root / file, _FILE.fullmatch(file)
        if allowed and not path.is_file():
            with suppress(NotFound):
                objects.get(file)  # of a pond in a bucket a copy is made where there is none yet
        if not allowed or not path.is_file():
            map_ = objects.root.name.partition(".")[0]
            raise NotFound(
                "there is no such file", kind="snapshot_not_found", map=map_, object=file,
                hint="it was replaced: ask for the snapshot that counts now",
            )  # fmt: skip
        return path


def _folder(pond_map: Map) -> FolderObjects:
    objects = pond_map.objects
    assert isinstance(objects, FolderObjects), "a pond is a folder"
    return objects
