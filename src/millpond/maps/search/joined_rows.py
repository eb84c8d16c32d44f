"""The rows of all layers over the oldest, joined in memory: a question asks two places, however many layers there are.

    layers, newest first     joined: key, hash, rows in the oldest, rows in order of time
    join   a: t=3            a   17f3…   3:204, 1     t=2 t=3
    fill   a: t=2            b   9c40…   none         t=9
    whole  b: t=9            (c is not there: the oldest layer is asked for it)
    whole  a: t=1  c: t=4

It is worked out, by one pass in order of key, when as much was asked as it costs. What it holds is positions of rows
and their times, no values.

Invariants:
* A key is there once, and is compared in full: a hash alone never answers.
* A key that a whole group speaks of has no rows in the oldest layer: nothing under that counts.
* The position of a row that came from `fill` is inverted: a row of the same time in the oldest layer replaces it.

`partial.py` states the same rule layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import chosen, load_i32, load_i64, load_u64, prefetch, same_bytes
from millpond.arrays.radix import I64
from millpond.maps.search.directories import directory_bits, fill_slots
from millpond.maps.search.group_table import COUNT, HASH, NUMBER, PIECE, ROW_OFFSETS, cell, key_of
from millpond.maps.search.groups import Directories, Groups, rows_of
from millpond.maps.search.kernels import (
    BLOCK,
    ask_for_bytes,
    ask_for_times,
    begin_block,
    candidates_of,
    first_of_hash,
    key_spans,
    last_rows,
    slots_of,
    spans_of,
    verified,
)
from millpond.maps.search.partial import FILL, WHOLE
from millpond.maps.search.visible import compare_keys

__all__ = ("JOINED_AFTER", "JOINED_BYTES_MAX", "JoinedRows", "find_joined", "joined_bytes")

_ADDRESS, _TAG, _OLDEST, _SPAN = range(4)  # columns of a line of `keys`
_KEY_BYTES, _ROW_BYTES = 56, 16
_FINER = 2
"""More bits than a directory of groups has, which reads files: a slot has one key on average, often the right one."""
_COMPARED = 4
"""So many lines of a slot are compared at once; one slot of a hundred has more."""

JOINED_AFTER = 1 << 17
"""Fewer questions are answered before the kernels of this module are loaded."""
JOINED_BYTES_MAX = _ROW_BYTES << 32
"""The number of a row has four bytes."""


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The keys in order of their hashes, and their rows; valid as long as the groups that they lie in.

    A line of `keys`, half a cache line, is: the address of the key's bytes; their number << 32 | the lower half of the
    hash; the position of its first row in the oldest layer; the number of its rows there << 32 | that of its first row
    here. Its rows here go up to those of the next line. `slots` has the first line of each slot of `bits`; `rows` has
    for each key the times, then the positions of its rows.
    """

    keys: I64
    slots: I64
    bits: int
    rows: I64

    @classmethod
    def of(cls, groups: Groups, directories: Directories, modes: I64, times: int) -> JoinedRows:
        """Join all layers but the oldest; `times` is the address of the table of effective times."""
        keys, rows = _extent(groups)
        hashes, lines, joined = (
            np.empty(keys, np.uint64),
            np.zeros((keys + 1, 4), np.int64),
            np.empty(2 * rows + 2, np.int64),
        )
        count = _join_layers(groups.address, directories.layers, modes, directories.slots, times, hashes, lines, joined)
        bits = directory_bits(count) + _FINER
        slots = np.empty((1 << bits) + 1, np.int64)
        fill_slots(hashes[:count], bits, slots)
        return cls(lines, slots, bits, joined)


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
def _is_same(key, length, other, other_length):  # type: ignore[no-untyped-def]
    return length == other_length and same_bytes(key, other, length)


@kernel
def _put_rows(column, low, high, piece, filled, times, rows, stop):  # type: ignore[no-untyped-def]
    """Join the rows `[low, high)` of an older group to the first `stop` ones; where they end then.

    It goes from the end: rows move into the room behind them.
    """
    to, there, row = stop + high - low - 1, stop - 1, high - 1
    while row >= low:
        time, position = load_i64(column + 8 * row), (piece << PIECE) | row
        if there >= 0 and times[there] >= time:
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
def _join_layers(table, layers, modes, slots, column, hashes, keys, joined):  # type: ignore[no-untyped-def]
    """Fill in the keys of all layers but the last, and their rows; how many keys. Layers are walked side by side."""
    times, rows = np.empty(len(joined) >> 1, np.int64), np.empty(len(joined) >> 1, np.int64)
    upper = len(layers) - 1
    oldest, begin, shift = layers[upper, 1], layers[upper, 2], np.uint64(64 - layers[upper, 3])
    pieces, numbers, heads = layers[:upper, 0].copy(), np.zeros(upper, np.int64), np.zeros(upper, np.uint64)
    for layer in range(upper):
        if pieces[layer] < layers[layer, 1]:
            heads[layer] = load_u64(cell(table, pieces[layer], HASH))
    count, used = 0, np.int64(0)
    while True:
        best, hash_, key, length = -1, np.uint64(0), np.int64(0), np.int64(0)
        for layer in range(upper):
            if pieces[layer] >= layers[layer, 1] or (best >= 0 and heads[layer] > hash_):
                continue
            other, other_length = key_of(table, (pieces[layer] << PIECE) | numbers[layer])
            if best < 0 or heads[layer] < hash_ or (
                not _is_same(other, other_length, key, length) and compare_keys(other, other_length, key, length) < 0
            ):  # fmt: skip
                best, hash_, key, length = layer, heads[layer], other, other_length
        if best < 0:
            break
        own, hidden = np.int64(0), False
        for layer in range(best, upper):
            if pieces[layer] >= layers[layer, 1] or heads[layer] != hash_:
                continue
            piece, number = pieces[layer], numbers[layer]
            other, other_length = key_of(table, (piece << PIECE) | number)
            if not _is_same(other, other_length, key, length):
                continue
            if not hidden:
                at = cell(table, piece, ROW_OFFSETS) + 4 * number
                low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
                filled = modes[layer] == FILL
                own = _put_rows(load_i64(column + 32 * piece), low, high, piece, filled, times, rows, own)
                hidden = modes[layer] == WHOLE
            numbers[layer] += 1
            if numbers[layer] == cell(table, piece, COUNT):
                pieces[layer], numbers[layer] = piece + 1, 0
            if pieces[layer] < layers[layer, 1]:
                heads[layer] = load_u64(cell(table, pieces[layer], HASH) + 8 * numbers[layer])
        first = older = np.int64(0)
        if not hidden:
            slot = begin + np.int64(hash_ >> shift)
            group = first_of_hash(hash_, table, slots[slot], slots[slot + 1])
            group = verified(hash_, group, oldest, table, key, length)
            if group >= 0:
                at = cell(table, group >> PIECE, ROW_OFFSETS) + 4 * (group & NUMBER)
                first = (group & ~NUMBER) | load_i32(at)
                older = np.int64(load_i32(at + 4)) - np.int64(load_i32(at))
        hashes[count] = hash_
        keys[count, _ADDRESS], keys[count, _TAG] = key, _tag(hash_, length)
        keys[count, _OLDEST], keys[count, _SPAN] = first, (older << PIECE) | used
        joined[2 * used : 2 * used + own], joined[2 * used + own : 2 * (used + own)] = times[:own], rows[:own]
        count, used = count + 1, used + own
    keys[count, _TAG], keys[count, _SPAN] = -1, used  # no key has this tag
    return count


@kernel
def _tag(hash_, length):  # type: ignore[no-untyped-def]
    return (length << PIECE) | np.int64(hash_ & np.uint64(NUMBER))


# -- looking up ---------------------------------------------------------------------------------------


@kernel
def _joined_keys(hashes, pending, count, at, lengths, keys, slots, bits, spots, whose, lines):  # type: ignore[no-untyped-def]
    """Fill in the pending keys in `whose`: first those that have no line in `keys`, then the others, and their lines.

    How many have none. `spots` is room for as many as `whose`.
    """
    shift, slot_at, key_at = np.uint64(64 - bits), slots.ctypes.data, keys.ctypes.data
    for k in range(count):
        spots[k] = slot_at + 8 * np.int64(hashes[pending[k]] >> shift)
        prefetch(spots[k])
    for k in range(count):
        prefetch(key_at + 32 * load_i64(spots[k]))
        prefetch(key_at + 32 * load_i64(spots[k] + 8))
    left, last = 0, count - 1
    for k in range(count):
        tag = _tag(hashes[pending[k]], lengths[k])
        line = _line_of_tag(key_at, load_i64(spots[k]), load_i64(spots[k] + 8), tag)
        ask_for_bytes(load_i64(key_at + 32 * max(line, 0)), lengths[k])
        # Without a branch, which would be guessed wrongly: at both ends, one of which the next key writes over.
        whose[left], whose[last], lines[last] = k, k, line
        left += int(line < 0)
        last -= int(line >= 0)
    for j in range(left, count):
        k, line = whose[j], lines[j]
        if not _is_same(keys[line, _ADDRESS], keys[line, _TAG] >> PIECE, at[k], lengths[k]):
            lines[j] = _among_clashes(keys, line + 1, load_i64(spots[k] + 8), at[k], lengths[k])
            if lines[j] < 0:
                whose[j], lines[j], whose[left] = whose[left], lines[left], k
                left += 1
    return left


@kernel
def _line_of_tag(keys, line, stop, tag):  # type: ignore[no-untyped-def]
    """The first line of a slot that has the tag; -1: none has. Of a few no branch depends on them, as in `kernels`."""
    if stop - line > _COMPARED:
        while line < stop and load_i64(keys + 32 * line + 8) != tag:
            line += 1
        return line if line < stop else np.int64(-1)
    match, last = np.int64(-1), max(stop - 1, line)
    for i in range(_COMPARED - 1, -1, -1):
        at = min(line + i, last)
        match = chosen(load_i64(keys + 32 * at + 8) == tag, at, match)
    return match


@kernel
def _among_clashes(keys, line, stop, key, length):  # type: ignore[no-untyped-def]
    """The line of exactly this key from a line on; -1 when there is none."""
    while line < stop:
        if _is_same(keys[line, _ADDRESS], keys[line, _TAG] >> PIECE, key, length):
            return line
        line += 1
    return np.int64(-1)


@kernel
def find_joined(  # type: ignore[no-untyped-def]
    hashes, order, questions, table, oldest, directory, keys, slots, bits, rows, column, instants, step, positions
):
    """The position of the row that answers each key at its instant, in the order given; -1 where there is none.

    `keys` to `rows` are those of `JoinedRows`; `oldest` is the line of the oldest layer in `Directories`, and
    `directory` its slots; `column` is the address of the table of effective times. Else as `partial.find_rows`.
    """
    pending, slot, candidates = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    at, lengths, lines = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    whose, probes, groups = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    columns, lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    own, first, stops = np.empty(BLOCK, np.int64), np.zeros(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    counts, moments = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    end, oldest_bits, row_at = oldest[1], oldest[3], rows.ctypes.data
    for block in range(0, len(hashes), BLOCK):
        count = begin_block(block, min(block + BLOCK, len(hashes)), order, questions, positions, pending)
        key_spans(order, questions, pending, count, at, lengths)
        for k in range(count):
            prefetch(instants + step * order[pending[k]])
        left = _joined_keys(hashes, pending, count, at, lengths, keys, slots, bits, slot, whose, lines)
        for j in range(left):
            probes[j] = pending[whose[j]]
        slots_of(hashes, probes, left, table, directory, oldest_bits, slot)
        candidates_of(hashes, probes, left, table, directory, slot, candidates)
        for j in range(left):
            k = whose[j]
            groups[j] = verified(hashes[probes[j]], candidates[j], end, table, at[k], lengths[k])
        spans_of(table, groups, left, column, columns, lows, highs)
        for j in range(left, count):
            line, span = lines[j], keys[lines[j], _SPAN]
            here, stop = span & NUMBER, keys[line + 1, _SPAN] & NUMBER
            groups[j], own[j], stops[j] = keys[line, _OLDEST], row_at + 16 * here, stop - here
            columns[j] = load_i64(column + 32 * (groups[j] >> PIECE))
            lows[j] = groups[j] & NUMBER
            highs[j] = lows[j] + (span >> PIECE)
            ask_for_times(columns[j], lows[j], highs[j])
            ask_for_times(own[j], np.int64(0), 2 * stops[j])
        for j in range(count):
            moments[j] = load_i64(instants + step * order[pending[whose[j]]])
        last_rows(columns, lows, highs, moments, 0, count)
        for j in range(left):
            there = chosen(highs[j] >= lows[j], (groups[j] & ~NUMBER) | highs[j], np.int64(-1))
            positions[probes[j]] = there
        for j in range(left, count):
            counts[j] = stops[j]
        last_rows(own, first, stops, moments, left, count)
        for j in range(left, count):
            # All is read and then chosen: a branch would be guessed wrongly. Where there is no row, another is read.
            newer, older, row = stops[j] >= 0, highs[j] >= lows[j], own[j] + 8 * max(stops[j], 0)
            time, position = load_i64(row), load_i64(row + 8 * counts[j])
            other = load_i64(chosen(older, columns[j] + 8 * highs[j], row_at))
            wins = newer & ((not older) | (time > other) | ((time == other) & (position >= 0)))
            under = chosen(older, (groups[j] & ~NUMBER) | highs[j], np.int64(-1))
            positions[pending[whose[j]]] = chosen(wins, position ^ (position >> 63), under)
