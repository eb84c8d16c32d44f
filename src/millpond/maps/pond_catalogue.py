"""The catalogue of an open pond, `pond.catalogue`: which maps there are, and how they are made, altered and dropped.

Invariants:
* every change is an entry of the log, written together with its effect on the catalogue;
* a map is in the catalogue before it has a folder: a folder that is listed first, and has no map afterwards, belongs
  to one that was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Unavailable
from millpond.kernel.steps import step
from millpond.maps.model.catalogue import altered_map, created_map, find_map, known_map, list_maps
from millpond.maps.model.definition import MapDefinition, Store, folder_name, store_of
from millpond.maps.model.field_changes import CHANGES
from millpond.maps.model.keyspaces import COPIED, COPY_BEGUN
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.open_maps import OpenMaps
from millpond.stores.files import remove_tree

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.maps.loads.loading import Loading
    from millpond.maps.log.log import Entry

__all__ = ("PondCatalogue", "copy_begun")


def copy_begun(tx: ReadTransaction) -> bool:
    """True while the files of a copy come, see `copies/copy.py`, whose rows will name them. One that was given up is
    gone on with as long as the pond has no entries of its own.
    """
    if tx.get(COPIED.packed) != COPY_BEGUN:
        return False
    from millpond.maps.log.log import head_of

    return not head_of(tx).position


class PondCatalogue:
    """The definitions of a pond's maps, and the folders of those that were dropped."""

    def __init__(self, loading: Loading, open_maps: OpenMaps) -> None:
        self._loading, self._open_maps = loading, open_maps

    def find(self, name: str) -> MapDefinition:
        """The map of that name.

        Raises: `NotFound` naming maps with a similar name.
        """
        with self._loading.space.read() as tx:
            return find_map(tx, name)

    def create(self, definition: MapDefinition, *, exist_ok: bool) -> MapDefinition:
        """Enter a map; the one that is there already, of the same shape, with `exist_ok`.

        Raises: `AlreadyExists`.
        """

        def enter(tx: Transaction) -> MapDefinition:
            current = created_map(tx, definition, exist_ok=exist_ok)
            if current is not None:
                return current
            body = {"definition": definition.to_dict()}
            self._record(tx, "create", (definition.name,), body)
            return definition

        return self._entered(enter)

    def alter(self, name: str, settings: Mapping[str, Any]) -> MapDefinition:
        """Change settings of a map, or its fields, see `Pond.alter_map`.

        Raises: `Invalid`; `NotFound`.
        """
        changes = {change: settings[change] for change in CHANGES if settings.get(change)}
        settings = {setting: value for setting, value in settings.items() if setting not in CHANGES}
        if changes:
            # Imported here: opening a pond needs no Arrow.
            from millpond.maps.layered.fields import alter_fields

            alter_fields(self._loading, name, changes)
        if "store" in settings:
            store, settings = store_of(settings["store"]), {**settings}
            del settings["store"]
            self._convert(self.find(name), store)
        if settings and self.find(name).store is Store.LAYERS:
            from millpond.maps.layered.fields import alter_settings

            alter_settings(self._loading, name, settings)

        def enter(tx: Transaction) -> MapDefinition:
            before, altered = find_map(tx, name), altered_map(tx, name, settings)
            if altered.store is Store.LAYERS and tracks_updates(before) != tracks_updates(altered):
                raise Conflict("the map was altered meanwhile", kind="map_altered", map=name, hint="alter it again")
            if altered != before:
                body = {"definition": altered.to_dict()}
                self._record(tx, "alter", (altered.name,), body)
            return altered

        return self._entered(enter)

    def _convert(self, definition: MapDefinition, store: Store) -> None:
        # Imported here: opening a pond converts nothing.
        from millpond.maps.loads.conversion import convert

        convert(self._loading, self._open_maps.map(definition), store)

    def drop(self, name: str) -> None:
        """Drop a map, see `Pond.drop_map`.

        Raises: `NotFound`.
        """

        def enter(tx: Transaction) -> MapDefinition:
            definition, loading = find_map(tx, name), self._loading
            body = {"incarnation": definition.incarnation}
            self._record(tx, "drop", (definition.name,), body, keep=loading.loads.keep)
            return definition

        definition = self._entered(enter)
        step("drop.forgotten")
        self.dropped(definition)

    def copy(self, name: str, new: str) -> MapDefinition:
        """Copy a layered map under a new name: its files are shared, and no row is written.

        Raises: `AlreadyExists`; `Invalid` for a map in a shard; `NotFound`.
        """
        return self._copied(name, new, drop=False)

    def rename(self, name: str, new: str) -> MapDefinition:
        """Give a layered map another name; handles of the old one raise `NotFound`, kind `map_dropped`.

        Raises: as `copy`.
        """
        return self._copied(name, new, drop=True)

    def _copied(self, name: str, new: str, *, drop: bool) -> MapDefinition:
        # Imported here: opening a pond needs no Arrow.
        from millpond.maps.layered.copies import copy_map

        snapshots = self._loading.folder / "snapshots"
        before, after = copy_map(
            self._loading, name, new, lambda definition: snapshots / folder_name(definition), drop=drop
        )
        if drop:
            self.dropped(before)
        return self.find(after.name)

    def _record(
        self, tx: Transaction, kind: str, maps: tuple[str, ...], body: dict[str, Any], *, keep: bool = False
    ) -> None:
        # Imported here: opening a pond needs no log.
        from millpond.maps.log.apply import record

        record(tx, kind, maps, body, self._loading.clock.now_ms(), keep=keep)

    def _entered(self, enter: Callable[[Transaction], MapDefinition]) -> MapDefinition:
        with self._loading.writing():
            definition = self._loading.space.write(enter)
            step("log.entered")
        self._loading.loads.announce()
        return definition

    def followed(self, entry: Entry) -> None:
        """Do outside the space what an entry of the primary did at the primary."""
        if entry.kind == "drop":
            self._dropped(entry.maps[0], entry.body["incarnation"])

    def dropped(self, definition: MapDefinition) -> None:
        """Let go of a map that was dropped by an entry of the log: of its handles here, and its files."""
        self._dropped(definition.name, definition.incarnation)

    def _dropped(self, name: str, incarnation: str) -> None:
        loads = self._loading.loads
        self._open_maps.forget([name])
        for parent in ("shards", "snapshots"):
            self.remove_dropped(self._loading.folder / parent / f"{name}.{incarnation}")
        with suppress(Unavailable), loads.alone(seconds=0):
            loads.clear()

    def finish_drops(self) -> None:
        """Remove what a crash, or those who read its snapshots, left of maps that were dropped or converted."""
        folder = self._loading.folder
        with self._loading.space.read() as tx:
            if copy_begun(tx):
                return
        there = [map_folder for parent in ("shards", "snapshots") for map_folder in (folder / parent).glob("[!.]*")]
        stores = {folder_name(definition): definition.store for definition in self.list()}
        for map_folder in there:
            if map_folder.name not in stores:
                self.remove_dropped(map_folder)
            elif map_folder.parent.name == "shards" and stores[map_folder.name] is Store.LAYERS:
                self._remove_converted(map_folder)

    def _remove_converted(self, map_folder: Path) -> None:
        """Remove a shard whose map is in layers, unless somebody is about to switch to it."""
        with suppress(Unavailable), self._loading.loads.alone(seconds=0):
            if any(folder_name(map_) == map_folder.name and map_.store is Store.LAYERS for map_ in self.list()):
                self.remove_dropped(map_folder)

    def remove_dropped(self, map_folder: Path) -> bool:
        """Remove a folder of a map that was dropped, or that only branches have; of its snapshots those that commits
        and branches name stay, and for now those that somebody reads. True when all is gone.
        """
        if map_folder.parent.name == "snapshots":
            if map_folder.is_dir():
                # Imported here: opening a pond needs no compiled kernels.
                from millpond.maps.snapshots.leases import collecting
                from millpond.maps.snapshots.named import named_in
                from millpond.maps.snapshots.subset import discard_snapshots
                from millpond.stores.objects import FolderObjects

                objects = FolderObjects(map_folder)
                with collecting(objects) as free:  # of a map that is being copied, it is written to until it is entered
                    with self._loading.space.read() as tx:
                        # This map alone is looked up: a drop costs the same, however many maps there are.
                        there = known_map(tx, map_folder.name.partition(".")[0])
                        manifests = named_in(tx, map_folder.name)
                    if not free or (there is not None and folder_name(there) == map_folder.name):
                        return False
                    return discard_snapshots(objects, self._loading.clock.now_ms(), manifests)
            return True
        # Handles, of other processes too, look at this file: they learn of it before the rest is taken away.
        (map_folder / "current").unlink(missing_ok=True)
        remove_tree(map_folder)
        return True

    def list(self) -> Sequence[MapDefinition]:
        """All maps, by name."""
        with self._loading.space.read() as tx:
            return list_maps(tx)
