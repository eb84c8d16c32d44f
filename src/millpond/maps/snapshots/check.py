"""Checking a map's snapshot: every file of it is named by its content, so each is read and compared with its name.

A damaged file is moved into the snapshot folder's `quarantine/`, and the snapshot counts no more: the next lookup
freezes the map in full, which writes what is missing anew. Readers that have it open keep it. Of a layered map the
snapshot is all there is: it goes on to count, so readers refuse to answer until its files are there again.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from millpond.errors import Conflict
from millpond.kernel.verify import Report, checked, problem
from millpond.maps.model.snapshot_pointer import move_pointer, read_pointer
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest, manifest_name
from millpond.maps.snapshots.section_list import interval_files, intervals_name
from millpond.ranges import Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.kernel.space import Space
    from millpond.maps.map import Map

__all__ = ("check_snapshot",)

LAYERS_REMEDY = "put it back from a copy, or from `maps` of a backup, or drop the map and load it again"
REMEDY = "the next lookup freezes the map in full"


def check_snapshot(space: Space, pond_map: Map, version: int | None) -> Report:
    """Check the snapshot that counts, if the map was ever frozen; `version` is the shard's, if it is known."""
    with space.read() as tx:
        pointer = read_pointer(tx, pond_map.name)
    if pointer.current is None:
        return Report()
    report = Report()
    for fault in _check_files(pond_map, pointer.current.manifest, version):
        report += fault
    if not report.ok and pond_map.layers is None:
        with suppress(Conflict):  # another freeze may have put a whole snapshot in its place meanwhile
            space.write(lambda tx: move_pointer(tx, pond_map.name, None, seen=pointer))
    return report


def _check_files(pond_map: Map, id_: str, version: int | None) -> Iterator[Report]:
    objects = pond_map.objects
    remedy = REMEDY if pond_map.layers is None else LAYERS_REMEDY
    verifier = Verifier(objects, "snapshot file", remedy, quarantine_folder=True)
    report = verifier.file(manifest_name(id_))
    yield report
    if not report.ok:
        return
    manifest = load_manifest(objects, id_)
    yield checked("snapshot")
    yield from _check_manifest(pond_map, manifest, version)
    for layer in manifest.layers:
        yield verifier.index(layer.index)
    yield from _check_intervals(pond_map, manifest, verifier)


def _check_intervals(pond_map: Map, manifest: SnapshotManifest, verifier: Verifier) -> Iterator[Report]:
    top = manifest.sections or manifest.intervals
    if top is None:
        return
    report = verifier.file(intervals_name(top))
    yield report
    if report.ok:
        yield from (verifier.file(name) for name in islice(interval_files(pond_map.objects, manifest), 1, None))


def _check_manifest(pond_map: Map, manifest: SnapshotManifest, version: int | None) -> Iterator[Report]:
    place = f"{pond_map.objects.where}/{manifest_name(manifest.id)}"
    if (manifest.map, manifest.incarnation) != (pond_map.name, pond_map.definition.incarnation):
        yield problem("snapshot", place, f"it is of another map: {manifest.map}.{manifest.incarnation}", REMEDY)
    elif version is not None and manifest.shard_version > version:
        yield problem("snapshot", place, f"it is of version {manifest.shard_version}, the shard of {version}", REMEDY)
