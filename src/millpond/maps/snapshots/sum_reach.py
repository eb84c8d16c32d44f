"""The sums of aggregates stay within their types, so that no fold can fail.

A layer notes how far its largest sum reaches into its type. As long as the layers of a map together reach less than the
whole, none of their sums can overflow; else a load is put together with what lies under it before it counts, and is
refused where a sum overflows. Where older rows are in wider buckets, a layer may have a row for each narrow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond import ranges
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up, narrow_in_wide
from millpond.maps.snapshots.combined_groups import GroupRows
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import groups_over

if TYPE_CHECKING:
    from millpond.stores.objects import Objects

__all__ = ("REACH_MIN", "check_sums", "with_reach")

REACH_MIN = 2.0**-20
"""A layer whose sums reach no further is not noted: thousands of such cannot overflow together."""
REACH_MARGIN = 2.0**-8
"""The reach of all layers together whose own is not worth a note."""
_LONG_REACH = float(1 << 63)
_DOUBLE_REACH = float(np.finfo(np.float64).max)


def with_reach(objects: Objects, definition: MapDefinition, layer: Layer | None) -> Layer | None:
    """A layer that was written, of an aggregate with the reach of its sums."""
    if layer is None or definition.aggregation is None:
        return layer
    return replace(layer, reach=_reach_of(definition, _batches(objects, layer)))


def check_sums(objects: Objects, manifest: SnapshotManifest, layer: Layer) -> None:
    """See that the sums of an aggregate hold those of a layer that comes on top.

    Raises: `Invalid`, kind `sum_overflow`, naming the key, the bucket and the field.
    """
    if manifest.aggregation is None:
        return
    below, definition = manifest.layers, manifest.definition
    reach, margin = layer.reach + sum(under.reach for under in below), REACH_MARGIN
    if is_rolled_up(manifest.aggregation):
        margin, wide = (len(below) + 1) * REACH_MIN, narrow_in_wide(manifest.aggregation)
        reach, margin = reach * wide, margin * wide
    if reach + margin < 1:
        return
    modes = [layer.mode, *(under.mode for under in below)]
    readers = [ranges.open_index(objects, ranges.load_index(objects, under.index), verify=True) for under in below]
    for _ in groups_over(definition, modes, _batches(objects, layer), readers):
        pass


def _batches(objects: Objects, layer: Layer) -> Iterator[pa.RecordBatch]:
    return (ranges.open_range(objects, entry) for entry in ranges.load_index(objects, layer.index).entries)


def _reach_of(definition: MapDefinition, batches: Iterable[pa.RecordBatch]) -> float:
    """The largest sum of groups as a share of what its type holds; 0 below `REACH_MIN`."""
    assert definition.aggregation is not None and definition.value is not None, "an aggregate has both"
    sums = [
        name for (name, _), rule in zip(definition.value.parts, definition.aggregation.rules, strict=True)
        if rule.additive
    ]  # fmt: skip
    reach = 0.0
    for batch in batches:
        values = GroupRows.of(batch).rows.field("value")
        for name in sums:
            column = values.field(name)
            numbers = (column.fill_null(0) if column.null_count else column).to_numpy()
            if len(numbers):
                most = max(abs(float(numbers.max())), abs(float(numbers.min())))
                reach = max(reach, most / (_DOUBLE_REACH if pa.types.is_floating(column.type) else _LONG_REACH))
    return reach if reach >= REACH_MIN else 0.0
