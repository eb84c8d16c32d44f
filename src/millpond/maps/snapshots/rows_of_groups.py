"""A snapshot's groups as rows again: what reads a whole map, or a part of it, without its shard.

Invariants:
* Every row of the snapshot comes out once: what several layers say of a key is put together as `joined_groups.py` does.
* Spans of keys cut the rows, not the groups: all rows of one key come out of one span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond import ranges
from millpond.arrays.byte_columns import Bytes, bytes_of
from millpond.arrays.compiled import kernel
from millpond.arrays.radix import I64, unordered_i64
from millpond.maps.model.columns import UPDATED, canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up
from millpond.maps.search.groups import Groups
from millpond.maps.search.visible import visible_groups
from millpond.maps.snapshots.groups_of_rows import range_bounds
from millpond.maps.snapshots.joined_groups import join_groups
from millpond.maps.snapshots.manifest import Layer, LayerMode, SnapshotManifest
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.ranges.walk import Cursor, take_stretch
from millpond.stores.objects import Objects

__all__ = ("GroupSpan", "groups_of_keys", "groups_over", "keys_of_groups", "rows_of_groups", "spans", "thaw")

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """Groups with `lower` ≤ order key < `upper`; or, when `keys` are given, just those order keys, ascending."""

    lower: bytes | None = None
    upper: bytes | None = None
    keys: tuple[bytes, ...] | None = None


def spans(objects: Objects, manifest: SnapshotManifest, whole: GroupSpan, bytes_max: int) -> list[GroupSpan]:
    """Cut a span where ranges of the base begin, into pieces of about `bytes_max` bytes."""
    if whole.keys is not None or not manifest.layers:
        return [whole]
    entries = ranges.load_index(objects, manifest.layers[-1].index).entries
    cuts: list[bytes] = []
    size = 0
    for entry in entries:
        if (whole.upper is not None and entry.first >= whole.upper) or (
            whole.lower is not None and entry.last < whole.lower
        ):
            continue
        if size and size + entry.size > bytes_max:
            cuts.append(entry.first)
            size = 0
        size += entry.size
    return [GroupSpan(low, high) for low, high in zip([whole.lower, *cuts], [*cuts, whole.upper], strict=True)]


def thaw(
    objects: Objects, manifest: SnapshotManifest, span: GroupSpan, *, updates: bool = False
) -> Iterator[pa.RecordBatch]:
    """The canonical rows of a span, a batch for each range that holds some, in no promised order.

    `updates`: with the time at which each was put, of a manifest that tells it.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    definition = manifest.definition
    if not manifest.whole or is_rolled_up(manifest.aggregation):
        modes = [layer.mode for layer in manifest.layers]
        for pieces in _stretches(objects, manifest, span, updates):
            for batch in join_groups(definition, modes, pieces):
                yield rows_of_groups(definition, batch)
        return
    layers = [list(_groups(objects, manifest, layer, span, updates)) for layer in manifest.layers]
    groups = Groups.of(definition.kind, layers)
    for batch, seen in zip(groups.batches, visible_groups(groups), strict=True):
        rows = rows_of_groups(definition, batch if seen.all() else batch.filter(pa.array(seen)))
        if rows.num_rows:
            yield rows


def _stretches(
    objects: Objects, manifest: SnapshotManifest, span: GroupSpan, updates: bool
) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
    """The groups of all layers, a stretch of keys at a time, each with the number of its layer."""
    if span.keys is not None:
        groups = (
            (number, [*_groups(objects, manifest, layer, span, updates)])
            for number, layer in enumerate(manifest.layers)
        )
        yield [(number, pa.concat_batches(batches)) for number, batches in groups if batches]
        return
    cursors = [Cursor(objects, shown_layer(objects, manifest, layer, updates=updates)) for layer in manifest.layers]
    for cursor in cursors:
        cursor.seek(span.lower or b"")
    while (pieces := take_stretch(cursors, span.upper)) is not None:
        yield pieces


def _groups(
    objects: Objects, manifest: SnapshotManifest, layer: Layer, span: GroupSpan, updates: bool
) -> Iterator[pa.RecordBatch]:
    reader = ranges.open_index(objects, shown_layer(objects, manifest, layer, updates=updates))
    if span.keys is None:
        yield from reader.scan(span.lower, span.upper)
    else:
        yield from groups_of_keys(reader, pa.array(span.keys, pa.binary()))


def groups_of_keys(reader: ranges.RangeReader, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    """The groups of these order keys, which ascend: a batch for each range that has some.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    range_nos, positions = reader.find(keys)
    for range_no in np.unique(range_nos[range_nos >= 0]).tolist():
        yield reader.batch(range_no).take(pa.array(positions[range_nos == range_no]))


def groups_over(
    definition: MapDefinition, modes: Sequence[LayerMode], batches: Iterable[pa.RecordBatch],
    below: Sequence[ranges.RangeReader],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Groups of a layer joined with those of their keys in the layers below it; `modes`: of all, its own first.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    for batch in batches:
        under = [list(groups_of_keys(reader, batch.column("key"))) for reader in below]
        pieces = [(number, pa.concat_batches(groups)) for number, groups in enumerate(under, 1) if groups]
        yield from join_groups(definition, modes, [(0, batch), *pieces])


def rows_of_groups(definition: MapDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The canonical rows of a batch of groups; those that tell when they were put go on telling it."""
    rows = batch.column("rows")
    # Offsets of a slice begin where the slice does; `flatten` gives just what they span.
    of_group = np.repeat(np.arange(len(rows)), np.diff(rows.offsets.to_numpy()))
    fields = rows.flatten()
    columns = _addresses(definition, batch, of_group)
    schema = canonical_schema(definition, updates=fields.type.get_field_index(UPDATED) >= 0)
    columns |= {name: pc.struct_field(fields, name) for name in schema.names if name not in columns}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def keys_of_groups(batch: pa.RecordBatch) -> pa.Array:
    """The key of each group of a batch."""
    return _keys(bytes_of(batch.column("key")), np.arange(len(batch)))


def _addresses(definition: MapDefinition, batch: pa.RecordBatch, of_group: I64) -> dict[str, pa.Array]:
    if definition.kind.keyed:
        return {"key": _keys(bytes_of(batch.column("key")), of_group)}
    bounds: Sequence[np.ndarray] = range_bounds(batch.column("key"))
    return {
        name: pa.array(unordered_i64(bound)[of_group])
        for name, bound in zip(("key_start", "key_end"), bounds, strict=True)
    }


def _keys(order_keys: Bytes, of_group: I64) -> pa.Array:
    """Each row's key: its group's order key without the hash."""
    offsets = np.zeros(len(of_group) + 1, np.int64)
    np.cumsum((order_keys.lengths - _HASH_BYTES)[of_group], out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    _put_tails(order_keys.offsets, order_keys.data, of_group, offsets, data)
    return Bytes(offsets, data).to_arrow()


@kernel
def _put_tails(offsets, data, of_group, out_offsets, out):  # type: ignore[no-untyped-def]
    for row in range(len(of_group)):
        start = offsets[of_group[row]] + _HASH_BYTES
        at = out_offsets[row]
        for k in range(out_offsets[row + 1] - at):
            out[at + k] = data[start + k]
