"""The lookup in layers that are not all whole: the best row of several groups of one key.

Every layer is asked for the key, newest first, down to the first whole group; of each group comes the row that answers
in it, as in `kernels.py`, and of those rows one.

Invariants:
* The best row is the latest; of sessions the latest start, then the earliest end.
* Of two rows of one address the newer answers, but a row of a `fill` layer only where there is no older one.

`snapshots/joined_groups.py` states the same rule for all rows. Where all layers are whole, `find_groups` is faster.
"""

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, prefetch
from millpond.arrays.xxh3 import hash_at
from millpond.maps.search.directories import may_have, probes_of
from millpond.maps.search.group_table import NUMBER, PIECE, ROW_OFFSETS, cell
from millpond.maps.search.kernels import (
    BLOCK,
    ask_for_bytes,
    begin_block,
    candidates_of,
    first_of_hash,
    innermost_row,
    key_spans,
    last_not_after,
    slots_of,
    spans_of,
    verified,
)

__all__ = ("FILL", "JOIN", "WHOLE", "find_row", "find_rows", "last_up_to", "order_by_parts")

WHOLE, JOIN, FILL = range(3)
"""The modes of layers, as the kernel takes them."""

_SPANS = 4  # so many spans for each moment


@kernel
def _time_of(times, position):  # type: ignore[no-untyped-def]
    return load_i64(load_i64(times + 32 * (position >> PIECE)) + 8 * (position & NUMBER))


@kernel
def _is_better(first, second, row, other, filled):  # type: ignore[no-untyped-def]
    """True when a row of an older layer answers in the place of another; `filled`: that is of a `fill` layer."""
    if other < 0 or first == 0:
        return other < 0 or filled
    time, best = _time_of(first, row), _time_of(first, other)
    if time != best or second == 0:
        return time > best or (time == best and filled)
    return _time_of(second, row) < _time_of(second, other)


@kernel
def _row_in(table, first, second, group, instant):  # type: ignore[no-untyped-def]
    """The row of a group that answers; -1: none does. Without times (`first` is 0) it is the only one."""
    if second != 0:
        return innermost_row(table, first, second, group, instant)
    piece, number = group >> PIECE, group & NUMBER
    at = cell(table, piece, ROW_OFFSETS)
    if at == 0:
        return group
    low, high = np.int64(load_i32(at + 4 * number)), np.int64(load_i32(at + 4 * number + 4))
    row = last_not_after(load_i64(first + 32 * piece), low, high, instant) if first != 0 else high - 1
    return (piece << PIECE) | row if row >= low else np.int64(-1)


@kernel
def _ask_for_rows(table, candidates, count):  # type: ignore[no-untyped-def]
    """Ask for the row offsets of the groups that are there."""
    for k in range(count):
        if candidates[k] >= 0:
            ask_for_bytes(cell(table, candidates[k] >> PIECE, ROW_OFFSETS) + 4 * (candidates[k] & NUMBER), 8)


@kernel
def last_up_to(moments, questions, numbers):  # type: ignore[no-untyped-def]
    """The number of the last of the ascending moments up to each question; -1: none.

    Spans of time, all of one length, say which moments a question may mean: a few, where loads come evenly.
    """
    if len(moments) == 0 or len(questions) == 0:
        numbers[:] = -1
        return
    at, first, last = moments.ctypes.data, moments[0], moments[len(moments) - 1]
    shift = 0
    while (last - first) >> shift > min(_SPANS * len(moments), len(questions)):
        shift += 1
    begins = np.empty(((last - first) >> shift) + 2, np.int64)
    for span in range(len(begins)):
        begins[span] = last_not_after(at, 0, len(moments), first + (span << shift) - 1) + 1
    for i in range(len(questions)):
        span = max(min(questions[i], last) - first, 0) >> shift
        numbers[i] = last_not_after(at, begins[span], begins[span + 1], questions[i])


@kernel
def order_by_parts(hashes, bits, numbers, begins, order, ordered, stretches):  # type: ignore[no-untyped-def]
    """Keys in order of the upper `bits` of their hashes, then of the numbers of their parts (-1: none); their hashes.

    Fills in the `stretches` that `find_rows` takes, one for each part whose layers begin at `begins`; how many.
    """
    parts, shift = len(begins), np.uint64(63 - bits)
    at = np.zeros((parts << bits) + 1, np.int64)
    for row in range(len(hashes)):
        at[np.int64(hashes[row] >> np.uint64(1) >> shift) * parts + numbers[row] + 2] += 1
    count = 0
    for place in range(parts << bits):
        start, part = at[place], place % parts - 1
        at[place + 1] += start
        if at[place + 1] > start:
            stretches[count, 0], stretches[count, 1] = start, at[place + 1]
            stretches[count, 2], stretches[count, 3] = (begins[part], begins[part + 1]) if part >= 0 else (0, 0)
            count += 1
    for row in range(len(hashes)):
        place = np.int64(hashes[row] >> np.uint64(1) >> shift) * parts + numbers[row] + 1
        to = at[place]
        at[place] = to + 1
        order[to] = row
        ordered[to] = hashes[row]
    return count


@kernel
def _without(candidates, which, those, pending, at, lengths, count):  # type: ignore[no-untyped-def]
    """Drop the pending keys of which a layer has a group; how many are left."""
    left = j = 0
    for k in range(count):
        if j < those and which[j] == k:
            j += 1
            if candidates[j - 1] >= 0:
                continue
        pending[left], at[left], lengths[left] = pending[k], at[k], lengths[k]
        left += 1
    return left


@kernel
def find_rows(  # type: ignore[no-untyped-def]
    hashes, order, keys, table, stretches, layers, modes, directories, filters, first, second, instants, step, rows
):
    """The position of the row that answers each key at its instant, in the order given; -1 where there is none.

    A line of `stretches` (start, stop, begin, end) has the keys from `start` to `stop` searched in the layers from
    `begin` to `end`; each key is in one. `modes` has one number per layer. `first` is the address of the
    table of the effective times, or of starts and `second` that of ends; 0: there are none. Else as
    `kernels.find_groups` and `kernels.as_of`.
    """
    pending, slots, candidates = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    which, probes = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    at, lengths, filled = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.bool_)
    columns, lows, highs = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    stretch, block = 0, stretches[0, 0] if len(stretches) else 0
    while stretch < len(stretches):
        stop = min(block + BLOCK, stretches[stretch, 1])
        count = begin_block(block, stop, order, keys, rows, pending)
        key_spans(order, keys, pending, count, at, lengths)
        for i in range(block, stop):
            prefetch(instants + step * order[i])
        for layer in range(stretches[stretch, 2], stretches[stretch, 3]):
            end, begin, bits, mode = layers[layer, 1], layers[layer, 2], layers[layer, 3], modes[layer]
            directory = directories[begin : begin + (1 << bits) + 1]
            those = probes_of(hashes, pending, count, filters, layers[layer, 4], layers[layer, 5], which, probes)
            slots_of(hashes, probes, those, table, directory, bits, slots)
            candidates_of(hashes, probes, those, table, directory, slots, candidates)
            for j in range(those):
                k = which[j]
                candidates[j] = verified(hashes[probes[j]], candidates[j], end, table, at[k], lengths[k])
            if first != 0:
                spans_of(table, candidates, those, first, columns, lows, highs)
            else:
                _ask_for_rows(table, candidates, those)
            for j in range(those):
                if candidates[j] < 0:
                    continue
                i = probes[j]
                row = _row_in(table, first, second, candidates[j], load_i64(instants + step * order[i]))
                if row >= 0 and _is_better(first, second, row, rows[i], filled[i - block]):
                    rows[i] = row
                    filled[i - block] = mode == FILL
            if mode == WHOLE and layer + 1 < stretches[stretch, 3]:
                count = _without(candidates, which, those, pending, at, lengths, count)
        block = stop
        if stop == stretches[stretch, 1]:
            stretch += 1
            block = stretches[stretch, 0] if stretch < len(stretches) else 0


@kernel
def find_row(key, instant, places):  # type: ignore[no-untyped-def]
    """The position of the row that answers one key, of at most `KERNEL_BYTES_MAX` bytes, at an instant; -1: none does.

    `places` are the addresses of the table, of the lines of layers, of their modes, of directories and of filters, then
    `first` and `second` as for `find_rows`, the number of layers, and the bits that hashes have.
    """
    data, length = np.frombuffer(key, np.uint8).ctypes.data, len(key)
    hashed, best, filled = hash_at(data, length) & np.uint64(places[8]), np.int64(-1), False
    table, lines, modes, slots = places[0], places[1], places[2], places[3]
    filters, first, second = places[4], places[5], places[6]
    for layer in range(places[7]):
        line = lines + 48 * layer
        end, begin, bits = load_i64(line + 8), load_i64(line + 16), load_i64(line + 24)
        if not may_have(hashed, filters + 8 * load_i64(line + 32), load_i64(line + 40)):
            continue
        slot = slots + 8 * (begin + np.int64(hashed >> np.uint64(64 - bits)))
        group = first_of_hash(hashed, table, load_i64(slot), load_i64(slot + 8))
        group = verified(hashed, group, end, table, data, length)
        if group < 0:
            continue
        mode, row = load_i64(modes + 8 * layer), _row_in(table, first, second, group, instant)
        if row >= 0 and _is_better(first, second, row, best, filled):
            best, filled = row, mode == FILL
        if mode == WHOLE:
            break
    return best
