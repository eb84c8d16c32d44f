"""The rows of all layers over the oldest, joined in memory: a question asks two places, however many layers there are.

    layers, newest first     joined: key, hash, group in the oldest, rows in order of time
    join   a: t=3            a   17f3…   3:204    t=2 t=3
    fill   a: t=2            b   9c40…   –        t=9
    whole  b: t=9            (c is not there: the oldest layer is asked for it)
    whole  a: t=1  c: t=4

It is worked out, by one pass in order of key, when as much was asked as it costs. What it holds is positions of rows
and their times, no values.

Invariants:
* A key is there once, and is compared in full: a hash alone never answers.
* A key that a whole group speaks of has no group in the oldest layer: nothing under that counts.
* The position of a row that came from `fill` is inverted: a row of the same time in the oldest layer replaces it.

`partial.py` states the same rule layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, load_u64, prefetch, same_bytes
from millpond.arrays.radix import I64, U64
from millpond.maps.search.groups import COUNT, Directories, Groups, rows_of
from millpond.maps.search.kernels import (
    BLOCK,
    begin_block,
    candidates_of,
    cell,
    directory_bits,
    first_of_hash,
    key_spans,
    last_not_after,
    slots_of,
    verified,
)
from millpond.maps.search.partial import FILL, WHOLE
from millpond.maps.search.visible import compare_keys

__all__ = ("JOINED_AFTER", "JoinedRows", "find_joined", "joined_bytes")

_COUNT, _HASH, _KEY_OFFSETS, _KEY_DATA, _ROW_OFFSETS = range(5)  # columns of the table of groups
_ADDRESS, _LENGTH, _OLDEST, _FIRST = range(4)  # columns of a line of `keys`
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1
_KEY_BYTES, _ROW_BYTES = 56, 16
_FINER = 2
"""More bits than a directory of groups has, which reads files: a slot has one key on average, often the right one."""

JOINED_AFTER = 1 << 17
"""Fewer questions are answered before the kernels of this module are loaded."""


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The keys in order of their hashes, and their rows; valid as long as the groups that they lie in.

    A line of `keys` is: address of the key's bytes, their number, its group in the oldest layer (-1: it counts not),
    its first row; the next line says where its rows end. `slots` has the first key of each slot of `bits`.
    """

    hashes: U64
    keys: I64
    slots: I64
    bits: int
    times: I64
    rows: I64

    @classmethod
    def of(cls, groups: Groups, directories: Directories, modes: I64, times: int) -> JoinedRows:
        """Join all layers but the oldest; `times` is the address of the table of effective times."""
        keys, rows = _extent(groups)
        hashes, lines = np.empty(keys, np.uint64), np.empty((keys + 1, 4), np.int64)
        instants, positions = np.empty(rows + 1, np.int64), np.empty(rows + 1, np.int64)
        count = _join_layers(
            groups.address, directories.layers, modes, directories.slots, times, hashes, lines, instants, positions
        )
        bits = directory_bits(count) + _FINER
        slots = np.empty((1 << bits) + 1, np.int64)
        _fill_slots(hashes[:count], bits, slots)
        return cls(hashes[:count], lines, slots, bits, instants, positions)


def joined_bytes(groups: Groups) -> int:
    """The most bytes that `JoinedRows` of these groups take."""
    keys, rows = _extent(groups)
    return keys * _KEY_BYTES + rows * _ROW_BYTES


def _extent(groups: Groups) -> tuple[int, int]:
    """The groups and the rows of all layers but the oldest."""
    pieces = int(groups.layers[-2])
    rows = sum(len(rows_of(batch)) for batch in groups.batches[:pieces])
    return int(groups.table[:pieces, COUNT].sum()), rows


# -- joining ------------------------------------------------------------------------------------------


@kernel
def _key_at(table, piece, number):  # type: ignore[no-untyped-def]
    """The address and the length of the key of a group, after its 8 bytes of hash."""
    offsets = cell(table, piece, _KEY_OFFSETS) + 4 * number
    start, stop = np.int64(load_i32(offsets)), np.int64(load_i32(offsets + 4))
    return cell(table, piece, _KEY_DATA) + start + 8, stop - start - 8


@kernel
def _is_same(key, length, other, other_length):  # type: ignore[no-untyped-def]
    return length == other_length and same_bytes(key, other, length)


@kernel
def _put_rows(column, low, high, piece, filled, times, rows, start, stop):  # type: ignore[no-untyped-def]
    """Join the rows `[low, high)` of an older group to those from `start` to `stop`; where they end then.

    It goes from the end: rows move into the room behind them.
    """
    to, there, row = stop + high - low - 1, stop - 1, high - 1
    while row >= low:
        time, position = load_i64(column + 8 * row), (piece << _PIECE) | row
        if there >= start and times[there] >= time:
            same = times[there] == time
            times[to], rows[to] = times[there], rows[there]
            if same:
                if rows[there] < 0:
                    rows[to] = ~position if filled else position
                row -= 1
            there -= 1
        else:
            times[to], rows[to] = time, ~position if filled else position
            row -= 1
        to -= 1
    gap = to - there
    if gap > 0:
        for at in range(to + 1, stop + high - low):
            times[at - gap], rows[at - gap] = times[at], rows[at]
    return stop + high - low - gap


@kernel
def _join_layers(table, layers, modes, slots, column, hashes, keys, times, rows):  # type: ignore[no-untyped-def]
    """Fill in the keys of all layers but the last, and their rows; how many keys. Layers are walked side by side."""
    upper = len(layers) - 1
    oldest, begin, shift = layers[upper, 1], layers[upper, 2], np.uint64(64 - layers[upper, 3])
    pieces, numbers, heads = layers[:upper, 0].copy(), np.zeros(upper, np.int64), np.zeros(upper, np.uint64)
    for layer in range(upper):
        if pieces[layer] < layers[layer, 1]:
            heads[layer] = load_u64(cell(table, pieces[layer], _HASH))
    count = used = 0
    while True:
        best, hash_, key, length = -1, np.uint64(0), np.int64(0), np.int64(0)
        for layer in range(upper):
            if pieces[layer] >= layers[layer, 1] or (best >= 0 and heads[layer] > hash_):
                continue
            other, other_length = _key_at(table, pieces[layer], numbers[layer])
            if best < 0 or heads[layer] < hash_ or (
                not _is_same(other, other_length, key, length) and compare_keys(other, other_length, key, length) < 0
            ):  # fmt: skip
                best, hash_, key, length = layer, heads[layer], other, other_length
        if best < 0:
            break
        start, hidden = used, False
        for layer in range(best, upper):
            if pieces[layer] >= layers[layer, 1] or heads[layer] != hash_:
                continue
            piece, number = pieces[layer], numbers[layer]
            other, other_length = _key_at(table, piece, number)
            if not _is_same(other, other_length, key, length):
                continue
            if not hidden:
                at = cell(table, piece, _ROW_OFFSETS) + 4 * number
                low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
                filled = modes[layer] == FILL
                used = _put_rows(load_i64(column + 32 * piece), low, high, piece, filled, times, rows, start, used)
                hidden = modes[layer] == WHOLE
            numbers[layer] += 1
            if numbers[layer] == cell(table, piece, _COUNT):
                pieces[layer], numbers[layer] = piece + 1, 0
            if pieces[layer] < layers[layer, 1]:
                heads[layer] = load_u64(cell(table, pieces[layer], _HASH) + 8 * numbers[layer])
        group = np.int64(-1)
        if not hidden:
            slot = begin + np.int64(hash_ >> shift)
            group = first_of_hash(hash_, table, slots[slot], slots[slot + 1])
            group = verified(hash_, group, oldest, table, key, length)
        hashes[count] = hash_
        keys[count, _ADDRESS], keys[count, _LENGTH], keys[count, _OLDEST], keys[count, _FIRST] = (
            key,
            length,
            group,
            start,
        )
        count += 1
    keys[count, _FIRST] = used
    return count


@kernel
def _fill_slots(hashes, bits, slots):  # type: ignore[no-untyped-def]
    """The first of the ascending hashes in each slot; the last entry is their number."""
    shift, slot = np.uint64(64 - bits), 0
    for number in range(len(hashes)):
        reached = np.int64(hashes[number] >> shift)
        while slot <= reached:
            slots[slot] = number
            slot += 1
    slots[slot:] = len(hashes)


# -- looking up ---------------------------------------------------------------------------------------


@kernel
def _joined_keys(hashes, pending, count, at, lengths, joined, keys, slots, bits, spots, lines):  # type: ignore[no-untyped-def]
    """For each pending key its line in `keys`, -1 where it has none; `spots` is room for as many."""
    shift = np.uint64(64 - bits)
    slot_at, hash_at, key_at = slots.ctypes.data, joined.ctypes.data, keys.ctypes.data
    for k in range(count):
        spots[k] = np.int64(hashes[pending[k]] >> shift)
        prefetch(slot_at + 8 * spots[k])
    for k in range(count):
        prefetch(hash_at + 8 * slots[spots[k]])
    for k in range(count):
        hash_, line, stop = hashes[pending[k]], slots[spots[k]], slots[spots[k] + 1]
        while line < stop and joined[line] < hash_:
            line += 1
        lines[k] = line if line < stop and joined[line] == hash_ else -1
        prefetch(key_at + 32 * line)
    for k in range(count):
        if lines[k] >= 0:
            prefetch(keys[lines[k], _ADDRESS])
    for k in range(count):
        line = lines[k]
        if line >= 0:
            hash_ = joined[line]
            while line < len(joined) and joined[line] == hash_:
                if _is_same(keys[line, _ADDRESS], keys[line, _LENGTH], at[k], lengths[k]):
                    break
                line += 1
            lines[k] = line if line < len(joined) and joined[line] == hash_ else -1


@kernel
def _spans_of(table, groups, count, column, columns, lows, highs):  # type: ignore[no-untyped-def]
    """Compute the rows of each group, and the address of the column that has their times, and prefetch those.

    Where there is no group there are no rows, and the address stays.
    """
    for k in range(count):
        if groups[k] >= 0:
            prefetch(cell(table, groups[k] >> _PIECE, _ROW_OFFSETS) + 4 * (groups[k] & _NUMBER))
    for k in range(count):
        lows[k] = highs[k] = 0
        if groups[k] >= 0:
            piece = groups[k] >> _PIECE
            at = cell(table, piece, _ROW_OFFSETS) + 4 * (groups[k] & _NUMBER)
            lows[k], highs[k] = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
            columns[k] = load_i64(column + 32 * piece)
            prefetch(columns[k] + 4 * (lows[k] + highs[k]))


@kernel
def find_joined(  # type: ignore[no-untyped-def]
    hashes, order, questions, table, oldest, directory, joined, keys, slots, bits, times, rows, column, instants, step,
    positions,
):  # fmt: skip
    """The position of the row that answers each key at its instant, in the order given; -1 where there is none.

    `joined` to `rows` are those of `JoinedRows`; `oldest` is the line of the oldest layer in `Directories`, and
    `directory` its slots; `column` is the address of the table of effective times. Else as `partial.find_rows`.
    """
    pending, slot, candidates = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    at, lengths, lines = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    others, probes, groups = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    columns, lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    moments = np.empty(BLOCK, np.int64)
    end, oldest_bits, time_at, row_at = oldest[1], oldest[3], times.ctypes.data, rows.ctypes.data
    columns[:] = time_at
    for block in range(0, len(hashes), BLOCK):
        count = begin_block(block, min(block + BLOCK, len(hashes)), order, questions, positions, pending)
        key_spans(order, questions, pending, count, at, lengths)
        _joined_keys(hashes, pending, count, at, lengths, joined, keys, slots, bits, slot, lines)
        left = 0
        for k in range(count):
            prefetch(instants + step * order[pending[k]])
            if lines[k] < 0:
                others[left], probes[left] = k, pending[k]
                left += 1
            else:
                groups[k] = keys[lines[k], _OLDEST]
                prefetch(time_at + 8 * keys[lines[k], _FIRST])
                prefetch(row_at + 8 * keys[lines[k], _FIRST])
        slots_of(hashes, probes, left, table, directory, oldest_bits, slot)
        candidates_of(hashes, probes, left, table, directory, slot, candidates)
        for j in range(left):
            k = others[j]
            groups[k] = verified(hashes[probes[j]], candidates[j], end, table, at[k], lengths[k])
        _spans_of(table, groups, count, column, columns, lows, highs)
        for k in range(count):
            moments[k] = load_i64(instants + step * order[pending[k]])
            highs[k] = last_not_after(columns[k], lows[k], highs[k], moments[k])
        for k in range(count):
            first = stop = np.int64(0)
            if lines[k] >= 0:
                first, stop = keys[lines[k], _FIRST], keys[lines[k] + 1, _FIRST]
            row = last_not_after(time_at, first, stop, moments[k])
            # All is read and then chosen: a branch would be guessed wrongly. Row 0 is read where there is none.
            newer, older = row >= first, highs[k] >= lows[k]
            time, position = times[max(row, 0)], rows[max(row, 0)]
            other = load_i64(columns[k] + 8 * max(highs[k], 0))
            wins = newer & ((not older) | (time > other) | ((time == other) & (position >= 0)))
            under = ((groups[k] >> _PIECE) << _PIECE) | highs[k] if older else np.int64(-1)
            positions[pending[k]] = position ^ (position >> 63) if wins else under
