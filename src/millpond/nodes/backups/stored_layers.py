"""The layers of maps in a place for backups, as a pond has them: see `docs/format/snapshot.md`.

    maps/<map>.<incarnation>/manifests/ …     the files of the snapshots that backups name

Files are named by their content, so the backups of a place share what they have in common, and a file that is there is
not sent again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond import ranges
from millpond.errors import MillpondError
from millpond.kernel.steps import step
from millpond.maps.layered.history import put_back
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import NAMED
from millpond.maps.model.snapshot_pointer import Current, move_pointer
from millpond.maps.snapshots.manifest import load_manifest, manifest_name
from millpond.maps.snapshots.published import copy_snapshot, damage_of
from millpond.maps.snapshots.section_list import interval_files
from millpond.ranges.index import Source, index_name, range_name
from millpond.ranges.verify import check_file
from millpond.stores.objects import Objects, ObjectsBelow
from millpond.stores.objects.bringing import CountedObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.kernel.space import Transaction
    from millpond.maps.layered.stored_heads import StoredLayers
    from millpond.nodes.backups.layout import Backup
    from millpond.pond import Pond
    from millpond.ranges.transfer import FetchReport

__all__ = ("LAYERS_FOLDER", "check_layers", "layer_files", "layers_below", "restore_layers", "store_layers")

LAYERS_FOLDER = "maps"


def layers_below(place: Objects, folder: str) -> ObjectsBelow:
    """The files of the layers of a map in a place, by the name of its folders."""
    return ObjectsBelow(place, f"{LAYERS_FOLDER}/{folder}")


def store_layers(
    source: Source, place: Objects, stored: StoredLayers, sent: Callable[[int], object]
) -> Iterator[FetchReport]:
    """Bring the layers of a map to a place, what is missing there, snapshot by snapshot. `sent` is called with
    the bytes of each file.

    Raises: `NotFound` when they were folded and removed meanwhile; `Corrupt`, naming the file; `Unavailable`.
    """
    for id_ in stored.snapshots:
        target = CountedObjects(layers_below(place, stored.folder), lambda _name, size: sent(size))
        yield copy_snapshot(source, target, load_manifest(source, id_))
    step("backup.layers_stored")


def layer_files(place: Objects, backup: Backup) -> Iterator[str]:
    """The names of all files of layers that a backup names.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    for stored in backup.layers:
        objects = layers_below(place, stored.folder)
        for id_ in stored.snapshots:
            yield objects.folder + manifest_name(id_)
            manifest = load_manifest(objects, id_)
            for layer in manifest.layers:
                yield objects.folder + index_name(layer.index)
                entries = ranges.load_index(objects, layer.index).entries
                yield from (objects.folder + range_name(entry.id) for entry in entries)
            yield from (objects.folder + name for name in interval_files(objects, manifest))


def check_layers(place: Objects, backup: Backup) -> Iterator[str]:
    """Read the files of layers, and compare them with their names; the problems, each naming its object."""
    files = layer_files(place, backup)
    while True:
        try:
            name = next(files, None)
            if name is None:
                return
            check_file(place.get(name), name.split("/", 2)[2], place.where)
        except MillpondError as error:
            yield f"{LAYERS_FOLDER}/{error.values.get('object', '')}: {error.message}"


def restore_layers(place: Objects, backup: Backup, pond: Pond) -> None:
    """Bring the layers of maps back, and let them count: they are as of the end of the backup.

    Raises: `NotFound`, `Corrupt`, naming the file; `Unavailable` when the disk is full.
    """
    for stored in backup.layers:
        source, target = layers_below(place, stored.folder), pond.loading.map_files(stored.folder)
        with damage_of(place.where, "restore another backup: 'millpond backup list PLACE'"):
            manifests = [load_manifest(source, id_) for id_ in stored.snapshots]
            for manifest in manifests:
                copy_snapshot(source, target, manifest)
        pond.space.write(partial(_put_back, stored=stored, version=manifests[0].shard_version))
    step("restore.layers_written")


def _put_back(tx: Transaction, stored: StoredLayers, version: int) -> None:
    if stored.manifests:
        current = known_map(tx, stored.map)
        assert current is not None and folder_name(current) == stored.folder, "the log ends with the backup"
        move_pointer(tx, stored.map, Current(stored.manifests[0], stored.incarnation, version))
    for change in stored.changes:
        put_back(tx, stored.map, change)
    for id_ in stored.named:
        tx.put(NAMED.pack(stored.folder, id_), b"restored")
