"""The rows of some maps, in a copy: they are entered in the log of the target, which may have other maps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from millpond.copies.files import Secured, Sent
from millpond.errors import AlreadyExists, Conflict
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.layered.history import changes_of, manifests_named, put_back
from millpond.maps.log.apply import record
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import ABSORBED, ALERTS
from millpond.maps.model.snapshot_pointer import move_pointer, read_pointer
from millpond.pond import Pond

__all__ = ("MapsByName", "check_name")


def check_name(tx: ReadTransaction, definition: MapDefinition) -> bool:
    """True when the map is in the target.

    Raises: `AlreadyExists` for another one of its name.
    """
    there = known_map(tx, definition.name)
    if there is not None and there.incarnation != definition.incarnation:
        raise AlreadyExists("the map exists", kind="map_exists", map=definition.name,
                            hint="drop or rename one of the two first")  # fmt: skip
    return there is not None


@dataclass(frozen=True, slots=True)
class MapsByName:
    """Some maps as a transaction sees them: `main`, with its history, and the rules of its alerts."""

    tx: ReadTransaction
    maps: Sequence[MapDefinition]

    def manifests(self) -> dict[str, set[str]]:
        """The manifests to bring, by the folder of their map."""
        return {folder_name(map_): set(self._named(map_)) for map_ in self.maps}

    def _named(self, definition: MapDefinition) -> set[str]:
        changes = changes_of(self.tx, definition.name)
        current = read_pointer(self.tx, definition.name).current
        return {change.manifest for change in changes} | ({current.manifest} if current else set())

    def check(self, target: Pond) -> None:
        """Refuse maps of the target with these names, but for earlier copies that were not changed since.

        Raises: `AlreadyExists`; `Conflict`, kind `copy_target_changed`.
        """
        with target.space.read() as tx:
            for definition in self.maps:
                self._check(tx, definition)

    def _check(self, tx: ReadTransaction, definition: MapDefinition) -> None:
        name = definition.name
        if not check_name(tx, definition):
            return
        current = read_pointer(tx, name).current
        if current is not None and current.manifest not in manifests_named(self.tx, definition):
            raise Conflict("the map was changed since it was copied", kind="copy_target_changed", map=name,
                           hint="drop or rename it first")  # fmt: skip

    def begin(self, target: Pond) -> AbstractContextManager[None]:
        """Nothing: files are held while they come."""
        return nullcontext()

    def bring(self, target: Pond, sent: Sent) -> None:
        """Nothing: maps have files alone."""

    def enter(self, target: Pond, secured: Secured) -> bool:
        """Create the maps, anew if they are there, in one write; False when files may have gone meanwhile.

        Raises: as `check`.
        """

        def act(tx: Transaction) -> bool:
            if not secured.stay(tx):
                return False
            for definition in self.maps:
                self._check(tx, definition)
                self._enter(tx, definition, target.clock.now_ms())
            return True

        with target.loading.writing():
            return target.space.write(act)

    def _enter(self, tx: Transaction, definition: MapDefinition, now_ms: int) -> None:
        name = definition.name
        if known_map(tx, name) is not None:
            record(tx, "drop", (name,), {"incarnation": definition.incarnation}, now_ms)
        entry = record(tx, "create", (name,), {"definition": definition.to_dict()}, now_ms)
        move_pointer(tx, name, read_pointer(self.tx, name).current)
        for key, row in [row for rows in (ABSORBED, ALERTS) for row in self.tx.scan(rows[name].range())]:
            tx.put(key, row)
        for change in changes_of(self.tx, name):
            put_back(tx, name, replace(change, position=entry.position, loaded=""))
