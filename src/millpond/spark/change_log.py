"""A map whose log is followed: its loads after a position, and the rows of their parts.

A pond in a folder or a bucket is open while it is followed. Nodes are asked no more often than each `POLL_SECONDS`, for
what is about the map: the right to read it is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from millpond.client.connections import answers_nothing
from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Invalid, NotFound
from millpond.maps.layered.history import changes_of
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.loads.merge import part_rows
from millpond.maps.log.log import Entry
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.store_limits import need_shard
from millpond.maps.parts.part import PartFile, read_manifest
from millpond.maps.snapshots.manifest import LayerMode, load_manifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.pond import Pond
from millpond.retry import retry
from millpond.spark.locations import Location, SparkNodes

if TYPE_CHECKING:
    from millpond.client.transport import Connection
    from millpond.stores.objects import Objects

__all__ = ("Change", "ChangesSettings", "FolderLog", "FollowedMap", "Log", "NodesLog", "changed_rows")

POLL_SECONDS = 0.05
ENTRIES_AT_ONCE = 1_000
BEHIND_SECONDS = 30.0
"""The time to wait for a node that has merged what another, gone since, had merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """The start of a new query, the size of a micro-batch, and the treatment of changes that are gone.

    `start`: `earliest` (what is still kept), `latest`, or the position of the log, or the ref, that a new query begins
    after. `marked`: each row with what became of it.
    """

    start: str | int = "earliest"
    rows_max: int | None = None
    marked: bool = False
    fail_on_trimmed: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """A part that a load brought, or the rows of a layer; `file` is where a part lies, of a pond in a folder.

    `manifest` is the snapshot, among the `files` of the map, whose newest layer has the rows; `layered` where there is
    one.
    """

    position: int
    part: str
    rows: int
    file: str | None = None
    layered: bool = False
    manifest: str | None = None
    files: Objects | None = field(default=None, compare=False)


class Log(Protocol):
    """The log of a pond, as far as it is about one map."""

    pond_id: str
    follows_layers: bool

    def applied(self) -> int:
        """The position up to which the map has merged everything."""

    def first(self) -> int:
        """The oldest position that the log has."""

    def entries(self, after: int, until: int) -> Iterator[Entry]:
        """Log entries after a position, for a reader that has merged everything up to `until`.

        Raises: `NotFound`, kind `log_trimmed`; `Unavailable` when nobody has, or can be reached.
        """

    def retained(self, change: Change) -> Change | None:
        """The change with the place of its part; None when it is not there."""

    def quarantined(self) -> frozenset[str]:
        """The parts of the map that could not be merged."""

    def close(self) -> None:
        """Let go of the pond."""


class FolderLog:
    """The log of a pond that this process opens, in a folder or a bucket."""

    follows_layers = True

    def __init__(self, pond: Pond, name: str) -> None:
        self.name, self._pond = name, pond
        self.pond_id = self._pond.log.pond_id

    def close(self) -> None:
        self._pond.close()

    def applied(self) -> int:
        return self._pond.log.applied(self.name)

    def first(self) -> int:
        try:
            self._pond.log.entries(0, 1)
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            return int(str(error.values["first"]))
        return 1

    def entries(self, after: int, until: int) -> Iterator[Entry]:
        while some := self._pond.log.entries(after, ENTRIES_AT_ONCE):
            yield from (entry for entry in some if self.name in entry.maps)
            after = some[-1].position

    def retained(self, change: Change) -> Change | None:
        if change.layered:
            return self._in_history(change)
        file = self._pond.parts.file(change.part)
        return None if file is None else replace(change, file=str(file))

    def _in_history(self, change: Change) -> Change | None:
        with self._pond.space.read() as tx:
            manifests = {past.position: past.loaded for past in changes_of(tx, self.name) if past.loaded}
        manifest = manifests.get(change.position)
        files = self._pond.map(self.name).objects
        return None if manifest is None else replace(change, files=files, manifest=manifest)

    def quarantined(self) -> frozenset[str]:
        return frozenset(part.part for part in self._pond.parts.list(self.name, "quarantined"))


class NodesLog:
    """The log of a pond on nodes. It never speaks of parts that are kept no more."""

    follows_layers = False

    def __init__(self, location: SparkNodes, name: str, clock: Clock) -> None:
        self.name = name
        self._nodes, self._clock = location.nodes(), clock
        self.pond_id = str(self._nodes.learn()["pond"])
        self._head: dict[str, Any] = {}
        self._polled_at = 0.0

    def close(self) -> None:
        self._nodes.close()

    def applied(self) -> int:
        return int(self._latest_page()["applied"])

    def first(self) -> int:
        return int(self._latest_page()["first"])

    def _latest_page(self) -> dict[str, Any]:
        now = self._clock.monotonic()
        if not self._head or now - self._polled_at >= POLL_SECONDS:
            last = self._head["last"]["position"] if self._head else 0
            self._head, self._polled_at = self._page_behind(last), now
        return self._head

    def _page_behind(self, last: int) -> dict[str, Any]:
        """The next entry after a position, or the oldest that is there."""
        try:
            return self._page(last, 1)
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            return self._page(int(str(error.values["first"])) - 1, 1)

    def _page(self, after: int, limit: int = ENTRIES_AT_ONCE, until: int = 0) -> dict[str, Any]:
        from millpond.client.connections import unreachable

        query = {"after": after, "limit": limit, "map": self.name}

        def ask(node: Connection) -> dict[str, Any]:
            page: dict[str, Any] = node.request("GET", "/v1/log", query=query).json()
            if page["applied"] < until:
                # Another node has more: entries that this one does not have yet must not be taken for nothing.
                raise unreachable(node.url, f"it has merged up to position {page['applied']}, not to {until}")
            return page

        return self._nodes.first(ask)

    def entries(self, after: int, until: int) -> Iterator[Entry]:
        while True:
            page = self._page_of_one_who_knows(after, until)
            yield from (Entry.from_dict(entry) for entry in page["entries"])
            if int(page["next"]) <= after or len(page["entries"]) < ENTRIES_AT_ONCE:
                return
            after = int(page["next"])

    def _page_of_one_who_knows(self, after: int, until: int) -> dict[str, Any]:
        return retry(
            lambda: self._page(after, until=until),
            lambda error, _failures, _chance: (
                POLL_SECONDS if answers_nothing(error) else None
            ),
            self._clock, until=self._clock.monotonic() + BEHIND_SECONDS,
        )  # fmt: skip

    def retained(self, change: Change) -> Change | None:
        return change

    def quarantined(self) -> frozenset[str]:
        return frozenset()


class FollowedMap:
    """One map of an open pond."""

    def __init__(self, location: Location, definition: MapDefinition, clock: Clock) -> None:
        self.name = definition.name
        self.log = location.log(self.name, clock)
        self.pond_id = self.log.pond_id
        if not self.log.follows_layers:
            self._need_shard(definition)

    def newest(self) -> int:
        """The position up to which the map has merged everything."""
        return self.log.applied()

    def close(self) -> None:
        """Let go of the pond."""
        self.log.close()

    def _need_shard(self, definition: MapDefinition) -> None:
        try:
            need_shard(definition, "changes")
        except Invalid:
            self.log.close()
            raise

    def earliest(self) -> int:
        """The position after which every change of the map is still there."""
        before = self.log.first() - 1
        gone = [
            change.position for change in self.changes(before, self.log.applied()) if self.log.retained(change) is None
        ]
        return max(gone, default=before)

    def changes(self, after: int, end: int) -> list[Change]:
        """The parts that loads brought to the map after a position, up to another, in order.

        Of a map that was made in between, or is made anew later on, what came to the old one is left out.

        Raises: `NotFound`, kind `log_trimmed`.
        """
        changes: list[Change] = []
        for entry in self.log.entries(after, end):
            if entry.kind in ("create", "drop"):
                changes = []
            elif entry.kind == "load" and entry.position <= end:
                parts = [part for part in entry.body["parts"] if part["map"] == self.name]
                changes += [Change(entry.position, part["id"], part["rows"]) for part in parts]
                brought = [content for content in entry.body.get("layers", ()) if content["map"] == self.name]
                if brought:  # one layer, whatever it was made of
                    rows = sum(content["rows"] for content in brought)
                    changes.append(Change(entry.position, brought[0]["id"], rows, layered=True))
        return changes


def changed_rows(location: Location, definition: MapDefinition, change: Change) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a change, on an executor."""
    return _part_rows(location, definition, change) if change.manifest is None else _layer_rows(definition, change)


def _layer_rows(definition: MapDefinition, change: Change) -> Iterator[pa.RecordBatch]:
    """The rows of the newest layer of a snapshot.

    Raises: `NotFound` when history keeps it no more; as `_part_rows`.
    """
    assert change.files is not None and change.manifest is not None, "nodes tell of no layers"
    manifest = load_manifest(change.files, change.manifest)
    _check_columns(definition, manifest.definition, change)
    alone = replace(manifest, layers=(replace(manifest.layers[0], mode=LayerMode.WHOLE),))
    yield from chain.from_iterable(batches_of_spans(change.files, alone, GroupSpan()))


def _part_rows(location: Location, definition: MapDefinition, change: Change) -> Iterator[pa.RecordBatch]:
    """The rows of a part.

    Raises: `NotFound` when the part is kept no more; `Conflict` when it is of a map of that name that is no longer the
    one that the query began with, and has other columns.
    """
    with location.part(change) as file:
        try:
            received = PartFile(file, read_manifest(file))
        except Corrupt as error:
            if file.exists():
                raise
            raise NotFound("the part is kept no more", kind="part_expired", part=change.part) from error
        written = MapDefinition.from_dict(received.manifest.definition)
        _check_columns(definition, written, change)
        yield from part_rows(written, received)  # another map of that name may keep its keys in another way


def _check_columns(definition: MapDefinition, written: MapDefinition, change: Change) -> None:
    if (written.kind, written.value) != (definition.kind, definition.value):
        raise Conflict(
            "the map was made anew, with other columns", kind="map_made_anew", map=definition.name,
            position=change.position, found=f"{written.kind} of {written.value}",
            hint="begin again: a new query, with a new checkpointLocation",
        )  # fmt: skip
