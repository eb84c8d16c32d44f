"""The newest loads, read from what the pond reports about its own work: the stream `load/MAP` of the queue `millpond`.

Events name no sources: those stand in the log, and in the histories of layered maps, which are kept for longer, and
have the loads that nobody reported, and merges, whose rows nobody counts.

Invariant: of a map so many loads are shown at most; when there are more, a shorter time is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from millpond.events.ids import format_id, id_time_ms, position_before
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.kernel.hours import HOUR_MS
from millpond.maps.layered.history import Change, newest_changes
from millpond.maps.loads.load import load_job_set

if TYPE_CHECKING:
    from millpond.events.index import StreamIndex
    from millpond.maps.log.log import Entry
    from millpond.nodes.node import Node

__all__ = ("by_hour", "loads_of", "newest_loads")

_SPANS_MS = (24 * HOUR_MS, HOUR_MS, HOUR_MS // 12, 0)
_LOADS_MAX = 2_000
_ENTRIES_MAX = 500
_CHANGES_MAX = 50
"""The newest changes of a map that are looked at, as many as its page has loads."""
_MAPS_MAX = 50
"""The maps whose loads the first page adds up: those that were loaded last."""
_ENDED = {"kind": ["succeeded", "failed"]}


def loads_of(node: Node, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The loads of some maps in the last day, else of the newest day that had some, and the newest changes of their
    histories that were loads; the newest first.
    """
    names, entries = list(names), node.pond.log.newest(_ENTRIES_MAX)
    if node.bucket is not None:  # it does not report its work
        return {name: [_entered(name, entry) for entry in entries if _brings(entry, name)] for name in names}
    with node.pond.space.read() as tx:
        changes = {name: list(islice(newest_changes(tx, name), _CHANGES_MAX)) for name in names}
    sources = {change.position: change.source for some in changes.values() for change in some}
    sources |= {entry.position: str(entry.body["source"]) for entry in entries if entry.kind == "load"}
    return {name: _with_changes(name, _read(node, name, sources), changes[name]) for name in names}


def _with_changes(name: str, loads: list[dict[str, Any]], changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Loads, with those that the history of their map alone has."""
    positions = {load["position"] for load in loads}
    more = [
        {"time_ms": change.moment_ms, "map": name, "rows": change.rows, "rejected": 0, "source": change.source,
         "error": None, "position": change.position}
        for change in changes if change.kind == "load" and change.position not in positions
    ]  # fmt: skip
    return sorted([*loads, *more], key=lambda load: (load["time_ms"], load["position"]), reverse=True)


def newest_loads(node: Node, names: Sequence[str]) -> list[dict[str, Any]]:
    """The loads of the maps that were loaded last, the newest first."""
    if node.bucket is not None:
        return sorted(
            (load for some in loads_of(node, names).values() for load in some),
            key=lambda load: load["time_ms"], reverse=True,
        )  # fmt: skip
    store = node.events.store
    indexes = ((store.index(_stream(name)), name) for name in names)
    recent = sorted(((index.last_id, name) for index, name in indexes if index is not None), reverse=True)
    entered = (entry.maps for entry in node.pond.log.newest(_ENTRIES_MAX) if entry.kind == "load")
    readable = set(names)
    of_log = [name for maps in entered for name in maps if name in readable]
    loads = loads_of(node, list(dict.fromkeys([*of_log, *(name for _, name in recent)]))[:_MAPS_MAX])
    return sorted((load for some in loads.values() for load in some), key=lambda load: load["time_ms"], reverse=True)


def by_hour(loads: Iterable[Mapping[str, Any]], now_ms: int) -> list[int]:
    """The rows of loads in each of the last 24 hours, the oldest first."""
    hours = [0] * 24
    for load in loads:
        ago = max(0, (now_ms - load["time_ms"]) // HOUR_MS)
        if ago < len(hours):
            hours[-1 - ago] += load["rows"]
    return hours


def _brings(entry: Entry, name: str) -> bool:
    return entry.kind == "load" and name in entry.maps


def _entered(name: str, entry: Entry) -> dict[str, Any]:
    """A load as the log tells of it."""
    brought = [*entry.body.get("parts", ()), *entry.body.get("layers", ())]
    return {
        "time_ms": entry.stamp_ms, "map": name, "rows": sum(item["rows"] for item in brought if item["map"] == name),
        "rejected": int(entry.body.get("rejected", 0)), "source": str(entry.body["source"]), "error": None,
        "position": entry.position,
    }  # fmt: skip


def _stream(name: str) -> StreamName:
    return StreamName(OWN_QUEUE, load_job_set([name]))


def _read(node: Node, name: str, sources: Mapping[int, str]) -> list[dict[str, Any]]:
    stream, events = _stream(name), node.events
    index = events.store.index(stream)
    if index is None or not index.days():
        return []
    for span_ms in _SPANS_MS:
        start = _position(index, node.clock.now_ms() - span_ms)
        ended = list(islice(events.read(*stream, start, filters=_ENDED), _LOADS_MAX + 1))
        if len(ended) <= _LOADS_MAX:
            break
    return [_load(name, event, sources) for event in reversed(ended[:_LOADS_MAX])]


def _position(index: StreamIndex, since_ms: int) -> str:
    """The id from which to read: of an instant, or before the newest day when that is older."""
    if id_time_ms(index.last_id) >= since_ms:
        return format_id(min(position_before(max(0, since_ms)), index.last_id))
    return format_id(index.days()[-1][0].first_id - 1)


def _load(name: str, event: Any, sources: Mapping[int, str]) -> dict[str, Any]:
    headers = event.headers
    position = int(headers.get("position", 0))
    error = "" if event.kind == "succeeded" else f"{headers.get('error', '')} {headers.get('reason', '')}".strip()
    return {
        "time_ms": event.time_ms, "map": name, "rows": int(headers.get("rows", 0)),
        "rejected": int(headers.get("rejected", 0)), "source": sources.get(position, ""), "error": error or None,
        "position": position,
    }  # fmt: skip
