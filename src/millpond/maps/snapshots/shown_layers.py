"""The layers of a snapshot as all readers open them: rows of a former value type shown as the one in force says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from millpond.maps.snapshots.groups_of_rows import group_schema
from millpond.ranges.index import Index, Shown, load_index

if TYPE_CHECKING:
    from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
    from millpond.stores.objects import Objects

__all__ = ("shown_layer",)


def shown_layer(objects: Objects, manifest: SnapshotManifest, layer: Layer) -> Index:
    """The index of a layer.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    index, projection = load_index(objects, layer.index), manifest.projection(layer)
    if projection is None:
        return index
    schema = group_schema(manifest.definition)
    return replace(index, shown=Shown(schema, partial(projection.groups, schema)))
