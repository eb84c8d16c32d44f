"""The past of a layered map, as a query was planned on it: what its tasks ask as known at the moments of their rows.

In a folder or a bucket the driver names the manifests of the map's history, which each task opens; for a micro-batch of
a stream the end of that history is chosen, and tasks read it themselves. Nodes answer themselves, from theirs. What was
known up to there is the same in each task, and at each try.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from millpond.clock import SystemClock
from millpond.errors import NotFound
from millpond.maps.inputs.key_columns import OnInvalid, moments_of
from millpond.maps.inputs.spans import Buckets
from millpond.maps.layered.past import ATTEMPTS, History, OpenHistory, Past
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.store_limits import one_state
from millpond.maps.snapshots.manifest import SnapshotManifest, known_as
from millpond.spark.locations import Location, OpenPond, SparkNodes, nodes_at
from millpond.spark.planned_snapshot import FolderSnapshots, NodesSnapshots, PlannedSnapshots, snapshots_of
from millpond.times.instants import clear_instant, parse_instant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.client.pond import RemotePond
    from millpond.client.ref_ponds import RemoteRefPond
    from millpond.maps.snapshots.partition_filter import HashShare

__all__ = ("FolderPast", "NodesPast", "NodesRows", "PlannedPast", "past_of", "rows_known_at")

PASTS_OPEN = 32
"""The pasts that a worker keeps open, and the nodes: each holds address space, or connections."""


class PlannedPast(Protocol):
    """The past of one map; it travels to the executors."""

    def lookup(
        self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid, share: HashShare | None = None,
        window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of keys at their times, each as it was known at its moment; `share`: the keys have its hashes.
        `window` as in `Lookup`.

        Raises: as `Past.lookup`; `NotFound` when a manifest aged out; `Unavailable` when no node answers.
        """

    def mark(self, pond: OpenPond) -> str:
        """The end of the history as it is now.

        Raises: `NotFound` when the map, or the ref, is gone.
        """

    def until(self, mark: str, now_ms: int) -> PlannedPast:
        """The past up to an end that was chosen, at a time."""


@dataclass(frozen=True, slots=True)
class FolderPast:
    """Of a map in a folder or a bucket; its manifests stay as long as `maps.history` says.

    Without a `history` that the driver read it is read up to `end`, and again where folds took the place of manifests.
    """

    location: Location
    shelf: FolderSnapshots
    definition: MapDefinition
    end: str
    history: History | None

    def lookup(
        self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid, share: HashShare | None = None,
        window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values, from manifests that this process opens."""
        moments, there = moments_of(known_at, len(keys), on_invalid)
        opened, name = _opened(self.shelf, self.definition, share), self.definition.name
        for attempt in range(ATTEMPTS):
            try:
                planned = None if attempt else self.history
                history = _history(self.location, name, self.end) if planned is None else planned
                return opened.lookup(history, keys, at, moments, there, on_invalid, buckets=Buckets(window=window))
            except NotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                _history.cache_clear()
        raise AssertionError("the last attempt ends it")

    def mark(self, pond: OpenPond) -> str:
        """The end of the history."""
        return _past(self.location, pond, self.definition.name).mark()

    def until(self, mark: str, now_ms: int) -> FolderPast:
        """The past up to that end, which each process reads."""
        return replace(self, end=mark, history=None)


@dataclass(frozen=True, slots=True)
class NodesPast:
    """Of a map on nodes. Moments after that of the plan are as it: what comes meanwhile counts in no task."""

    location: SparkNodes
    definition: MapDefinition
    planned_ms: int

    def lookup(
        self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid, share: HashShare | None = None,
        window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values, as the first node that can be reached answers."""
        moments, there = moments_of(known_at, len(keys), on_invalid)
        until = pa.array(np.minimum(moments, self.planned_ms), INSTANT, mask=~there if len(there) else None)
        return _pond(self.location).questions.lookup(
            self.definition, keys, at, on_invalid=on_invalid, known_at=until, buckets=Buckets(window=window)
        )  # fmt: skip

    def mark(self, pond: OpenPond) -> str:
        """None: the time says where it ends."""
        return ""

    def until(self, mark: str, now_ms: int) -> NodesPast:
        """The past up to a time."""
        return replace(self, planned_ms=now_ms)


def past_of(pond: OpenPond, location: Location, name: str, shelf: PlannedSnapshots) -> PlannedPast:
    """The past of a layered map up to now, whose snapshots are on a shelf.

    Raises: `Invalid`, kind `known_at_unsupported`, for a sharded map.
    """
    pond_map: Any = location.map(pond, name)
    if pond_map.definition.store is not Store.LAYERS:
        raise one_state(pond_map.definition)
    if isinstance(shelf, NodesSnapshots):
        return NodesPast(shelf.location, pond_map.definition, SystemClock().now_ms())
    assert isinstance(shelf, FolderSnapshots), "snapshots are in a folder or on nodes"
    past = _past(location, pond, name)
    end = past.mark()
    return FolderPast(location, shelf, pond_map.definition, end, past.history(end))


@dataclass(frozen=True, slots=True)
class NodesRows:
    """The rows of a map on nodes as they were known at a moment, as the first node that can be reached streams them."""

    location: SparkNodes
    definition: MapDefinition
    known_ms: int

    def scan(self, where: str | None, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows that meet a condition, as people see them.

        Raises: as `Map.scan`; `Unavailable` when the connection is lost.
        """
        yield from (
            _pond(self.location).map(self.definition.name).scan(where, columns, known_at=clear_instant(self.known_ms))
        )


def rows_known_at(
    pond: OpenPond, location: Location, name: str, known_at: str
) -> NodesRows | tuple[PlannedSnapshots, SnapshotManifest]:
    """The rows of a layered map as they were known at a time: in a folder or a bucket those of a snapshot.

    Raises: `Invalid`, kinds `known_at_unsupported`, `history_ended` and `nothing_known`, and for what is no time.
    """
    pond_map: Any = location.map(pond, name)
    moment = parse_instant(known_at)
    if pond_map.definition.store is not Store.LAYERS:
        raise one_state(pond_map.definition)
    if isinstance(location, SparkNodes):
        return NodesRows(location, pond_map.definition, min(moment, SystemClock().now_ms()))
    with pond_map.rows.past.leased(clear_instant(moment)) as leased:
        return snapshots_of(location, pond_map), known_as(leased.manifest, pond_map.definition)


def _past(location: Location, pond: OpenPond, name: str) -> Past:
    local: Any = location.map(pond, name)
    past: Past = local.rows.past
    return past


@lru_cache(maxsize=PASTS_OPEN)
def _history(location: Location, name: str, end: str) -> History:
    with location.open() as pond:
        return _past(location, pond, name).history(end)


@lru_cache(maxsize=PASTS_OPEN)
def _opened(shelf: FolderSnapshots, definition: MapDefinition, share: HashShare | None) -> OpenHistory:
    """The history of a map, of which this process opens each manifest once."""
    return OpenHistory(shelf.objects, definition, share)


@lru_cache(maxsize=PASTS_OPEN)
def _pond(location: SparkNodes) -> RemotePond | RemoteRefPond:
    return nodes_at(location, location.open())
