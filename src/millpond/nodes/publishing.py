"""What a node gives out of its maps: the snapshot that counts, and the files that it names.

A snapshot is frozen when somebody asks for one, the map moved on, and the last freeze is `min_time_to_keep_snapshots`
ago; or at once, for who says that only the newest will do. Everybody else gets the one that counts, so however many
ask, a map is frozen about once in that time.

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
from millpond.maps.freezing import current_manifest, refreeze
from millpond.maps.leases import pin, pinned_at, pinned_entry
from millpond.maps.manifests import load_manifest
from millpond.maps.narrowed import narrowed, narrowed_objects
from millpond.maps.narrowing import narrowing_of
from millpond.stores.objects import FolderObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.clock import Clock
    from millpond.maps.handle import Map
    from millpond.maps.snapshots import SnapshotManifest
    from millpond.pond import Pond

__all__ = ("PIN_MS_MAX", "Publisher")

PIN_MS_MAX = 24 * 3_600_000
"""The longest time that a reader may keep a snapshot from being removed."""

_FILE = re.compile(
    r"(narrowed/[0-9a-f]{16}/)?((ranges|indexes|intervals)/[0-9a-f]{40}\.arrow|manifests/[0-9a-f]{40}\.json)"
)
_ATTEMPTS = 3


def _unknown(name: str, version: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Publisher:
    """The snapshots of a pond, for readers elsewhere."""

    pond: Pond
    clock: Clock
    keep_ms: int
    shaped: Callable[[str, int], int] = _unknown
    """The last entry of the log that shaped a version of a map, 0 when it cannot be told: see `Itself.shaped`."""

    def same_rows(self, name: str, entry: int, *, pin_ms: int) -> SnapshotManifest:
        """A snapshot of a map as it was after an entry of the log and before the next about it; kept for `pin_ms`.

        Raises: `NotFound`, kind `snapshot_moved`, when the map moved on, or has not come so far; as `manifest`.
        """
        each = self.pond.map(name)
        objects, now = _folder(each), self.clock.now_ms()
        until = now + min(pin_ms, PIN_MS_MAX)
        for id_ in pinned_at(objects, entry, now):
            with suppress(NotFound):
                pin(objects, id_, until, entry)
                return load_manifest(objects, id_)
        manifest = self.manifest(name, fresh=True)
        if self.shaped(each.name, manifest.shard_version) != entry:
            raise NotFound(
                "the map is not as it was after that entry of the log", kind="snapshot_moved", map=name, entry=entry,
                hint="begin the job again: it will be planned on the map as it is now",
            )  # fmt: skip
        pin(objects, manifest.id, until, entry)
        return manifest

    def manifest(
        self, name: str, *, keys: Sequence[str | None] | None = None, window: Sequence[object] | None = None,
        fresh: bool = False, pin_ms: int = 0,
    ) -> SnapshotManifest:  # fmt: skip
        """The snapshot of a map that counts, narrowed or not; kept for `pin_ms` (at most `PIN_MS_MAX`) from now on.

        Raises: `NotFound` for a map that is not there; `Invalid` for bounds it cannot have; `Unavailable` when the
        disk is full, or somebody else freezes for long.
        """
        each = self.pond.map(name)
        for attempt in range(_ATTEMPTS):
            try:
                return self._manifest(each, keys, window, fresh, pin_ms)
            except NotFound:
                if attempt + 1 == _ATTEMPTS:  # replaced and collected in between, time after time
                    raise
        raise AssertionError("the last attempt raises")

    def entry(self, name: str, manifest: SnapshotManifest) -> int:
        """The last entry of the log that shaped a snapshot that is pinned; 0 when that is not known."""
        return 0 if manifest.narrowing else pinned_entry(_folder(self.pond.map(name)), manifest.id)

    def _manifest(
        self, each: Map, keys: Sequence[str | None] | None, window: Sequence[object] | None, fresh: bool, pin_ms: int
    ) -> SnapshotManifest:
        objects = _folder(each)
        narrowing = narrowing_of(each.definition, keys, window)
        manifest = self._whole(each, fresh)
        now = self.clock.now_ms()
        if narrowing is not None:
            manifest = narrowed(objects, manifest, narrowing, now_ms=now)
            objects = narrowed_objects(objects, narrowing)
        if pin_ms > 0:
            entry = self.shaped(each.name, manifest.shard_version) if narrowing is None else 0
            pin(objects, manifest.id, now + min(pin_ms, PIN_MS_MAX), entry)
        return manifest

    def _whole(self, each: Map, fresh: bool) -> SnapshotManifest:
        current = current_manifest(each.loading, each.objects, each.definition)
        if current is None or fresh:
            return refreeze(each.loading, each.objects, each.shard)
        age = self.clock.now_ms() - current.created_ms
        if current.shard_version == each.shard.version or 0 <= age < self.keep_ms:
            return current
        try:
            return refreeze(each.loading, each.objects, each.shard, wait_seconds=0)
        except Unavailable as error:
            if error.kind != "map_busy":
                raise
            return current  # the next one is being frozen: who asks later gets it

    def file(self, name: str, file: str) -> Path:
        """Where a file of a map's snapshots lies. Nothing but such files can be named.

        Raises: `NotFound` for any other name, for a file that is not there, and for a map that is not.
        """
        objects = _folder(self.pond.map(name))
        place = objects.root / file
        if not _FILE.fullmatch(file) or not place.is_file():
            raise NotFound(
                "there is no such file", kind="snapshot_not_found", map=name, object=file,
                hint="it was replaced: ask for the snapshot that counts now",
            )  # fmt: skip
        return place


def _folder(each: Map) -> FolderObjects:
    objects = each.objects
    assert isinstance(objects, FolderObjects), "a pond is a folder"
    return objects
