"""The history of a layered map: the manifest that each change made its head, and when; and the manifests that are kept.

    ("maps", "history", map, version)    the manifest, its moment, and the entry of the log that brought it, as JSON

Invariants:
* a change of a map has one row, put in the write that moves the head, with the time of its entry in the log. A fold has
  none: the last row names its manifest then, and what was known stays what it was;
* the row of a load names a manifest whose newest layer has the rows of that load alone, too, whatever was folded since:
  the one that the load made, or, of ranges, one that never was the head. When the row is older than `history`, that
  manifest is kept no more;
* versions count from 1 without a gap, and moments never fall: the manifest of a row was known from its moment up to
  that of the next;
* rows go from the oldest on, each when the next one is older than `history`. So what was known at any moment since then
  is told, and a first version above 1 tells that there was more;
* a row goes before its manifest may; the files of a manifest that is named stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millpond.json_forms import JsonForm
from millpond.maps.model.catalogue import list_maps
from millpond.maps.model.definition import MapDefinition, folder_name
from millpond.maps.model.keyspaces import HISTORY
from millpond.maps.model.snapshot_pointer import read_pointer
from millpond.maps.snapshots.named import named_everywhere, named_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.kernel.space import ReadTransaction, Space, Transaction
    from millpond.maps.log.log import Entry

__all__ = (
    "Change",
    "change_to",
    "changes_of",
    "forget_aged",
    "manifests_named",
    "named_manifests",
    "newest_changes",
    "put_back",
    "put_change",
    "put_fold",
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a map: its entry in the log, the rows it brought, and the manifest that counted from then on.

    `loaded` is the manifest whose newest layer has those rows; empty where there is none, or it is kept no more.
    `facts` are what the entry says besides, such as the definition before an alteration, `former`.
    """

    version: int
    moment_ms: int
    manifest: str
    position: int
    kind: str
    rows: int
    source: str
    loaded: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


_FACTS = ("former", "where", "rows_removed", "before", "renamed_from", "copied_from")
_CHANGE = JsonForm(Change)


def put_change(tx: Transaction, name: str, version: int, manifest: str, entry: Entry, *, loaded: str = "") -> None:
    """Tell of a change of a map, in the write that moves its head."""
    rows, source = entry.body.get("rows", {}).get(name, 0), entry.body.get("source", "")
    facts = {fact: entry.body[fact] for fact in _FACTS if fact in entry.body}
    change = Change(version, entry.stamp_ms, manifest, entry.position, entry.kind, rows, source, loaded, facts)
    put_back(tx, name, change)


def put_back(tx: Transaction, name: str, change: Change) -> None:
    """Tell of a change of a map that another pond told of."""
    tx.put(HISTORY.pack(name, change.version), _CHANGE.encode(change))


def put_fold(tx: Transaction, name: str, version: int, manifest: str) -> None:
    """Let a change name the manifest that says the same in fewer layers."""
    key = HISTORY.pack(name, version)
    row = tx.get(key)
    if row is not None:
        tx.put(key, _CHANGE.encode(replace(_CHANGE.decode(row), manifest=manifest)))


def changes_of(tx: ReadTransaction, name: str) -> list[Change]:
    """The changes of a map that its history tells of, the oldest first.

    Raises: `Corrupt`.
    """
    return [_decoded(name, row) for _, row in tx.scan(HISTORY[name].range())]


def newest_changes(tx: ReadTransaction, name: str) -> Iterator[Change]:
    """The changes of a map that its history tells of, the newest first, each as it is asked for.

    Raises: as `changes_of`.
    """
    return (_decoded(name, row) for _, row in tx.scan(HISTORY[name].range(), reverse=True))


def change_to(tx: ReadTransaction, name: str, version: int) -> Change | None:
    """The change that brought a map to a version; None when the history tells of it no more.

    Raises: as `changes_of`.
    """
    row = tx.get(HISTORY.pack(name, version))
    return None if row is None else _decoded(name, row)


def _decoded(name: str, row: bytes) -> Change:
    return _CHANGE.stored(
        row, "the history of a map cannot be read", kind="history_damaged", map=name,
        hint="restore the pond from a copy, or drop the map and load it again",
    )  # fmt: skip


def named_manifests(tx: ReadTransaction) -> dict[str, set[str]]:
    """The ids of the manifests that the rows of a pond name, by the folder of their map."""
    return named_everywhere(tx) | {folder_name(map_): set(manifests_named(tx, map_)) for map_ in list_maps(tx)}


def manifests_named(tx: ReadTransaction, definition: MapDefinition) -> dict[str, str]:
    """The ids of the manifests whose files are kept, and for what: the one function that collecting goes by.

    Raises: as `changes_of`.
    """
    manifests = dict.fromkeys(named_in(tx, folder_name(definition)), "a commit or branch")
    changes = changes_of(tx, definition.name)
    manifests |= {id_: "history" for change in changes for id_ in (change.manifest, change.loaded) if id_}
    current = read_pointer(tx, definition.name).current
    return manifests if current is None else {**manifests, current.manifest: "head"}


def forget_aged(space: Space, definition: MapDefinition, before_ms: int) -> int:
    """Forget the changes that another one followed by a time, and what loads up to it made; the number of changes.

    Raises: as `changes_of`.
    """
    name = definition.name

    def act(tx: Transaction) -> int:
        aged = [change for change in changes_of(tx, name) if change.moment_ms <= before_ms]
        if aged and aged[-1].loaded not in ("", aged[-1].manifest):
            put_back(tx, name, replace(aged[-1], loaded=""))
        return tx.delete_range(HISTORY[name].range((), (aged[-1].version if aged else 0,)))

    return space.write(act)
