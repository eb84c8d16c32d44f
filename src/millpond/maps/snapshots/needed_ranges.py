"""A snapshot whose range files are far away: those blocks of them are fetched that questions need, and no others.
Of one whose files are here, the first few questions open those that they need.

The index of a layer says which block of which range file may have a key, and the file's filter, for most keys that the
layer lacks, that none has. So a cold question fetches a block of each layer that may have its key, and a key that is
nowhere costs none. Files that have a copy on this machine, or no blocks, are opened whole. Filters of large layers are
in the files themselves: the first question of a file fetches its filter, one of a single key together with the block.

Invariants:
* a snapshot that is given has all pieces that may have the keys it was given for: of other keys it may not be asked;
* what was opened stays open, up to `HELD_BYTES_MAX`, and goes on being so when the head moves on: indexes and filters;
* memory is bounded by `HELD_BYTES_MAX` for each of filters, pieces and snapshots, one question excepted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import attrgetter, methodcaller
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from millpond import ranges
from millpond.arrays.xxh3 import hash_keys
from millpond.kernel.cache import Cache
from millpond.maps.snapshots.condition_span import order_key
from millpond.maps.snapshots.manifest import SnapshotManifest
from millpond.maps.snapshots.pieces import WHOLE_FILE, Opening, Piece, groups_of, pieces_opening
from millpond.maps.snapshots.shown_layers import shown_layers
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges.index import Index, RangeEntry
from millpond.stores.objects import Objects, fetched_at_once

__all__ = ("BlockStarts", "CoveredKeys", "NeededRanges")

COVERED_MIN = 16
"""Keys, or pieces: of more it is worked out at once which of them opened pieces answer for."""
KEYS_MAX_LEAST = 1000
"""A question may have so many keys, or as many as there are blocks: one of more opens all files, for it needs most."""
HELD_BYTES_MAX = 32 << 20
"""Of what stays open; of what does not, there are copies on this machine."""

_Position: TypeAlias = tuple[int, int]
"""The number of a layer, and of a range in its index."""


# The keys that opened pieces answer for, told of thousands at once by their hashes alone.
#
#     blocks begin at    3 ─────── 9 ────────── 9 ──── 20 ──         opened: the second and the third
#     hashes of keys           5           12                        5 is not covered, 12 is, and 9 is not
#
# Order keys begin with hashes. So a key lies in a block that begins at its hash, or in the last that begins before.
#
# Invariant: opened pieces have each key that is covered, if any piece does. Of keys that are not covered nothing is
# said.

HASH_BYTES = 8


class BlockStarts:
    """The hashes at which the blocks of an index begin."""

    def __init__(self, index: Index) -> None:
        firsts = [_firsts(entry) for entry in index.entries]
        joined = b"".join(first[:HASH_BYTES] for those in firsts for first in those)
        self.hashes = np.frombuffer(joined, ">u8").astype(np.uint64)
        self._begins = [0, *accumulate(map(len, firsts))]

    def numbers(self, at: int, block: int) -> slice:
        """The numbers, among all blocks, of those of a piece of a range."""
        first = self._begins[at]
        return slice(first, self._begins[at + 1]) if block == WHOLE_FILE else slice(first + block, first + block + 1)


def _firsts(entry: RangeEntry) -> Sequence[bytes]:
    return (entry.first,) if entry.blocks is None else entry.blocks.firsts


class CoveredKeys:
    """The keys of some pieces, in each layer."""

    def __init__(self, layers: Sequence[BlockStarts], pieces: Iterable[Piece]) -> None:
        opened = [np.zeros(len(layer.hashes) + 1, np.int64) for layer in layers]
        for number, at, block in pieces:
            opened[number][1:][layers[number].numbers(at, block)] = 1
        self._layers = [(layer.hashes, np.cumsum(counts)) for layer, counts in zip(layers, opened, strict=True)]

    def others(self, keys: Sequence[bytes], hash_bits: int) -> list[bytes]:
        """Those of the keys that are not covered."""
        hashes = hash_keys(pa.array(keys, pa.binary()), bits=hash_bits)
        covered = np.ones(len(keys), np.bool_)
        for starts, opened in self._layers:
            first = np.maximum(np.searchsorted(starts, hashes, "left") - 1, 0)
            stop = np.searchsorted(starts, hashes, "right")
            covered &= opened[stop] - opened[first] == stop - first
        return [keys[row] for row in np.flatnonzero(~covered).tolist()]


class NeededRanges:
    """The pieces of the range files of one keyed snapshot that were needed so far."""

    def __init__(self, objects: Objects, manifest: SnapshotManifest, before: NeededRanges | None = None) -> None:
        """`before` are those of an earlier snapshot of the map, whose layers may be the same."""
        self.manifest = manifest
        self.objects = objects
        held = {} if before is None else {index.id: replace(index, shown=None) for index in before.indexes}
        self.indexes: list[ranges.Index] = shown_layers(objects, [(manifest, layer) for layer in manifest.layers], held)
        self._lasts = [[entry.last for entry in index.entries] for index in self.indexes]
        self._bytes_half = sum(index.size for index in self.indexes) // 2
        tables = [entry.blocks for index in self.indexes for entry in index.entries]
        self.keys_max = max(KEYS_MAX_LEAST, sum(1 if table is None else len(table.rows) for table in tables))
        self._starts: list[BlockStarts] = []
        self.in_pieces = False
        """True where a file cannot be opened: then the others are never opened all together."""
        self._needed: set[Piece] = set()
        self._needed_bytes = 0
        self.filters: Cache[str, pa.Buffer] = (
            Cache(HELD_BYTES_MAX, attrgetter("size")) if before is None else before.filters
        )
        self._held: Cache[Piece, pa.RecordBatch] = Cache(HELD_BYTES_MAX, methodcaller("get_total_buffer_size"))
        self._snapshots: Cache[frozenset[Piece], Snapshot] = Cache(HELD_BYTES_MAX, attrgetter("mapped_bytes"))
        self._last: tuple[frozenset[Piece], Snapshot | None, CoveredKeys | None] = frozenset(), None, None

    def of_keys(self, keys: Sequence[bytes]) -> Snapshot | None:
        """A snapshot to ask for these keys; None when all files should be opened, as half of their bytes were needed.

        Raises: as `Snapshot.open`.
        """
        opened, snapshot, covered = self._last
        if covered is not None and len(keys) >= COVERED_MIN:
            others = covered.others(keys, self.manifest.hash_bits)
            needed = self._needed_by(others)
            if not needed <= opened and len(others) < len(keys):
                needed = self._needed_by(keys)
        else:
            needed = self._needed_by(keys)
        if snapshot is None or not needed <= opened:
            snapshot = self._snapshots.get(needed)
        if snapshot is not None:
            return snapshot
        new = needed - self._needed
        self._needed |= new
        self._needed_bytes += sum(map(self._size, new))
        if not self.in_pieces and len(self._needed) > 1 and self._needed_bytes > self._bytes_half:
            return None
        groups = groups_of(self.manifest.definition.kind, self.indexes, self._fetch(needed))
        snapshot = Snapshot(self.objects, self.manifest, groups=groups)
        self._snapshots.put(needed, snapshot)
        self._last = needed, snapshot, self._covered(needed)
        return snapshot

    def _covered(self, pieces: frozenset[Piece]) -> CoveredKeys | None:
        """The keys that pieces answer for, where that is worth its while."""
        if len(pieces) < COVERED_MIN:
            return None
        if not self._starts:
            self._starts = [BlockStarts(index) for index in self.indexes]
        return CoveredKeys(self._starts, pieces)

    def _needed_by(self, keys: Sequence[bytes]) -> frozenset[Piece]:
        """The pieces that may have one of the keys; filters that are not known are fetched."""
        positions = self._positions(keys)
        unknown = [position for position in positions if self._filter_is_away(position)]
        if unknown:
            self._fetch(self._pieces(positions) if len(keys) == 1 else (), unknown)
        return frozenset(self._pieces(positions))

    def _positions(self, keys: Sequence[bytes]) -> dict[_Position, list[bytes]]:
        """The ranges that may have one of the keys, by their first and last ones, and those keys."""
        positions: dict[_Position, list[bytes]] = {}
        order_keys = [order_key(self.manifest.definition, key) for key in keys]
        for layer, (index, lasts) in enumerate(zip(self.indexes, self._lasts, strict=True)):
            for key in order_keys:
                at = bisect_left(lasts, key)
                if at < len(lasts) and index.entries[at].first <= key:
                    positions.setdefault((layer, at), []).append(key)
        return positions

    def _pieces(self, positions: Mapping[_Position, Sequence[bytes]]) -> set[Piece]:
        """The pieces that may have one of the keys, by what is known of filters."""
        pieces: set[Piece] = set()
        for position, keys in positions.items():
            entry = self._entry(position)
            held = self.filters.get(entry.id) if entry.filter_checksum else entry.filter
            there = [key for key in keys if ranges.may_have(held, key)]
            table = entry.blocks
            blocks = [] if table is None else [(*position, table.number(key)) for key in there]
            if there and (table is None or self._is_whole(position, blocks)):
                blocks = [(*position, WHOLE_FILE)]
            pieces.update(blocks)
        return pieces

    def _entry(self, position: _Position) -> ranges.RangeEntry:
        layer, at = position
        return self.indexes[layer].entries[at]

    def _is_whole(self, position: _Position, blocks: Sequence[Piece]) -> bool:
        """True when a file is opened whole, as it is here; what is held is not looked for among the files."""
        return not all(block in self._held for block in blocks) and self._is_here(position)

    def _is_here(self, position: _Position) -> bool:
        """True when a file need not be fetched."""
        name = ranges.range_name(self._entry(position).id)
        return (*position, WHOLE_FILE) in self._held or self.objects.local_path(name) is not None

    def _filter_is_away(self, position: _Position) -> bool:
        entry = self._entry(position)
        return bool(entry.filter_checksum) and entry.id not in self.filters and not self._is_here(position)

    def _size(self, piece: Piece) -> int:
        layer, at, number = piece
        entry = self._entry((layer, at))
        return entry.size if number == WHOLE_FILE or entry.blocks is None else entry.blocks.size(number)

    def _fetch(self, pieces: Collection[Piece], filters: Sequence[_Position] = ()) -> dict[Piece, pa.RecordBatch]:
        """The batches of pieces: those held, and others, which are opened side by side with filters."""
        there = {piece: batch for piece in pieces if (batch := self._held.get(piece)) is not None}
        acts = pieces_opening(self.objects, self.indexes, [piece for piece in pieces if piece not in there])
        acts += [partial(self._fetch_filter, position) for position in filters]
        for opened in fetched_at_once(self.objects, acts):
            for piece, batch in opened.items():
                self._held.put(piece, batch)
                if piece in pieces:
                    there[piece] = batch
        return there

    def _fetch_filter(self, position: _Position) -> Opening:
        entry = self._entry(position)
        self.filters.put(entry.id, ranges.open_filter(self.objects, entry))
        return dict
