"""The layers of a shard that keeps update times: its rows, each with the time at which it was put.

A first manifest has all rows, in one layer; the next has those of the keys that were touched since on top of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from millpond.errors import Unavailable
from millpond.maps.loads.loading import Loading
from millpond.maps.model.columns import canonical_schema
from millpond.maps.shard.shard import Shard, ShardView
from millpond.maps.snapshots.layers import on_top, write_layer
from millpond.maps.snapshots.manifest import LayerMode, LayerTimes, SnapshotManifest, store_manifest
from millpond.maps.snapshots.refresh import FREEZE_LOCK_SECONDS
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.stores.files import make_folder
from millpond.stores.locks import alone
from millpond.stores.objects import Objects

__all__ = ("TimedLayers", "timed_layers")


@contextmanager
def timed_layers(loading: Loading, shard: Shard, objects: Objects) -> Iterator[TimedLayers]:
    """The layers of a shard. Nobody freezes it meanwhile: files that no manifest names yet would be collected.

    Raises: `Unavailable` when somebody else freezes it for long.
    """
    busy = Unavailable("somebody else is freezing the map", kind="map_busy", map=shard.definition.name,
                       hint="try again when it is done")  # fmt: skip
    make_folder(shard.folder)
    with alone(shard.folder / "freeze.lock", FREEZE_LOCK_SECONDS, busy):
        yield TimedLayers(loading, shard, objects)


@dataclass(slots=True)
class TimedLayers:
    """See `timed_layers`, which makes it."""

    loading: Loading
    shard: Shard
    objects: Objects
    _base: SnapshotManifest | None = None

    def manifest(self) -> SnapshotManifest:
        """The manifest of the shard as it is now, stored.

        Raises: `Unavailable` when the disk is full.
        """
        shard, objects, base = self.shard, self.objects, self._base
        spill = SpillTo.within(shard.folder, self.loading.memory_max)
        with shard.view() as view:
            if base is not None and base.shard_version == view.version:
                return base
            touched = None if base is None else view.touched_since(base.shard_version)
            layer = write_layer(
                objects, shard.definition, self._rows(view, touched), LayerMode.WHOLE, touched=touched, spill=spill,
                times=LayerTimes(updates=True),
            )  # fmt: skip
            self._base = on_top(
                objects, None if touched is None else base, shard.definition, layer, version=view.version,
                created_ms=self.loading.clock.now_ms(), spill=spill,
            )  # fmt: skip
        store_manifest(objects, self._base)
        return self._base

    def _rows(self, view: ShardView, keys: pa.Array | None) -> Iterator[pa.RecordBatch]:
        schema = canonical_schema(self.shard.definition, updates=True)
        now = self.loading.clock.now_ms()
        for rows in view.read_rows(keys):
            assert view.tx is not None, "there are rows"
            times = view.generation.updates.times(view.tx, rows, now)
            yield pa.RecordBatch.from_arrays([*rows.columns, pa.array(times)], schema=schema)
