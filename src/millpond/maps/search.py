"""Kernels that find, for a batch of keys, the group and then the row that answers.

Everything is whole arrays: hash, order the batch by its hashes' upper bits, find the group, verify the key, find the
time. The order makes neighbours in time neighbours in memory; it is partial because within a bucket all that is
touched fits in the near caches. Work goes in blocks, stage by stage, so that the processor waits for the memory of
many keys at once.

Invariants:
* A group is taken only when its full key is equal: a hash alone never answers.
* The newest layer that has the key answers, also when its group is empty (a tombstone): then there is no row.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from millpond.maps.addresses import load_i32, load_i64, load_u8, load_u64, same_bytes

__all__ = ("as_of", "bucket_order", "find_groups", "innermost", "only_row", "order_bits")

BLOCK = 2_048
"""Keys per block: the stages of a block pass their findings on within the nearest cache."""

ORDER_MIN = 4_096
"""Batches below this many keys are looked up as they come: ordering them costs more than it saves."""

ORDER_BITS_MAX = 12
"""4,096 buckets: a bucket of a large snapshot touches little enough to stay cached, the counters do as well."""

_COUNT, _HASH, _KEY_OFFSETS, _KEY_DATA, _ROW_OFFSETS, _COVER_OFFSETS, _COVER_FROM, _COVER_ROW = range(8)
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1


def order_bits(count: int) -> int:
    """By how many upper bits of the hash to order a batch of `count` keys; 0: not at all."""
    return 0 if count < ORDER_MIN else min(ORDER_BITS_MAX, count.bit_length() - 6)


@njit(cache=True, nogil=True)
def bucket_order(hashes, bits, order, ordered):  # type: ignore[no-untyped-def]
    """Rows in order of the upper `bits` of their hashes, and the hashes in that order."""
    shift = np.uint64(64 - bits)
    at = np.zeros((1 << bits) + 1, np.int64)
    for row in range(len(hashes)):
        at[(hashes[row] >> shift) + np.uint64(1)] += 1
    for bucket in range(1 << bits):
        at[bucket + 1] += at[bucket]
    for row in range(len(hashes)):
        bucket = hashes[row] >> shift
        to = at[bucket]
        at[bucket] = to + 1
        order[to] = row
        ordered[to] = hashes[row]


@njit(cache=True, nogil=True)
def _piece_of(hash_, low, high, last):  # type: ignore[no-untyped-def]
    """The first piece of `[low, high)` that does not end below the hash."""
    while low < high:
        middle = (low + high) >> 1
        if last[middle] < hash_:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _lower_bound(hash_, at, count, first, scale):  # type: ignore[no-untyped-def]
    """The number of the first of `count` ascending hashes at the address that is not below `hash_`.

    Hashes are spread evenly, so a straight line guesses well, and better from each guess to the next. The guesses
    need not be right: a walk with doubling steps ends it.
    """
    guess = np.int64(np.float64(hash_ - first) * scale)
    for _ in range(2):
        guess = min(max(guess, np.int64(0)), count - 1)
        there = load_u64(at + 8 * guess)
        if there <= hash_:
            guess += np.int64(np.float64(hash_ - there) * scale)
        else:
            guess -= np.int64(np.float64(there - hash_) * scale)
    guess = min(max(guess, np.int64(0)), count - 1)
    step = 1
    if load_u64(at + 8 * guess) < hash_:
        low = guess + 1
        high = low
        while high < count and load_u64(at + 8 * high) < hash_:
            low = high + 1
            high += step
            step += step
        high = min(high, count)
    else:
        high = guess
        low = high
        while low > 0 and load_u64(at + 8 * (low - 1)) >= hash_:
            high = low - 1
            low = max(high - step, np.int64(0))
            step += step
    while low < high:
        middle = (low + high) >> 1
        if load_u64(at + 8 * middle) < hash_:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _candidates(hashes, found, pending, waiting, begin, end, table, first, last, scale):  # type: ignore[no-untyped-def]
    """For each waiting key the first group of the layer `[begin, end)` with its hash; those are returned first."""
    piece = begin
    hits = 0
    for k in range(waiting):
        i = pending[k]
        hash_ = hashes[i]
        # Mostly the piece of the key before. A piece that starts with this very hash may follow one that ends with it.
        if not (first[piece] < hash_ <= last[piece]):
            piece = _piece_of(hash_, begin, end, last)
            if piece == end:
                piece = begin
                found[i] = -1
                continue
        count, at = table[piece, _COUNT], table[piece, _HASH]
        number = _lower_bound(hash_, at, count, first[piece], scale[piece])
        found[i] = (piece << _PIECE) | number if load_u64(at + 8 * number) == hash_ else -1
    return hits


@njit(cache=True, nogil=True)
def _key_span(offsets, wide, row):  # type: ignore[no-untyped-def]
    if wide:
        return load_i64(offsets + 8 * row), load_i64(offsets + 8 * row + 8)
    return np.int64(load_i32(offsets + 4 * row)), np.int64(load_i32(offsets + 4 * row + 4))


@njit(cache=True, nogil=True)
def _is_key(table, piece, number, key, length):  # type: ignore[no-untyped-def]
    """Whether the group's key, which follows 8 bytes of hash, is this one."""
    offsets = table[piece, _KEY_OFFSETS] + 4 * number
    start, stop = np.int64(load_i32(offsets)), np.int64(load_i32(offsets + 4))
    if stop - start - 8 != length:
        return False
    return same_bytes(table[piece, _KEY_DATA] + start + 8, key, length)


@njit(cache=True, nogil=True)
def _among_clashes(hash_, candidate, end, table, key, length):  # type: ignore[no-untyped-def]
    """The group of exactly this key from the candidate on, while the hash is the same; -1 when there is none."""
    piece, number = candidate >> _PIECE, candidate & _NUMBER
    while piece < end:
        while number < table[piece, _COUNT]:
            if load_u64(table[piece, _HASH] + 8 * number) != hash_:
                return -1
            if _is_key(table, piece, number, key, length):
                return (piece << _PIECE) | number
            number += 1
        piece += 1
        number = 0
    return -1


@njit(cache=True, nogil=True)
def _is_null(valid, offset, row):  # type: ignore[no-untyped-def]
    return valid != 0 and not (load_u8(valid + ((offset + row) >> 3)) >> np.uint8((offset + row) & 7)) & 1


@njit(cache=True, nogil=True)
def find_groups(hashes, order, keys, layers, table, first, last, scale, found):  # type: ignore[no-untyped-def]
    """The position of each key's group, in the order given; -1 where there is none.

    `keys` are (address of offsets, wide offsets, address of bytes, address of validity, offset of validity).
    """
    offsets, wide, data, valid, valid_offset = keys
    pending = np.empty(BLOCK, np.int64)
    for block in range(0, len(hashes), BLOCK):
        waiting = 0
        for i in range(block, min(block + BLOCK, len(hashes))):
            found[i] = -1
            if not _is_null(valid, valid_offset, order[i]):
                pending[waiting] = i
                waiting += 1
        for layer in range(len(layers) - 1):
            begin, end = layers[layer], layers[layer + 1]
            if begin == end or waiting == 0:
                continue
            _candidates(hashes, found, pending, waiting, begin, end, table, first, last, scale)
            left = 0
            for k in range(waiting):
                i = pending[k]
                candidate = found[i]
                if candidate >= 0:
                    start, stop = _key_span(offsets, wide, order[i])
                    if _is_key(table, candidate >> _PIECE, candidate & _NUMBER, data + start, stop - start):
                        continue
                    candidate = _among_clashes(hashes[i], candidate, end, table, data + start, stop - start)
                    found[i] = candidate
                    if candidate >= 0:
                        continue
                pending[left] = i
                left += 1
            waiting = left


@njit(cache=True, nogil=True)
def only_row(table, found):  # type: ignore[no-untyped-def]
    """From groups to their one row, in place; a tombstone has none."""
    for i in range(len(found)):
        if found[i] >= 0:
            piece, number = found[i] >> _PIECE, found[i] & _NUMBER
            at = table[piece, _ROW_OFFSETS] + 4 * number
            low = load_i32(at)
            found[i] = (piece << _PIECE) | low if load_i32(at + 4) > low else -1


@njit(cache=True, nogil=True)
def _last_not_after(times, low, high, instant):  # type: ignore[no-untyped-def]
    """The number of the last of the ascending times `[low, high)` that is not after the instant; low - 1: none."""
    count = high - low
    if count == 0 or load_i64(times + 8 * low) > instant:
        return low - 1
    while count > 1:
        half = count >> 1
        low += half if load_i64(times + 8 * (low + half)) <= instant else 0
        count -= half
    return low


@njit(cache=True, nogil=True)
def as_of(table, times, order, instants, one_instant, found):  # type: ignore[no-untyped-def]
    """From groups to the last row not after each key's instant, in place."""
    lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for block in range(0, len(found), BLOCK):
        stop = min(block + BLOCK, len(found))
        for i in range(block, stop):
            if found[i] >= 0:
                at = table[found[i] >> _PIECE, _ROW_OFFSETS] + 4 * (found[i] & _NUMBER)
                lows[i - block], highs[i - block] = load_i32(at), load_i32(at + 4)
        for i in range(block, stop):
            if found[i] < 0:
                continue
            piece, low = found[i] >> _PIECE, lows[i - block]
            instant = instants[0] if one_instant else instants[order[i]]
            row = _last_not_after(times[piece, 0], low, highs[i - block], instant)
            found[i] = (piece << _PIECE) | row if row >= low else -1


@njit(cache=True, nogil=True)
def innermost(table, starts, ends, order, instants, one_instant, found):  # type: ignore[no-untyped-def]
    """From groups to the innermost session that holds each key's instant, in place."""
    for i in range(len(found)):
        if found[i] < 0:
            continue
        piece, number = found[i] >> _PIECE, found[i] & _NUMBER
        instant = instants[0] if one_instant else instants[order[i]]
        at = table[piece, _ROW_OFFSETS] + 4 * number
        low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
        cover = table[piece, _COVER_OFFSETS] + 4 * number
        first, last = np.int64(load_i32(cover)), np.int64(load_i32(cover + 4))
        found[i] = -1
        if last > first:
            mark = _last_not_after(table[piece, _COVER_FROM], first, last, instant)
            if mark >= first:
                row = np.int64(load_i32(table[piece, _COVER_ROW] + 4 * mark))
                if row >= 0:
                    found[i] = (piece << _PIECE) | (low + row)
            continue
        row = _last_not_after(starts[piece, 0], low, high, instant)
        if row >= low and load_i64(ends[piece, 0] + 8 * row) >= instant:
            found[i] = (piece << _PIECE) | row
