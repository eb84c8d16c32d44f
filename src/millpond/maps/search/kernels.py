"""Kernels that find, for a batch of keys, the group and then the row that answers.

Everything is whole arrays: hash, order the batch by its hashes' upper bits, find the group, verify the key, find the
time. The order makes neighbours in time neighbours in memory; it is partial because within a bucket all that is
touched fits in the near caches. Work goes in blocks, stage by stage, so that the processor waits for the memory of
many keys at once.

`directories.py` says where the groups of a hash begin.

Invariants:
* A group is taken only when its full key is equal: a hash alone never answers.
* The newest layer that has the key answers, also when its group is empty (a tombstone): then there is no row.
* Addresses and columns of the table are those of `groups.Groups`; their owner outlives the call.
"""

from __future__ import annotations

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import chosen, load_i32, load_i64, load_u8, load_u64, prefetch, same_bytes
from millpond.maps.search.directories import probes_of
from millpond.maps.search.group_table import (
    COUNT,
    COVER_FROM,
    COVER_OFFSETS,
    COVER_ROW,
    HASH,
    KEY_OFFSETS,
    NUMBER,
    PIECE,
    ROW_OFFSETS,
    cell,
    key_of,
)

__all__ = (
    "AHEAD", "BLOCK", "as_of", "ask_for_bytes", "ask_for_times", "begin_block", "bucket_order", "candidates_of", "cell",
    "find_groups", "first_of_hash", "innermost", "innermost_row", "key_spans", "last_not_after", "last_rows",
    "only_row", "order_bits", "slots_of", "spans_of", "verified",
)  # fmt: skip

BLOCK = 256
"""Keys per block: the stages of a block pass their findings on within the nearest cache."""

AHEAD = 24
"""So many keys ahead is memory asked for where a stage has nothing else to do meanwhile."""

ORDER_MIN = 4_096
"""Batches below this many keys, or over fewer groups, are looked up as they come: to order them costs more."""

ORDER_BITS_MAX = 12
"""4,096 buckets: a bucket of a large snapshot touches little enough to stay cached, the counters do as well."""

FEW = 8
"""So many hashes are compared at once; one slot of fifty has more groups."""

NEAR_TIMES = 16
"""So many times lie in the places that are asked for at once; a longer span is halved first."""


def order_bits(count: int, groups: int) -> int:
    """By how many upper bits of the hash to order a batch of `count` keys; 0: not at all."""
    if count < ORDER_MIN or groups < ORDER_MIN:
        return 0
    return min(ORDER_BITS_MAX, count.bit_length() - 6, groups.bit_length() - 4)


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
def first_of_hash(hash_, table, position, stop):  # type: ignore[no-untyped-def]
    """The first group with this very hash from the position on and before `stop`; -1 when there is none."""
    while position < stop:
        piece, number = position >> PIECE, position & NUMBER
        at = cell(table, piece, HASH) + 8 * number
        last = cell(table, piece, COUNT)
        if piece == stop >> PIECE:
            last = min(last, stop & NUMBER)
        while number < last:
            there = load_u64(at)
            if there >= hash_:
                return (piece << PIECE) | number if there == hash_ else -1
            number += 1
            at += 8
        position = (piece + 1) << PIECE
    return -1


@kernel
def _first_of_few(hash_, hashes, first, stop, count):  # type: ignore[no-untyped-def]
    """The number of the first hash that is this very one, from `first` to `stop` of `count` that ascend; -1: none is.

    `hashes` is their address. Of a few it takes no branch that depends on them, which would be guessed wrongly.
    """
    if stop - first > FEW or count < FEW:
        while first < stop and load_u64(hashes + 8 * first) < hash_:
            first += 1
        return first if first < stop and load_u64(hashes + 8 * first) == hash_ else np.int64(-1)
    first = min(first, count - FEW)
    at, below, same = hashes + 8 * first, np.int64(0), False
    for i in range(FEW):
        there = load_u64(at + 8 * i)
        below += np.int64(there < hash_)
        same |= there == hash_
    return chosen(same, first + below, np.int64(-1))


@kernel
def _first_in_slot(hash_, table, position, stop):  # type: ignore[no-untyped-def]
    """As `first_of_hash`; most slots lie in one piece."""
    piece = position >> PIECE
    if piece != stop >> PIECE:
        return first_of_hash(hash_, table, position, stop)
    hashes, count = cell(table, piece, HASH), cell(table, piece, COUNT)
    number = _first_of_few(hash_, hashes, position & NUMBER, stop & NUMBER, count)
    return chosen(number >= 0, (piece << PIECE) | number, np.int64(-1))


@kernel
def _is_key(table, position, key, length):  # type: ignore[no-untyped-def]
    """True when the group's key is this one."""
    at, there = key_of(table, position)
    return there == length and same_bytes(at, key, length)


@kernel
def _among_clashes(hash_, candidate, end, table, key, length):  # type: ignore[no-untyped-def]
    """The group of exactly this key from the candidate on, while the hash is the same; -1 when there is none."""
    piece, number = candidate >> PIECE, candidate & NUMBER
    while piece < end:
        while number < cell(table, piece, COUNT):
            if load_u64(cell(table, piece, HASH) + 8 * number) != hash_:
                return -1
            position = (piece << PIECE) | number
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
def ask_for_bytes(at, length):  # type: ignore[no-untyped-def]
    """Prefetch the bytes of a key: it may lie across two lines of the cache."""
    prefetch(at)
    prefetch(at + length - 1)


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
        ask_for_bytes(data + start, stop - start)


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
        ask_for_bytes(cell(table, position >> PIECE, HASH) + 8 * (position & NUMBER), 8 * FEW)


@kernel
def candidates_of(hashes, pending, count, table, directory, slots, candidates):  # type: ignore[no-untyped-def]
    """For each waiting key the first group of the layer with its hash, and ask for that group's key."""
    for k in range(count):
        slot = slots[k]
        position = _first_in_slot(hashes[pending[k]], table, directory[slot], directory[slot + 1])
        candidates[k] = position
        if position >= 0:
            ask_for_bytes(cell(table, position >> PIECE, KEY_OFFSETS) + 4 * (position & NUMBER), 8)
    for k in range(count):
        if candidates[k] >= 0:
            at, length = key_of(table, candidates[k])
            ask_for_bytes(at, length)


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
        prefetch(cell(table, rows[ahead] >> PIECE, ROW_OFFSETS) + 4 * (rows[ahead] & NUMBER))


@kernel
def only_row(table, rows):  # type: ignore[no-untyped-def]
    """From groups to their one row, in place; a tombstone has none.

    A piece without tombstones has no offsets in the table: the row has the number of its group.
    """
    for i in range(len(rows)):
        _ask_ahead(table, rows, i + AHEAD)
        if rows[i] >= 0:
            piece, number = rows[i] >> PIECE, rows[i] & NUMBER
            offsets = cell(table, piece, ROW_OFFSETS)
            if offsets == 0:
                continue
            at = offsets + 4 * number
            low = load_i32(at)
            rows[i] = (piece << PIECE) | low if load_i32(at + 4) > low else -1


@kernel
def last_not_after(times, low, high, instant):  # type: ignore[no-untyped-def]
    """The number of the last of the ascending times `[low, high)` that is not after the instant; low - 1: none."""
    left = high - low
    while left > 0:
        half = (left + 1) >> 1
        low = chosen(load_i64(times + 8 * (low + half - 1)) <= instant, low + half, low)
        left -= half
    return low - 1


@kernel
def ask_for_times(times, low, high):  # type: ignore[no-untyped-def]
    """Prefetch the times `[low, high)`: all of a few, of more the middle, where a search begins."""
    prefetch(times + 8 * low)
    prefetch(times + 4 * (low + high))
    prefetch(times + 8 * high - 8)


@kernel
def spans_of(table, groups, count, times, columns, lows, highs):  # type: ignore[no-untyped-def]
    """Compute the rows of each group, none where that is -1, and the address of the column of their times.

    All that `last_rows` reads is prefetched. `times` is the address of a table of columns (`groups.gather_table`).
    """
    for k in range(count):
        if groups[k] >= 0:
            ask_for_bytes(cell(table, groups[k] >> PIECE, ROW_OFFSETS) + 4 * (groups[k] & NUMBER), 8)
    for k in range(count):
        lows[k] = highs[k] = 0
        if groups[k] >= 0:
            piece = groups[k] >> PIECE
            at = cell(table, piece, ROW_OFFSETS) + 4 * (groups[k] & NUMBER)
            lows[k], highs[k] = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
            columns[k] = load_i64(times + 32 * piece)
            ask_for_times(columns[k], lows[k], highs[k])


@kernel
def last_rows(columns, lows, highs, instants, first, end):  # type: ignore[no-untyped-def]
    """`last_not_after` of the spans from `first` to `end`, each in place of its end."""
    begins, longest = np.empty(BLOCK, np.int64), np.int64(0)
    for k in range(first, end):
        begins[k] = lows[k]
        longest = max(longest, highs[k] - lows[k])
    # Long spans are halved side by side, so that the processor waits for the memory of all at once.
    while longest > NEAR_TIMES:
        longest = np.int64(0)
        for k in range(first, end):
            left = highs[k] - begins[k]
            if left > NEAR_TIMES:
                middle = begins[k] + (left >> 1)
                after = load_i64(columns[k] + 8 * middle) > instants[k]
                highs[k], begins[k] = chosen(after, middle, highs[k]), chosen(after, begins[k], middle + 1)
                ask_for_times(columns[k], begins[k], highs[k])
                longest = max(longest, highs[k] - begins[k])
    for k in range(first, end):
        highs[k] = last_not_after(columns[k], begins[k], highs[k], instants[k])


@kernel
def as_of(table, times, order, instants, step, rows):  # type: ignore[no-untyped-def]
    """From groups to the last row not after each key's instant, in place.

    `times` is the address of a table of columns (`groups.gather_table`), `instants` that of the instants, which are
    `step` bytes apart (0: one for all).
    """
    columns, moments = np.zeros(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for block in range(0, len(rows), BLOCK):
        stop = min(block + BLOCK, len(rows))
        for i in range(block, stop):
            prefetch(instants + step * order[i])
        groups = rows[block:stop]
        spans_of(table, groups, len(groups), times, columns, lows, highs)
        for k in range(len(groups)):
            moments[k] = load_i64(instants + step * order[block + k])
        last_rows(columns, lows, highs, moments, 0, len(groups))
        for k in range(len(groups)):
            groups[k] = (groups[k] & ~NUMBER) | highs[k] if highs[k] >= lows[k] else -1


@kernel
def innermost(table, starts, ends, order, instants, step, rows):  # type: ignore[no-untyped-def]
    """From groups to the innermost session that holds each key's instant, in place."""
    columns, moments = np.zeros(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    lows, marks, covered = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.bool_)
    for block in range(0, len(rows), BLOCK):
        stop = min(block + BLOCK, len(rows))
        groups = rows[block:stop]
        for k in range(len(groups)):
            prefetch(instants + step * order[block + k])
            if groups[k] >= 0:
                ask_for_bytes(cell(table, groups[k] >> PIECE, COVER_OFFSETS) + 4 * (groups[k] & NUMBER), 8)
        spans_of(table, groups, len(groups), starts, columns, lows, marks)
        for k in range(len(groups)):
            moments[k] = load_i64(instants + step * order[block + k])
            first, last = _cover_of(table, groups[k])
            covered[k] = last > first
            if covered[k]:
                columns[k], lows[k], marks[k] = cell(table, groups[k] >> PIECE, COVER_FROM), first, last
                ask_for_times(columns[k], first, last)
        last_rows(columns, lows, marks, moments, 0, len(groups))
        for k in range(len(groups)):
            piece = groups[k] >> PIECE
            if marks[k] < lows[k]:
                groups[k] = -1
            elif covered[k]:
                prefetch(cell(table, piece, COVER_ROW) + 4 * marks[k])
            else:
                prefetch(load_i64(ends + 32 * piece) + 8 * marks[k])
        for k in range(len(groups)):
            if groups[k] >= 0:
                groups[k] = _marked(table, ends, groups[k], marks[k], covered[k], moments[k])


@kernel
def _cover_of(table, group):  # type: ignore[no-untyped-def]
    """The first breakpoint of a group's cover, and its end; the same where it has none, or there is no group."""
    if group < 0:
        return np.int64(0), np.int64(0)
    at = cell(table, group >> PIECE, COVER_OFFSETS) + 4 * (group & NUMBER)
    return np.int64(load_i32(at)), np.int64(load_i32(at + 4))


@kernel
def _marked(table, ends, group, mark, covered, instant):  # type: ignore[no-untyped-def]
    """The session that a breakpoint of the cover names; without a cover the row itself, if it holds the instant."""
    piece = group >> PIECE
    if not covered:
        return (piece << PIECE) | mark if load_i64(load_i64(ends + 32 * piece) + 8 * mark) >= instant else np.int64(-1)
    at = cell(table, piece, ROW_OFFSETS) + 4 * (group & NUMBER)
    low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
    row = np.int64(load_i32(cell(table, piece, COVER_ROW) + 4 * mark))
    return (piece << PIECE) | (low + row) if 0 <= row < high - low else np.int64(-1)


@kernel
def innermost_row(table, starts, ends, group, instant):  # type: ignore[no-untyped-def]
    """The innermost session of one group that holds an instant; -1: none does."""
    piece = group >> PIECE
    first, last = _cover_of(table, group)
    column, covered = cell(table, piece, COVER_FROM), last > first
    if not covered:
        at = cell(table, piece, ROW_OFFSETS) + 4 * (group & NUMBER)
        column, first, last = load_i64(starts + 32 * piece), np.int64(load_i32(at)), np.int64(load_i32(at + 4))
    mark = last_not_after(column, first, last, instant)
    return _marked(table, ends, group, mark, covered, instant) if mark >= first else np.int64(-1)
