"""The past of a layered map, as a query was planned on it: what its tasks ask as known at the moments of their rows.

In a folder or a bucket the driver names the manifests of the map's history, which each task opens. Nodes answer
themselves, from theirs; what was known up to a moment is the same at each of them, and at each try.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from millpond.clock import SystemClock
from millpond.maps.inputs.key_columns import OnInvalid, moments_of
from millpond.maps.layered.past import History, OpenHistory
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.store_limits import one_state
from millpond.spark.places import NodesPlace
from millpond.spark.planned_snapshot import FolderSnapshots, NodesSnapshots

if TYPE_CHECKING:
    from millpond.client.pond import RemotePond
    from millpond.maps.map import Map
    from millpond.spark.places import OpenPond, Place
    from millpond.spark.planned_snapshot import PlannedSnapshots

__all__ = ("FolderPast", "NodesPast", "PlannedPast", "past_of")

PASTS_OPEN = 32
"""The pasts that a worker keeps open, and the nodes: each holds address space, or connections."""


class PlannedPast(Protocol):
    """The past of one map; it travels to the executors."""

    def lookup(self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid) -> pa.Array:
        """The values of keys at their times, each as it was known at its moment.

        Raises: as `Past.lookup`; `NotFound` when a manifest aged out; `Unavailable` when no node answers.
        """


@dataclass(frozen=True, slots=True)
class FolderPast:
    """Of a map in a folder or a bucket; its manifests stay as long as `maps.history` says."""

    shelf: FolderSnapshots
    definition: MapDefinition
    history: History

    def lookup(self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid) -> pa.Array:
        """The values, from manifests that this process opens."""
        moments, there = moments_of(known_at, len(keys), on_invalid)
        return _opened(self.shelf, self.definition).lookup(self.history, keys, at, moments, there, on_invalid)


@dataclass(frozen=True, slots=True)
class NodesPast:
    """Of a map on nodes. Moments after that of the plan are as it: what comes meanwhile counts in no task."""

    place: NodesPlace
    definition: MapDefinition
    planned_ms: int

    def lookup(self, keys: pa.Array, at: Any, known_at: pa.Array, on_invalid: OnInvalid) -> pa.Array:
        """The values, as the first node that can be reached answers."""
        moments, there = moments_of(known_at, len(keys), on_invalid)
        until = pa.array(np.minimum(moments, self.planned_ms), INSTANT, mask=~there if len(there) else None)
        questions = _pond(self.place).questions
        return questions.lookup(self.definition, keys, at, on_invalid=on_invalid, known_at=until)


def past_of(pond: OpenPond, place: Place, name: str, shelf: PlannedSnapshots) -> PlannedPast:
    """The past of a layered map up to now, whose snapshots are on a shelf.

    Raises: `Invalid`, kinds `known_at_unsupported` for a sharded map, `ref_unsupported` at a ref.
    """
    opened: Any = place.map(pond, name)
    if opened.definition.store is not Store.LAYERS:
        raise one_state(opened.definition)
    if isinstance(shelf, NodesSnapshots):
        return NodesPast(shelf.place, opened.definition, SystemClock().now_ms())
    assert isinstance(shelf, FolderSnapshots), "snapshots are in a folder or on nodes"
    local: Map = opened
    return FolderPast(shelf, local.definition, History.of(name, local.rows.past.changes()))


@lru_cache(maxsize=PASTS_OPEN)
def _opened(shelf: FolderSnapshots, definition: MapDefinition) -> OpenHistory:
    """The history of a map, of which this process opens each manifest once."""
    return OpenHistory(shelf.objects, definition)


@lru_cache(maxsize=PASTS_OPEN)
def _pond(place: NodesPlace) -> RemotePond:
    return place.open()
