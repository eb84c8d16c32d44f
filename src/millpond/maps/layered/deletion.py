"""The layers of a map without the rows for which a condition holds, as one layer.

Where few keys lose rows, their groups become a layer of their own, what is left of them, which is folded with all
layers: ranges of files without such a key stay as they are. Else all rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.layered.head import Layers
from millpond.maps.layered.rows import batches_of_spans
from millpond.maps.model.address import long_column
from millpond.maps.predicates.predicate import Predicate
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.snapshots.condition_span import condition_span, order_key
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.layer_times import times_of
from millpond.maps.snapshots.layers import fold_layers, write_layer
from millpond.maps.snapshots.manifest import NO_TIMES, Layer, LayerMode, LayerTimes, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan

__all__ = ("Deletion",)

KEYS_MAX = 50_000
"""The keys that are looked up one by one; with more, all rows are read."""


class Deletion:
    """The rows of a map that go; `gone` counts them."""

    def __init__(self, layers: Layers, condition: Predicate) -> None:
        self._layers, self._definition, self._condition = layers, layers.definition, condition
        self.gone = 0

    def output(self, manifest: SnapshotManifest) -> Layer | None:
        """The layer of all rows that are left; None when there are none, or nothing goes.

        Raises: `Corrupt`, `NotFound`, naming the file; `Unavailable` when the disk is full.
        """
        keys = self._touched(manifest)
        if not self.gone:
            return None
        layers, times = self._layers, times_of(manifest, manifest.layers)
        written = partial(
            write_layer, layers.objects, self._definition, mode=LayerMode.WHOLE, spill=layers.spill(), times=times
        )
        if len(keys) > KEYS_MAX:
            return written(self._left(manifest, GroupSpan(), times))
        order = keys.to_pylist()
        if self._definition.kind.keyed:
            order = [order_key(self._definition, key) for key in order]
        groups = written(self._left(manifest, GroupSpan(keys=tuple(sorted(order))), times), touched=keys)
        assert groups is not None, "each key has a group, if only an empty one"
        above = replace(manifest, layers=(groups, *manifest.layers))
        return fold_layers(layers.objects, above, above.layers, spill=layers.spill()).output

    def _touched(self, manifest: SnapshotManifest) -> pa.Array:
        """The keys of the rows that go; some more than `KEYS_MAX` when there are many."""
        self.gone, keys = 0, pa.array([], pa.binary())
        span = condition_span(self._definition, self._condition)
        for rows, gone in self._judged(manifest, span, NO_TIMES):
            self.gone += pc.sum(gone).as_py() or 0
            if len(keys) <= KEYS_MAX and self.gone:
                keys = pa.concat_arrays([keys, self._keys(rows.filter(gone))]).unique()
        return keys

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        if self._definition.kind.keyed:
            return rows.column("key").cast(pa.binary())
        return range_order_keys(long_column(rows, "key_start"), long_column(rows, "key_end"))

    def _left(self, manifest: SnapshotManifest, span: GroupSpan, times: LayerTimes) -> Iterator[pa.RecordBatch]:
        for rows, gone in self._judged(manifest, span, times):
            yield rows.filter(pc.invert(gone))

    def _judged(
        self, manifest: SnapshotManifest, span: GroupSpan, times: LayerTimes
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """The rows of a span, each batch with the mask of those that go."""
        for pieces in batches_of_spans(self._layers.objects, manifest, span, updates=times.updates):
            for rows in pieces:
                yield rows, pa.array(taken_rows(self._definition, self._condition, rows))
