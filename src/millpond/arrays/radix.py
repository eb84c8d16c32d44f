"""Stable orders of many numbers at once, by radix.

Digits of 11 bits, least significant first: 2,048 counters stay in the nearest cache and a 64-bit column takes at
most six passes. A digit that is the same in every row costs nothing. The upper digits of hashes put all but a few in
order: those few are moved one by one, and the lower digits are left out.

Many numbers that are spread evenly, as hashes are, go into buckets first, by their upper bits: a bucket stays in a near
cache while it is sorted, by further bits, then one by one, with the columns that break ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from millpond.arrays.compiled import kernel

__all__ = ("ordered_u64", "radix_order", "unordered_i64")

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_BITS = 11
_DIGITS = 6  # 6 × 11 ≥ 64
_COLUMNS_MAX = 3
_MASK = np.uint64((1 << _BITS) - 1)
_SIGN = np.uint64(1 << 63)
_UPPER_DIGITS = 3
"""Their 31 bits differ for all but a few hundred of a million hashes."""
_SPREAD = 64
_FEW = 64
"""No value of an upper digit has more than this share of the numbers, and a few."""
_BUCKETS = 11
_INNER = 8
"""The upper bits that say which bucket a number is in, and the next ones, by which it is sorted there."""
_BUCKETS_MIN = 1 << 14
"""Fewer numbers stay in the nearest cache as they are."""
_MOVES_MAX = 16
"""The moves one by one for each number, from which on digits are faster."""


def ordered_u64(values: I64) -> U64:
    """Signed numbers as unsigned ones in the same order."""
    return values.view(np.uint64) ^ _SIGN


def unordered_i64(values: U64) -> I64:
    """The inverse of `ordered_u64`."""
    return (values ^ _SIGN).view(np.int64)


def radix_order(columns: Sequence[U64]) -> I64:
    """The stable order that sorts rows by the columns, the first column being the most significant."""
    order = np.arange(len(columns[0]), dtype=np.int64)
    if len(order) >= _BUCKETS_MIN and len(columns) <= _COLUMNS_MAX:
        padded = [*columns, columns[-1], columns[-1]][:_COLUMNS_MAX]
        first, second, third = map(np.ascontiguousarray, padded)
        if _order_in_buckets(first, second, third, len(columns) - 1, order):
            return order
    for column in reversed(columns):
        ordered = column[order]
        if len(column) > 1 and not bool(np.all(ordered[:-1] <= ordered[1:])):
            order = _order_by(np.ascontiguousarray(column), order)
    return order


@kernel(signature="boolean(uint64[::1], uint64[::1], uint64[::1], int64, int64[::1])")
def _order_in_buckets(first, second, third, ties, order):  # type: ignore[no-untyped-def]
    """Fill in the order by `first`, then by as many `ties` of the others; False when numbers are not spread enough."""
    count, buckets, inner = len(first), 1 << _BUCKETS, 1 << _INNER
    upper, lower = np.uint64(64 - _BUCKETS), np.uint64(64 - _BUCKETS - _INNER)
    ends = np.zeros(buckets + 1, np.int64)
    for i in range(count):
        ends[(first[i] >> upper) + 1] += 1
    most = ends.max()
    if most > count // _SPREAD + _FEW:
        return False
    for bucket in range(buckets):
        ends[bucket + 1] += ends[bucket]
    at = ends[:-1].copy()
    keys = np.empty(count, np.uint64)
    for i in range(count):
        bucket = first[i] >> upper
        to = at[bucket]
        at[bucket] = to + 1
        keys[to], order[to] = first[i], i
    counts = np.empty(inner + 1, np.int64)
    key, row = np.empty(most, np.uint64), np.empty(most, np.int64)
    tie, last = np.empty(most, np.uint64), np.empty(most, np.uint64)
    moves = 0
    for bucket in range(buckets):
        begin, size = ends[bucket], ends[bucket + 1] - ends[bucket]
        counts[:] = 0
        for i in range(begin, begin + size):
            counts[((keys[i] >> lower) & np.uint64(inner - 1)) + 1] += 1
        for digit in range(inner):
            counts[digit + 1] += counts[digit]
        for i in range(begin, begin + size):
            digit = (keys[i] >> lower) & np.uint64(inner - 1)
            to = counts[digit]
            counts[digit] = to + 1
            key[to], row[to] = keys[i], order[i]
        for i in range(size):
            if ties > 0:
                tie[i] = second[row[i]]
            if ties > 1:
                last[i] = third[row[i]]
        for i in range(1, size):
            this, number, early, late, to = key[i], row[i], tie[i], last[i], i
            while to > 0 and (
                key[to - 1] > this
                or (ties > 0 and key[to - 1] == this
                    and (tie[to - 1] > early or (ties > 1 and tie[to - 1] == early and last[to - 1] > late)))
            ):  # fmt: skip
                key[to], row[to], tie[to], last[to] = key[to - 1], row[to - 1], tie[to - 1], last[to - 1]
                to -= 1
                moves += 1
            key[to], row[to], tie[to], last[to] = this, number, early, late
        if moves > _MOVES_MAX * count:
            for i in range(count):
                order[i] = i
            return False
        for i in range(size):
            order[begin + i] = row[i]
    return True


@kernel(signature="int64(int64[:, ::1], int64)")
def _first_digit(counts, count):  # type: ignore[no-untyped-def]
    """The digit from which on numbers are sorted: 0, but for those that their upper digits tell apart."""
    first = _DIGITS - _UPPER_DIGITS
    for digit in range(first, _DIGITS):
        if counts[digit].max() > count // _SPREAD + _FEW:
            return 0
    return first


@kernel(signature="boolean(uint64[::1], int64[::1])")
def _settled(keys, order):  # type: ignore[no-untyped-def]
    """Move keys that are nearly in order to their places, with their rows; False when that is too much work."""
    moves = 0
    for i in range(1, len(keys)):
        key, row, at = keys[i], order[i], i
        while at > 0 and keys[at - 1] > key and moves <= len(keys):
            keys[at], order[at] = keys[at - 1], order[at - 1]
            at -= 1
            moves += 1
        keys[at], order[at] = key, row
        if moves > len(keys):
            return False
    return True


@kernel(signature="int64[::1](uint64[::1], int64[::1])")
def _order_by(column, order):  # type: ignore[no-untyped-def]
    count = len(order)
    counts = np.zeros((_DIGITS, 1 << _BITS), np.int64)
    keys = np.empty(count, np.uint64)
    for i in range(count):
        key = column[order[i]]
        keys[i] = key
        for digit in range(_DIGITS):
            counts[digit, (key >> np.uint64(digit * _BITS)) & _MASK] += 1
    spare_keys, spare_order = np.empty(count, np.uint64), np.empty(count, np.int64)
    source = order.copy()
    first = _first_digit(counts, count)
    while True:
        for digit in range(first, _DIGITS):
            shift = np.uint64(digit * _BITS)
            if counts[digit, (keys[0] >> shift) & _MASK] == count:
                continue
            at = counts[digit].copy()
            total = 0
            for bucket in range(1 << _BITS):
                here = at[bucket]
                at[bucket] = total
                total += here
            for i in range(count):
                bucket = (keys[i] >> shift) & _MASK
                to = at[bucket]
                at[bucket] = to + 1
                spare_keys[to] = keys[i]
                spare_order[to] = source[i]
            keys, spare_keys = spare_keys, keys
            source, spare_order = spare_order, source
        if first == 0 or _settled(keys, source):
            return source
        first = 0
