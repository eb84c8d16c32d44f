"""Frozen states: of files alone, so that other processes read them without the space.

    layers of a branch       token, segment, token … ─ base
    frozen                   the rows of each token written as an index of changes, to a folder of `scratch/`

Invariants:
* A frozen state is one moment, for ever: what it names does not change. Its scratch files go when its owner drops
  them, else with a collection of garbage after the grace time.
* Nothing else names what lies in `scratch/`, and no row names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from millpond.kernel.keys import KeyRange
from millpond.ranges import CachedObjects, FoldedPart, Index, fold_part, load_index, write
from millpond.ranges.spans import NO_SPANS, Spans
from millpond.stores.objects import ObjectsBelow
from millpond.versions.objects.entries import CHANGES, IDENTITY
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.layers import EVERY_KEY, Bounds, Reading, Stream, combine, index_stream, token_stream
from millpond.versions.staging.reads import View, shown_entries

__all__ = ("SCRATCH", "FrozenLayer", "FrozenView", "drop_scratch", "freeze", "scratch_time")

SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    """Changes: an index of them, and range tombstones."""

    objects: CachedObjects
    index: str
    spans: Spans = NO_SPANS


@dataclass(frozen=True, slots=True)
class FrozenView:
    """A state: layers, the newest first, over the index `base`. It may be pickled."""

    ranges: CachedObjects
    base: str
    layers: tuple[FrozenLayer, ...]
    scratch: str = ""

    def base_index(self) -> Index:
        """The index below the layers.

        Raises: `NotFound`, `Corrupt`.
        """
        return load_index(self.ranges, self.base)

    def entries(self, keys: KeyRange = EVERY_KEY) -> Iterator[pa.RecordBatch]:
        """The entries of the state in a stretch of keys, ascending.

        Raises: `NotFound`, `Corrupt`.
        """
        bounds = Bounds(keys, rows=1 << 14)
        streams, hidden = self._streams(bounds)
        base = Stream(index_stream(self.ranges, self.base_index(), bounds, hidden))
        yield from shown_entries(combine([*streams, base])[0])

    def fold(self, keys: KeyRange) -> FoldedPart:
        """Write the ranges of a stretch of keys.

        Raises: `NotFound`, `Corrupt`; `Unavailable`.
        """
        changes, spans = combine(self._streams(Bounds(keys, rows=1 << 14))[0])
        base = self.base_index()
        return fold_part(
            self.ranges, base, changes, spans, within=keys, same=IDENTITY, compression=COMPRESSION
        )  # fmt: skip

    def _streams(self, bounds: Bounds) -> tuple[list[Stream], Spans]:
        streams, hidden = [], NO_SPANS
        for layer in self.layers:
            index = load_index(layer.objects, layer.index)
            streams.append(Stream(index_stream(layer.objects, index, bounds, hidden), layer.spans))
            hidden |= layer.spans
        return streams, hidden

    def stretches(self, keys: KeyRange, rows: int) -> list[KeyRange]:
        """The stretches of about so many rows, of layers and base together, that a stretch of keys falls into."""
        indexes = [self.base_index(), *(load_index(layer.objects, layer.index) for layer in self.layers)]
        ranges = sorted(
            (max(entry.first, keys.start), entry.count) for index in indexes for entry in index.entries
            if entry.last >= keys.start and (keys.stop is None or entry.first < keys.stop)
        )  # fmt: skip
        cuts, count = [keys.start], 0
        for first, size in ranges:
            if count >= rows and first > cuts[-1]:
                cuts.append(first)
                count = 0
            count += size
        return [KeyRange(start, stop) for start, stop in zip(cuts, [*cuts[1:], keys.stop], strict=True)]


def freeze(context: RepositoryContext, reading: Reading, view: View) -> FrozenView:
    """Write the rows of a state's tokens as files; segments and base are files already.

    Raises: `Unavailable` when the place is full.
    """
    folder = f"{SCRATCH}/{context.clock.now_ms():012x}-{context.clock.random_id()}"
    scratch = CachedObjects(ObjectsBelow(context.ranges.inner, folder))
    layers = []
    for layer in view.layers:
        if layer.index is not None:
            layers.append(FrozenLayer(context.ranges, layer.index))
            continue
        stream = token_stream(reading, layer.id, Bounds(rows=1 << 14))
        first = next(stream.blocks, None)
        if first is None and not stream.spans:
            continue
        blocks = iter(()) if first is None else _from(first, stream.blocks)
        index = write(scratch, blocks, context.boundaries, schema=CHANGES, compression=COMPRESSION)
        layers.append(FrozenLayer(scratch, index.id, stream.spans))
    return FrozenView(context.ranges, view.base, tuple(layers), folder)


def _from(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def drop_scratch(context: RepositoryContext, folder: str) -> None:
    """Delete the scratch files of a frozen state that nobody reads any more."""
    names = [info.name for info in context.ranges.list(folder)]
    if names:
        context.ranges.delete(*names)


def scratch_time(name: str) -> int | None:
    """The milliseconds since 1970 that a name in `scratch/` tells; None for another's."""
    try:
        return int(name.split("/")[1].partition("-")[0], 16)
    except (IndexError, ValueError):
        return None
