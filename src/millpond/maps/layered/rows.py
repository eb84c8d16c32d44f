"""The rows of a layered map, read from its layers: those of a condition, and their number."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millpond import ranges
from millpond.errors import Conflict
from millpond.maps.inputs.spans import coarser
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up
from millpond.maps.predicates.predicate import Predicate
from millpond.maps.search.rows_of_buckets import coarser_rows
from millpond.maps.search.visible import visible_groups
from millpond.maps.snapshots.condition_span import condition_span
from millpond.maps.snapshots.freeze import open_layers
from millpond.maps.snapshots.leases import LeasedSnapshot
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan, spans, thaw
from millpond.stores.objects import Objects

__all__ = ("batches_of_spans", "candidate_rows", "check_fields", "count_layer", "count_rows")

READ_BYTES = 32 << 20
"""The bytes of files, about, whose groups are looked at together."""


def check_fields(definition: MapDefinition, manifest: SnapshotManifest) -> None:
    """See that the fields in force are those that were asked for.

    Raises: `Conflict`, kind `fields_changed`.
    """
    if (manifest.definition.value, manifest.fields) != (definition.value, definition.fields):
        raise Conflict(
            "the fields of the map changed meanwhile", kind="fields_changed", map=definition.name,
            hint="ask again: the answer has other columns",
        )  # fmt: skip


def candidate_rows(
    objects: Objects, definition: MapDefinition, current: Callable[[], LeasedSnapshot], condition: Predicate,
    resolution: str | None = None,
) -> Generator[pa.RecordBatch]:  # fmt: skip
    """Canonical rows that hold every row the condition takes, all of one moment: that of the first batch; of an
    aggregate perhaps at a coarser resolution.

    Raises: `Corrupt`, naming the file; `Conflict` when the fields of the map are others than those asked for;
    `Invalid`, kind `resolution_finer`.
    """
    with current() as leased:
        manifest = leased.manifest
        check_fields(definition, manifest)
        wide = None if resolution is None else coarser(manifest.definition, resolution)
        for batches in batches_of_spans(objects, manifest, condition_span(definition, condition)):
            yield from batches if wide is None else coarser_rows(manifest.definition, wide, batches)


def count_rows(objects: Objects, manifest: SnapshotManifest) -> int:
    """The number of rows of a snapshot; of whole layers by their keys alone."""
    if len(manifest.layers) <= 1 and not is_rolled_up(manifest.aggregation):
        return sum(count_layer(objects, layer) for layer in manifest.layers)
    if manifest.whole and not is_rolled_up(manifest.aggregation):
        groups = open_layers(objects, manifest)
        pairs = zip(groups.batches, visible_groups(groups), strict=True)
        return sum(int(np.diff(batch.column("rows").offsets.to_numpy())[visible].sum()) for batch, visible in pairs)
    return sum(batch.num_rows for batches in batches_of_spans(objects, manifest, GroupSpan()) for batch in batches)


def count_layer(objects: Objects, layer: Layer) -> int:
    """The number of rows of a layer, also of those that layers above it hide."""
    columns = (ranges.open_range(objects, entry).column("rows") for entry in _entries_of(objects, layer))
    return sum(column.offsets[-1].as_py() - column.offsets[0].as_py() for column in columns)


def _entries_of(objects: Objects, layer: Layer) -> Sequence[ranges.RangeEntry]:
    return ranges.load_index(objects, layer.index).entries


def batches_of_spans(
    objects: Objects, manifest: SnapshotManifest, whole: GroupSpan, *, updates: bool = False
) -> Iterator[Iterator[pa.RecordBatch]]:
    """The canonical rows of a span, piece by piece: all rows of one key are in one piece. `updates`: as of `thaw`.

    Raises: `NotFound`, `Corrupt`, naming the file.
    """
    for span in spans(objects, manifest, whole, READ_BYTES):
        yield thaw(objects, manifest, span, updates=updates)
