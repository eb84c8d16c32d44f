"""The group of one key, or range, that has more rows than memory may hold: put together in files.

The rows come as slices of sorted runs, in any order. Where they come in order of time, as those of a table do, they are
copied one after another. Else their columns are copied first, their order is found by merging the stretches that are
in order, and they are copied again as it says.

Invariant: the group is the one that `groups_of_rows` makes of the same rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.radix import I64
from millpond.ranges.scratch_batch import joined, scratch_buffer

__all__ = ("Repeats", "large_group")

Repeats = Literal["first", "last"]
"""Of several rows of one address, in the order in which they come, the one that counts."""

BYTES_AT_ONCE = 4 << 20
"""About so many bytes of rows are put in order at once."""


def large_group(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, times: Sequence[str], folder: Path,
    repeats: Repeats | None = None,
) -> pa.Array:  # fmt: skip
    """The rows of one group as structs of the columns of a schema, in order of one or two columns of times.

    `repeats`: which of several rows of the same times counts; None: there are no such.

    Raises: `Unavailable` when the disk is full; `Invalid`, kind `group_large`, for more than a range can hold.
    """
    rows = joined(folder, schema, (batch.select(schema.names) for batch in batches))
    first, second = (rows.column(times[position]).to_numpy() for position in (0, -1))
    order = _order(first, second, folder, repeats)
    if order is not None:
        step = max(1, len(order) * BYTES_AT_ONCE // max(1, rows.nbytes))
        taken = (rows.take(pa.array(order[low : low + step])) for low in range(0, len(order), step))
        rows = joined(folder, schema, taken)
    return pa.StructArray.from_arrays(rows.columns, fields=list(schema))


def _order(first: I64, second: I64, folder: Path, repeats: Repeats | None) -> I64 | None:
    """The rows that count in order of both columns; None when all do and lie so."""
    count = len(first)
    stretches = _array(folder, count + 1)
    stretch_count = _stretches(first, second, stretches)
    if stretch_count == 1 and (repeats is None or not _any_repeats(first, second)):
        return None
    order, spare = _array(folder, count), _array(folder, count)
    _number(order)
    while stretch_count > 1:
        stretch_count = _merge_pairs(first, second, order, spare, stretches, stretch_count)
        order, spare = spare, order
    return order if repeats is None else order[: _without_repeats(first, second, order, repeats == "last")]


def _array(folder: Path, count: int) -> I64:
    return np.frombuffer(scratch_buffer(folder, 8 * count), np.int64)


@kernel
def _number(order):  # type: ignore[no-untyped-def]
    for row in range(len(order)):
        order[row] = row


@kernel
def _stretches(first, second, stretches):  # type: ignore[no-untyped-def]
    """Fill in where rows begin that ascend, and the end; how many such stretches there are."""
    stretch_count, count = 0, len(first)
    for row in range(count):
        if row == 0 or first[row] < first[row - 1] or (first[row] == first[row - 1] and second[row] < second[row - 1]):
            stretches[stretch_count] = row
            stretch_count += 1
    stretches[stretch_count] = count
    return stretch_count


@kernel
def _merge_pairs(first, second, order, out, stretches, count):  # type: ignore[no-untyped-def]
    """Merge each two neighbours of the stretches, whose bounds become those of the merged ones; how many are left."""
    left = 0
    for number in range(0, count, 2):
        low, end = stretches[number], stretches[min(number + 2, count)]
        middle = stretches[number + 1]
        a, b = low, middle
        for at in range(low, end):
            ahead = b == end
            if a < middle and b < end:
                x, y = order[a], order[b]
                ahead = first[x] < first[y] or (first[x] == first[y] and second[x] <= second[y])
            if ahead:
                out[at] = order[a]
                a += 1
            else:
                out[at] = order[b]
                b += 1
        stretches[left] = low
        left += 1
    stretches[left] = len(order)
    return left


@kernel
def _any_repeats(first, second):  # type: ignore[no-untyped-def]
    for row in range(1, len(first)):  # noqa: SIM110 - compiled: numba has no `any` over a generator
        if first[row] == first[row - 1] and second[row] == second[row - 1]:
            return True
    return False


@kernel
def _without_repeats(first, second, order, last):  # type: ignore[no-untyped-def]
    """Keep, in place, one of the rows of the same times; how many are left."""
    count = 0
    for at in range(len(order)):
        row, before = order[at], order[max(count - 1, 0)]
        if count > 0 and first[row] == first[before] and second[row] == second[before]:
            if last:
                order[count - 1] = row
            continue
        order[count] = row
        count += 1
    return count
