"""Snapshots that a job is planned on: chosen once, kept on the node meanwhile, opened wherever a task runs.

    where = "http://n1:7433,http://n2:7433#weather"
    manifest = pin_snapshot(where)                       # the planner
    open_pinned(where, manifest.id).lookup(keys, at)     # every task, in any process of any machine

`where` is text, so that a job can carry it: the nodes, then the map, and for a narrowed snapshot what was chosen
(`pinned_where`). Settings and tokens are those of the process that opens it. All processes of a machine share its
cache of snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid, NotFound
from millpond.maps.leases import Lease
from millpond.maps.manifests import SnapshotManifest
from millpond.nodes.snapshot_fetch import SnapshotFetch
from millpond.nodes.snapshot_source import SnapshotSource
from millpond.nodes.snapshot_store import SnapshotStore
from millpond.nodes.snapshots import SnapshotCache, SnapshotReader, bounds_query, snapshot_folder
from millpond.nodes.transport import Nodes
from millpond.settings import Settings, load_settings
from millpond.stores.objects import FolderObjects, Objects

if TYPE_CHECKING:
    from millpond.maps.lookup import Snapshot

__all__ = (
    "PIN_SECONDS", "open_pinned", "open_remote", "pin_snapshot", "pinned_objects", "pinned_where", "remote_where",
)  # fmt: skip

PIN_SECONDS = 6 * 3600
"""How long a node keeps what a job was planned on."""

_NARROWED = "/narrowed/"


def remote_where(urls: Sequence[str], name: str) -> str:
    """The text that names a map of some nodes."""
    return f"{','.join(urls)}#{name}"


def pinned_where(where: str, manifest: SnapshotManifest) -> str:
    """The text that names the place of a snapshot: another one than the map's, when it is narrowed."""
    return where if manifest.narrowing is None else f"{where}{_NARROWED}{manifest.narrowing.spec}"


def _parts(where: str) -> tuple[str, str, str]:
    """The nodes, the map, and the spec of a narrowed snapshot."""
    urls, _, told = where.partition("#")
    name, _, spec = told.partition(_NARROWED)
    if not urls or not name:
        raise Invalid(
            "no map of a node is named", kind="remote_where", where=where, hint="such as http://localhost:7433#weather"
        )
    return urls, name, spec


def _fetch(urls: str, settings: Settings | None, clock: Clock | None) -> SnapshotFetch:
    told, at = settings or load_settings(), clock or SystemClock()
    return SnapshotFetch(Nodes(urls, told, clock=at), SnapshotStore(snapshot_folder(told)), told, at)


def pin_snapshot(
    where: str, *, seconds: float = PIN_SECONDS, keys: Sequence[str | int | None] | None = None,
    window: Sequence[object] | None = None, settings: Settings | None = None, clock: Clock | None = None,
) -> SnapshotManifest:  # fmt: skip
    """Choose the snapshot of a map as it is now; the node that answers keeps its files for `seconds`.

    Raises: what a node answers; `Unavailable` when none can be reached.
    """
    urls, name, _ = _parts(where)
    fetch = _fetch(urls, settings, clock)
    query = dict(bounds_query(keys, window)) | {"fresh": "1", "pin": str(int(seconds))}
    path = f"/v1/maps/{quote(name)}/snapshot"
    timeout = fetch.settings.snapshot_fetch_timeout / 1000
    answer = fetch.nodes.first(lambda node: node.request("GET", path, query=query, timeout=timeout))
    return SnapshotManifest.from_bytes(answer.data)


def open_pinned(
    where: str, manifest_id: str, *, settings: Settings | None = None, clock: Clock | None = None
) -> Snapshot:
    """A chosen snapshot, open: fetched once for all processes of a machine, checked, mapped into memory.

    Raises: `NotFound` when no node has it any more; `Corrupt`, `Unavailable` as reading a snapshot does.
    """
    urls, name, spec = _parts(where)
    snapshot = _fetch(urls, settings, clock).named(name, spec, manifest_id, whole=True)[1]
    assert snapshot is not None, "all of it was asked for"
    return snapshot


class _Pinned(FolderObjects):
    """A folder of the machine's cache that fetches a file when it is first read."""

    def __init__(self, folder: Path, source: SnapshotSource, manifest_id: str) -> None:
        super().__init__(folder)
        self._source = source
        self._lease = Lease(self, manifest_id)  # what is there stays as long as we do

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
    where: str, manifest: SnapshotManifest, *, settings: Settings | None = None, clock: Clock | None = None
) -> Objects:
    """The files of a chosen snapshot, each fetched when it is first read: for tasks that read a part of a map.

    Raises: as `open_pinned`.
    """
    urls, name, _ = _parts(where)
    spec = "" if manifest.narrowing is None else manifest.narrowing.spec
    fetch = _fetch(urls, settings, clock)
    objects, _ = fetch.named(name, spec, manifest.id, whole=False)
    return _Pinned(objects.root, fetch.source(name, spec), manifest.id)


@lru_cache(maxsize=64)
def _cache(urls: str, settings: Settings, process: int) -> SnapshotCache:
    clock = SystemClock()
    return SnapshotCache(snapshot_folder(settings), Nodes(urls, settings, clock=clock), settings, clock)


def open_remote(where: str, *, settings: Settings | None = None) -> SnapshotReader:
    """The reader of a map of some nodes, one for all who ask in this process.

    Raises: `Invalid` when `where` names no map of a node.
    """
    urls, name, _ = _parts(where)
    return _cache(urls, settings or load_settings(), os.getpid()).reader(name)
