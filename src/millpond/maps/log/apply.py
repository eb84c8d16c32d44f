"""Entering: what an entry of the log does to the catalogue and to what waits, in the same write of the space.

The primary appends an entry and performs it (`record`); a replica accepts the primary's and performs it (`follow`).
Both go through the same few lines, which look at nothing but the entry and the space: so nodes cannot come to differ
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from millpond.errors import Unavailable
from millpond.json_forms import stable_json
from millpond.kernel.series import Segment
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.log.deduplication import forget_streams, remember
from millpond.maps.log.log import Entry, accept, append, entry_at
from millpond.maps.log.node_list import put_node_list
from millpond.maps.log.queue import (
    NUMBER,
    ORDER_KINDS,
    MaintenanceOrder,
    Queued,
    forget_map,
    forget_parts,
    queued_parts,
    series_of,
    settings_of,
)
from millpond.maps.log.retained import put_retained
from millpond.maps.model.catalogue import find_map, in_store, known_map, put_map, remove_map
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.event_digest import events_of_parts
from millpond.maps.model.keyspaces import ABSORBED, ALERT_MARK, ALERTS, MAINTENANCE
from millpond.maps.parts.part import PartManifest

__all__ = ("LoadContent", "events_alone", "follow", "load_body", "perform", "queue_entry", "record", "alert_mark")


def record(
    tx: Transaction, kind: str, maps: Sequence[str], body: dict[str, Any], now_ms: int, *, keep: bool = False
) -> Entry:
    """Append an entry and perform it. `keep`: parts of a map that is dropped are kept."""
    entry = append(tx, kind, tuple(maps), body, now_ms)
    perform(tx, entry, keep=keep)
    return entry


def follow(tx: Transaction, entry: Entry, *, keep: bool = False) -> bool:
    """Accept an entry of the primary's log and perform it; False when it is known.

    Raises: `Conflict`, see `log.accept`.
    """
    if not accept(tx, entry):
        return False
    perform(tx, entry, keep=keep)
    return True


def perform(tx: Transaction, entry: Entry, *, keep: bool) -> None:
    """Apply the entry to the catalogue, to the queues and to the remembered loads."""
    if entry.kind in ("create", "alter"):
        put_map(tx, MapDefinition.from_dict(entry.body["definition"]))
    elif entry.kind == "drop":
        _drop(tx, entry.maps[0], keep=keep)
    elif entry.kind == "nodes":
        put_node_list(tx, entry.body, entry.position)
    elif entry.kind == "alert":
        _change_rule(tx, entry)
    elif entry.kind == "alerted":
        for name, mark in entry.body["marks"].items():
            tx.put(ALERT_MARK.pack(name), alert_mark(*mark))
    else:
        if entry.kind == "load":
            remember(tx, entry)
        queue_entry(tx, entry)


def _change_rule(tx: Transaction, entry: Entry) -> None:
    [name] = entry.maps
    current = known_map(tx, name)
    if current is None or current.incarnation != entry.body["incarnation"]:
        return
    if (rule := entry.body.get("add")) is not None:
        tx.put(ALERTS.pack(name, rule["name"]), stable_json(rule | {"position": entry.position}, compact=True))
    else:
        tx.delete(ALERTS.pack(name, entry.body["remove"]))


def alert_mark(position: int, number: int) -> bytes:
    """The row that says up to where the alerts of a map were told: two marks compare as their rows do."""
    return position.to_bytes(8, "big") + number.to_bytes(8, "big")


def _drop(tx: Transaction, name: str, *, keep: bool) -> None:
    if keep:
        for queued in queued_parts(tx, name):
            put_retained(tx, queued)
    remove_map(tx, name)
    forget_map(tx, name)
    forget_streams(tx, name)


# -- loads --------------------------------------------------------------------------------------------


class LoadContent(Protocol):
    """A part, or what a layer was made of, as the log tells of it."""

    @property
    def id(self) -> str: ...
    @property
    def map(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...


def load_body(
    tx: ReadTransaction, load: str, manifests: Sequence[LoadContent], *, source: str, rejected: int,
    stream: tuple[str, int] | None,
) -> dict[str, Any]:  # fmt: skip
    """The body of a load of these parts, or contents of layers: of those that are new, as the space is now."""
    fresh: dict[str, LoadContent] = {}
    rows: dict[str, int] = {}
    definitions: dict[str, MapDefinition] = {}
    current = {
        name: series_of(name).members(tx, [manifest.id for manifest in manifests if manifest.map == name])
        for name in {manifest.map for manifest in manifests}
    }
    events = _events(tx, manifests, stream)
    for name, id_ in events.items():
        ids = {manifest.id for manifest in manifests if manifest.map == name}
        current[name] = ids if series_of(name).members(tx, [id_]) else set()
    for manifest in manifests:
        rows[manifest.map] = rows.get(manifest.map, 0) + manifest.rows
        if manifest.id in current[manifest.map]:
            continue  # the same part again is one part
        if manifest.map not in definitions:
            definitions[manifest.map] = find_map(tx, manifest.map)
        if isinstance(manifest, PartManifest):
            in_store(definitions[manifest.map], Store.SHARD)  # it was converted since: its parts come as layers
        # Within a load it takes the place that counts: the last, or the first where what is there stays.
        if definitions[manifest.map].overwrite:
            fresh.pop(manifest.id, None)
        fresh.setdefault(manifest.id, manifest)
    brought = {
        store: [
            {"id": content.id, "map": content.map, "rows": content.rows, "bytes": content.data_bytes}
            for content in fresh.values() if definitions[content.map].store is store
        ]
        for store in Store
    }  # fmt: skip
    body = {
        "load": load,
        "source": source,
        "rejected": rejected,
        "stream": None if stream is None else list(stream),
        "number": int.from_bytes(tx.get(NUMBER) or b"", "big") + 1,
        "rows": rows,
        "duplicates": len(manifests) - len(fresh),
        "maps": {
            definition.name: {"incarnation": definition.incarnation, "settings": settings_of(definition)}
            for definition in definitions.values()
        },
        "parts": brought[Store.SHARD],
    }
    fresh_events = [{"id": id_, "map": name} for name, id_ in sorted(events.items()) if name in definitions]
    # Only where there are some: loads into shards alone are entered in the form of before.
    return (
        body | ({"layers": brought[Store.LAYERS]} if brought[Store.LAYERS] else {})
        | ({"events": fresh_events} if fresh_events else {})
    )  # fmt: skip


def _events(
    tx: ReadTransaction, manifests: Sequence[LoadContent], stream: tuple[str, int] | None
) -> dict[str, str]:  # fmt: skip
    """The id of the events that parts bring to each aggregate in a shard: all its parts are known by it, or none."""
    salts: dict[str, list[str]] = {}
    for manifest in manifests:
        if isinstance(manifest, PartManifest) and find_map(tx, manifest.map).aggregation is not None:
            salts.setdefault(manifest.map, []).append(manifest.salt)
    return {name: events_of_parts(of_map, stream) for name, of_map in salts.items()}


def events_alone(tx: ReadTransaction, queued: Queued) -> str | None:
    """The id of the events of an aggregate that a part of a shard brought alone; None of one that others came with."""
    entry = entry_at(tx, queued.position)
    if entry is None or sum(part["map"] == queued.map for part in entry.body["parts"]) > 1:
        return None
    return next((str(content["id"]) for content in entry.body.get("events", ()) if content["map"] == queued.map), None)


def queue_entry(tx: Transaction, entry: Entry) -> None:
    """Let what the entry brings wait: its parts, or its maintenance order. Of maps that are no more, nothing waits.

    Raises: `Unavailable` when one of its parts waits already, of an earlier entry.
    """
    if entry.kind in ORDER_KINDS:
        _queue_order(tx, entry)
    elif entry.kind == "load":
        _queue_parts(tx, entry)


def _queue_order(tx: Transaction, entry: Entry) -> None:
    [name] = entry.maps
    current = known_map(tx, name)
    if current is None or current.incarnation != entry.body["incarnation"] or current.store is Store.LAYERS:
        return  # of layers it is done when it is entered
    tx.put(MAINTENANCE.pack(name, entry.position), MaintenanceOrder.of(entry).to_json())


def _queue_parts(tx: Transaction, entry: Entry) -> None:
    body, first = entry.body, entry.body["number"]
    for index, part in enumerate(body["parts"]):
        name, about = part["map"], body["maps"][part["map"]]
        current = known_map(tx, name)
        if current is None or current.incarnation != about["incarnation"]:
            continue
        queued = Queued(
            map=name, number=first + index, load=body["load"], index=index, load_number=first, part=part["id"],
            rows=part["rows"], source=body["source"], queued_ms=entry.stamp_ms, position=entry.position,
            stamp_ms=entry.stamp_ms, bytes=part["bytes"], settings=about["settings"],
        )  # fmt: skip
        _adopt(tx, queued)
    behind = first + len(body["parts"])
    for number, content in enumerate(body.get("layers", ()), behind):
        # It waits for nothing: the head of its map moves in this write.
        tx.put(ABSORBED.pack(content["map"], content["id"]), number.to_bytes(8, "big"))
    for content in body.get("events", ()):
        tx.put(ABSORBED.pack(content["map"], content["id"]), first.to_bytes(8, "big"))
    before = int.from_bytes(tx.get(NUMBER) or b"", "big")
    last = max(before, behind + len(body.get("layers", ())) - 1)
    tx.put(NUMBER, last.to_bytes(8, "big"))
    forget_parts(tx, before, last)


def _adopt(tx: Transaction, queued: Queued) -> None:
    series = series_of(queued.map)
    if series.knows(tx, queued.part):
        # The primary had quarantined the part, and took it again from a later load: the log decides, it comes again.
        if any(part.part == queued.part for part in queued_parts(tx, queued.map)):
            raise Unavailable(
                "the part still waits, of an earlier load", kind="part_waits", map=queued.map, part=queued.part,
                hint="try again when it is merged",
            )  # fmt: skip
        tx.delete(ABSORBED.pack(queued.map, queued.part))
    series.adopt(tx, Segment(queued.part, queued.number, queued.rows), queued.facts)
