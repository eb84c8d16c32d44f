"""Making subsets of snapshots, and removing those that are out of date.

    <snapshots of the map>/subsets/<spec>/     manifests, indexes, ranges … as beside it
    <snapshots of the map>/subsets.lock        held by whoever makes or removes one

A subset is made from the whole snapshot, of the same version of the shard, on request, and made
again from the next whole one. Ranges are named by their content, so what did not change is not fetched again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import chain
from pathlib import Path

import numpy as np

from millpond.arrays.longs import LONG_MIN
from millpond.errors import Corrupt, NotFound, Unavailable
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition
from millpond.maps.snapshots.bounds import SnapshotBounds, narrow_rows, snapshot_bounds
from millpond.maps.snapshots.freeze import KEEP_MS, collect, freeze
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.leases import LeasedSnapshot, SnapshotLease, end_lease
from millpond.maps.snapshots.manifest import SnapshotManifest, list_manifests
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.memory_bound import MEMORY_MAX
from millpond.stores.files import remove_tree
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects, Objects

__all__ = (
    "SUBSETS",
    "collect_subsets",
    "discard_snapshots",
    "leased_subset",
    "subset_objects",
    "open_subset",
)

SUBSETS = "subsets"
SUBSETS_MAX = 64
"""Subsets of one map that are retained at once; when more are requested, the oldest go."""

THAWED_BYTES_MIN = 32 << 20
"""The bytes of mapped files, about, whose groups are looked at together."""

LOCK_SECONDS = 3600.0
"""The first one of a large map takes as long as to read the map; who wants the same waits for it."""


def subset_objects(objects: FolderObjects, subset: SnapshotBounds) -> FolderObjects:
    """The folder of the snapshots of these bounds."""
    return FolderObjects(objects.root / SUBSETS / subset.spec)


def leased_subset(
    objects: FolderObjects, base: SnapshotManifest, subset: SnapshotBounds, *, now_ms: int, memory_max: int = MEMORY_MAX
) -> LeasedSnapshot:
    """A subset of the snapshot `base`: one that was made before, or a new one; it stays while the lease is held.

    `memory_max`: the bytes of memory that making it may take; rows beyond that wait in the folder of the snapshots.

    Raises: `NotFound` when `base` was collected meanwhile; `Unavailable` when the disk is full, or another process
        makes one for long.
    """
    target = subset_objects(objects, subset)
    made = _made(target, base)
    if made is not None:
        with suppress(NotFound):
            return LeasedSnapshot(made, SnapshotLease(target, made.id))
    # Who removes such a snapshot holds this lock, too: what is found or made here cannot go before it is leased.
    with _alone(objects, LOCK_SECONDS, base.map):
        manifest = _made(target, base) or _make(objects, target, base, subset, now_ms, memory_max)
        return LeasedSnapshot(manifest, SnapshotLease(target, manifest.id))


def open_subset(
    objects: Objects, definition: MapDefinition, base: SnapshotManifest, keys: Sequence[str | int | None] | None,
    window: Sequence[object] | None, now_ms: int, memory_max: int = MEMORY_MAX,
) -> Snapshot:  # fmt: skip
    """The snapshot `base` within bounds, open.

    Raises: `Invalid` for bounds that the map cannot have; else as `leased_subset`.
    """
    subset = snapshot_bounds(definition, keys, window)
    if subset is None:
        return Snapshot.open(objects, base, memory_max=memory_max)
    assert isinstance(objects, FolderObjects), "a pond is a folder"
    with leased_subset(objects, base, subset, now_ms=now_ms, memory_max=memory_max) as leased:
        return Snapshot.open(subset_objects(objects, subset), leased.manifest, memory_max=memory_max)


def _alone(objects: FolderObjects, seconds: float, name: str) -> AbstractContextManager[None]:
    busy = Unavailable(
        "somebody else is making a subset of the map", kind="map_busy", map=name, hint="try again when it is done"
    )
    return alone(objects.root / "subsets.lock", seconds, busy)


def _made(target: Objects, base: SnapshotManifest) -> SnapshotManifest | None:
    return next((manifest for manifest in list_manifests(target) if _origin(manifest) == _origin(base)), None)


def _origin(manifest: SnapshotManifest) -> tuple[str, int, int]:
    # A shard that was replaced by a copy of another node's may have a version again that it had before.
    return manifest.incarnation, manifest.shard_version, manifest.created_ms


def _make(
    objects: FolderObjects, target: FolderObjects, base: SnapshotManifest, subset: SnapshotBounds, now_ms: int,
    memory_max: int,
) -> SnapshotManifest:  # fmt: skip
    lease, spill = SnapshotLease(objects, base.id), SpillTo.within(objects.root, memory_max)
    try:
        definition = base.definition
        pieces = spans(objects, base, _span(base, subset), max(THAWED_BYTES_MIN, spill.bytes_max))
        rows = narrow_rows(definition, subset, chain.from_iterable(thaw(objects, base, piece) for piece in pieces))
        # Made at the moment of its base: the same base and bounds make the same snapshot, wherever.
        manifest = freeze(
            target, definition, rows, shard_version=base.shard_version, created_ms=base.created_ms, subset=subset,
            spill=spill,
        )  # fmt: skip
    finally:
        lease.release()
    step("narrow.written")
    collect(target, manifest, now_ms=now_ms)
    return manifest


def _span(base: SnapshotManifest, subset: SnapshotBounds) -> GroupSpan:
    """The groups that can be needed: keyed ones lie in order of their hashes, ranges in order of their starts."""
    if base.kind.keyed or not isinstance(subset.upper, int):
        return GroupSpan()
    beyond = range_order_keys(np.array([subset.upper], np.int64), np.array([LONG_MIN], np.int64))
    return GroupSpan(upper=beyond[0].as_py())


def collect_subsets(
    objects: FolderObjects, base: SnapshotManifest, *, now_ms: int, keep_ms: int = KEEP_MS, most: int = SUBSETS_MAX
) -> int:
    """Remove subsets whose base was replaced `keep_ms` ago by `base`, and the oldest of too many.

    Those that somebody has open or has pinned stay. How many specs were removed.
    """
    folders = [folder for folder in (objects.root / SUBSETS).glob("[!.]*") if folder.is_dir()]
    if not folders:
        return 0
    with _alone(objects, LOCK_SECONDS, base.map):
        aged = sorted(folders, key=_written_ns, reverse=True)
        return sum(
            _remove(folder, now_ms)
            for position, folder in enumerate(aged)
            if position >= most or (_outdated(folder, base) and now_ms >= base.created_ms + keep_ms)
        )


def discard_snapshots(objects: FolderObjects, now_ms: int, named: Collection[str]) -> bool:
    """Remove the snapshots of a dropped map, but for those that are `named`, or that somebody has open or pinned; True
    when all are gone.

    What stays is removed by a later call: when those who hold it have let go, or their process has ended.
    """
    removed = [_remove(folder, now_ms) for folder in (objects.root / SUBSETS).glob("[!.]*") if folder.is_dir()]
    with suppress(Corrupt, NotFound):  # one that somebody reads is damaged: it goes with the rest, when they let go
        collect(objects, None, now_ms=now_ms, keep_ms=0, reachable=named)
    if not all(removed) or next(list_manifests(objects), None) is not None:
        return False
    step("drop.snapshots_ended")
    remove_tree(objects.root)
    return True


def _written_ns(folder: Path) -> int:
    return folder.stat().st_mtime_ns


def _outdated(folder: Path, base: SnapshotManifest) -> bool:
    return _made(FolderObjects(folder), base) is None


def _remove(folder: Path, now_ms: int) -> bool:
    objects = FolderObjects(folder)
    ended = [end_lease(objects, manifest.id, now_ms) for manifest in list_manifests(objects)]
    if not all(ended):
        return False
    step("narrow.ended")
    remove_tree(folder)
    return True
