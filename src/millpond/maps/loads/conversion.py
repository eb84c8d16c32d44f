"""Converting a map from one store to the other: `alter_map(name, store=…)`.

| to | how |
|---|---|
| `layers` | what waits is merged, and the shard frozen: its snapshot is the head of the layers |
| `shard` | the rows of the layers are written as parts, and merged into a shard that nobody knows |

Invariants:
* the map changes its store in one write of the space, the entry `alter` of the log: before it the rows of record are
  in the one store, after it in the other, and both hold the same;
* loads go on meanwhile. Those that come at the end wait (`loads.lock`), so what is switched to has all of them; one
  that was prepared for the other store is refused, kind `map_converted`, and goes in when it is sent again;
* folding, condensing and retaining wait for the end;
* what a kill leaves counts for nothing: it is removed when the pond is opened next, and the conversion begins again;
* snapshots that are open answer on: their files are those of the map in either store.

The layers of a shard that keeps update times: its rows, each with the time at which it was put.

A first manifest has all rows, in one layer; the next has those of the keys that were touched since on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.errors import Conflict, Unavailable
from millpond.kernel.steps import step
from millpond.maps.layered.history import put_change
from millpond.maps.layered.maintenance import ACT_SECONDS, maintaining
from millpond.maps.layered.rows import batches_of_spans, check_fields
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.merge import Arrived, merge_loads
from millpond.maps.loads.merge_queue import Merged, merge_map
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.log.apply import record
from millpond.maps.log.clone import raise_version
from millpond.maps.log.log import Entry, head_of
from millpond.maps.log.queue import NUMBER
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.columns import UPDATED, canonical_schema
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.model.keyspaces import HISTORY
from millpond.maps.model.snapshot_pointer import Current, move_pointer, read_pointer
from millpond.maps.model.store_limits import sharded_as_can_be
from millpond.maps.parts.part import PartWriter
from millpond.maps.shard.shard import Shard, ShardView, generation_folder, read_generation
from millpond.maps.snapshots.layer_times import times_of
from millpond.maps.snapshots.layers import on_top, write_layer
from millpond.maps.snapshots.manifest import Layer, LayerMode, LayerTimes, SnapshotManifest, store_manifest
from millpond.maps.snapshots.refresh import FREEZE_LOCK_SECONDS
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.stores.files import make_folder, remove_tree, sync
from millpond.stores.locks import alone
from millpond.stores.objects import Objects

if TYPE_CHECKING:
    import lmdb

    from millpond.kernel.space import Transaction
    from millpond.maps.layered.head import Layers
    from millpond.maps.map import Map

__all__ = ("convert", "TimedLayers")


def convert(loading: Loading, pond_map: Map, store: Store) -> None:
    """Bring a map into the other store; nothing when it is there.

    Raises: `Invalid`, kind `aggregate_unsupported`; `Unavailable` when the disk is full, or somebody else keeps at the
    map for long; `Corrupt` when the map is damaged.
    """
    if pond_map.definition.store is store:
        return
    definition = sharded_as_can_be(replace(pond_map.definition, store=store))
    with loading.writing(), loading.reports.job("maintenance", act="convert", map=pond_map.name) as job:
        job.running()
        job.note(store=str(store))
        try:
            _convert(loading, pond_map, definition)
        except Conflict as error:
            if error.kind != "map_converted":
                raise  # else somebody else was faster
    loading.loads.announce()


def _convert(loading: Loading, pond_map: Map, definition: MapDefinition) -> None:
    if definition.store is Store.LAYERS:
        _to_layers(loading, pond_map, definition)
        return
    layers = pond_map.layers
    assert layers is not None, "it is not in a shard"
    _to_shard(loading, layers, definition)


def _switch(tx: Transaction, loading: Loading, before: MapDefinition, store: Store) -> Entry:
    """Enter the other store into the log, with the settings that the map has now."""
    former = same_map(tx, before)
    after = replace(former, store=store)
    body = {"definition": after.to_dict(), "former": former.to_dict(), "converted": True}
    return record(tx, "alter", (after.name,), body, loading.clock.now_ms())


def _to_layers(loading: Loading, pond_map: Map, definition: MapDefinition) -> None:
    shard, loads = pond_map.shard, loading.loads
    merge_map(loads, shard, Merged())
    with ExitStack() as stack:
        frozen: Callable[[], SnapshotManifest] = pond_map.freeze
        if shard.tracking:
            frozen = stack.enter_context(_timed_layers(loading, shard, pond_map.objects)).manifest
        frozen()  # the long part; what comes meanwhile is frozen below, alone
        step("convert.frozen")
        stack.enter_context(shard.exclusive())
        stack.enter_context(loads.alone())
        merge_map(loads, shard, Merged())
        manifest = frozen()
        step("convert.prepared")

        def switch(tx: Transaction) -> None:
            entry = _switch(tx, loading, shard.definition, definition.store)
            current = Current(manifest.id, manifest.incarnation, manifest.shard_version)
            if read_pointer(tx, definition.name).current != current:
                move_pointer(tx, definition.name, current)
            put_change(tx, definition.name, manifest.shard_version, manifest.id, entry)

        loading.space.write(switch)
        step("convert.switched")
        shard.close()
        (shard.folder / "current").unlink(missing_ok=True)  # handles of other processes notice by this file
        remove_tree(shard.folder)
    step("convert.cleaned")


def _to_shard(loading: Loading, layers: Layers, definition: MapDefinition) -> None:
    folder = loading.folder / "shards" / Path(layers.objects.where).name
    unfinished = writer_folder(loading.folder, loading.clock)
    shard = Shard(unfinished / "shard", definition)
    try:
        with maintaining(layers, ACT_SECONDS):
            with layers.current() as leased:
                base = leased.manifest
                _merge(loading, layers.objects, shard, 1, base, base.layers)
                _roll_up(shard, base)
            step("convert.written")
            with loading.loads.alone():
                _finish(loading, layers, shard, base, folder)
    finally:
        shard.close()
        remove_tree(unfinished)
    step("convert.cleaned")


def _finish(loading: Loading, layers: Layers, shard: Shard, base: SnapshotManifest, folder: Path) -> None:
    """Bring what loads have put on top meanwhile, and switch. Nobody loads now."""
    head = layers.head()
    manifest = head.manifest or base
    fresh = manifest.layers[: len(manifest.layers) - len(base.layers)]
    assert manifest.layers[len(fresh) :] == base.layers, "only loads came"
    with layers.current() as leased:
        for number, layer in enumerate(reversed(fresh), 2):
            _merge(loading, layers.objects, shard, number, leased.manifest, (layer,))
    with loading.space.read() as tx:
        number, position = int.from_bytes(tx.get(NUMBER) or b"", "big"), head_of(tx).position
    with shard.exclusive():
        shard.change(lambda _: None, None, absorbed=number, position=position)
    shard.close()
    raise_version(shard, generation_folder(shard.folder, int(read_generation(shard.folder) or 0)), head.version)
    remove_tree(folder)
    make_folder(folder.parent)
    shard.folder.rename(folder)
    sync(folder.parent)
    step("convert.prepared")

    def switch(tx: Transaction) -> None:
        _switch(tx, loading, layers.definition, Store.SHARD)
        move_pointer(tx, layers.definition.name, None, seen=head.pointer)  # the next lookup freezes the shard
        tx.delete_range(HISTORY[layers.definition.name].range())

    loading.space.write(switch)
    step("convert.switched")


def _merge(
    loading: Loading, objects: Objects, shard: Shard, number: int, manifest: SnapshotManifest, layers: Sequence[Layer]
) -> None:
    """Merge the rows of layers of a manifest into a shard, as those of one load; they keep their update times."""
    times = times_of(manifest, layers)
    overwrite = layers[0].mode is not LayerMode.FILL if len(layers) == 1 else True
    folder = shard.folder.with_name(f"parts{number}")
    writer = PartWriter(shard.definition, folder, memory_max=loading.memory_max)
    check_fields(shard.definition, manifest)
    if len(layers) == 1:
        layers = [replace(layers[0], mode=LayerMode.WHOLE)]  # its rows alone
    alone = replace(manifest, layers=tuple(layers), sections=None)
    for rows in chain.from_iterable(batches_of_spans(objects, alone, GroupSpan())):
        writer.write(rows)
    parts = tuple(writer.finish())
    if parts:
        put_ms = loading.clock.now_ms() if times.instant is None else times.instant
        with shard.exclusive():
            merge_loads(shard, [Arrived(number, put_ms, overwrite, parts)])
            if times.updates and shard.tracking:
                batches = chain.from_iterable(batches_of_spans(objects, alone, GroupSpan(), updates=True))
                shard.change(lambda tx: _put_times(shard, tx, batches), None)
    remove_tree(folder)


def _roll_up(shard: Shard, manifest: SnapshotManifest) -> None:
    """Note how far the rows of a manifest, which are in a shard, are rolled up."""
    if manifest.aggregation is not None and (parts := manifest.aggregation.rolled_up):
        with shard.exclusive():
            shard.change(lambda tx: shard.tables.put_rolled_up(tx, parts), pa.array([], pa.binary()))


def _put_times(shard: Shard, tx: lmdb.Transaction, batches: Iterator[pa.RecordBatch]) -> None:
    for rows in batches:
        shard.tables.updates.put_times(tx, rows, rows.column(UPDATED).to_pylist())


@contextmanager
def _timed_layers(loading: Loading, shard: Shard, objects: Objects) -> Iterator[TimedLayers]:
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
    """See `_timed_layers`, which makes it."""

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
