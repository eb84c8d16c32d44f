"""Snapshots that a job is planned on: chosen once, kept on the node meanwhile, opened wherever a task runs.

    where, manifest = plan_snapshot(SnapshotPin(("http://n1:7433", "http://n2:7433"), "weather"))    # the planner
    open_pinned(where, manifest.id).lookup(keys, at)     # every task, in any process of any machine

A `SnapshotPin` has a form in JSON, so that a job can carry it. Settings and tokens are those of the process that opens
it. All processes of a machine share its cache of snapshots.

A snapshot is kept by the node that gave it. When that one is lost, another stands in for it that has, or kept, the map
as the same entry left it: its snapshot has other files and another id, and the same rows. One other node is asked to
keep such a one as soon as the job is planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pyarrow as pa

from millpond.client.snapshots.cache import SnapshotStore
from millpond.client.snapshots.fetch import ENTRY_HEADER, FILE_LOST, POND_HEADER, SnapshotFetch, manifest_in
from millpond.client.snapshots.pin import SnapshotPin
from millpond.client.snapshots.source import SnapshotSource, unreachable_kind
from millpond.client.transport import Connection, Nodes
from millpond.clock import Clock, SystemClock
from millpond.errors import Corrupt, MillpondError, NotFound, Unavailable
from millpond.kernel.worker import begin_thread
from millpond.maps.snapshots.leases import SnapshotLease
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.settings import Settings, load_settings
from millpond.stores.objects import FolderObjects, Objects

__all__ = (
    "PIN_SECONDS", "open_pinned", "pinned_objects", "pinned_rows", "pinned_spans",
    "plan_snapshot",
)  # fmt: skip

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

PIN_SECONDS = 6 * 3600
"""The life of a pin: a node retains the snapshot a job was planned on for so long."""

SPARE_SECONDS = 1.0
"""The time for which the planner waits while another node is asked to keep the same; a process that plans may end at
once.
"""


def _fetch(urls: Sequence[str], settings: Settings | None, clock: Clock | None) -> SnapshotFetch:
    loaded, at = settings or load_settings(), clock or SystemClock()
    return SnapshotFetch(Nodes(urls, loaded, clock=at), SnapshotStore(loaded.client.snapshots), loaded, at)


def plan_snapshot(
    where: SnapshotPin, *, seconds: float = PIN_SECONDS, age_ms: int = 0, settings: Settings | None = None,
    clock: Clock | None = None,
) -> tuple[SnapshotPin, SnapshotManifest]:  # fmt: skip
    """Choose the snapshot of a map for a job that shall outlive the node that gives it; where tasks find it, and which.

    One that was made at most `age_ms` ago will do.

    Raises: what a node answers; `Unavailable` when none can be reached.
    """
    fetch = _fetch(where.nodes, settings, clock)
    fetch.nodes.learn()
    query = {"pin": str(int(seconds)), **dict(where.at)}
    manifest, entry, node = _pin(fetch, where.map, query if age_ms else {**query, "fresh": "1"})
    if age_ms and manifest.created_ms <= fetch.clock.now_ms() - age_ms:
        manifest, entry, node = _pin(fetch, where.map, {**query, "fresh": "1"})
    others = [connection for connection in fetch.nodes.connections if connection.url != node]
    pin = replace(where, nodes=tuple(fetch.nodes.urls))
    if not entry:
        return pin, manifest
    if others:
        begin_thread("spare-snapshot", partial(_stand_in, fetch, where.map, entry, others, query)).join(SPARE_SECONDS)
    return replace(pin, entry=entry), manifest


def _pin(fetch: SnapshotFetch, name: str, query: dict[str, str]) -> tuple[SnapshotManifest, int, str]:
    """The snapshot, the last entry that shaped it, and the node that keeps it."""
    path = f"/v1/maps/{quote(name)}/snapshot"
    answer = fetch.nodes.first(lambda node: node.request("GET", path, query=query, timeout=fetch.seconds_max))
    return manifest_in(answer), int(answer.headers.get(ENTRY_HEADER, 0)), answer.node


def _stand_in(
    fetch: SnapshotFetch, name: str, entry: int, nodes: Sequence[Connection], pin_query: dict[str, str]
) -> tuple[SnapshotManifest, Connection] | str:
    """A snapshot of the same rows, of the first node that has one and keeps it; or what each said."""
    said: list[str] = []
    path, query = f"/v1/maps/{quote(name)}/snapshot", {**pin_query, "entry": str(entry)}
    for node in nodes:
        try:
            answer = node.once.request("GET", path, query=query, timeout=fetch.seconds_max)
            if answer.headers.get(POND_HEADER) == fetch.pond():
                return manifest_in(answer), node
            said.append(f"{node.url}: it is of another pond")
        except MillpondError as error:
            said.append(f"{node.url}: {error.values.get('reason', error)}")
    _LOG.info("no other node keeps the snapshot of %s: %s", name, "; ".join(said))
    return "; ".join(said)


def _lost(error: MillpondError) -> bool:
    """True when a node that kept a snapshot cannot give it any more."""
    return unreachable_kind(error) or isinstance(error, Corrupt) or error.kind in FILE_LOST


def _or_stand_in(
    fetch: SnapshotFetch, where: SnapshotPin, manifest_id: str, act: Callable[[str, Connection | None], T]
) -> T:
    """Run `act` with a snapshot; when that is lost, with an equal one, from the node that has it.

    Raises: as `act`; `Unavailable`, kind `snapshot_lost`, when nothing stands in for it.
    """
    try:
        return act(manifest_id, None)
    except (Corrupt, NotFound, Unavailable) as error:
        if not where.entry or not _lost(error):
            raise
        query = {"pin": str(PIN_SECONDS)}
        stand_in = _stand_in(fetch, where.map, where.entry, fetch.nodes.connections, query)
        if isinstance(stand_in, str):
            raise Unavailable(
                "the snapshot that the job was planned on is lost, and no other node has the map as it was then",
                kind="snapshot_lost", map=where.map, manifest=manifest_id, entry=where.entry, reason=stand_in,
                hint="run the job again: it is planned on the map as it is then",
            ) from error  # fmt: skip
        other, node = stand_in
        _LOG.warning("%s; the snapshot that %s has of the same rows stands in for it", error, node.url)
        return act(other.id, node)


def open_pinned(
    where: SnapshotPin, manifest_id: str, *, share: HashShare | None = None, settings: Settings | None = None,
    clock: Clock | None = None,
) -> Snapshot:  # fmt: skip
    """A chosen snapshot, open: fetched once for all processes of a machine, checked, mapped into memory.

    Of a `share` of all keys only the files are fetched that it needs.

    Raises: `NotFound` when no node has it any more; `Corrupt`, `Unavailable` as reading a snapshot does; `Unavailable`,
    kind `snapshot_lost`, when the node that kept it is lost, and nothing stands in for it.
    """
    fetch = _fetch(where.nodes, settings, clock)

    def opened(id_: str, node: Connection | None) -> Snapshot:
        if share is not None:
            lazily, memory_max = _lazily(fetch, where, id_, node), fetch.settings.maps.memory_max
            return Snapshot.open(*lazily, share=share, memory_max=memory_max)
        snapshot = fetch.named(where.map, where.subset, id_, whole=True, first=node, at=where.at).snapshot
        assert snapshot is not None, "all of it was asked for"
        return snapshot

    return _or_stand_in(fetch, where, manifest_id, opened)


class _Pinned(FolderObjects):
    """A folder of the machine's cache that fetches a file when it is first read."""

    def __init__(self, folder: Path, source: SnapshotSource, manifest_id: str) -> None:
        super().__init__(folder)
        self._source = source
        self._lease = SnapshotLease(self, manifest_id)  # what is there stays as long as we do

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("open it where it is needed: see pinned_objects")

    def get(self, name: str) -> pa.Buffer:
        """All bytes of a file.

        Raises: as `SnapshotSource.get`.
        """
        try:
            return super().get(name)
        except NotFound:
            self.put(name, self._source.get(name))
            return super().get(name)


def pinned_objects(
    where: SnapshotPin, manifest: SnapshotManifest, *, settings: Settings | None = None, clock: Clock | None = None
) -> Objects:
    """The files of a chosen snapshot, each fetched when it is first read: for tasks that read a part of a map.

    Raises: as `SnapshotFetch.named`.
    """
    return _lazily(_fetch(where.nodes, settings, clock), where.of(manifest), manifest.id)[0]


def _lazily(
    fetch: SnapshotFetch, where: SnapshotPin, manifest_id: str, node: Connection | None = None
) -> tuple[Objects, SnapshotManifest]:
    named = fetch.named(where.map, where.subset, manifest_id, whole=False, first=node, at=where.at)
    source = fetch.source(where.map, where.subset, node, where.at)
    return _Pinned(named.objects.root, source, manifest_id), named.manifest


def pinned_spans(
    where: SnapshotPin, manifest_id: str, whole: GroupSpan, bytes_max: int, *, settings: Settings | None = None
) -> list[GroupSpan]:
    """Cut a chosen snapshot into spans of about `bytes_max` bytes, as `thawed.spans` does.

    Raises: as `open_pinned`.
    """
    fetch = _fetch(where.nodes, settings, None)

    def cut(id_: str, node: Connection | None) -> list[GroupSpan]:
        return spans(*_lazily(fetch, where, id_, node), whole, bytes_max)

    return _or_stand_in(fetch, where, manifest_id, cut)


def pinned_rows(
    where: SnapshotPin, manifest_id: str, span: GroupSpan, *, settings: Settings | None = None
) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a span of a chosen snapshot, as `thawed.thaw` tells them; only its ranges are fetched.

    Raises: as `open_pinned`.
    """
    fetch = _fetch(where.nodes, settings, None)

    def begun(id_: str, node: Connection | None) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
        rows = thaw(*_lazily(fetch, where, id_, node), span)
        return next(rows, None), rows  # all files of the span are open then

    first, rest = _or_stand_in(fetch, where, manifest_id, begun)
    if first is not None:
        yield first
        yield from rest
