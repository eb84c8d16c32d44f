"""The innermost session from each instant on: derived once at freeze, so that a lookup is one binary search.

The sessions of a key, in order of (start, end), cover the line of time. Of several that hold an instant, the
innermost is the one with the latest start, then the earliest end. Both ends belong to a session, so one that ends at
`e` stops holding at `e + 1`.

A key whose sessions start and end in the same order, no two with the same start, needs no cover: the last session
that has started is the innermost, or none is. Nested sessions get breakpoints `(from, row)`: from this instant on,
until the next breakpoint, `row` is the innermost (-1: none).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.arrays.compiled import kernel

__all__ = ("cover_sessions",)

_LAST_INSTANT = np.iinfo(np.int64).max

I64 = npt.NDArray[np.int64]


def cover_sessions(spans: I64, starts: I64, ends: I64) -> tuple[I64, I64, npt.NDArray[np.int32]]:
    """The cover of every group: offsets of each group's breakpoints, their instants and their rows.

    `spans` are the offsets of the groups over `starts, ends`, which are in order of (start, end) within a group.
    """
    most = 2 * len(starts)
    offsets = np.zeros(len(spans), np.int64)
    since, row = np.empty(most, np.int64), np.empty(most, np.int32)
    used = _cover(spans, starts, ends, offsets, since, row)
    return offsets, since[:used], row[:used]


@kernel
def _nested(starts, ends, low, high):  # type: ignore[no-untyped-def]
    for i in range(low + 1, high):  # noqa: SIM110 - compiled: numba has no `any` over a generator
        if ends[i] < ends[i - 1] or starts[i] == starts[i - 1]:
            return True
    return False


@kernel
def _mark(since, row, first, used, instant, entry):  # type: ignore[no-untyped-def]
    """From `instant` on the innermost is `entry`; a later word about the same instant replaces the earlier."""
    if used > first and since[used - 1] == instant:
        used -= 1
    if used > first and row[used - 1] == entry:
        return used
    since[used] = instant
    row[used] = entry
    return used + 1


@kernel
def _unwind(ends, low, open_rows, depth, until, since, row, first, used):  # type: ignore[no-untyped-def]
    """End the sessions that end before `until`, innermost first; the one below takes over."""
    while depth > 0 and ends[low + open_rows[depth - 1]] < until:
        ended = ends[low + open_rows[depth - 1]]
        depth -= 1
        while depth > 0 and ends[low + open_rows[depth - 1]] <= ended:
            depth -= 1
        used = _mark(since, row, first, used, ended + 1, open_rows[depth - 1] if depth else -1)
    return depth, used


@kernel
def _cover(spans, starts, ends, offsets, since, row):  # type: ignore[no-untyped-def]
    used = 0
    open_rows = np.empty(len(starts), np.int64)
    for group in range(len(spans) - 1):
        low, high = spans[group], spans[group + 1]
        first = used
        if _nested(starts, ends, low, high):
            depth = 0
            i = low
            while i < high:
                depth, used = _unwind(ends, low, open_rows, depth, starts[i], since, row, first, used)
                stop = i + 1
                while stop < high and starts[stop] == starts[i]:
                    stop += 1
                # Of equal starts the earliest end is innermost: it goes on top, the later ends under it.
                for k in range(stop - 1, i - 1, -1):
                    open_rows[depth] = k - low
                    depth += 1
                used = _mark(since, row, first, used, starts[i], open_rows[depth - 1])
                i = stop
            depth, used = _unwind(ends, low, open_rows, depth, _LAST_INSTANT, since, row, first, used)
        offsets[group + 1] = used
    return used
