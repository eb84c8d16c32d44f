"""The lookup in groups of aggregates: the rows of a key, of all layers that count, whose times lie in a span.

Questions go in blocks, stage by stage, as those of `kernels.py` do: what one stage asks the memory for, the next reads.
"""

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, prefetch, same_bytes
from millpond.maps.search.kernels import AHEAD, BLOCK, cell, last_not_after

__all__ = ("distinct_keys", "runs_within")

_ROW_OFFSETS = 4
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1


@kernel
def distinct_keys(hashes, order, keys, firsts, places):  # type: ignore[no-untyped-def]
    """Fill in the first question of each key of those in the order of their hashes, and the number of each one's key;
    how many keys there are. No key is null. Keys of one hash may be there more than once.
    """
    offsets, width, data, _, _ = keys
    count, at, length = 0, np.int64(0), np.int64(-1)
    for i in range(len(order)):
        if i + AHEAD < len(order):
            prefetch(offsets + width * order[i + AHEAD])
            prefetch(data + _offset(offsets + width * order[i + AHEAD // 2], width))
        place = offsets + width * order[i]
        start, stop = data + _offset(place, width), data + _offset(place + width, width)
        if stop - start != length or hashes[i] != hashes[i - 1] or not same_bytes(start, at, length):
            firsts[count], at, length = i, start, stop - start
            count += 1
        places[i] = count - 1
    return count


@kernel
def _offset(place, width):  # type: ignore[no-untyped-def]
    """The offset of a key's bytes."""
    return load_i64(place) if width == 8 else np.int64(load_i32(place))


@kernel
def runs_within(table, times, places, groups, hides, since, until, step, starts, positions):  # type: ignore[no-untyped-def]
    """The runs of rows with `since` ≤ time < `until` that answer each question: where they begin, and their lengths.

    A line of `groups` has the group of each key in one layer, newest first, -1 where there is none; a group of a layer
    that `hides` is the last that counts. `places` are those of the keys of questions in it, themselves where it is
    empty. `since` and `until` are one of each question, or where `step` is 0 one of all. Filled in are the first run of
    each answer, `starts`, which has room for one more, and the number of the answer of each question, `positions`; -1:
    there is none.
    """
    count, answers, runs, room = len(positions), 0, 0, len(groups) * BLOCK
    begins, lengths = np.empty(count + room, np.int64), np.empty(count + room, np.int64)
    group_of, whose, own = np.empty(room + 1, np.int64), np.empty(room + 1, np.int64), np.empty(BLOCK, np.int64)
    lows, highs = np.empty(room, np.int64), np.empty(room, np.int64)
    for block in range(0, count, BLOCK):
        stop = min(block + BLOCK, count)
        those = _counting(table, places, groups, hides, block, stop, group_of, whose)
        _spans_of_groups(table, times, group_of, those, lows, highs)
        if runs + room > len(begins):
            begins, lengths = _longer(begins, room), _longer(lengths, room)
        first_run = runs
        own[:] = 0
        for k in range(those):
            i, piece, high = whose[k], group_of[k] >> _PIECE, highs[k]
            line = load_i64(times + 32 * piece)
            first = last_not_after(line, lows[k], high, since[i * step] - 1) + 1
            end = _end_of_run(line, first, high, until[i * step])
            begins[runs], lengths[runs] = (piece << _PIECE) | first, end - first
            runs += int(end > first)
            own[i - block] += np.int64(end > first)
        for i in range(block, stop):
            there = own[i - block] > 0
            starts[answers], positions[i] = first_run, answers if there else -1
            answers += int(there)
            first_run += own[i - block]
    return begins[:runs], lengths[:runs], answers


@kernel
def _counting(table, places, groups, hides, block, stop, group_of, whose):  # type: ignore[no-untyped-def]
    """Fill in the groups that count for a block of questions, and whose they are; how many. Ask for their rows.

    What is no group is written, too, and the next one over it: a branch would be guessed wrongly.
    """
    those = 0
    for i in range(block, stop):
        place, hidden = places[i] if len(places) else i, False
        for layer in range(len(groups)):
            group = groups[layer, place]
            counts = group >= 0 and not hidden
            group_of[those], whose[those] = group, i
            those += int(counts)
            hidden |= counts and hides[layer]
    for k in range(those):
        prefetch(cell(table, group_of[k] >> _PIECE, _ROW_OFFSETS) + 4 * (group_of[k] & _NUMBER))
    return those


@kernel
def _spans_of_groups(table, times, group_of, those, lows, highs):  # type: ignore[no-untyped-def]
    """Fill in the rows of each group, and ask for the time in their middle."""
    for k in range(those):
        piece = group_of[k] >> _PIECE
        at = cell(table, piece, _ROW_OFFSETS) + 4 * (group_of[k] & _NUMBER)
        lows[k], highs[k] = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
        prefetch(load_i64(times + 32 * piece) + 4 * (lows[k] + highs[k]))


@kernel
def _end_of_run(line, first, high, until):  # type: ignore[no-untyped-def]
    """The number of the first row that is not before `until`, from a row on; most runs are short."""
    if first >= high or load_i64(line + 8 * first) >= until:
        return first
    # From the first row, in steps that double, to one that lies behind the span.
    step = 1
    while first + step < high and load_i64(line + 8 * (first + step)) < until:
        step *= 2
    return last_not_after(line, first, min(first + step, high), until - 1) + 1


@kernel
def _longer(numbers, room):  # type: ignore[no-untyped-def]
    """The numbers, with half as much room again, and as much as is needed at least."""
    longer = np.empty(len(numbers) + max(len(numbers) >> 1, room), np.int64)
    longer[: len(numbers)] = numbers
    return longer
