"""The rows of a map behind its handle: in a shard, or in layers. What a `Map` asks of either is the same."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from millpond.deferred import opened_once
from millpond.maps.model.one_value import python_value
from millpond.maps.model.store_limits import one_state
from millpond.maps.shard.shard import Shard, ShardStats

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.layered.head import Layers
    from millpond.maps.layered.past import Past
    from millpond.maps.loads.deletion import DeleteReport
    from millpond.maps.loads.loading import Loading
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import MapDefinition, ValueType
    from millpond.maps.predicates.predicate import Predicate
    from millpond.maps.snapshots.leased import MapSnapshots
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.maps.snapshots.stretches import Writes
    from millpond.stores.objects import Objects

__all__ = ("LayeredRows", "MapRows", "ShardRows", "compact_rows")


Encoded: TypeAlias = "bytes | tuple[int, int] | None"


class MapRows(Protocol):
    """The rows of one map, wherever they are stored."""

    @property
    def version(self) -> int:
        """The number of changes so far."""

    @property
    def snapshots(self) -> MapSnapshots | Layers:
        """The snapshots of the map."""

    def get(self, address: bytes | int, at: int | None) -> tuple[Encoded, ValueType | None]:
        """The encoded value for a key or number (at a time), or `(start, end)` of a session, None on a miss; and the
        type by which it is read: the fields of the map may change meanwhile.
        """

    def value(self, address: bytes | int, at: int | None) -> Any:
        """The same as a Python value, a session as `(start, end)`; None on a miss."""

    def rows(self, condition: Predicate, resolution: str | None = None) -> Generator[pa.RecordBatch]:
        """Canonical rows that hold every row a condition takes, all of one moment; perhaps at a coarser resolution."""

    def stats(self) -> ShardStats:
        """Rows, version and bytes on disk."""

    @property
    def past(self) -> Past:
        """The map as it was known at earlier moments."""

    def maintain(self, what: str, before_ms: int) -> MaintenanceReport:
        """Condense or retain the map, in its turn."""

    def delete(self, where: str, *, now: bool, branches: bool) -> DeleteReport:
        """Delete the rows for which a condition holds; `now`: purge them, `branches`: from all refs."""

    def compact(self, writes: Writes) -> MaintenanceReport:
        """Give back the disk that nobody needs."""

    def close(self) -> None:
        """Let go of files."""


def compact_rows(rows: MapRows, loading: Loading, name: str, writes: Writes) -> MaintenanceReport:
    """Compact the rows of a map, as a job that is reported; of layers it has the ranges written.

    Raises: as `Map.compact`.
    """
    with loading.reports.job("maintenance", act="compact", map=name) as job:
        job.running()
        report = rows.compact(writes)
        job.note(bytes_before=report.bytes_before, bytes_after=report.bytes_after)
    return report


class ShardRows:
    """Rows in a shard."""

    def __init__(self, shard: Shard, loading: Loading, objects: Callable[[], Objects]) -> None:
        self.shard, self._loading, self._objects = shard, loading, objects

    @property
    def version(self) -> int:
        return self.shard.version

    @opened_once
    def snapshots(self) -> MapSnapshots:
        """The snapshots of the map, which are frozen from the shard."""
        from millpond.maps.snapshots.leased import MapSnapshots

        loading = self._loading
        return MapSnapshots(loading.space, loading.clock, self._objects(), self.shard, loading.memory_max)

    def get(self, address: bytes | int, at: int | None) -> tuple[Encoded, ValueType | None]:
        """The encoded value for a key or number at a time, and its type."""
        definition, value = self.shard.definition, self.shard.get(address, at)
        if definition.aggregation is not None and isinstance(value, bytes):
            from millpond.maps.model.computed import shown_bytes  # other kinds need no arrays

            value = shown_bytes(definition, value)
        return value, definition.shown

    def value(self, address: bytes | int, at: int | None) -> Any:
        """The same as a Python value."""
        value, shown = self.get(address, at)
        return python_value(value, shown) if isinstance(value, bytes) else value

    def rows(self, condition: Predicate, resolution: str | None = None) -> Generator[pa.RecordBatch]:
        """The candidate rows of a condition."""
        from millpond.maps.layered.rows import candidate_rows
        from millpond.maps.scan import rows_of_shard

        if resolution is not None:
            definition, frozen = self.shard.definition, self.snapshots.refreeze
            return candidate_rows(self._objects(), definition, frozen, condition, resolution)
        return rows_of_shard(self.shard, self.shard.definition, condition)

    def stats(self) -> ShardStats:
        """Rows, version and bytes of the shard."""
        return self.shard.stats()

    @property
    def past(self) -> Past:
        """None: the map has one state.

        Raises: `Invalid`, kind `known_at_unsupported`.
        """
        raise one_state(self.shard.definition)

    def maintain(self, what: str, before_ms: int) -> MaintenanceReport:
        """Order maintenance, do what waits before it, carry it out."""
        from millpond.maps.loads.maintenance_orders import maintain_in_turn

        return maintain_in_turn(self._loading, self.shard, what, before_ms)

    def delete(self, where: str, *, now: bool, branches: bool) -> DeleteReport:
        from millpond.maps.loads.deletion import delete_from_shard

        return delete_from_shard(self._loading, self.shard, self.snapshots, where, now=now, branches=branches)

    def compact(self, writes: Writes) -> MaintenanceReport:
        """Rewrite the shard's file without free pages."""
        from millpond.maps.maintenance.maintenance import compact

        return compact(self.shard, clock=self._loading.clock)

    def close(self) -> None:
        self.shard.close()


class LayeredRows:
    """Rows in layers; `snapshot` gives an open snapshot to ask for a key, or a number."""

    def __init__(
        self, definition: MapDefinition, loading: Loading, objects: Callable[[], Objects],
        snapshot: Callable[[bytes | int], Snapshot],
    ) -> None:  # fmt: skip
        self.definition, self._loading = definition, loading
        self._objects, self._snapshot = objects, snapshot
        self._counted = -1, 0

    @opened_once
    def snapshots(self) -> Layers:
        """The layers, which are a snapshot at any time."""
        from millpond.maps.layered.head import Layers

        loading = self._loading
        return Layers(
            loading.space, loading.clock, self._objects(), self.definition, loading.memory_max, loading.history_ms
        )

    @property
    def version(self) -> int:
        return self.snapshots.version

    def get(self, address: bytes | int, at: int | None) -> tuple[Encoded, ValueType | None]:
        """The encoded value for a key or number at a time, from the snapshot that is open, and its type there."""
        snapshot = self._snapshot(address)
        return snapshot.get(address, at), snapshot.definition.shown

    def value(self, address: bytes | int, at: int | None) -> Any:
        """The same as a Python value."""
        return self._snapshot(address).value(address, at)

    def rows(self, condition: Predicate, resolution: str | None = None) -> Generator[pa.RecordBatch]:
        """The candidate rows of a condition."""
        from millpond.maps.layered.rows import candidate_rows

        return candidate_rows(self._objects(), self.definition, self.snapshots.current, condition, resolution)

    def stats(self) -> ShardStats:
        """Rows, version and bytes of the layers that count; rows are counted once a version."""
        from millpond.maps.layered.rows import count_rows

        with self.snapshots.current() as leased:
            manifest = leased.manifest
            if self._counted[0] != manifest.shard_version:
                self._counted = manifest.shard_version, count_rows(self._objects(), manifest)
            return ShardStats(self._counted[1], manifest.shard_version, manifest.size)

    @opened_once
    def past(self) -> Past:
        from millpond.maps.layered.past import Past

        return Past(self.snapshots)

    def maintain(self, what: str, before_ms: int) -> MaintenanceReport:
        """Condense or retain all layers as one."""
        from millpond.maps.layered.maintenance import maintain

        return maintain(self._loading, self.snapshots, what, before_ms, self.stats)

    def delete(self, where: str, *, now: bool, branches: bool) -> DeleteReport:
        """Write all layers as one, without the rows."""
        from millpond.maps.loads.deletion import delete_from_layers

        return delete_from_layers(
            self._loading, self.snapshots, where, lambda: self.stats().rows, now=now, branches=branches
        )

    def compact(self, writes: Writes) -> MaintenanceReport:
        """Fold all layers to one, and collect what nobody needs."""
        from millpond.maps.layered.maintenance import compact

        return compact(self._loading, self.snapshots, self.stats, writes)

    def close(self) -> None:
        """Nothing: open snapshots are closed by those who have them."""
