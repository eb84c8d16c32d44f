"""A map as it is at a ref: all questions, and on a branch, loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Invalid
from millpond.maps.inputs.zones import time_form
from millpond.maps.layered.maintenance import LAYERS_AFTER_LOAD
from millpond.maps.layered.writer import LayerWriter
from millpond.maps.loads.load import LoadResult, write_data
from millpond.maps.map import Map
from millpond.maps.map_rows import LayeredRows
from millpond.maps.snapshots.layers import fold, on_top
from millpond.refs.changes import StateChange
from millpond.refs.layers import RefLayers, ref_unsupported
from millpond.versions.commits import Message

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.inputs.mapping import ColumnMapping
    from millpond.maps.layered.writer import WrittenLayer
    from millpond.maps.loads.loading import Loading
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.refs.map_entries import MapEntry
    from millpond.stores.objects import Objects

__all__ = ("MapAtRef", "RefMap")


@dataclass(frozen=True, slots=True)
class MapAtRef:
    """The ref of a map: how its state is read there, and changed, where that may be.

    `change` puts a new state in the place of the one it was made of; with `commit`, as a commit of these words.
    """

    ref: str
    state: Callable[[], MapEntry]
    change: Callable[[StateChange, bool, Message], object] | None = None


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


class RefMap(Map):
    """A map at a ref: get it from `pond.branch(…).map(…)` or `pond.at(…).map(…)`."""

    def __init__(self, definition: MapDefinition, loading: Loading, folder: Path, at: MapAtRef) -> None:
        self.at = at
        super().__init__(definition, loading, None, folder)
        self.rows = _RefRows(definition, loading, lambda: self.objects, self._whole, at)

    def __repr__(self) -> str:
        return f"Map({self.definition.summary}, ref={self.at.ref!r})"

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
        again: bool = False, commit: bool = True,
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
        clock = self.loading.clock
        began, layers = clock.monotonic(), self.rows.snapshots
        assert isinstance(layers, RefLayers), "a map at a ref is layered"
        writer = LayerWriter(layers, salt=clock.random_id() if again else "")
        try:
            brought, rejected = write_data(
                writer, self.definition, data, columns=columns, max_rejects=max_rejects, rejects=rejects,
                times=time_form(zone, time_unit), source=source,
            )  # fmt: skip
            written: list[WrittenLayer] = brought  # type: ignore[assignment]
            rows = sum(layer.rows for layer in written)
            about = {"rows": str(rows)} | ({"source": source} if source else {})
            words = Message(f"Load {self.name}" + (f" from {source}" if source else ""), metadata=about)
            duplicate = not self._place(layers, written, again, commit, words)
        finally:
            writer.close()
        return LoadResult(
            load=written[0].id if written else "", rows=rows, rejected=rejected, parts=len(written) - duplicate,
            duplicate_parts=int(duplicate), maps={self.name: rows}, seconds=clock.monotonic() - began,
        )  # fmt: skip

    def _place(
        self, layers: RefLayers, written: Sequence[WrittenLayer], again: bool, commit: bool, words: Message
    ) -> bool:
        """Put the layer on what the branch has by now; False when it lies there already."""
        assert self.at.change is not None
        if not written:
            return True
        layer = written[0].layer
        while True:
            state = self.at.state()
            head = layers.head().manifest
            fresh = again or head is None or not head.layers or head.layers[0].index != layer.index
            changed: SnapshotManifest | None = head
            if fresh:
                changed = layers.stored(self._on_top(layers, head, layer, state.version + 1))
            assert changed is not None
            try:
                self.at.change(StateChange(state, state.with_manifest(changed)), commit, words)
            except Conflict as error:
                if error.kind != "head_moved":
                    raise
                continue
            except Invalid as error:
                if fresh or error.kind != "no_changes":
                    raise
            return fresh

    def _on_top(self, layers: RefLayers, head: SnapshotManifest | None, layer: Layer, version: int) -> SnapshotManifest:
        """A layer on a state; what that made due is folded."""
        now, spill = layers.clock.now_ms(), layers.spill()
        manifest = on_top(layers.objects, head, self.definition, layer, version=version, created_ms=now, spill=spill)
        if len(manifest.layers) <= LAYERS_AFTER_LOAD:
            return manifest
        return fold(layers.objects, manifest, created_ms=now, spill=spill)
