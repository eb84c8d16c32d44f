"""Copies of layered maps: files of a manifest get second names in the folder of another map, and no byte is written.

Files never change, and each folder collects its own names: what one map lets go of stays for the other.

Invariants:
* a copy is in the catalogue, with its manifest and what the map remembers of its loads, by one write, or not at all;
* until then its folder is nobody's, and held: who clears the folders of dropped maps lets it be;
* a map that is renamed is copied with its history, which tells of it, and dropped in that write, if no load came in
  between.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from millpond.errors import Conflict
from millpond.kernel.steps import step
from millpond.maps.layered.history import changes_of, put_back, put_change
from millpond.maps.log.apply import record
from millpond.maps.model.catalogue import created_map, find_map, same_map
from millpond.maps.model.definition import MapDefinition, check_name
from millpond.maps.model.field_changes import need_layers
from millpond.maps.model.keyspaces import ABSORBED, ALERTS
from millpond.maps.model.snapshot_pointer import Current, move_pointer
from millpond.maps.snapshots.freeze import files_of
from millpond.maps.snapshots.leases import writing
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest, manifest_name, store_manifest
from millpond.stores.files import disk_errors, make_folder, remove_tree, sync
from millpond.stores.objects import FolderObjects, Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from millpond.kernel.space import Transaction
    from millpond.maps.layered.head import Head, Layers
    from millpond.maps.loads.loading import Loading

__all__ = ("copy_map", "linked_files")


def copy_map(
    loading: Loading, name: str, new: str, folder_of: Callable[[MapDefinition], Path], *, drop: bool = False
) -> tuple[MapDefinition, MapDefinition]:  # fmt: skip
    """Copy a map under a new name, or rename it: `drop` the old one. The definitions before and after.

    Raises: `AlreadyExists`; `Invalid`, kind `store_unsupported`, for a map in a shard; `NotFound`; `Unavailable`.
    """
    with loading.space.read() as tx:
        before = find_map(tx, name)
        need_layers(before, "rename" if drop else "copy")
        after = replace(before, name=check_name(new), incarnation=loading.clock.random_id())
        created_map(tx, after, exist_ok=False)
    layers, target = loading.layers_of(before.name), loading.open_files(folder_of(after))
    assert layers is not None, "it is layered"
    try:
        with loading.writing(), layers.writing(), writing(target):
            _copy(loading, layers, before, after, target, drop=drop)
    except BaseException:
        remove_tree(target.root)
        raise
    step("copy.entered")
    loading.loads.announce()
    return before, after


def _copy(
    loading: Loading, layers: Layers, before: MapDefinition, after: MapDefinition, target: FolderObjects, *, drop: bool
) -> None:  # fmt: skip
    while True:
        head = layers.head()
        manifest = head.manifest or SnapshotManifest.empty(layers.definition, created_ms=layers.clock.now_ms())
        linked = linked_files(layers.objects, [manifest, *(_history(layers) if drop else ())], target, after)
        version = head.version + 1 if drop else min(head.version, 1)  # a copy begins its own history
        counted = replace(linked[manifest.id], shard_version=version)
        for copy in (*(linked.values() if drop else ()), counted):
            store_manifest(target, copy)
        step("copy.stored")
        with suppress(Conflict):  # a load came in between: its files are linked, too
            return loading.space.write(partial(_enter, loading, before, after, head, counted, linked, drop))


def _history(layers: Layers) -> list[SnapshotManifest]:
    with layers.space.read() as tx:
        changes = changes_of(tx, layers.definition.name)
    return [load_manifest(layers.objects, change.manifest) for change in changes]


def linked_files(
    source: Objects, manifests: Sequence[SnapshotManifest], target: Objects, definition: MapDefinition
) -> dict[str, SnapshotManifest]:  # fmt: skip
    """The manifests of a copy, by the ids of those that they are of; all files that they name are in its folder."""
    assert isinstance(source, FolderObjects) and isinstance(target, FolderObjects), "a pond is a folder"
    files = files_of(source, manifests) - {manifest_name(manifest.id) for manifest in manifests}
    folders = {(target.root / name).parent for name in files}
    with disk_errors(target.root):
        for folder in folders:
            make_folder(folder)
        for name in files:
            if not target.collected:  # a bucket has no second names
                target.put(name, source.get(name))
                continue
            with suppress(FileExistsError):
                os.link(source.root / name, target.root / name)
        for folder in folders:
            sync(folder)
    step("copy.linked")
    return {
        manifest.id: replace(manifest, map=definition.name, incarnation=definition.incarnation)
        for manifest in manifests
    }


def _enter(
    loading: Loading, before: MapDefinition, after: MapDefinition, head: Head, manifest: SnapshotManifest,
    linked: Mapping[str, SnapshotManifest], drop: bool, tx: Transaction,
) -> None:  # fmt: skip
    current = same_map(tx, before)
    created_map(tx, after, exist_ok=False)
    if drop:
        move_pointer(tx, before.name, None, seen=head.pointer)
    shown, now = manifest.definition, loading.clock.now_ms()
    copy = replace(current, name=after.name, incarnation=after.incarnation, value=shown.value, fields=shown.fields)
    body = {"definition": copy.to_dict(), "renamed_from" if drop else "copied_from": before.name}
    entry = record(tx, "create", (after.name,), body, now)
    move_pointer(tx, after.name, Current(manifest.id, manifest.incarnation, manifest.shard_version))
    for key, row in list(tx.scan(ABSORBED[before.name].range())):
        tx.put(ABSORBED.pack(after.name, ABSORBED.unpack(key)[1]), row)
    for key, row in list(tx.scan(ALERTS[before.name].range())):
        tx.put(ALERTS.pack(after.name, ALERTS.unpack(key)[1]), row)
    if drop:
        for change in changes_of(tx, before.name):
            put_back(tx, after.name, replace(change, manifest=linked[change.manifest].id, loaded=""))
        record(tx, "drop", (before.name,), {"incarnation": before.incarnation}, now)
    if manifest.shard_version:
        put_change(tx, after.name, manifest.shard_version, manifest.id, entry)
