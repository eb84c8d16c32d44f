"""Layers of a map whose store of record is its snapshot: written by loads, put on top, folded.

    layer = write_layer(objects, definition, rows, LayerMode.JOIN, spill=spill)     files; nothing is visible
    manifest = on_top(objects, head, definition, layer, version=…, created_ms=…)     over whatever the head is by now
    done = fold_layers(objects, manifest, layers_due(manifest))                      may take long; the head may move on
    manifest = substitute(objects, head, done, created_ms=…)                         while what was folded lies in it

Who stores the manifest and moves the pointer decides what counts. Nothing here looks at a head by itself.

Invariants, which `docs/format/layers.md` draws:
* The oldest layer is whole and has no tombstones.
* Layers of ranged maps are whole, because their sections say which group answers; a partial layer is resolved over the
  head that it is put on. So are those that join rows where a group has but one row.
* A fold changes no answer and no update time, and writes rows as the value type in force says. Neighbours of one mode
  become one layer of that mode; others only together with all that lie under them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import attrgetter

import pyarrow as pa

from millpond import ranges
from millpond.errors import Conflict
from millpond.kernel.steps import step
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.search.visible import tombstones
from millpond.maps.snapshots.fold_writer import FoldWriter, FoldWrites
from millpond.maps.snapshots.freeze import LAYER_RATIO, bytes_at_once, layers_to_fold, sections_over, write_groups
from millpond.maps.snapshots.groups_of_rows import freeze_groups
from millpond.maps.snapshots.layer_times import times_of, with_updates
from millpond.maps.snapshots.manifest import NO_TIMES, Layer, LayerMode, LayerTimes, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import groups_over
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.maps.snapshots.stretches import write_here
from millpond.maps.snapshots.sum_reach import check_sums, with_reach
from millpond.ranges.walk import Cursor
from millpond.stores.objects import Objects

__all__ = (
    "LAYERS_MAX",
    "LayerFold",
    "bytes_after_load",
    "check_exact",
    "fold",
    "fold_layers",
    "layers_due",
    "on_top",
    "substitute",
    "write_layer",
)

LAYERS_MAX = 16
"""With more layers all are folded, however they differ: a lookup asks each of them."""
SHARED_LAYERS_MAX = 12
"""The layers that a state of an aggregate shares with another branch stay apart up to so many: with more, the few above
them would be written with each load.
"""
BYTES_AFTER_LOAD_MIN = 1 << 20
"""Layers that have no more bytes together are folded after a load, however little it brought."""


def write_layer(
    objects: Objects, definition: MapDefinition, rows: Iterable[pa.RecordBatch], mode: LayerMode, *,
    touched: pa.Array | None = None, spill: SpillTo | None = None, times: LayerTimes = NO_TIMES,
) -> Layer | None:  # fmt: skip
    """Write canonical rows, in any order, as one layer; None when there are none.

    Of several rows of one address the last counts; the first in a `fill` layer. `touched` names keys (ranged kinds: by
    `range_order_keys`) that come out of a whole layer as tombstones where they have no row. `times` says when the rows
    were put, or that they tell it; those of a load are put when their layer is put on a head.

    Raises: `Unavailable` when the place is full.
    """
    assert touched is None or mode is LayerMode.WHOLE, "only a whole group says that there is nothing else"
    first = mode is LayerMode.FILL
    groups = freeze_groups(
        definition, rows, touched=touched, spill=spill, repeats="first" if first else "last", updates=times.updates
    )
    layer = _layer(write_groups(objects, definition, groups, spill, updates=times.updates), definition, mode, times)
    step("layers.layer_written")
    return with_reach(objects, definition, layer)


def on_top(
    objects: Objects, head: SnapshotManifest | None, definition: MapDefinition, layer: Layer | None, *, version: int,
    created_ms: int, spill: SpillTo | None = None,
) -> SnapshotManifest:  # fmt: skip
    """The manifest of a layer, None for no change, over the layers of a head, None for a map without rows.

    Of a keyed map no rows are read, but where whole groups come first: on nothing a tombstone says nothing.

    Raises: `NotFound`, `Corrupt` naming the file; `Unavailable`.
    """
    assert head is None or head.bounds is None, "a subset is not written to"
    base = head or SnapshotManifest.empty(definition, created_ms=created_ms)
    base = with_updates(base, base.updates or tracks_updates(definition), created_ms)
    manifest = replace(base, shard_version=version, created_ms=created_ms)
    if layer is not None:
        if manifest.updates and layer.updated is None and not layer.updates:
            layer = replace(layer, updated=created_ms)
        check_exact(objects, manifest, layer)
        check_sums(objects, manifest, layer)
        settled = _settled(objects, manifest, layer, spill)
        oldest = base.layers[-1] if base.layers else None
        if oldest is None and layer.mode is not LayerMode.WHOLE:
            settled = oldest = replace(settled, mode=LayerMode.WHOLE)  # rows that join others are no tombstones
        layers = _grounded(objects, manifest, (settled, *base.layers), spill, oldest)
        manifest = replace(manifest, layers=layers)
    return _with_sections(objects, head, manifest, layer, spill)


def check_exact(objects: Objects, manifest: SnapshotManifest, layer: Layer) -> None:
    """See that the value type in force tells every value of a layer that was written under another one.

    Raises: `Invalid`, kind `field_narrowed`, naming such a number, or the field.
    """
    projection = manifest.projection(layer)
    if projection is None or not (projection.narrow or projection.too_narrow):
        return
    index = ranges.load_index(objects, layer.index)
    for entry in index.entries:
        projection.exact(ranges.open_range(objects, entry).column("rows").flatten().field("value"), manifest.map)


def _with_sections(
    objects: Objects, head: SnapshotManifest | None, manifest: SnapshotManifest, touched: Layer | None,
    spill: SpillTo | None,
) -> SnapshotManifest:  # fmt: skip
    """The manifest of a ranged map with the sections over its layers, where the groups of a layer changed them."""
    if manifest.kind.keyed:
        return manifest
    keys = [] if touched is None else [batch.column("key") for batch in _groups(objects, manifest, touched)]
    sections = sections_over(
        objects, manifest.definition, [ranges.load_index(objects, layer.index) for layer in manifest.layers], head,
        pa.concat_arrays([pa.array([], pa.binary()), *keys]), spill,
    )  # fmt: skip
    return replace(manifest, sections=sections)


def _settled(objects: Objects, manifest: SnapshotManifest, layer: Layer, spill: SpillTo | None) -> Layer:
    """The layer as it may lie over those of a manifest, see the invariants."""
    kind, below, definition = manifest.kind, manifest.layers, manifest.definition
    if layer.mode is LayerMode.FILL and not kind.valued and not manifest.updates:
        return replace(layer, mode=LayerMode.JOIN)  # rows of one address are equal
    if layer.mode is LayerMode.JOIN and not kind.timed:
        return replace(layer, mode=LayerMode.WHOLE)
    if kind.keyed or layer.mode is LayerMode.WHOLE or not below:
        return layer
    modes = [layer.mode, *(under.mode for under in below)]
    times = times_of(manifest, (layer, *below))
    shown = (shown_layer(objects, manifest, under, updates=times.updates) for under in below)
    readers = [ranges.open_index(objects, index, verify=True) for index in shown]
    resolved = groups_over(definition, modes, _groups(objects, manifest, layer, times), readers)
    index = write_groups(objects, definition, resolved, spill, updates=times.updates)
    resolved_layer = _layer(index, definition, LayerMode.WHOLE, times)
    assert resolved_layer is not None, "each group stays one"
    return resolved_layer


def _grounded(
    objects: Objects, manifest: SnapshotManifest, layers: tuple[Layer, ...], spill: SpillTo | None,
    oldest: Layer | None,
) -> tuple[Layer, ...]:  # fmt: skip
    """The layers with an oldest that is whole and has no tombstones; `oldest` is one already."""
    definition = manifest.definition
    while layers and layers[-1] != oldest:
        *above, last = layers
        if last.mode is not LayerMode.WHOLE:
            return (*above, replace(last, mode=LayerMode.WHOLE))
        times = times_of(manifest, (last,))
        alive = (batch.filter(pa.array(~tombstones(batch))) for batch in _groups(objects, manifest, last, times))
        index = write_groups(objects, definition, alive, spill, updates=times.updates)
        grounded = _layer(index, definition, LayerMode.WHOLE, times)
        if grounded is not None:
            return (*above, replace(grounded, reach=last.reach, extremes=last.extremes))
        layers = tuple(above)
    return layers


def _groups(
    objects: Objects, manifest: SnapshotManifest, layer: Layer, times: LayerTimes = NO_TIMES
) -> Iterator[pa.RecordBatch]:
    """The groups of a layer, range by range, for one with these update times."""
    cursor = Cursor(objects, shown_layer(objects, manifest, layer, updates=times.updates))
    while not cursor.done:
        yield cursor.take(cursor.entry.last)


def _layer(index: ranges.Index, definition: MapDefinition, mode: LayerMode, times: LayerTimes) -> Layer | None:
    return Layer.of(index, definition, mode, times) if index.count else None


# -- folding ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerFold:
    """Neighbouring layers, newest first, and the one that says the same; None when nothing is left.

    `oldest`: nothing lay under them, so tombstones were left out. `rolled_up`: the aggregation from then on, where old
    rows were combined to wider buckets.
    """

    inputs: tuple[Layer, ...]
    output: Layer | None
    oldest: bool
    rolled_up: Aggregation | None = None


def bytes_after_load(manifest: SnapshotManifest) -> int:
    """The bytes of the layers that a load may fold itself: so its cost follows what it brought, the newest layer."""
    return max(BYTES_AFTER_LOAD_MIN, LAYER_RATIO * manifest.layers[0].size)


def layers_due(
    manifest: SnapshotManifest, *, everything: bool = False, bytes_max: int | None = None, shared: int = 0
) -> tuple[Layer, ...]:  # fmt: skip
    """The layers that are to become one, newest first; none when the policy has nothing to do.

    Each layer is to have several times the bytes of all above it together, so that their number grows with the
    logarithm of the map, and the bytes written with what was loaded. Only the newest ones, which have at most
    `bytes_max` together, are looked at, unless there are more than `LAYERS_MAX`. The oldest that are `shared` stay
    apart from those above them, and as they are, while they are few.
    """
    layers = manifest.layers
    own = layers if everything or shared > SHARED_LAYERS_MAX else layers[: len(layers) - shared]
    sizes = [layer.size for layer in own]
    due = layers_to_fold([size for size, sum_ in zip(sizes, accumulate(sizes), strict=True)
                          if bytes_max is None or sum_ <= bytes_max])  # fmt: skip
    if everything or len(layers) > LAYERS_MAX:
        due = len(own)
    if due == len(layers) > 1 or (everything and any(manifest.projection(layer) is not None for layer in layers)):
        return layers
    runs = (tuple(run) for _, run in groupby(own[:due], attrgetter("mode")))
    return max((run for run in runs if len(run) > 1), key=len, default=layers if len(layers) > LAYERS_MAX else ())


def fold_layers(
    objects: Objects, manifest: SnapshotManifest, inputs: Sequence[Layer], *, spill: SpillTo | None = None,
    writes: FoldWrites = write_here,
) -> LayerFold:  # fmt: skip
    """Have the layer written that says what neighbouring layers of a manifest say: one or more.

    Raises: `NotFound`, `Corrupt` naming the file; `Unavailable`; `Conflict` when they are no neighbours.
    """
    assert inputs, "nothing is due"
    oldest = _position(manifest, inputs) + len(inputs) == len(manifest.layers)
    modes = [layer.mode for layer in inputs]
    assert oldest or len(set(modes)) == 1, "layers that differ fold only with all under them"
    writer = FoldWriter(objects, manifest, tuple(inputs), oldest, bytes_at_once(spill))
    merged = writer.joined(writes(writer))
    step("layers.folded")
    mode = LayerMode.WHOLE if oldest else modes[0]
    output = _layer(merged, manifest.definition, mode, times_of(manifest, inputs))
    return LayerFold(tuple(inputs), with_reach(objects, manifest.definition, output), oldest)


def substitute(
    objects: Objects, head: SnapshotManifest, done: LayerFold, *, created_ms: int, spill: SpillTo | None = None
) -> SnapshotManifest:
    """The head with a fold in the place of what was folded; of a keyed map no rows are read, as in `on_top`.

    Raises: `Conflict` when the layers are no neighbours in it any more; as `on_top`; `Invalid`, kind `sum_overflow`.
    """
    first = _position(head, done.inputs)
    after = head.layers[first + len(done.inputs) :]
    if done.oldest != (not after):
        raise _moved(head)
    if done.rolled_up is not None:
        head = replace(head, aggregation=done.rolled_up)
    layers = (*head.layers[:first], *([] if done.output is None else [done.output]), *after)
    for position in range(first if done.rolled_up is not None else 0):
        check_sums(objects, replace(head, layers=layers[position + 1 :]), layers[position])
    layers = _grounded(objects, head, layers, spill, after[-1] if after else done.output)
    return _with_sections(objects, head, replace(head, layers=layers, created_ms=created_ms), None, spill)


def _position(manifest: SnapshotManifest, inputs: Sequence[Layer]) -> int:
    """The place of layers that lie side by side."""
    count = len(inputs)
    for first in range(len(manifest.layers) - count, -1, -1):
        if manifest.layers[first : first + count] == tuple(inputs):
            return first
    raise _moved(manifest)


def _moved(manifest: SnapshotManifest) -> Conflict:
    return Conflict(
        "the layers that were folded lie no longer side by side", kind="layers_moved", map=manifest.map,
        hint="fold those of the present head",
    )  # fmt: skip


def fold(
    objects: Objects, manifest: SnapshotManifest, *, created_ms: int, everything: bool = False,
    bytes_max: int | None = None, shared: int = 0, spill: SpillTo | None = None, writes: FoldWrites = write_here,
) -> SnapshotManifest:  # fmt: skip
    """The manifest with its layers folded as is due, or all of them, until nothing more is due, see `layers_due`.

    Raises: as `fold_layers`.
    """
    while inputs := layers_due(manifest, everything=everything, bytes_max=bytes_max, shared=shared):
        done = fold_layers(objects, manifest, inputs, spill=spill, writes=writes)
        manifest = substitute(objects, manifest, done, created_ms=created_ms, spill=spill)
    return manifest
