"""The lookup in groups of aggregates: the rows of a key, of all layers that count, whose times lie in a span.

Questions go in blocks, stage by stage, as those of `kernels.py` do: what one stage asks the memory for, the next reads.
"""

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, prefetch
from millpond.maps.search.kernels import BLOCK, cell, last_not_after

__all__ = ("runs_within",)

_ROW_OFFSETS = 4
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1


@kernel
def runs_within(table, times, places, groups, hides, since, until, step, starts, positions):  # type: ignore[no-untyped-def]
    """The runs of rows with `since` ≤ time < `until` that answer each question: where they begin, and their lengths.

    A line of `groups` has the group of each key in one layer, newest first, -1 where there is none; a group of a layer
    that `hides` is the last that counts. `places` are those of the keys of questions in it, themselves where it is
    empty. `since` and `until` are one of each question, or where `step` is 0 one of all. Filled in are the first run of
    each answer, `starts`, and the number of the answer of each question, `positions`; -1: there is none.
    """
    layers, count, answers, runs = len(groups), len(positions), 0, 0
    begins, lengths = np.empty(count + BLOCK * layers, np.int64), np.empty(count + BLOCK * layers, np.int64)
    lows, highs = np.empty((layers, BLOCK), np.int64), np.empty((layers, BLOCK), np.int64)
    for block in range(0, count, BLOCK):
        stop = min(block + BLOCK, count)
        _ask_for_groups(table, places, groups, block, stop)
        _spans_of_groups(table, times, places, groups, block, stop, lows, highs)
        if runs + layers * BLOCK > len(begins):
            begins, lengths = _longer(begins, layers * BLOCK), _longer(lengths, layers * BLOCK)
        for i in range(block, stop):
            place, first_run, first_time = places[i] if len(places) else i, runs, since[i * step]
            for layer in range(layers):
                group = groups[layer, place]
                if group < 0:
                    continue
                piece, low, high = group >> _PIECE, lows[layer, i - block], highs[layer, i - block]
                line = load_i64(times + 32 * piece)
                first = last_not_after(line, low, high, first_time - 1) + 1
                end = _end_of_run(line, first, high, until[i * step])
                if end > first:
                    begins[runs], lengths[runs] = (piece << _PIECE) | first, end - first
                    runs += 1
                if hides[layer]:
                    break
            positions[i] = -1
            if runs > first_run:
                starts[answers], positions[i] = first_run, answers
                answers += 1
    return begins[:runs], lengths[:runs], answers


@kernel
def _ask_for_groups(table, places, groups, block, stop):  # type: ignore[no-untyped-def]
    """Ask for where the rows of the groups of a block of questions begin."""
    for i in range(block, stop):
        place = places[i] if len(places) else i
        for layer in range(len(groups)):
            group = groups[layer, place]
            if group >= 0:
                prefetch(cell(table, group >> _PIECE, _ROW_OFFSETS) + 4 * (group & _NUMBER))


@kernel
def _spans_of_groups(table, times, places, groups, block, stop, lows, highs):  # type: ignore[no-untyped-def]
    """Fill in the rows of each group of a block, and ask for the time in their middle."""
    for i in range(block, stop):
        place = places[i] if len(places) else i
        for layer in range(len(groups)):
            group = groups[layer, place]
            if group >= 0:
                piece = group >> _PIECE
                at = cell(table, piece, _ROW_OFFSETS) + 4 * (group & _NUMBER)
                low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
                lows[layer, i - block], highs[layer, i - block] = low, high
                prefetch(load_i64(times + 32 * piece) + 4 * (low + high))


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
