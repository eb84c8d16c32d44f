"""Freezing a shard that moved on: the current snapshot, and the time of the next one.

The register `current.py` names the manifest that counts; it is swapped only after all files of the new one are on
disk, so a crash leaves the old snapshot or the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from millpond.clock import Clock
from millpond.errors import Corrupt, NotFound, Unavailable
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.snapshot_pointer import Current, move_pointer, read_current
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.freeze import SnapshotManifest, collect, freeze, load_manifest
from millpond.maps.snapshots.leases import collecting
from millpond.maps.snapshots.named import named_in
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.maps.snapshots.subset import collect_subsets
from millpond.stores.files import make_folder
from millpond.stores.locks import alone
from millpond.stores.objects import FolderObjects, Objects

__all__ = ("current_manifest", "refreeze")

TOUCHED_MIN = 10_000
TOUCHED_SHARE = 8
"""A key read alone takes about as long as this many read in order."""
ROWS_MIN = 50_000
ROWS_SHARE = TOUCHED_SHARE
"""Rows of single keys, too: they are read by a cursor. Keys that have as many rows as others never meet this limit."""

_LOG = logging.getLogger(__name__)
FREEZE_LOCK_SECONDS = 3600.0
"""A first freeze of a large map takes minutes; who comes meanwhile waits for it instead of doing it again."""


def current_manifest(space: Space, objects: Objects, definition: MapDefinition) -> SnapshotManifest | None:
    """The manifest that counts; None when the map was never frozen, or what was frozen is gone from the disk.

    Raises: `NotFound`, kind `map_dropped`.
    """
    current = read_current(space, definition)
    if current is None:
        return None
    try:
        return load_manifest(objects, current.manifest)
    except NotFound:
        # Removed by hand, or quarantined because it was damaged: the shard has all it said.
        return None


def refreeze(
    space: Space, clock: Clock, objects: Objects, shard: Shard, *, memory_max: int,
    wait_seconds: float = FREEZE_LOCK_SECONDS,
) -> SnapshotManifest:  # fmt: skip
    """The manifest of the shard as it is now: the one that counts, or a new one when the shard moved on.

    `memory_max`: the bytes of memory that freezing may take; rows beyond that wait in the shard's folder.

    Raises: `Unavailable` when the disk is full, or another process freezes this map for longer than `wait_seconds`.
    """
    current = current_manifest(space, objects, shard.definition)
    if current is not None and current.shard_version == shard.version:
        return current
    busy = Unavailable(
        "somebody else is freezing the map",
        kind="map_busy",
        map=shard.definition.name,
        hint="try again when it is done",
    )
    make_folder(shard.folder)
    # Alone, so that nobody collects the files of a manifest that does not count yet.
    with alone(shard.folder / "freeze.lock", wait_seconds, busy):
        return _refreeze(space, clock, objects, shard, SpillTo.within(shard.folder, memory_max))


def _too_many(touched: int, groups: int) -> bool:
    """True when to read the touched keys one by one would take longer than to read the whole map."""
    return touched > TOUCHED_MIN and touched * TOUCHED_SHARE > groups


class _ManyRowsError(Exception):
    """The touched keys have so many rows that the whole map is read sooner."""


def _few(rows: Iterator[pa.RecordBatch], all_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of touched keys, unless they are a large share of all."""
    most, taken = max(ROWS_MIN, all_rows // ROWS_SHARE), 0
    for batch in rows:
        taken += batch.num_rows
        if taken > most:
            raise _ManyRowsError
        yield batch


def _refreeze(
    space: Space, clock: Clock, objects: Objects, shard: Shard, spill: SpillTo
) -> SnapshotManifest:  # fmt: skip
    base = current_manifest(space, objects, shard.definition)
    with shard.view() as view:
        if base is not None and base.shard_version == view.version:
            return base
        # A shard that was restored from an older copy: nothing is known of what changed.
        restored = base is not None and base.shard_version > view.version
        if restored:
            base = None
        touched = None if base is None else view.touched_since(base.shard_version)
        if base is None or touched is None or _too_many(len(touched), base.groups):
            base = touched = None
        freeze_rows = partial(
            freeze, objects, view.definition, shard_version=view.version, created_ms=clock.now_ms(), spill=spill
        )
        try:
            rows = view.read_rows() if base is None else _few(view.read_rows(touched), view.row_count())
            manifest = freeze_rows(rows, base=base, touched=touched)
        except _ManyRowsError:
            # A few keys have a good share of all rows. Nothing was written: rows are sorted before that.
            manifest = freeze_rows(view.read_rows())
    step("freeze.files_written")

    def swap(tx: Transaction) -> None:
        if restored:
            move_pointer(tx, shard.definition.name, None)
        move_pointer(tx, shard.definition.name, Current(manifest.id, manifest.incarnation, manifest.shard_version))

    space.write(swap)
    step("freeze.switched")
    shard.frozen_version = manifest.shard_version
    try:
        with collecting(objects) as free:  # of a map that was layered, branches may still load into this folder
            if free:
                _collect(space, objects, manifest, clock.now_ms())
    except (Corrupt, NotFound) as error:
        # An older snapshot is damaged. The new one counts already; what only the old one holds stays on the disk.
        _LOG.warning("%s; millpond verify quarantines it", error)
    return manifest


def _collect(space: Space, objects: Objects, manifest: SnapshotManifest, now_ms: int) -> None:
    with space.read() as tx:
        manifests = named_in(tx, f"{manifest.map}.{manifest.incarnation}")
    collect(objects, manifest, now_ms=now_ms, reachable=manifests)
    if isinstance(objects, FolderObjects):
        collect_subsets(objects, manifest, now_ms=now_ms)
