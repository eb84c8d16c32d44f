"""The current-snapshot pointer of a map: a head in the space, swapped after all files of the new one are on disk.

The row is JSON: `{"revision": n, "value": …}`, where n counts the changes from 1. Without a value, no snapshot counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from millpond.errors import Corrupt
from millpond.json_forms import ABSENT, JsonForm
from millpond.kernel.head import Heads
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.maps.model.catalogue import list_maps, same_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.keyspaces import SNAPSHOT

__all__ = (
    "Current", "Pointer", "current_snapshots", "move_pointer", "parse_pointer", "read_current",
    "read_pointer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Current:
    """The snapshot that counts: its manifest, and the state of the map it was frozen from."""

    manifest: str
    incarnation: str
    shard_version: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """The number of changes, and the snapshot that counts; None: none does."""

    revision: int = 0
    current: Current | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    revision: int
    value: Any = ABSENT


_ROW, _CURRENT = JsonForm(_Row), JsonForm(Current)


def _decode(row: bytes) -> Pointer:
    stored = _ROW.decode(row)
    return Pointer(stored.revision, None if stored.value is ABSENT else _CURRENT.build(stored.value))


def _encode(pointer: Pointer) -> bytes:
    value = ABSENT if pointer.current is None else _CURRENT.plain(pointer.current)
    return _ROW.encode(_Row(pointer.revision, value))


def _never_older(stored: Pointer | None, pointer: Pointer) -> str | None:
    old, new = None if stored is None else stored.current, pointer.current
    if old is None or new is None or old.incarnation != new.incarnation or old.shard_version <= new.shard_version:
        return None
    return f"a snapshot of version {new.shard_version} cannot replace one of {old.shard_version}"


def _damaged(name: str, reason: object) -> Corrupt:
    return Corrupt("the pointer of a snapshot cannot be read", kind="register_damaged", map=name, reason=reason)


_HEADS: Heads[Pointer] = Heads(_decode, _encode, attrgetter("revision"), _damaged, (_never_older,))


def read_pointer(tx: ReadTransaction, name: str) -> Pointer:
    """The pointer of a map.

    Raises: `Corrupt`.
    """
    return _HEADS.read(tx, SNAPSHOT.pack(name), name) or Pointer()


def parse_pointer(name: str, row: bytes | None) -> Pointer:
    """The pointer in a row that was read already.

    Raises: `Corrupt`.
    """
    return Pointer() if row is None else _HEADS.parse(row, name)


def move_pointer(tx: Transaction, name: str, current: Current | None, *, seen: Pointer | None = None) -> None:
    """Let another snapshot of a map count, or none; when the pointer is as it was `seen`, if it was.

    Raises: `Conflict` when it moved since; `Corrupt`; `Internal` for a snapshot that is older.
    """
    before = (seen or read_pointer(tx, name)).revision
    if before or current is not None:
        _HEADS.swap(tx, SNAPSHOT.pack(name), Pointer(before + 1, current), expected=before)


def read_current(space: Space, definition: MapDefinition) -> Current | None:
    """The current snapshot of this map, not of an earlier one of its name; None when it was never frozen.

    Raises: `NotFound`, kind `map_dropped`.
    """
    with space.read() as tx:
        same_map(tx, definition)
        current = read_pointer(tx, definition.name).current
    return current if current is not None and current.incarnation == definition.incarnation else None


def current_snapshots(tx: ReadTransaction) -> Iterator[tuple[MapDefinition, Current]]:
    """The current snapshot of every map that was frozen, in one look."""
    definitions = {definition.name: definition for definition in list_maps(tx)}
    for key, row in tx.scan(SNAPSHOT.range()):
        name = str(SNAPSHOT.unpack(key)[0])
        current, definition = parse_pointer(name, row).current, definitions.get(name)
        if current is not None and definition is not None and current.incarnation == definition.incarnation:
            yield definition, current
