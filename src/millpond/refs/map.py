"""A map as it is at a ref: all questions, and on a branch, loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from millpond.deferred import opened_once
from millpond.maps.alerts.map_alerts import MapAlerts
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.missing_fields import with_fields
from millpond.maps.inputs.zones import time_form
from millpond.maps.layered.maintenance import maintain
from millpond.maps.layered.past import Past
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.deletion import DeleteReport, Left, purge_layers
from millpond.maps.loads.load import LoadResult, write_data
from millpond.maps.loads.loading import Loading
from millpond.maps.log.log import head_of
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.map import Map
from millpond.maps.map_rows import LayeredRows
from millpond.maps.model.definition import MapDefinition
from millpond.maps.shard.shard import ShardStats
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.stretches import Writes
from millpond.refs.alters import alter_map
from millpond.refs.layers import RefLayers, ref_read_only, ref_unsupported
from millpond.refs.loads import BranchLoad
from millpond.refs.map_entries import MapEntry
from millpond.refs.past import RefPast
from millpond.refs.rewrites import delete_rows, maintain_rows
from millpond.refs.states import RefStates
from millpond.stores.objects import Objects

__all__ = ("MapAtRef", "RefMap")


@dataclass(frozen=True, slots=True)
class MapAtRef:
    """The ref of a map: how its state is read there, and all states; on a branch that `changes`."""

    ref: str
    state: Callable[[], MapEntry]
    states: RefStates
    changes: bool = False

    def branch(self, name: str) -> RefStates:
        """The states, to change the map there.

        Raises: `Invalid`, kind `ref_read_only`, at a ref that is no branch.
        """
        if not self.changes:
            raise ref_read_only(name, self.ref)
        return self.states


class _RefRows(LayeredRows):
    """The rows of a map at a ref."""

    def __init__(
        self, definition: MapDefinition, loading: Loading, objects: Callable[[], Objects],
        snapshot: Callable[[bytes | int], Snapshot], at: MapAtRef,
    ) -> None:  # fmt: skip
        super().__init__(definition, loading, objects, snapshot)
        self._at = at
        self.snapshots = RefLayers(
            space=loading.space, clock=loading.clock, objects=objects(), definition=definition,
            memory_max=loading.memory_max, history_ms=loading.history_ms, ref=at.ref, state_now=at.state,
        )  # fmt: skip

    def stats(self) -> ShardStats:
        """Rows, version and bytes; counted each time, for a branch that was reset gives a version again."""
        self._counted = -1, 0
        return super().stats()

    def maintain(self, what: str, before_ms: int) -> MaintenanceReport:
        """Condense or retain the map on the branch, as one commit.

        Raises: `Invalid` at a ref that is no branch; `NotFound` when the branch is gone.
        """
        states = self._at.branch(self.definition.name)
        return maintain(
            self._loading, self.layers, what, before_ms, self.stats,
            lambda: maintain_rows(states, self.layers, what, before_ms),
        )  # fmt: skip

    def compact(self, writes: Writes) -> MaintenanceReport:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, "compact")

    @cached_property
    def past(self) -> Past:
        return RefPast(self.layers, self._at.states, self._at.ref)

    def delete(self, where: str, *, now: bool, branches: bool) -> DeleteReport:
        """Delete the rows on the branch, as one commit; `now`: purge the map's files of them.

        Raises: `Invalid` at a ref that is no branch, and for all `branches`; `NotFound` when the branch is gone, and of
        `now` for a map that is not on main.
        """
        if branches:
            raise ref_unsupported(self.definition.name, "purge of all branches")
        clock, states = self._loading.clock, self._at.branch(self.definition.name)
        began, shared = clock.monotonic(), states.layers_for(self.definition)
        if now:
            shared.head()
        commit, count = delete_rows(states, self.layers, where, purge=now)
        left = purge_layers(self._loading, shared, where) if now else Left()
        with self._loading.space.read() as tx:
            position = head_of(tx).position
        return DeleteReport(
            map=self.definition.name, rows_removed=count, rows_after=self.stats().rows, position=position,
            purged=now and not left.lines, left=left.lines, seconds=clock.monotonic() - began,
            commit="" if commit is None else commit.id,
        )  # fmt: skip

    @property
    def layers(self) -> RefLayers:
        assert isinstance(self.snapshots, RefLayers), "a map at a ref is layered"
        return self.snapshots


class RefMap(Map):
    """A map at a ref: get it from `pond.branch(…).map(…)` or `pond.at(…).map(…)`."""

    def __init__(self, definition: MapDefinition, loading: Loading, folder: Path, at: MapAtRef) -> None:
        self.at = at
        super().__init__(definition, loading, None, folder)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows: _RefRows = _RefRows(self.definition, self.loading, lambda: self.objects, self._of_key, self.at)

    def __repr__(self) -> str:
        return f"Map({self.definition.summary}, ref={self.at.ref!r})"

    @opened_once
    def alerts(self) -> MapAlerts:
        """Refuse: alerts are about `main`.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.name, "alerts")

    def _current(self) -> MapDefinition:
        """The map as it is on the branch by now; at another ref it stays."""
        return self.at.state().definition

    def _stamp(self) -> object:
        """The state that counts: there is no pointer that tells of changes."""
        state = self.at.state()
        return state.definition, state.manifest if state.version else ""

    def _proving(self, manifest: SnapshotManifest) -> object:
        return self.definition, manifest.id if manifest.shard_version else ""

    def _subset(self, keys: Sequence[str | int | None] | None, window: Sequence[object] | None) -> Snapshot:
        raise ref_unsupported(self.name, "subset")

    def info(self) -> dict[str, Any]:
        """The definition, rows, bytes and snapshot of the map at the ref."""
        stats = self.rows.stats()
        return {
            **{name: value for name, value in self.definition.to_dict().items() if name != "hash_bits"},
            "ref": self.at.ref, "rows": stats.rows, "version": stats.version, "shard_bytes": stats.bytes,
            "snapshot": self.freeze().id,
        }  # fmt: skip

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None, source: str = "",
        again: bool = False, extra: str | None = None, commit: bool = True, load_id: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load rows into the map on the branch, as a commit; without `commit` they are staged.

        A load that commits takes along what is staged. The rest is as in `Map.load`. The same data again changes
        nothing while it is the newest, unless `again`; under a `load_id` it is entered once.

        Raises: as `Map.load`; `Invalid`, kind `ref_read_only`, at a ref that is no branch.
        """
        self._follow()
        clock = self.loading.clock
        began = clock.monotonic()
        load = BranchLoad(states=self.at.branch(self.name), branch=self.at.ref, source=source, again=again,
                          commit=commit, load_id=load_id)  # fmt: skip
        if (earlier := load.earlier({self.name})) is not None:
            return earlier
        mapping, states, ref = mapping_of(columns, extra), self.at.branch(self.name), self.at.ref
        data, _ = with_fields(
            data, self.definition, mapping,
            lambda missing: alter_map(states, ref, self.name, {"add": missing}, commit=commit),
        )  # fmt: skip
        self._follow()
        writer = LayerWriter(self.rows.layers)
        try:
            brought, rejected = write_data(
                writer, self.definition, data, columns=mapping, max_rejects=max_rejects,
                rejects=rejects, times=time_form(zone, time_unit), source=source,
            )  # fmt: skip
            written = [layer for layer in brought if isinstance(layer, WrittenLayer)]
            result = replace(load, rejected=rejected).enter(written)
        finally:
            writer.close()
        named = result.load or (written[0].id if written else "")
        return replace(result, load=named, maps={self.name: result.rows}, seconds=clock.monotonic() - began)
