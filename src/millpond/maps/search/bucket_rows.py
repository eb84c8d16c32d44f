"""The lookup in groups of aggregates: the rows of a group whose times lie in a span."""

from __future__ import annotations

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, prefetch
from millpond.maps.search.kernels import AHEAD, cell, last_not_after

__all__ = ("rows_within",)

_ROW_OFFSETS = 4
_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1


@kernel
def rows_within(table, times, order, groups, since, until, step, begins, counts):  # type: ignore[no-untyped-def]
    """Fill in the position of the first row of each group with `since` ≤ time < `until`, and how many there are.

    `groups` are positions in search order, -1 where there is none; `since` and `until` are arrays in the order of the
    questions, of one for all where `step` is 0. Else as `kernels.as_of`.
    """
    for i in range(len(groups)):
        ahead = i + AHEAD
        if ahead < len(groups) and groups[ahead] >= 0:
            prefetch(cell(table, groups[ahead] >> _PIECE, _ROW_OFFSETS) + 4 * (groups[ahead] & _NUMBER))
        begins[i], counts[i] = 0, 0
        if groups[i] < 0:
            continue
        piece = groups[i] >> _PIECE
        at = cell(table, piece, _ROW_OFFSETS) + 4 * (groups[i] & _NUMBER)
        low, high = np.int64(load_i32(at)), np.int64(load_i32(at + 4))
        line, question = load_i64(times + 32 * piece), order[i] * step
        first = last_not_after(line, low, high, since[question] - 1) + 1
        stop = first
        if first < high and load_i64(line + 8 * first) < until[question]:
            # Most spans are short: from the first row, in steps that double, to one that lies behind the span.
            step_rows = 1
            while first + step_rows < high and load_i64(line + 8 * (first + step_rows)) < until[question]:
                step_rows *= 2
            stop = last_not_after(line, first, min(first + step_rows, high), until[question] - 1) + 1
        if stop > first:
            begins[i], counts[i] = (piece << _PIECE) | first, stop - first
