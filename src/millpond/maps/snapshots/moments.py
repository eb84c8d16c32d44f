"""Several snapshots of one map, open together for questions that each go to one of them.

    moments = Moments(objects, definition, manifests)
    temperatures = moments.lookup(numbers, keys, at=times)        numbers: of the manifest of each question

Manifests of one map share most of their layers: each is mapped once, and its directory made once. Questions are put in
an order in which neighbours are searched in the layers of one manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, instants_of, keys_of
from millpond.maps.inputs.spans import Buckets
from millpond.maps.model.definition import MapDefinition
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.maps.search.groups import Groups
from millpond.maps.search.sections import OpenSections
from millpond.maps.snapshots.bucket_finder import BucketFinder, finder_class
from millpond.maps.snapshots.finder import LayerParts, Matches
from millpond.maps.snapshots.freeze import open_indexes, open_sections
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest, known_as
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.shown_layers import shown_layers
from millpond.maps.snapshots.snapshot import answers
from millpond.stores.objects import Objects

__all__ = ("Moments",)


class Moments:
    """Open snapshots of one map. Their range files are mapped: they answer also after they were collected.

    Raises: `NotFound` when one was collected; `Corrupt`, naming the file that is damaged.
    """

    def __init__(
        self, objects: Objects, definition: MapDefinition, manifests: Sequence[SnapshotManifest],
        share: HashShare | None = None,
    ) -> None:  # fmt: skip
        """Of a `share` the files alone that it needs, to look up keys whose hashes it has."""
        shown = [known_as(manifest, definition) for manifest in manifests]
        layers = {_shown(layer): (manifest, layer) for manifest in shown for layer in manifest.layers}
        numbers = {layer: number for number, layer in enumerate(layers)}
        span = None if share is None else share.groups
        groups = open_indexes(objects, definition, shown_layers(objects, layers.values()), span=span)
        self.definition = definition
        self.number_of = {manifest.id: number for number, manifest in enumerate(manifests)}
        self._all = finder_class(definition)(definition, groups, _no_sections, share=share)
        self._parts = LayerParts.of(
            [[(numbers[_shown(layer)], layer.mode) for layer in manifest.layers] for manifest in shown],
            [manifest.aggregation for manifest in shown if manifest.aggregation is not None],
        )
        ranged = () if definition.kind.keyed else shown
        self._ranged = [self._all.over(partial(_own_sections, objects, manifest, numbers)) for manifest in ranged]

    def lookup(
        self, numbers: I64, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error",
        bytes_max: int = ANSWER_BYTES_MAX, buckets: Buckets | None = None,
    ) -> pa.Array:  # fmt: skip
        """The answer for each key at its time from the manifest of its number; null where that is -1.

        Of an aggregate, other `buckets` than that of the time may be combined.

        Raises: as `Snapshot.lookup`.
        """
        return answers(self._all, self._find(numbers, keys, at, on_invalid, buckets or Buckets()), bytes_max)

    def _find(self, numbers: I64, keys: Any, at: Any, on_invalid: OnInvalid, buckets: Buckets) -> Matches:
        check_on_invalid(on_invalid)
        array = keys_of(self.definition, keys, on_invalid)
        if isinstance(self._all, BucketFinder):
            spans = buckets.spans(self.definition, at, len(array), on_invalid)
            return self._all.find_within_parts(array, spans, numbers, self._parts)
        instants, in_range = instants_of(self.definition, at, len(array), on_invalid)
        search = self._all.find_in_parts if self.definition.kind.keyed else self._find_ranged
        result = search(array, instants, numbers, self._parts)
        if len(in_range):
            result.positions[~in_range[result.order]] = -1
        return result

    def _find_ranged(self, array: pa.Array, instants: I64, numbers: I64, _: LayerParts) -> Matches:
        order = np.argsort(numbers.astype(np.int16) if len(self._ranged) < 1 << 15 else numbers, kind="stable")
        array = array.take(pa.array(order))
        one_instant = len(instants) == 1
        instants = instants if one_instant else instants[order]
        positions = np.full(len(order), -1, np.int64)
        for number, start, stop in _stretches(numbers[order]):
            if number < 0:
                continue
            times = instants if one_instant else instants[start:stop]
            result = self._ranged[number].search(array.slice(start, stop - start), times)
            positions[start:stop] = result.positions
            order[start:stop] = order[start:stop][result.order]
        return Matches(order, positions)


def _shown(layer: Layer) -> tuple[str, str]:
    """A layer as manifests share it: one that hides a field is another."""
    return layer.index, layer.value


def _own_sections(
    objects: Objects, manifest: SnapshotManifest, numbers: Mapping[tuple[str, str], int], groups: Groups
) -> OpenSections:  # fmt: skip
    """The sections of a manifest over the files of its own layers alone: others may show the same files otherwise."""
    names = [""] * len(groups.names)
    for layer in manifest.layers:
        start, stop = groups.layers[numbers[_shown(layer)] :][:2]
        names[start:stop] = groups.names[start:stop]
    return open_sections(objects, manifest, replace(groups, names=tuple(names)))


def _no_sections(_: Groups) -> OpenSections:
    raise AssertionError("each manifest has its own")


def _stretches(ascending: I64) -> Iterator[tuple[int, int, int]]:
    """Each number, and where it starts and stops."""
    if len(ascending):
        starts = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))
        stops = np.append(starts[1:], len(ascending))
        yield from zip(ascending[starts].tolist(), starts.tolist(), stops.tolist(), strict=True)
