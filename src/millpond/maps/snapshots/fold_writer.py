"""The ranges of a fold, written by one process or by several that each take a stretch of the keys of all layers.

    layers, newest first   ─▶ keys … k         ─▶ ranges ┐
                              keys behind k …  ─▶ ranges ┴─▶ joined to one index

Invariants:
* The index is the one that a fold in one piece makes, id for id, wherever stretches are cut: a range is taken over
  unread by the same rule, and where one ends depends on keys (`ranges/fold_parts.py`).
* Stretches are cut behind last keys of ranges, so that few are read by two tasks, or cut again where stretches meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from millpond.maps.model.definition import MapDefinition
from millpond.maps.search.visible import tombstones
from millpond.maps.snapshots.joined_groups import join_groups
from millpond.maps.snapshots.layer_times import times_of
from millpond.maps.snapshots.manifest import Layer, LayerMode, SnapshotManifest
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.ranges import FILTER_KEYS_MAX, FoldedPart, Index, RangeWriter, join_parts
from millpond.ranges.merge import write_merged
from millpond.stores.objects import Objects, uncopied

__all__ = ("FoldWriter", "FoldWrites")

TASK_BYTES_MIN = 128 << 20
"""Fewer bytes are folded within a second, in which a task hardly begins."""
TASK_BYTES_MAX = 512 << 20
"""A task that fails is done again."""

Stretch: TypeAlias = tuple[bytes | None, bytes | None]
"""The keys behind the first, up to and with the last; None: from the first key, to the last."""
EVERYTHING: Stretch = (None, None)


@dataclass(frozen=True, slots=True)
class FoldWriter:
    """Writes what neighbouring layers of a manifest, newest first, say together. `oldest`: nothing lies under them."""

    objects: Objects
    manifest: SnapshotManifest
    inputs: tuple[Layer, ...]
    oldest: bool
    bytes_at_once: int

    def cut(self, at_once: int) -> list[Stretch]:
        """Stretches of about as many bytes that are to be written anew, for so many tasks at once."""
        touched = _touched(self._indexes())
        ends = np.cumsum([size for _, size in touched], dtype=np.int64)
        total = int(ends[-1])
        count = max(1, min(total // TASK_BYTES_MIN, max(at_once, -(-total // TASK_BYTES_MAX))))
        numbers = np.maximum(ends - 1, 0) // max(1, -(-total // count))
        cuts = sorted({touched[position][0] for position in np.flatnonzero(np.diff(numbers))} - {touched[-1][0]})
        return list(pairwise([None, *cuts, None]))

    def write(self, stretch: Stretch) -> FoldedPart:
        """Write the ranges of a stretch.

        Raises: `NotFound`, `Corrupt` naming the file; `Unavailable`.
        """
        indexes, modes = self._indexes(), [layer.mode for layer in self.inputs]
        after, upto = stretch
        # The driver holds the filters of all stretches together.
        filters = stretch == EVERYTHING or sum(layer.groups for layer in self.inputs) <= FILTER_KEYS_MAX
        objects = self.objects if stretch == EVERYTHING else uncopied(self.objects)
        with RangeWriter(
            objects, indexes[-1].columns, indexes[-1].boundaries, bytes_at_once=self.bytes_at_once, filters=filters
        ) as writer:
            write_merged(
                writer, self.objects, indexes, drop_tombstones=tombstones if self.oldest else None,
                overlay=None if set(modes) == {LayerMode.WHOLE} else partial(join_groups, self._definition, modes),
                after=after, upto=upto,
            )  # fmt: skip
            ended = writer.at_boundary
            return FoldedPart(tuple(writer.end()), ended)

    def write_here(self) -> list[FoldedPart]:
        """Write all in one piece.

        Raises: as `write`.
        """
        return [self.write(EVERYTHING)]

    def joined(self, parts: Sequence[FoldedPart]) -> Index:
        """The index of all stretches.

        Raises: as `write`.
        """
        last = self._indexes()[-1]
        return join_parts(self.objects, Index("", (), last.columns, last.boundaries), parts)

    def _indexes(self) -> list[Index]:
        updates = times_of(self.manifest, self.inputs).updates
        return [shown_layer(self.objects, self.manifest, layer, updates=updates) for layer in self.inputs]

    @property
    def _definition(self) -> MapDefinition:
        definition, aggregation = self.manifest.definition, self.manifest.aggregation
        if self.oldest or aggregation is None:
            return definition
        # Rows above the oldest layer stay in their own buckets: they can join a state that is not rolled up.
        return replace(definition, aggregation=replace(aggregation, rolled_up=()))


FoldWrites: TypeAlias = Callable[[FoldWriter], Sequence[FoldedPart]]
"""Has all ranges written, here or elsewhere, see `Writes`."""


def _touched(indexes: Sequence[Index]) -> list[tuple[bytes, int]]:
    """The last keys of all ranges, ascending, each with the bytes of its range; 0 for one that can be taken over."""
    entries = sorted(
        (entry.first, entry.last, entry.plain.size, index.shown is not None)
        for index in indexes for entry in index.entries
    )  # fmt: skip
    # Of the ranges that begin before, the one that reaches furthest: it alone can meet the next.
    furthest = -1
    touched = [shown for *_, shown in entries]
    for number, (first, last, _, _) in enumerate(entries):
        if furthest >= 0 and first <= entries[furthest][1]:
            touched[number] = touched[furthest] = True
        if furthest < 0 or last > entries[furthest][1]:
            furthest = number
    return sorted((last, size if met else 0) for (_, last, size, _), met in zip(entries, touched, strict=True))
