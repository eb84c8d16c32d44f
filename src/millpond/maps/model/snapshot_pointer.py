"""The current-snapshot pointer of a map: a register in the space, swapped after all files of the new one are on
disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.json_forms import JsonForm
from millpond.kernel.registers import Register
from millpond.kernel.space import ReadTransaction, Space
from millpond.maps.model.catalogue import list_maps, same_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.keyspaces import SNAPSHOT

__all__ = ("Current", "current_snapshot", "current_snapshots", "read_current")


@dataclass(frozen=True, slots=True)
class Current:
    """The snapshot that counts: its manifest, and the state of the map it was frozen from."""

    manifest: str
    incarnation: str
    shard_version: int


_FORM = JsonForm(Current)


def current_snapshot(name: str) -> Register[Current]:
    """The register of a map."""
    return Register(SNAPSHOT.pack(name), _FORM, (_never_older,))


def read_current(space: Space, definition: MapDefinition) -> Current | None:
    """The current snapshot of this map, not of an earlier one of its name; None when it was never frozen.

    Raises: `NotFound`, kind `map_dropped`.
    """
    with space.read() as tx:
        same_map(tx, definition)
        held = current_snapshot(definition.name).read(tx)
    return held.value if held is not None and held.value.incarnation == definition.incarnation else None


def current_snapshots(tx: ReadTransaction) -> Iterator[tuple[MapDefinition, Current]]:
    """The current snapshot of every map that was frozen, in one look."""
    definitions = {definition.name: definition for definition in list_maps(tx)}
    for key, row in tx.scan(SNAPSHOT.range()):
        name = str(SNAPSHOT.unpack(key)[0])
        held, definition = current_snapshot(name).held(row), definitions.get(name)
        if held is not None and definition is not None and held.value.incarnation == definition.incarnation:
            yield definition, held.value


def _never_older(old: Current | None, new: Current) -> str | None:
    if old is None or old.incarnation != new.incarnation or old.shard_version <= new.shard_version:
        return None
    return f"a snapshot of version {new.shard_version} cannot replace one of {old.shard_version}"
