"""The layers of a snapshot as all readers open them: rows of a former value type shown as the one in force says.

Update times are seen by those alone who ask for them, `updates`: of a layer whose rows were put at one instant, as a
column that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from millpond.maps.model.columns import UPDATED
from millpond.maps.model.projection import Projection
from millpond.maps.snapshots.groups_of_rows import group_schema
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.ranges.index import Index, Shown, load_index
from millpond.stores.objects import Objects, at_once

__all__ = ("shown_layer", "shown_layers")

NO_INDEXES: Mapping[str, Index] = MappingProxyType({})


def shown_layer(objects: Objects, manifest: SnapshotManifest, layer: Layer, *, updates: bool = False) -> Index:
    """The index of a layer; with `updates`, of a manifest that keeps update times.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    assert not updates or layer.updates or layer.updated is not None, "it is known when its rows were put"
    return _as_shown(load_index(objects, layer.index), manifest, layer, updates=updates)


def shown_layers(
    objects: Objects, layers: Iterable[tuple[SnapshotManifest, Layer]], held: Mapping[str, Index] = NO_INDEXES
) -> list[Index]:
    """The indexes of layers of manifests: those that are held, and others, which are fetched side by side.

    Raises: as `shown_layer`.
    """
    pairs = list(layers)
    unread = [id_ for id_ in dict.fromkeys(layer.index for _, layer in pairs) if id_ not in held]
    read = at_once(objects, [partial(load_index, objects, id_) for id_ in unread])
    indexes = {**held, **dict(zip(unread, read, strict=True))}
    return [_as_shown(indexes[layer.index], manifest, layer) for manifest, layer in pairs]


def _as_shown(index: Index, manifest: SnapshotManifest, layer: Layer, *, updates: bool = False) -> Index:
    projection = manifest.projection(layer)
    instant = layer.updated if updates else None
    if projection is None and instant is None and layer.updates == updates:
        return index
    schema = group_schema(manifest.definition, updates=updates)
    return replace(index, shown=Shown(schema, partial(_shown, schema, projection, instant)))


def _shown(
    schema: pa.Schema, projection: Projection | None, instant: int | None, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Groups whose rows have other values, or other update times: the keys, and where rows lie, stay."""
    rows = batch.column("rows")
    kind, structs = schema.field("rows").type, rows.values

    def column(name: str) -> pa.Array:
        if name == UPDATED and instant is not None:
            return pa.repeat(pa.scalar(instant, pa.int64()), len(structs))
        values = structs.field(name)
        return values if name != "value" or projection is None else projection.values(values)

    fields = list(kind.value_type)
    items = pa.StructArray.from_arrays([column(field.name) for field in fields], fields=fields)
    lists = pa.Array.from_buffers(kind, len(rows), rows.buffers()[:2], offset=rows.offset, children=[items])
    others = {name: batch.column(name) for name in batch.schema.names} | {"rows": lists}
    return pa.RecordBatch.from_arrays([others[name] for name in schema.names], schema=schema)
