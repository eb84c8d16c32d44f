"""Bringing a snapshot from nodes to this machine: only what is missing here, checked, by one process at a time.

Nodes are asked in the order of the list. The next one is asked only when a connection is lost, a file is damaged, or
the node's disk is full; any other answer is final. Files go before the manifest, the manifest before the word that it
counts, so a fetch that is killed leaves what it brought, and the next one goes on with it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from millpond.client.snapshots.cache import Confirmation, FetchedSnapshot, SnapshotStore
from millpond.client.snapshots.source import NODE_UNREACHABLE, SnapshotSource, unreachable_kind
from millpond.clock import Clock
from millpond.errors import Corrupt, MillpondError, NotFound, Unavailable
from millpond.maps.snapshots.leases import pin
from millpond.maps.snapshots.manifest import SnapshotManifest, manifest_name
from millpond.maps.snapshots.published import copy_snapshot
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges.files import content_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.client.transport import Connection, Nodes, Response
    from millpond.settings import Settings
    from millpond.stores.objects import FolderObjects

__all__ = (
    "ENTRY_HEADER",
    "FILE_LOST",
    "POND_HEADER",
    "SnapshotRequest",
    "OpenedSnapshot",
    "SnapshotFetch",
    "manifest_in",
)

_LOG = logging.getLogger(__name__)
POND_HEADER, ENTRY_HEADER = "Millpond-Pond", "Snapshot-Entry"
FILE_LOST = ("snapshot_not_found", "index_not_found", "range_not_found")
"""Kinds of `NotFound` that speak of a file, not of the map."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for a map's snapshot, within bounds, `at` a branch or a ref if that is named. `bounds` names both in
    files, empty for the whole map on `main`.
    """

    map: str
    query: tuple[tuple[str, str], ...] = ()
    at: tuple[tuple[str, str], ...] = ()

    @property
    def bounds(self) -> str:
        """A name for the bounds, and the ref."""
        named = (*self.query, *self.at)
        return content_id(repr(named).encode())[:16] if named else ""


@dataclass(frozen=True, slots=True)
class OpenedSnapshot:
    """A snapshot of that id: where its files lie or will, what it is, and open, if all of it was asked for."""

    objects: FolderObjects
    manifest: SnapshotManifest
    snapshot: Snapshot | None


class _OtherPond(Exception):
    """The nodes hold another pond than they did."""


@dataclass(slots=True)
class _NodeFull(Exception):
    """The node has no room to freeze the map: its disk, not ours."""

    refusal: Unavailable


@dataclass(frozen=True, slots=True)
class SnapshotFetch:
    """Fetches snapshots from these nodes into this store."""

    nodes: Nodes
    store: SnapshotStore
    settings: Settings
    clock: Clock

    @property
    def seconds_max(self) -> float:
        """The time that one fetch may take."""
        return self.settings.client.snapshot_fetch_timeout / 1000

    # -- what is here ---------------------------------------------------------------------------------

    def pond(self) -> str:
        """The id of the pond, asked for once per machine.

        Raises: `Unavailable` when no node can be reached and none ever was.
        """
        pond = self.store.pond_of(self.nodes.urls)
        if pond is None:
            pond = str(self.nodes.first(lambda node: node.request("GET", "/v1/node")).json()["pond"])
            self.store.know_pond(self.nodes.urls, pond)
        return pond

    def confirmation(self, request: SnapshotRequest) -> Confirmation | None:
        """The locally cached current manifest, without a request to a node; None if none."""
        pond = self.store.pond_of(self.nodes.urls)
        return None if pond is None else self.store.confirmed(pond, request.map, request.bounds)

    def open_known(self, request: SnapshotRequest) -> FetchedSnapshot | None:
        """The locally cached current snapshot, open; None if none."""
        pond = self.store.pond_of(self.nodes.urls)
        memory_max = self.settings.maps.memory_max
        return None if pond is None else self.store.open(pond, request.map, request.bounds, memory_max)

    def _opened(self, objects: FolderObjects, manifest: SnapshotManifest) -> Snapshot:
        return Snapshot.open(objects, manifest, memory_max=self.settings.maps.memory_max)

    def forget(self, request: SnapshotRequest) -> None:
        """Let nothing count on this machine: a node said that there is no such map, or that we may not read it."""
        pond = self.store.pond_of(self.nodes.urls)
        if pond is not None:
            self.store.forget(pond, request.map, request.bounds)

    # -- what counts ----------------------------------------------------------------------------------

    def bring(self, request: SnapshotRequest, *, fresh: bool = False) -> FetchedSnapshot:
        """The snapshot that counts by the word of a node, fetched unless it is here. `fresh`: frozen now.

        Raises: what a node answers; `Unavailable` when no node can be reached, another process fetches for long, or the
        folder cannot be used; `Corrupt` when no node gives all files as they were written.
        """
        with self.store.usable():
            return self._counting(request, fresh)

    def _counting(self, request: SnapshotRequest, fresh: bool) -> FetchedSnapshot:
        while True:
            pond, before = self.pond(), self.confirmation(request)
            with self.store.alone(pond, request.map, self.seconds_max):
                if not fresh and self.confirmation(request) != before:
                    cached = self.open_known(request)
                    if cached is not None:
                        return cached  # another process brought it while we waited
                try:
                    return self._bring(pond, request, fresh)
                except _OtherPond:
                    continue

    def _bring(self, pond: str, request: SnapshotRequest, fresh: bool) -> FetchedSnapshot:
        failed: list[tuple[str, MillpondError]] = []
        for node in self.nodes.connections:
            for last in (False, True):
                try:
                    return self._from(node, pond, request, fresh)
                except _NodeFull as full:
                    failed.append((node.url, full.refusal))
                    break
                except (Corrupt, NotFound, Unavailable) as error:
                    replaced = error.kind in FILE_LOST
                    if not (replaced or unreachable_kind(error) or isinstance(error, Corrupt)):
                        raise
                    if replaced and not last:
                        continue  # what is missing was replaced while we fetched: ask what counts now
                    failed.append((node.url, error))
                    break
        raise _nobody(request.map, failed)

    def _from(self, node: Connection, pond: str, request: SnapshotRequest, fresh: bool) -> FetchedSnapshot:
        cached = self.open_known(request)
        answer = self._ask(node, request, fresh, cached)
        answered_pond = answer.headers.get(POND_HEADER, pond)
        if answered_pond != pond:
            self.store.know_pond(self.nodes.urls, answered_pond)
            raise _OtherPond
        now = self.clock.now_ms()
        if answer.status == 304 and cached is not None:
            snapshot = cached.snapshot
        else:
            manifest = manifest_in(answer)
            subset = "" if manifest.bounds is None else manifest.bounds.spec
            objects = self.store.objects(pond, request.map, manifest.incarnation, subset)
            self.fetch(objects, manifest, node, at=request.at)
            snapshot = self._opened(objects, manifest)
        if request.at:  # the files of the map lie here for `main` as well, which would let go of these
            objects = self.store.objects(pond, request.map, snapshot.manifest.incarnation)
            pin(objects, snapshot.manifest.id, now + self.settings.client.min_time_to_keep_snapshots)
        self._confirm(pond, request, snapshot.manifest, now)
        return FetchedSnapshot(snapshot, now)

    def _ask(self, node: Connection, request: SnapshotRequest, fresh: bool, cached: FetchedSnapshot | None) -> Response:
        query = dict((*request.query, *request.at)) | ({"fresh": "1"} if fresh else {})
        headers = {} if cached is None else {"If-None-Match": f'"{cached.snapshot.manifest.id}"'}
        connection = node.once if len(self.nodes.connections) > 1 else node
        path = f"/v1/maps/{quote(request.map)}/snapshot"
        try:
            return connection.request("GET", path, query=query, headers=headers, timeout=self.seconds_max)
        except Unavailable as error:
            if error.kind != "disk_full":
                raise
            raise _NodeFull(error) from error

    def _confirm(self, pond: str, request: SnapshotRequest, manifest: SnapshotManifest, now_ms: int) -> None:
        subset = "" if manifest.bounds is None else manifest.bounds.spec
        confirmed = Confirmation(manifest.id, manifest.incarnation, subset, now_ms)
        self.store.confirm(pond, request.map, request.bounds, confirmed)

    # -- files ----------------------------------------------------------------------------------------

    def source(
        self, name: str, subset: str, node: Connection | None = None, at: Iterable[tuple[str, str]] = ()
    ) -> SnapshotSource:
        """The source of the files of a map's snapshots, `at` a branch or a ref."""
        return SnapshotSource(self.nodes, name, node, f"subsets/{subset}/" if subset else "", dict(at))

    def fetch(
        self, objects: FolderObjects, manifest: SnapshotManifest, node: Connection | None, *, whole: bool = True,
        at: Iterable[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        """Bring the files of a snapshot that are missing here, or, unless `whole`, its lists of ranges.

        Call it while the store is locked.

        Raises: as `SnapshotSource.get`.
        """
        subset = "" if manifest.bounds is None else manifest.bounds.spec
        source = self.source(manifest.map, subset, node, at)
        copy_snapshot(source, objects, manifest, verify=False, whole=whole)

    def collect(self, request: SnapshotRequest) -> bool:
        """Remove the files of snapshots that were replaced and that nobody reads any more.

        False when another process fetches: it collects by itself.
        """
        pond = self.store.pond_of(self.nodes.urls)
        if pond is None:
            return True
        try:
            with self.store.usable(), self.store.alone(pond, request.map, 0):
                # Where the map lies for `main`, too, what counts there decides: that of a ref is pinned.
                cached = self.open_known(SnapshotRequest(request.map)) if request.at else None
                cached = cached or self.open_known(request)
                if cached is not None:
                    self.store.collect(pond, cached.snapshot.manifest, self.clock.now_ms())
        except Unavailable:
            return False
        return True

    # -- one that was named ---------------------------------------------------------------------------

    def named(
        self, name: str, subset: str, manifest_id: str, *, whole: bool, first: Connection | None = None,
        at: Iterable[tuple[str, str]] = (),
    ) -> OpenedSnapshot:  # fmt: skip
        """A snapshot by the id of its manifest: open, or, unless `whole`, only what is needed to read parts of it.

        It stays on this machine for `client.min_time_to_keep_snapshots` after it was last asked for. `first` is the
        node that has it, if that is known; `at` names the branch or ref of which it is.

        Raises: `NotFound` when no node has it any more; as `bring`.
        """
        with self.store.usable():
            return self._named(name, subset, manifest_id, whole, first, at)

    def _named(
        self, name: str, subset: str, manifest_id: str, whole: bool, first: Connection | None,
        at: Iterable[tuple[str, str]],
    ) -> OpenedSnapshot:  # fmt: skip
        pond = self.pond()
        with self.store.alone(pond, name, self.seconds_max):
            incarnation = self.store.find(pond, name, subset, manifest_id)
            source = self.source(name, subset, first, at)
            if incarnation is None:
                manifest = SnapshotManifest.from_bytes(source.get(manifest_name(manifest_id)).to_pybytes())
                objects = self.store.objects(pond, name, manifest.incarnation, subset)
            else:
                objects = self.store.objects(pond, name, incarnation, subset)
                manifest = SnapshotManifest.from_bytes(objects.get(manifest_name(manifest_id)).to_pybytes())
            self.fetch(objects, manifest, first, whole=whole, at=at)
            pin(objects, manifest_id, self.clock.now_ms() + self.settings.client.min_time_to_keep_snapshots)
            snapshot = self._opened(objects, manifest) if whole else None
            if incarnation is None:
                cached = None if subset else self.open_known(SnapshotRequest(name))
                counts = cached is not None and cached.snapshot.manifest.incarnation == manifest.incarnation
                counting = cached.snapshot.manifest if cached is not None and counts else manifest
                self.store.collect(pond, counting, self.clock.now_ms())
        if incarnation is None:
            self.store.sweep(self.clock.now_ms())
        return OpenedSnapshot(objects, manifest, snapshot)


def manifest_in(answer: Response) -> SnapshotManifest:
    """The manifest that a node answered with.

    Raises: `Corrupt` when it is not what its tag says.
    """
    expected = answer.headers.get("ETag", "").strip('"')
    if content_id(answer.data) != expected:
        raise Corrupt(
            "the manifest is not what was written", kind="snapshot_damaged", object=manifest_name(expected),
            node=answer.node, bytes=len(answer.data),
        )  # fmt: skip
    return SnapshotManifest.from_bytes(answer.data)


def _nobody(name: str, failed: list[tuple[str, MillpondError]]) -> MillpondError:
    """One error for the failures of all nodes: of damage, when a node could be reached."""
    if len(failed) == 1:
        return failed[0][1]
    reasons = "; ".join(f"{node}: {error.values.get('reason', error)}" for node, error in failed)
    values = {"map": name, "node": ", ".join(node for node, _ in failed), "reason": reasons}
    reached = next((error for _, error in failed if not unreachable_kind(error)), None)
    if reached is None:
        hint = "is 'millpond serve' running?"
        return Unavailable("no node can be reached", kind=NODE_UNREACHABLE, hint=hint, **values)
    return type(reached)("no node gives the snapshot whole", kind=reached.kind, hint=reached.hint, **values)
