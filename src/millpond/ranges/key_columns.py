"""Kernels over a column of keys: are they ascending, where does a range end, where is a key.

A column of keys is a pair of arrays: `offsets` (n + 1, int32) and `data` (uint8), the buffers of an Arrow binary
array without nulls; nothing is copied to get them. All loops are compiled.

Which hash ends a range is part of the format: `docs/format/ranges.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_u64, swap_u64

__all__ = (
    "KeyColumn", "cut", "find_rows", "first_unordered", "hash_of_key", "key_column", "lower_bound", "merge_keys",
    "merge_three_keys", "search", "upper_bound",
)  # fmt: skip

_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """The buffers of a column of keys; `owner` keeps them alive."""

    owner: pa.Array
    offsets: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def sound(self) -> bool:
        """True when no key lies outside of the data: so a damaged file is found before a kernel follows it."""
        # The ends first: if offsets ascend between ends that are within, all are.
        if self.offsets[0] < 0 or self.offsets[-1] > len(self.data):
            return False
        return bool(np.all(self.offsets[1:] >= self.offsets[:-1]))


def key_column(array: pa.Array) -> KeyColumn:
    """The buffers of a binary array, sliced or not."""
    assert array.type == pa.binary(), array.type
    _, offsets, data = array.buffers()
    # Arrow may leave out the buffers of an empty column.
    if len(array) == 0 or offsets is None:
        return KeyColumn(array, np.zeros(1, np.int32), np.zeros(0, np.uint8))
    taken = np.frombuffer(offsets, np.int32, offsets.size // 4)[array.offset : array.offset + len(array) + 1]
    return KeyColumn(array, taken, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8))


@kernel
def _compare(a, a_start, a_stop, b, b_start, b_stop):  # type: ignore[no-untyped-def]
    """Below zero, zero, above zero, as the bytes `a` sort before, with or after `b`."""
    shorter = min(a_stop - a_start, b_stop - b_start)
    k = 0
    while k + 8 <= shorter:  # eight bytes at a time: paths share long prefixes
        left = load_u64(np.int64(a.ctypes.data) + a_start + k)
        right = load_u64(np.int64(b.ctypes.data) + b_start + k)
        if left != right:
            # Little-endian words are turned, so that the first byte weighs most.
            return np.int64(1) if swap_u64(left) > swap_u64(right) else np.int64(-1)
        k += 8
    while k < shorter:
        if a[a_start + k] != b[b_start + k]:
            return np.int64(a[a_start + k]) - np.int64(b[b_start + k])
        k += 1
    return np.int64(a_stop - a_start) - np.int64(b_stop - b_start)


@kernel
def first_unordered(offsets, data):  # type: ignore[no-untyped-def]
    """The first row whose key is not above the one before it; -1 when all ascend."""
    for row in range(1, len(offsets) - 1):
        # Equal keys are unordered too: an index has each key once.
        if _compare(data, offsets[row - 1], offsets[row], data, offsets[row], offsets[row + 1]) >= 0:
            return row
    return -1


@kernel
def _hash(data, start, stop):  # type: ignore[no-untyped-def]
    h = _FNV_OFFSET
    for at in range(start, stop):
        h = (h ^ np.uint64(data[at])) * _FNV_PRIME
    # FNV leaves low bits that depend on the last bytes alone; mixed, any of them may be the mask.
    h = (h ^ (h >> _SHIFT)) * _MIX_1
    h = (h ^ (h >> _SHIFT)) * _MIX_2
    return h ^ (h >> _SHIFT)


def hash_of_key(key: bytes) -> int:
    """The hash that decides where a range ends: FNV-1a of 64 bits, then mixed.

    >>> hex(hash_of_key(b"JFK"))
    '0xf4b5b877930f1bfe'
    """
    return int(_hash(np.frombuffer(key, np.uint8), 0, len(key)))


@kernel
def cut(offsets, data, sizes, rows, size, rows_min, rows_max, bits, size_max, ends):  # type: ignore[no-untyped-def]
    """Find the rows after which a range ends, going on from a range that has `rows` rows of `size` bytes so far.

    Fills `ends` (room for every row); answers how many there are, and the rows and bytes of the range left open.
    """
    cuts = 0
    for row in range(len(offsets) - 1):
        rows += 1
        size += sizes[row]
        # Whole numbers, since the format is read by others: no rounding of a platform decides where a range ends.
        quarters = max(4 * rows // rows_max, 4 * size // size_max)
        ended = quarters >= 4
        if not ended and (rows >= rows_min or quarters >= 2):
            # the fuller the range, the more keys may end it: few ends are forced, for those move with every change
            needed = bits if quarters < 2 else bits // 2 if quarters == 2 else bits // 4
            mask = np.uint64((1 << needed) - 1)
            ended = (_hash(data, offsets[row], offsets[row + 1]) & mask) == np.uint64(0)
        if ended:
            ends[cuts] = row + 1
            cuts += 1
            rows = 0
            size = 0
    return cuts, rows, size


@kernel
def search(offsets, data, wanted_offsets, wanted_data, chosen, above, out):  # type: ignore[no-untyped-def]
    """For each wanted key (its row in `chosen`): the first row whose key is not below it, or with `above`, is above it.

    `out` at that place becomes the row, or the number of rows when there is none.
    """
    count = len(offsets) - 1
    for at in range(len(chosen)):
        start, stop = wanted_offsets[chosen[at]], wanted_offsets[chosen[at] + 1]
        low, high = 0, count
        while low < high:
            middle = (low + high) >> 1
            order = _compare(data, offsets[middle], offsets[middle + 1], wanted_data, start, stop)
            # One search for both bounds: they differ in equal keys alone.
            if order < 0 or (above and order == 0):
                low = middle + 1
            else:
                high = middle
        out[at] = low


def lower_bound(keys: KeyColumn, key: bytes) -> int:
    """The first row whose key is not below `key`; the number of rows when there is none."""
    return _bound(keys, key, above=False)


def upper_bound(keys: KeyColumn, key: bytes) -> int:
    """The first row whose key is above `key`; the number of rows when there is none."""
    return _bound(keys, key, above=True)


def _bound(keys: KeyColumn, key: bytes, *, above: bool) -> int:
    out = np.empty(1, np.int64)
    offsets = np.array([0, len(key)], np.int32)
    search(keys.offsets, keys.data, offsets, np.frombuffer(key, np.uint8), np.zeros(1, np.int64), above, out)
    return int(out[0])


@kernel
def find_rows(offsets, data, wanted_offsets, wanted_data, chosen, out):  # type: ignore[no-untyped-def]
    """For each wanted key (its row in `chosen`) the row that has it; `out` at that place becomes -1 for none."""
    count = len(offsets) - 1
    search(offsets, data, wanted_offsets, wanted_data, chosen, False, out)
    for at in range(len(chosen)):
        row, start, stop = out[at], wanted_offsets[chosen[at]], wanted_offsets[chosen[at] + 1]
        if row == count or _compare(data, offsets[row], offsets[row + 1], wanted_data, start, stop) != 0:
            out[at] = -1


@kernel
def merge_keys(a_offsets, a_data, b_offsets, b_data, a_rows, b_rows):  # type: ignore[no-untyped-def]
    """Walk two ascending columns together: the row of each at every place of their union.

    Fills `a_rows` and `b_rows` (room for both), -1 where that side lacks the key; answers the size of the union.
    """
    a_count, b_count = len(a_offsets) - 1, len(b_offsets) - 1
    a, b, at = 0, 0, 0
    while a < a_count or b < b_count:
        if a == a_count:
            order = np.int64(1)
        elif b == b_count:
            order = np.int64(-1)
        else:
            order = _compare(a_data, a_offsets[a], a_offsets[a + 1], b_data, b_offsets[b], b_offsets[b + 1])
        a_rows[at] = a if order <= 0 else -1
        b_rows[at] = b if order >= 0 else -1
        if order <= 0:
            a += 1
        if order >= 0:
            b += 1
        at += 1
    return at


@kernel
def merge_three_keys(a_offsets, a_data, b_offsets, b_data, c_offsets, c_data, rows):  # type: ignore[no-untyped-def]
    """As `merge_keys`, of three columns: `rows` has a line for each, with room for all keys."""
    a_count, b_count, c_count = len(a_offsets) - 1, len(b_offsets) - 1, len(c_offsets) - 1
    a, b, c, at = 0, 0, 0, 0
    while a < a_count or b < b_count or c < c_count:
        has_a, has_b, has_c = a < a_count, b < b_count, c < c_count
        # Who has the least key: of the first two, then of that and the third. Whoever has a greater one waits.
        if has_a and has_b:
            order = _compare(a_data, a_offsets[a], a_offsets[a + 1], b_data, b_offsets[b], b_offsets[b + 1])
            has_a, has_b = order <= 0, order >= 0
        if has_c and has_a:
            order = _compare(a_data, a_offsets[a], a_offsets[a + 1], c_data, c_offsets[c], c_offsets[c + 1])
            has_a, has_b, has_c = order <= 0, has_b and order <= 0, order >= 0
        elif has_c and has_b:
            order = _compare(b_data, b_offsets[b], b_offsets[b + 1], c_data, c_offsets[c], c_offsets[c + 1])
            has_b, has_c = order <= 0, order >= 0
        rows[0, at] = a if has_a else -1
        rows[1, at] = b if has_b else -1
        rows[2, at] = c if has_c else -1
        a += has_a
        b += has_b
        c += has_c
        at += 1
    return at
