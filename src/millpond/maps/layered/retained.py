"""The rows of a layered map that maintenance leaves, by the rules that shards are maintained by.

An aggregate that is rolled up loses no row by age: those of whole wide buckets before the time are combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import run_ends, sort_order, take
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.maintenance.rules import age_column, joined_sessions, redundant
from millpond.maps.model.address import address_bytes, long_column
from millpond.maps.model.columns import UPDATED, canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.rolled_up import rolled_up, shown_starts
from millpond.maps.model.values import encode_values
from millpond.maps.snapshots.layer_times import times_of
from millpond.maps.snapshots.layers import LayerFold, write_layer
from millpond.maps.snapshots.manifest import Layer, LayerMode, LayerTimes, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan

if TYPE_CHECKING:
    from millpond.maps.layered.head import Layers
    from millpond.stores.objects import Objects

__all__ = ("retained",)

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


def retained(layers: Layers, manifest: SnapshotManifest, what: str, before_ms: int) -> LayerFold:
    """All layers of a snapshot as one of the rows that `condense` or `retain` before a time leave, as the map is set;
    with `roll_up`, old rows are combined instead.

    Rows of which nobody knows when they were put count as put now.

    Raises: `NotFound`, `Corrupt`, naming the file; `Unavailable` when the disk is full; `Invalid`, kinds
    `sum_overflow`, `resolution_finer`.
    """
    inputs, aggregation, roll_up = manifest.layers, manifest.aggregation, layers.definition.roll_up
    if aggregation is None or what != "retain":
        return LayerFold(inputs, _layer(layers, manifest, what, before_ms), oldest=True)
    if roll_up is None:
        before_ms = int(shown_starts(aggregation, np.array([before_ms]))[0])
        return LayerFold(inputs, _layer(layers, manifest, what, before_ms), oldest=True)
    wide = rolled_up(aggregation, roll_up, before_ms)
    output = _layer(layers, replace(manifest, aggregation=wide), "roll_up", before_ms)
    return LayerFold(inputs, output, oldest=True, rolled_up=wide)


def _layer(layers: Layers, manifest: SnapshotManifest, what: str, before_ms: int) -> Layer | None:
    objects, definition, times = layers.objects, layers.definition, times_of(manifest, manifest.layers)
    age = age_column(definition) or UPDATED
    put_ms = layers.clock.now_ms() if times.instant is None else times.instant
    rows = _whole_keys(objects, manifest, times)
    if what == "roll_up":
        pass  # the manifest shows them in wide buckets
    elif what == "condense":
        rows = (_condensed(definition, batch, before_ms, put_ms) for batch in rows)
    elif age != UPDATED or times.updates:
        rows = (_retained(batch, age, before_ms) for batch in rows)
    elif put_ms < before_ms:
        rows = iter(())
    return write_layer(objects, definition, rows, LayerMode.WHOLE, spill=layers.spill(), times=times)


def _whole_keys(objects: Objects, manifest: SnapshotManifest, times: LayerTimes) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a snapshot, all rows of a key in one batch."""
    schema = canonical_schema(manifest.definition, updates=times.updates)
    for pieces in batches_of_spans(objects, manifest, GroupSpan(), updates=times.updates):
        yield from pa.Table.from_batches(list(pieces), schema).combine_chunks().to_batches()


def _retained(rows: pa.RecordBatch, age: str, before_ms: int) -> pa.RecordBatch:
    return rows.filter(pc.greater_equal(rows.column(age), pa.scalar(before_ms, pa.int64())))


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Rows in the order of their addresses."""

    rows: pa.RecordBatch
    definition: MapDefinition
    first: Mask
    longs: list[I64]

    def __len__(self) -> int:
        return self.rows.num_rows

    def repeats(self) -> Mask:
        values = encode_values(self.rows.column("value"), self.definition.value)
        return ~_begins(run_ends(values))


def _begins(ends: Mask) -> Mask:
    """The mask of rows that begin a run, of the mask of those that end one."""
    return np.concatenate([[True], ends[:-1]])


def _in_order(definition: MapDefinition, rows: pa.RecordBatch) -> _Ordered:
    address = address_bytes(definition, rows)
    order = sort_order(address)
    address, rows = take(address, order), rows.take(pa.array(order))
    times = [name for name in definition.kind.address if name not in ("key", "key_start", "key_end")]
    first = _begins(run_ends(address, 8 * len(times)))
    return _Ordered(rows, definition, first, [long_column(rows, name) for name in times])


def _settled(ordered: _Ordered, before_ms: int, put_ms: int) -> Mask:
    """The rows that condensing may drop or join; without times of their own all were put at one."""
    if ordered.definition.condense_by != "update_time":
        return ordered.longs[0] < before_ms
    if UPDATED not in ordered.rows.schema.names:
        return np.full(len(ordered), put_ms < before_ms)
    return long_column(ordered.rows, UPDATED) < before_ms


def _condensed(definition: MapDefinition, rows: pa.RecordBatch, before_ms: int, put_ms: int) -> pa.RecordBatch:
    ordered = _in_order(definition, rows)
    settled = _settled(ordered, before_ms, put_ms)
    if definition.kind is not Kind.SESSION:
        return ordered.rows.filter(pa.array(~redundant(ordered, settled)))
    joined = joined_sessions(ordered, settled)
    schema = rows.schema
    columns = [ordered.rows.column("key").take(pa.array(joined.first)), pa.array(joined.start), pa.array(joined.end)]
    if UPDATED in schema.names:
        latest = np.full(len(joined.start), np.iinfo(np.int64).min)
        np.maximum.at(latest, joined.run, long_column(ordered.rows, UPDATED))
        columns.append(pa.array(latest))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
