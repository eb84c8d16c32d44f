"""Blocks of a range that lies far away, and its filter: what a reader of one key fetches in place of the whole file.

    range    block │ block │ block │ filter      of some 3,000 rows each, packed; one ranged request has it
    index    of each block: the first key, the rows, the bytes, their checksum
             of each range: its filter, which says of most keys that the range lacks them; or the checksum of that

An index has the filters while they are small together. Those of a larger one are read where they stand, each when its
range is first asked for: so filters have no bound, and nobody holds them all.

Invariants:
* A block has a checksum of its own: it is never read before its bytes have it.
* Where blocks begin depends on the entries alone.
* A filter never says of a key of its range that it lacks it; of others it does, but for one of a hundred. Like a
  block it is never used before its bytes have their checksum.
* Neither is content: an index with them, and one without, have one id. Whoever meets none reads whole files.

Filters are Bloom filters in blocks of four words, half a line of the cache: a key has one bit in each.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from millpond.arrays.compiled import kernel
from millpond.arrays.xxh3 import hash_keys
from millpond.ranges.canonical import row_sizes
from millpond.ranges.messages import message_in

__all__ = (
    "BLOCK_BYTES", "FILTERS_BYTES_MAX", "FILTER_KEYS_MAX", "BlockTable", "block_in", "blocks_of", "checksum_of",
    "filter_of", "filter_parts", "may_have",
)  # fmt: skip

BLOCK_BYTES = 128 << 10
"""Of rows in a block as they are in memory, one row excepted: fetched in hardly longer than the fewest bytes, and
unpacked in a quarter of a millisecond.
"""
PACKED_BYTES_MIN = 16 << 10
"""A range of fewer bytes has no blocks: the schema of one would take more than packing saves."""
_BLOCKED_BYTES_MAX = 64 << 20
"""A range beyond this has an entry that is large: no part of it is small."""

_KEYS = 22
"""Keys in a block of a filter, on average: 11.6 bits a key, and nine of a thousand keys are asked for in vain."""
_WORDS = 4

FILTERS_BYTES_MAX = 32 << 20
"""Filters in an index, together. More stay in the files of their ranges: whoever opens an index has it all."""
FILTER_KEYS_MAX = FILTERS_BYTES_MAX // (8 * _WORDS) * _KEYS
"""Some 23 million keys, which have filters of so many bytes."""


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks of one range: of each the first key, the number of its rows, its bytes `[start, stop)`, and their
    XXH3-128. `plain` is the size of the file with the same entries in one batch. `filter_checksum` is that of the
    filter behind the last block; empty where nobody says that there is one. `packed`: an index of a format in which
    blocks may be packed lists them.
    """

    firsts: tuple[bytes, ...]
    rows: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    checksums: tuple[bytes, ...]
    plain: int
    filter_checksum: bytes = b""
    packed: bool = True

    @classmethod
    def of(
        cls, data: pa.Buffer, spans: list[tuple[int, int]], blocks: list[pa.RecordBatch], plain: int, filter_: pa.Buffer
    ) -> BlockTable:  # fmt: skip
        """The table of a file that was written."""
        firsts = tuple(block.column("key")[0].as_py() for block in blocks)
        sums = tuple(checksum_of(memoryview(data)[start:stop]) for start, stop in spans)
        rows = tuple(block.num_rows for block in blocks)
        return cls(firsts, rows, tuple(spans), sums, plain, checksum_of(filter_))

    @property
    def filter_span(self) -> tuple[int, int]:
        """The bytes of the filter in the file."""
        start = self.spans[-1][1]
        return start, start + _lines(sum(self.rows)) * 8 * _WORDS

    def number(self, key: bytes) -> int:
        """The block that may have a key which lies within the range."""
        return max(bisect_right(self.firsts, key) - 1, 0)

    def size(self, number: int) -> int:
        """The bytes of a block."""
        start, stop = self.spans[number]
        return stop - start


def checksum_of(data: bytes | memoryview | pa.Buffer) -> bytes:
    """The checksum of a block, or of a filter."""
    return xxhash.xxh3_128_digest(memoryview(data))


def blocks_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The blocks of a canonical batch, as slices of it; none where it has no use of any."""
    if not PACKED_BYTES_MIN <= batch.nbytes <= _BLOCKED_BYTES_MAX:
        return []
    # By sizes that the format defines, not by bytes in memory: whoever writes these entries cuts them alike.
    ends = np.cumsum(row_sizes(batch))
    begins, at = [0], 0
    while (at := int(np.searchsorted(ends, (ends[at - 1] if at else 0) + BLOCK_BYTES, "right"))) < batch.num_rows:
        # A row that is larger than a block is one by itself; else the search would stay before it for ever.
        at = max(at, begins[-1] + 1)
        begins.append(at)
    stops = [*begins[1:], batch.num_rows]
    # Such a row in the last place leaves a begin at the end, where no block is.
    return [batch.slice(start, stop - start) for start, stop in zip(begins, stops, strict=True) if stop > start]


def block_in(data: pa.Buffer, schema: pa.Schema, first: bytes, rows: int) -> pa.RecordBatch | None:
    """The entries of a block, whose bytes have their checksum; None when they are not those of its table."""
    try:
        # The checksum is that of the table, and does not say that the table is right. Where it has another first key,
        # or number of rows, the file is read whole.
        batch = message_in(pa.BufferReader(data), schema)
        batch.validate()
    except (pa.ArrowException, OSError, EOFError, LookupError, ValueError):
        return None
    return batch if batch.num_rows == rows > 0 and batch.column("key")[0].as_py() == first else None


def filter_of(keys: pa.Array) -> pa.Buffer:
    """The filter of the keys of a range."""
    words = np.zeros(_lines(len(keys)) * _WORDS, np.uint64)
    _fill(hash_keys(keys), words)
    return pa.py_buffer(words)


def _lines(keys: int) -> int:
    """The blocks of a filter of so many keys."""
    return max(1, -(-keys // _KEYS))


@kernel
def _fill(hashes, words):  # type: ignore[no-untyped-def]
    blocks = np.uint64(len(words) // _WORDS)
    for hash_ in hashes:
        # The line is chosen by the upper half of the hash, the bits by the lowest 24: by the same bits, keys of one
        # line would share more of them. The product, shifted down, spreads as a remainder does, without a division.
        at = np.int64(((hash_ >> np.uint64(32)) * blocks) >> np.uint64(32)) * _WORDS
        for i in range(_WORDS):
            words[at + i] |= np.uint64(1) << ((hash_ >> np.uint64(6 * i)) & np.uint64(63))


def may_have(filter_: pa.Buffer | None, key: bytes) -> bool:
    """False when the range of a filter lacks a key."""
    if filter_ is None:
        return True
    # By the package, as a kernel takes longer to call for one key. It is the hash of `hash_keys`, and files depend on
    # it.
    hash_, size = xxhash.xxh3_64_intdigest(key), 8 * _WORDS
    at = ((hash_ >> 32) * (filter_.size // size) >> 32) * size
    line = int.from_bytes(memoryview(filter_)[at : at + size], "little")
    return all(line >> (64 * i + (hash_ >> 6 * i & 63)) & 1 for i in range(_WORDS))


def filter_parts(column: pa.Array) -> list[pa.Buffer | None]:
    """The filters of a column of an index; None for none.

    Raises: `ValueError` for bytes that are no filter.
    """
    parts: list[Any] = [column[number].as_buffer() or None for number in range(len(column))]
    # Less than a line would say of all keys that they are not there.
    if any(part is not None and (not part.size or part.size % (8 * _WORDS)) for part in parts):
        raise ValueError("not a filter")
    return parts
