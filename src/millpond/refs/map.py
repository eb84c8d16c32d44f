"""A map as it is at a ref: all questions, and on a branch, loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import Invalid
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.zones import time_form
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.load import LoadResult, write_data
from millpond.maps.map import Map
from millpond.maps.map_rows import LayeredRows
from millpond.refs.layers import RefLayers, ref_unsupported

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.layered.past import Past
    from millpond.maps.loads.deletion import DeleteReport
    from millpond.maps.loads.loading import Loading
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.refs.map_entries import MapEntry
    from millpond.stores.objects import Objects

__all__ = ("MapAtRef", "RefMap")


@dataclass(frozen=True, slots=True)
class MapAtRef:
    """The ref of a map: how its state is read there, and layers are put on it, where that may be.

    `change` takes layers, their source, and whether they are loaded again and committed; the number that are new.
    """

    ref: str
    state: Callable[[], MapEntry]
    change: Callable[[Sequence[WrittenLayer], str, bool, bool], int] | None = None


class _RefRows(LayeredRows):
    """The rows of a map at a ref."""

    def __init__(
        self, definition: MapDefinition, loading: Loading, objects: Callable[[], Objects],
        snapshot: Callable[[], Snapshot], at: MapAtRef,
    ) -> None:  # fmt: skip
        super().__init__(definition, loading, objects, snapshot)
        self.snapshots = RefLayers(
            space=loading.space, clock=loading.clock, objects=objects(), definition=definition,
            memory_max=loading.memory_max, history_ms=loading.history_ms, ref=at.ref, state_now=at.state,
        )  # fmt: skip

    def maintain(self, what: str, before_ms: int) -> MaintenanceReport:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, what)

    def compact(self) -> MaintenanceReport:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, "compact")

    @property
    def past(self) -> Past:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, "known_at")

    def delete(self, where: str, *, now: bool) -> DeleteReport:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.definition.name, "delete")


class RefMap(Map):
    """A map at a ref: get it from `pond.branch(…).map(…)` or `pond.at(…).map(…)`."""

    def __init__(self, definition: MapDefinition, loading: Loading, folder: Path, at: MapAtRef) -> None:
        self.at = at
        super().__init__(definition, loading, None, folder)
        self.rows = _RefRows(definition, loading, lambda: self.objects, self._whole, at)

    def __repr__(self) -> str:
        return f"Map({self.definition.summary}, ref={self.at.ref!r})"

    def _follow(self) -> None:
        """Nothing: a map at a ref has the fields that it has there."""

    def _whole(self) -> Snapshot:
        from millpond.maps.snapshots.snapshot import Snapshot

        held = None if self._held is None else self._held[0]
        state = self.at.state()
        if held is None or held.closed or held.manifest.id != state.manifest:
            held = Snapshot.open(self.objects, self.freeze())
            self._held = held, None
        return held

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
        again: bool = False, extra: str | None = None, commit: bool = True,
    ) -> LoadResult:  # fmt: skip
        """Load rows into the map on the branch, as a commit; without `commit` they are staged.

        A load that commits takes along what is staged. The rest is as in `Map.load`. The same data again changes
        nothing while it is the newest, unless `again`.

        Raises: as `Map.load`; `Invalid`, kind `ref_read_only`, at a ref that is no branch.
        """
        if self.at.change is None:
            raise Invalid(
                "a ref is only read", kind="ref_read_only", map=self.name, ref=self.at.ref,
                hint="load on a branch: pond.branch('fix').map(…).load(…)",
            )  # fmt: skip
        clock, change = self.loading.clock, self.at.change
        began = clock.monotonic()
        writer = LayerWriter(self._layers_at_ref, salt=clock.random_id() if again else "")
        try:
            brought, rejected = write_data(
                writer, self.definition, data, columns=mapping_of(columns, extra), max_rejects=max_rejects,
                rejects=rejects, times=time_form(zone, time_unit), source=source,
            )  # fmt: skip
            written = [layer for layer in brought if isinstance(layer, WrittenLayer)]
            fresh = change(written, source, again, commit) if written else 0
        finally:
            writer.close()
        rows = sum(layer.rows for layer in written)
        return LoadResult(
            load=written[0].id if written else "", rows=rows, rejected=rejected, parts=fresh,
            duplicate_parts=len(written) - fresh, maps={self.name: rows}, seconds=clock.monotonic() - began,
        )  # fmt: skip

    @property
    def _layers_at_ref(self) -> RefLayers:
        """The layers of the map at the ref."""
        layers = self.rows.snapshots
        assert isinstance(layers, RefLayers), "a map at a ref is layered"
        return layers
