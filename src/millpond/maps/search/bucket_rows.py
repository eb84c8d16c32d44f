"""The lookup in groups of aggregates: the rows of a key, of all layers that count, whose times lie in a span.

Questions go in blocks, stage by stage, as those of `kernels.py` do: what one stage asks the memory for, the next reads.
Those of one key that come one after another share its groups.
"""

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import chosen, load_i32, load_i64, prefetch, same_bytes
from millpond.maps.search.kernels import AHEAD, BLOCK, cell, find_groups, last_not_after

__all__ = ("distinct_keys", "find_groups_in_parts", "runs_within")

_ROW_OFFSETS = 4
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1
_LINE = 64
_LINES_MAX = 16
"""The lines of the cache that are asked for of the times of one group: of most, all."""


@kernel
def distinct_keys(hashes, order, keys, firsts, ordered, places):  # type: ignore[no-untyped-def]
    """Fill in the first question of each key of those in the order of their hashes, its hash, and the number of each
    one's key; how many keys there are. No key is null. Keys of one hash may be there more than once.
    """
    offsets, width, data, _, _ = keys
    count, at, length = 0, np.int64(0), np.int64(-1)
    for i in range(len(order)):
        if i + AHEAD < len(order):
            prefetch(offsets + width * order[i + AHEAD])
            prefetch(data + _offset(offsets + width * order[i + AHEAD // 2], width))
        place = offsets + width * order[i]
        start, stop = data + _offset(place, width), data + _offset(place + width, width)
        if stop - start != length or not same_bytes(start, at, length):
            firsts[count], ordered[count], at, length = order[i], hashes[order[i]], start, stop - start
            count += 1
        places[i] = count - 1
    return count


@kernel
def _offset(place, width):  # type: ignore[no-untyped-def]
    """The offset of a key's bytes."""
    return load_i64(place) if width == 8 else np.int64(load_i32(place))


@kernel
def find_groups_in_parts(  # type: ignore[no-untyped-def]
    hashes, order, keys, table, stretches, layers, hides, directories, filters, groups
):
    """As `kernels.find_groups`, of keys each of which is looked for in the layers of its part: `stretches` are as in
    `partial.find_rows`, one after another from the first key on, and the first lines of `groups` those of the part.
    """
    begin = stretches[0, 0] if len(stretches) else 0
    for stretch in range(len(stretches)):
        start, stop, first, end = stretches[stretch]
        lines = groups[:, start - begin : stop - begin]
        lines[end - first :] = -1
        if end > first:
            find_groups(
                hashes[start:stop], order[start:stop], keys, table, layers[first:end], hides[first:end], directories,
                filters, lines[: end - first],
            )  # fmt: skip


@kernel
def runs_within(  # type: ignore[no-untyped-def]
    table, times, order, places, groups, since, until, step, starts, answered
):
    """The runs of rows with `since` ≤ time < `until` that answer each question: where they begin, and their lengths;
    how many questions have an answer.

    A line of `groups` has the group of each key in one layer that counts, newest first, -1 where there is none.
    `places` are those of the keys of questions in it, ascending; themselves where it is empty. `order` are the
    questions' own numbers, at which `since` and `until` have one of each, or where `step` is 0 one of all. Filled in
    are, of each answer, the first run, `starts`, and the question, `answered`.
    """
    count, answers, runs, room = len(order), 0, np.int64(0), len(groups) * BLOCK
    begins, lengths = np.empty(count + room, np.int64), np.empty(count + room, np.int64)
    pieces, numbers = np.empty(room + 1, np.int64), np.empty(room + 1, np.int64)
    lines, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    keys, own = np.empty(BLOCK + 1, np.int64), np.empty(BLOCK + 1, np.int64)
    after, before = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    first, hits = np.empty(room, np.int64), np.empty(BLOCK, np.int64)
    for block in range(0, count, BLOCK):
        stop = min(block + BLOCK, count)
        _spans_of_block(order, since, until, step, block, stop, after, before)
        distinct = _groups_of_block(table, places, groups, block, stop, pieces, numbers, keys, own)
        _rows_of_groups(table, times, distinct, keys, own, pieces, numbers, lines, ends)
        if runs + room > len(begins):
            begins, lengths = _longer(begins, room), _longer(lengths, room)
        hits[:] = 0
        for key in range(distinct):
            low, high, begin, end = keys[key], keys[key + 1], own[key], own[key + 1]
            for group in range(begin, end):
                if high - low == 1:
                    row = last_not_after(lines[group], numbers[group], ends[group], after[low] - 1) + 1
                    there = row < ends[group] and load_i64(lines[group] + 8 * row) < before[low]
                    first[(group - begin) * BLOCK + low] = row if there else -1
                    hits[low] += int(there)
                    continue
                rows = first[(group - begin) * BLOCK :]
                _first_rows(lines[group], numbers[group], ends[group], after, before, low, high, rows, hits)
            for k in range(low, high):
                if hits[k] == 0:
                    continue
                starts[answers], answered[answers] = runs, order[block + k]
                answers += 1
                for group in range(begin, end):
                    row = first[(group - begin) * BLOCK + k]
                    if row >= 0:
                        begins[runs] = (pieces[group] << _PIECE) | row
                        lengths[runs] = _end_of_run(lines[group], row, ends[group], before[k]) - row
                        runs += 1
    return begins[:runs], lengths[:runs], answers


@kernel
def _spans_of_block(order, since, until, step, block, stop, after, before):  # type: ignore[no-untyped-def]
    """Fill in the spans of a block of questions."""
    ahead_since, ahead_until = since.ctypes.data, until.ctypes.data
    for i in range(block, stop):
        prefetch(ahead_since + 8 * step * order[i])
        prefetch(ahead_until + 8 * step * order[i])
    for i in range(block, stop):
        after[i - block], before[i - block] = since[step * order[i]], until[step * order[i]]


@kernel
def _groups_of_block(table, places, groups, block, stop, pieces, numbers, keys, own):  # type: ignore[no-untyped-def]
    """Fill in the pieces and numbers of the groups of a block of questions, the first question of each key, and its
    first group; how many keys. Ask for the rows of groups.

    What is no group is written, too, and the next one over it: a branch would be guessed wrongly.
    """
    those, distinct, before = 0, 0, np.int64(-1)
    for i in range(block, stop):
        place = np.int64(places[i] if len(places) else i)
        if place == before:
            continue
        keys[distinct], own[distinct], before = i - block, those, place
        distinct += 1
        for layer in range(len(groups)):
            group = groups[layer, place]
            pieces[those], numbers[those] = group >> _PIECE, group & _NUMBER
            those += int(group >= 0)
    keys[distinct], own[distinct] = stop - block, those
    for group in range(those):
        prefetch(cell(table, pieces[group], _ROW_OFFSETS) + 4 * numbers[group])
    return distinct


@kernel
def _rows_of_groups(table, times, distinct, keys, own, pieces, numbers, lines, ends):  # type: ignore[no-untyped-def]
    """Fill in the times of the rows of each group, the first, in the place of its number, and their end. Ask for the
    time in their middle; for all where questions share the group, as these read most of them.
    """
    for key in range(distinct):
        shared = keys[key + 1] - keys[key] > 1
        for group in range(own[key], own[key + 1]):
            at = cell(table, pieces[group], _ROW_OFFSETS) + 4 * numbers[group]
            numbers[group], ends[group] = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
            lines[group] = load_i64(times + 32 * pieces[group])
            begin, end = lines[group] + 8 * numbers[group], lines[group] + 8 * ends[group]
            if not shared:
                prefetch((begin + end) >> 1)
                continue
            for line in range(begin, min(end, begin + _LINES_MAX * _LINE), _LINE):
                prefetch(line)


@kernel
def _first_rows(line, begin, end, after, before, low, high, first, hits):  # type: ignore[no-untyped-def]
    """Fill in the first of the rows from `begin` to `end` in the span of each question from `low` on, -1: none is; and
    count it.

    Questions are halved side by side, without a branch that depends on times, which would be guessed wrongly.
    """
    for k in range(low, high):
        first[k] = begin if end > begin else -1
    if begin == end:
        return
    left = end - begin
    while left > 1:
        half = left >> 1
        for k in range(low, high):
            row = first[k]
            first[k] = chosen(load_i64(line + 8 * (row + half - 1)) < after[k], row + half, row)
        left -= half
    for k in range(low, high):
        row = first[k] + np.int64(load_i64(line + 8 * first[k]) < after[k])
        there = (row < end) & (load_i64(line + 8 * min(row, end - 1)) < before[k])
        first[k] = chosen(there, row, np.int64(-1))
        hits[k] += np.int64(there)


@kernel
def _end_of_run(line, first, high, until):  # type: ignore[no-untyped-def]
    """The number of the first row that is not before `until`, after a row that is; most runs are short."""
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
