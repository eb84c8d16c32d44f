"""The keys that opened pieces answer for, told of thousands at once by their hashes alone.

    blocks begin at    3 ─────── 9 ────────── 9 ──── 20 ──         opened: the second and the third
    hashes of keys           5           12                        5 is not covered, 12 is, and 9 is not

Order keys begin with hashes. So a key lies in a block that begins at its hash, or in the last that begins before.

Invariant: opened pieces have each key that is covered, if any piece does. Of keys that are not covered nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from millpond.arrays.xxh3 import hash_keys
from millpond.maps.snapshots.pieces import WHOLE_FILE, Piece
from millpond.ranges.index import Index, RangeEntry

__all__ = ("BlockStarts", "CoveredKeys")

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
