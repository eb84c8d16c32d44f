"""Kernels that find, for a batch of keys, the group and then the row that answers.

Everything is whole arrays: hash, order the batch by its hashes' upper bits, find the group, verify the key, find the
time. The order makes neighbours in time neighbours in memory; it is partial because within a bucket all that is
touched fits in the near caches. Work goes in blocks, stage by stage, so that the processor waits for the memory of
many keys at once.

Groups ascend by hash, so a *directory* over the upper bits of the hash says where those of a slot begin: a few on
average, one read away. It is worked out from the hash column when a snapshot is first asked; so is the *filter* of each
layer that lies over others, which says of most keys that the layer lacks them, by one cache line.

Invariants:
* A group is taken only when its full key is equal: a hash alone never answers.
* The newest layer that has the key answers, also when its group is empty (a tombstone): then there is no row.
* Addresses and columns of the table are those of `groups.Groups`; their owner outlives the call.
"""

from __future__ import annotations

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, load_u8, load_u64, prefetch, same_bytes

__all__ = (
    "AHEAD", "BLOCK", "FILTER_WORDS", "as_of", "begin_block", "bucket_order", "candidates_of", "cell",
    "directory_bits", "fill_directory", "fill_filter", "filter_blocks", "find_groups",
    "first_of_hash", "innermost", "innermost_row", "key_spans", "last_not_after", "may_have", "only_row", "order_bits",
    "probes_of", "slots_of", "verified",
)  # fmt: skip

BLOCK = 256
"""Keys per block: the stages of a block pass their findings on within the nearest cache."""

AHEAD = 24
"""So many keys ahead is memory asked for where a stage has nothing else to do meanwhile."""

ORDER_MIN = 4_096
"""Batches below this many keys, or over fewer groups, are looked up as they come: to order them costs more."""

ORDER_BITS_MAX = 12
"""4,096 buckets: a bucket of a large snapshot touches little enough to stay cached, the counters do as well."""

SLOT_GROUPS = 4
"""Groups in a slot of a directory, on average: the directory costs eight bytes a slot."""

FILTER_KEYS = 25
"""Keys in a block of a filter, on average: ten bits a key, and about one of eighty keys is asked for in vain."""
FILTER_WORDS = 4
"""A block is four words, half a cache line; a key has one bit in each."""

COUNTED_MAX = 16
"""So many times at most are compared one and all, not by halves."""

_COUNT, _HASH, _KEY_OFFSETS, _KEY_DATA, _ROW_OFFSETS, _COVER_OFFSETS, _COVER_FROM, _COVER_ROW = range(8)
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1


def order_bits(count: int, groups: int) -> int:
    """By how many upper bits of the hash to order a batch of `count` keys; 0: not at all."""
    if count < ORDER_MIN or groups < ORDER_MIN:
        return 0
    return min(ORDER_BITS_MAX, count.bit_length() - 6, groups.bit_length() - 4)


def directory_bits(groups: int) -> int:
    """The number of upper bits of the hash that choose the slot in the directory of a layer."""
    return max((groups // SLOT_GROUPS).bit_length(), 1)


def filter_blocks(groups: int) -> int:
    """The number of blocks of the filter of a layer."""
    return max(1, -(-groups // FILTER_KEYS))


@kernel
def cell(table, piece, column):  # type: ignore[no-untyped-def]
    """One column of a piece's line in the table of groups."""
    return load_i64(table + ((piece << 3) + column) * 8)


@kernel
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


@kernel
def fill_directory(table, begin, end, bits, directory):  # type: ignore[no-untyped-def]
    """The position of the first group of each slot of the layer `[begin, end)`; the last entry is its end."""
    shift = np.uint64(64 - bits)
    slot = 0
    for piece in range(begin, end):
        at = cell(table, piece, _HASH)
        for number in range(cell(table, piece, _COUNT)):
            reached = np.int64(load_u64(at + 8 * number) >> shift)
            while slot <= reached:
                directory[slot] = (piece << _PIECE) | number
                slot += 1
    while slot < len(directory):
        directory[slot] = end << _PIECE
        slot += 1


@kernel
def _filter_word(hash_, blocks):  # type: ignore[no-untyped-def]
    """The first word of the block of a hash: by its upper half, so keys in order of their hashes ask side by side."""
    return np.int64(((hash_ >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)) * FILTER_WORDS


@kernel
def fill_filter(table, begin, end, words):  # type: ignore[no-untyped-def]
    """Set the bits of all groups of the layer `[begin, end)`."""
    blocks = len(words) // FILTER_WORDS
    for piece in range(begin, end):
        at = cell(table, piece, _HASH)
        for number in range(cell(table, piece, _COUNT)):
            hash_ = load_u64(at + 8 * number)
            word = _filter_word(hash_, blocks)
            for i in range(FILTER_WORDS):
                words[word + i] |= np.uint64(1) << ((hash_ >> np.uint64(6 * i)) & np.uint64(63))


@kernel
def probes_of(hashes, pending, count, filters, begin, blocks, which, probes):  # type: ignore[no-untyped-def]
    """Fill in which of the pending keys a layer may have, and those keys; how many. Without blocks it may have all."""
    if blocks == 0:
        for k in range(count):
            which[k], probes[k] = k, pending[k]
        return count
    address = filters.ctypes.data + 8 * begin
    for k in range(count):
        prefetch(address + 8 * _filter_word(hashes[pending[k]], blocks))
    left = np.int64(0)
    for k in range(count):
        hash_ = hashes[pending[k]]
        word = begin + _filter_word(hash_, blocks)
        bits = np.uint64(1)
        for i in range(FILTER_WORDS):
            bits &= filters[word + i] >> ((hash_ >> np.uint64(6 * i)) & np.uint64(63))
        which[left], probes[left] = k, pending[k]
        left += np.int64(bits)  # without a branch, which would be guessed wrongly
    return left


@kernel
def may_have(hash_, filter_, blocks):  # type: ignore[no-untyped-def]
    """False for a key that the layer with the filter at this address lacks; without blocks it may have all."""
    if blocks == 0:
        return True
    word, bits = filter_ + 8 * _filter_word(hash_, blocks), np.uint64(1)
    for i in range(FILTER_WORDS):
        bits &= load_u64(word + 8 * i) >> ((hash_ >> np.uint64(6 * i)) & np.uint64(63))
    return bits != 0


@kernel
def first_of_hash(hash_, table, position, stop):  # type: ignore[no-untyped-def]
    """The first group with this very hash from the position on and before `stop`; -1 when there is none."""
    while position < stop:
        piece, number = position >> _PIECE, position & _NUMBER
        at = cell(table, piece, _HASH) + 8 * number
        last = cell(table, piece, _COUNT)
        if piece == stop >> _PIECE:
            last = min(last, stop & _NUMBER)
        while number < last:
            there = load_u64(at)
            if there >= hash_:
                return (piece << _PIECE) | number if there == hash_ else -1
            number += 1
            at += 8
        position = (piece + 1) << _PIECE
    return -1


@kernel
def _is_key(table, position, key, length):  # type: ignore[no-untyped-def]
    """True when the group's key, which follows 8 bytes of hash, is this one."""
    piece = position >> _PIECE
    offsets = cell(table, piece, _KEY_OFFSETS) + 4 * (position & _NUMBER)
    start, stop = np.int64(load_i32(offsets)), np.int64(load_i32(offsets + 4))
    if stop - start - 8 != length:
        return False
    return same_bytes(cell(table, piece, _KEY_DATA) + start + 8, key, length)


@kernel
def _among_clashes(hash_, candidate, end, table, key, length):  # type: ignore[no-untyped-def]
    """The group of exactly this key from the candidate on, while the hash is the same; -1 when there is none."""
    piece, number = candidate >> _PIECE, candidate & _NUMBER
    while piece < end:
        while number < cell(table, piece, _COUNT):
            if load_u64(cell(table, piece, _HASH) + 8 * number) != hash_:
                return -1
            position = (piece << _PIECE) | number
            if _is_key(table, position, key, length):
                return position
            number += 1
        piece += 1
        number = 0
    return -1


@kernel
def verified(hash_, candidate, end, table, key, length):  # type: ignore[no-untyped-def]
    """The group of exactly this key, where the candidate is the first of its hash; -1 when there is none."""
    if candidate >= 0 and not _is_key(table, candidate, key, length):
        return _among_clashes(hash_, candidate, end, table, key, length)
    return candidate


@kernel
def _is_null(valid, offset, row):  # type: ignore[no-untyped-def]
    return valid != 0 and not (load_u8(valid + ((offset + row) >> 3)) >> np.uint8((offset + row) & 7)) & 1


@kernel
def begin_block(block, stop, order, keys, rows, pending):  # type: ignore[no-untyped-def]
    """Nothing is found yet, all but null keys are waiting; ask for the places of their bytes."""
    offsets, width, _, valid, valid_offset = keys
    count = 0
    for i in range(block, stop):
        rows[i] = -1
        row = order[i]
        prefetch(offsets + width * row)
        if not _is_null(valid, valid_offset, row):
            pending[count] = i
            count += 1
    return count


@kernel
def key_spans(order, keys, pending, count, at, lengths):  # type: ignore[no-untyped-def]
    """Compute the spans of the pending keys' bytes, and prefetch them."""
    offsets, width, data, _, _ = keys
    for k in range(count):
        place = offsets + width * order[pending[k]]
        if width == 8:
            start, stop = load_i64(place), load_i64(place + 8)
        else:
            start, stop = np.int64(load_i32(place)), np.int64(load_i32(place + 4))
        at[k] = data + start
        lengths[k] = stop - start
        prefetch(data + start)


@kernel
def slots_of(hashes, pending, count, table, directory, bits, slots):  # type: ignore[no-untyped-def]
    """Compute the slots of the pending keys, and prefetch their hashes."""
    shift = np.uint64(64 - bits)
    at = directory.ctypes.data
    for k in range(count):
        slots[k] = np.int64(hashes[pending[k]] >> shift)
        prefetch(at + 8 * slots[k])
    for k in range(count):
        position = directory[slots[k]]
        prefetch(cell(table, position >> _PIECE, _HASH) + 8 * (position & _NUMBER))


@kernel
def candidates_of(hashes, pending, count, table, directory, slots, candidates):  # type: ignore[no-untyped-def]
    """For each waiting key the first group of the layer with its hash, and ask for that group's key."""
    for k in range(count):
        slot = slots[k]
        position = first_of_hash(hashes[pending[k]], table, directory[slot], directory[slot + 1])
        candidates[k] = position
        if position >= 0:
            prefetch(cell(table, position >> _PIECE, _KEY_OFFSETS) + 4 * (position & _NUMBER))
    for k in range(count):
        position = candidates[k]
        if position >= 0:
            piece = position >> _PIECE
            start = np.int64(load_i32(cell(table, piece, _KEY_OFFSETS) + 4 * (position & _NUMBER)))
            prefetch(cell(table, piece, _KEY_DATA) + start + 8)


@kernel
def find_groups(hashes, order, keys, table, layers, hides, directories, filters, groups):  # type: ignore[no-untyped-def]
    """The position of each key's group, in the order given; -1 where there is none.

    `keys` are (address of offsets, their width, address of bytes, address of validity, offset of validity); a line of
    `layers` is (first piece, end piece, begin in `directories`, bits, begin in `filters`, blocks; 0: no filter). In
    layers under one that `hides` keys are not looked for that it has. `groups` has a line for each layer, or one for
    all, which hide: the group of the newest.
    """
    pending, slots, candidates = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    at, lengths = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    which, probes = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for block in range(0, len(hashes), BLOCK):
        stop = min(block + BLOCK, len(hashes))
        for line in range(1, len(groups)):
            groups[line, block:stop] = -1
        count = begin_block(block, stop, order, keys, groups[0], pending)
        key_spans(order, keys, pending, count, at, lengths)
        for layer in range(len(layers)):
            end, begin, bits = layers[layer, 1], layers[layer, 2], layers[layer, 3]
            directory = directories[begin : begin + (1 << bits) + 1]
            those = probes_of(hashes, pending, count, filters, layers[layer, 4], layers[layer, 5], which, probes)
            slots_of(hashes, probes, those, table, directory, bits, slots)
            candidates_of(hashes, probes, those, table, directory, slots, candidates)
            line, hiding = groups[min(layer, len(groups) - 1)], hides[layer]
            for j in range(those):
                i, k = probes[j], which[j]
                line[i] = verified(hashes[i], candidates[j], end, table, at[k], lengths[k])
            if hiding and layer + 1 < len(layers):
                left = 0
                for k in range(count):
                    i = pending[k]
                    pending[left], at[left], lengths[left] = i, at[k], lengths[k]
                    left += int(line[i] < 0)
                count = left


@kernel
def _ask_ahead(table, rows, ahead):  # type: ignore[no-untyped-def]
    """Ask for the row offsets of a group that is needed soon."""
    if ahead < len(rows) and rows[ahead] >= 0:
        prefetch(cell(table, rows[ahead] >> _PIECE, _ROW_OFFSETS) + 4 * (rows[ahead] & _NUMBER))


@kernel
def only_row(table, rows):  # type: ignore[no-untyped-def]
    """From groups to their one row, in place; a tombstone has none.

    A piece without tombstones has no offsets in the table: the row has the number of its group.
    """
    for i in range(len(rows)):
        _ask_ahead(table, rows, i + AHEAD)
        if rows[i] >= 0:
            piece, number = rows[i] >> _PIECE, rows[i] & _NUMBER
            offsets = cell(table, piece, _ROW_OFFSETS)
            if offsets == 0:
                continue
            at = offsets + 4 * number
            low = load_i32(at)
            rows[i] = (piece << _PIECE) | low if load_i32(at + 4) > low else -1


@kernel
def last_not_after(times, low, high, instant):  # type: ignore[no-untyped-def]
    """The number of the last of the ascending times `[low, high)` that is not after the instant; low - 1: none."""
    left = high - low
    while left > COUNTED_MAX:
        half = (left + 1) >> 1
        low += half * np.int64(load_i64(times + 8 * (low + half - 1)) <= instant)
        left -= half
    # To count takes no branch that depends on times, which would be guessed wrongly, and several times at once.
    stop = low + left
    for number in range(low, stop):
        low += np.int64(load_i64(times + 8 * number) <= instant)
    return low - 1


@kernel
def as_of(table, times, order, instants, step, rows):  # type: ignore[no-untyped-def]
    """From groups to the last row not after each key's instant, in place.

    `times` is the address of a table of columns (`groups.gather_table`), `instants` that of the instants, which are
    `step` bytes apart (0: one for all).
    """
    lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for block in range(0, len(rows), BLOCK):
        stop = min(block + BLOCK, len(rows))
        for i in range(block, stop):
            prefetch(instants + step * order[i])
            _ask_ahead(table, rows, i + AHEAD)
            if rows[i] >= 0:
                piece = rows[i] >> _PIECE
                at = cell(table, piece, _ROW_OFFSETS) + 4 * (rows[i] & _NUMBER)
                low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
                lows[i - block], highs[i - block] = low, high
                prefetch(load_i64(times + 32 * piece) + 4 * (low + high))
        for i in range(block, stop):
            if rows[i] < 0:
                continue
            piece, low = rows[i] >> _PIECE, lows[i - block]
            instant = load_i64(instants + step * order[i])
            row = last_not_after(load_i64(times + 32 * piece), low, highs[i - block], instant)
            rows[i] = (piece << _PIECE) | row if row >= low else -1


@kernel
def innermost(table, starts, ends, order, instants, step, rows):  # type: ignore[no-untyped-def]
    """From groups to the innermost session that holds each key's instant, in place."""
    for i in range(len(rows)):
        ahead = i + AHEAD
        _ask_ahead(table, rows, ahead)
        if ahead < len(rows) and rows[ahead] >= 0:
            prefetch(cell(table, rows[ahead] >> _PIECE, _COVER_OFFSETS) + 4 * (rows[ahead] & _NUMBER))
            prefetch(instants + step * order[ahead])
        if rows[i] < 0:
            continue
        piece, number = rows[i] >> _PIECE, rows[i] & _NUMBER
        rows[i] = innermost_row(table, starts, ends, piece, number, load_i64(instants + step * order[i]))


@kernel
def innermost_row(table, starts, ends, piece, number, instant):  # type: ignore[no-untyped-def]
    """The innermost session of one group that holds an instant; -1: none does."""
    at = cell(table, piece, _ROW_OFFSETS) + 4 * number
    low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
    cover = cell(table, piece, _COVER_OFFSETS) + 4 * number
    first, last = np.int64(load_i32(cover)), np.int64(load_i32(cover + 4))
    if last > first:
        mark = last_not_after(cell(table, piece, _COVER_FROM), first, last, instant)
        if mark >= first:
            row = np.int64(load_i32(cell(table, piece, _COVER_ROW) + 4 * mark))
            if 0 <= row < high - low:
                return (piece << _PIECE) | (low + row)
        return np.int64(-1)
    row = last_not_after(load_i64(starts + 32 * piece), low, high, instant)
    if row >= low and load_i64(load_i64(ends + 32 * piece) + 8 * row) >= instant:
        return (piece << _PIECE) | row
    return np.int64(-1)
