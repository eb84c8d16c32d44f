"""The sums of aggregates stay within their types, so that no fold can fail.

A layer notes how far its largest sum reaches into its type. As long as the layers of a map together reach less than the
whole, none of their sums can overflow; else a load is put together with what lies under it before it counts, and is
refused where a sum overflows. Where older rows are in wider buckets, a layer may have a row for each narrow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf, isfinite

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond import ranges
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up, narrow_in_wide
from millpond.maps.snapshots.combined_groups import GroupRows
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import groups_over
from millpond.stores.objects import Objects

__all__ = ("REACH_MIN", "check_sums", "with_reach")

REACH_MIN = 2.0**-20
"""A layer whose sums reach no further is not noted: thousands of such cannot overflow together."""
EXTREMES_MAX = 32
"""The fields of a layer whose extremes are noted: each manifest has them again."""
REACH_MARGIN = 2.0**-8
"""The reach of all layers together whose own is not worth a note."""
_LONG_REACH = float(1 << 63)
_DOUBLE_REACH = float(np.finfo(np.float64).max)


def with_reach(objects: Objects, definition: MapDefinition, layer: Layer | None) -> Layer | None:
    """A layer that was written, of an aggregate with the extremes of its numbers and the reach of its sums."""
    if layer is None or definition.aggregation is None:
        return layer
    extremes = _extremes_of(definition, _batches(objects, layer))
    noted = [(name, low, high) for name, (low, high) in extremes.items() if isfinite(low) and isfinite(high)]
    return replace(layer, reach=_reach_of(definition, extremes), extremes=tuple(noted[:EXTREMES_MAX]))


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


def _extremes_of(definition: MapDefinition, batches: Iterable[pa.RecordBatch]) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each field of numbers; of one that is null in all groups, of no number."""
    extremes: dict[str, tuple[float, float]] = {}
    for batch in batches:
        values = GroupRows.of(batch).rows.field("value")
        for name, _ in definition.value.parts if definition.value is not None else ():
            column = values.field(name)
            if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
                low, high = (bound.as_py() for bound in pc.min_max(column).values())
                least, most = extremes.get(name, (inf, -inf))
                extremes[name] = (least, most) if low is None else (min(least, float(low)), max(most, float(high)))
    return extremes


def _reach_of(definition: MapDefinition, extremes: Mapping[str, tuple[float, float]]) -> float:
    """The largest sum of groups as a share of what its type holds; 0 below `REACH_MIN`."""
    assert definition.aggregation is not None and definition.value is not None, "an aggregate has both"
    reach = 0.0
    for (name, kind), rule in zip(definition.value.parts, definition.aggregation.rules, strict=True):
        low, high = extremes.get(name, (inf, -inf))
        if rule.additive and low <= high:
            reach = max(reach, max(abs(low), abs(high)) / (_DOUBLE_REACH if kind == "double" else _LONG_REACH))
    return reach if reach >= REACH_MIN else 0.0
