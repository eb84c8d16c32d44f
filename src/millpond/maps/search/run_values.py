"""Values of runs of rows, combined where they lie: what an aggregate answers is not copied row by row first.

    answer 0        answer 1
    run 0  run 1    run 2          a run is a stretch of rows of one piece: where it begins, and how many there are
    7 8 9  3 4      5 6            sum: 31, 11

A column is read through the table that `gather.py` describes. Nulls add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i64, load_u8, prefetch
from millpond.arrays.radix import I64
from millpond.maps.search.kernels import AHEAD

__all__ = ("Flags", "Runs", "counted_from", "extremes_of_runs", "sums_of_runs")

_PIECE = 32  # a position is piece << 32 | number in the piece
_NUMBER = (1 << 32) - 1
_HALF = 32
_LOW = (1 << 32) - 1
_SIGN = 63
_DOUBLE_ORDER = np.int64((1 << 63) - 1)
"""The bits of a negative double that are turned, so that its order is that of a whole number."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of rows: the position of the first row of each, how many rows it has, and the first run of each answer."""

    begins: I64
    counts: I64
    starts: I64

    @property
    def rows(self) -> I64:
        """The positions of all rows."""
        return counted_from(self.begins, self.counts)

    @property
    def row_starts(self) -> I64:
        """The first row of each answer."""
        starts: I64 = (np.cumsum(self.counts) - self.counts)[self.starts]
        return starts


def counted_from(begins: I64, counts: I64) -> I64:
    """The numbers from each beginning on, as many as it counts."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: I64 = np.arange(total) + np.repeat(begins - (ends - counts), counts)
    return numbers


def sums_of_runs(table: npt.NDArray[np.int64], kind: pa.DataType, runs: Runs) -> tuple[npt.NDArray[Any], Flags, Flags]:
    """The sum of each answer, where there is a value, and where the sum is larger than its type holds."""
    count = len(runs.starts)
    there = np.zeros(count, np.bool_)
    if pa.types.is_floating(kind):
        sums = np.zeros(count)
        _sum_doubles(table, runs.begins, runs.counts, runs.starts, sums, there)
        return sums, there, ~np.isfinite(sums)
    high, low = np.zeros(count, np.int64), np.zeros(count, np.int64)
    _sum_longs(table, runs.begins, runs.counts, runs.starts, high, low, there)
    # The halves of 2^31 rows add up within 64 bits each, and tell together if their sum does not.
    upper = high + (low >> _HALF)
    wrong = (upper >= 1 << (_HALF - 1)) | (upper < -(1 << (_HALF - 1)))
    return (high << _HALF) + low, there, wrong


def extremes_of_runs(
    table: npt.NDArray[np.int64], kind: pa.DataType, runs: Runs, *, least: bool
) -> tuple[npt.NDArray[Any], Flags]:
    """The least, or the greatest, of each answer, and where there is a value."""
    count = len(runs.starts)
    extremes, there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    turned = _DOUBLE_ORDER if pa.types.is_floating(kind) else np.int64(0)
    _extremes(table, runs.begins, runs.counts, runs.starts, turned, least, extremes, there)
    extremes ^= (extremes >> _SIGN) & turned
    return (extremes.view(np.float64) if turned else extremes), there


@kernel
def _ask_ahead(table, begins, ahead):  # type: ignore[no-untyped-def]
    """Ask for the values of a run that is read soon."""
    if ahead < len(begins):
        prefetch(table[begins[ahead] >> _PIECE, 0] + 8 * (begins[ahead] & _NUMBER))


@kernel
def _is_there(table, piece, number):  # type: ignore[no-untyped-def]
    """True when the value of a row is not null."""
    if table[piece, 2] == 0:
        return True
    bit = table[piece, 3] + number
    return (load_u8(table[piece, 2] + (bit >> 3)) >> np.uint8(bit & 7)) & np.uint8(1) == 1


@kernel
def _sum_longs(table, begins, counts, starts, high, low, there):  # type: ignore[no-untyped-def]
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    value = load_i64(table[piece, 0] + 8 * row)
                    high[answer] += value >> _HALF
                    low[answer] += value & _LOW
                    there[answer] = True


@kernel
def _sum_doubles(table, begins, counts, starts, sums, there):  # type: ignore[no-untyped-def]
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    sums[answer] += np.int64(load_i64(table[piece, 0] + 8 * row)).view(np.float64)
                    there[answer] = True


@kernel
def _extremes(table, begins, counts, starts, turned, least, extremes, there):  # type: ignore[no-untyped-def]
    """Fill in the extremes, as numbers in the order of longs: `turned` are the bits that order doubles."""
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    value = load_i64(table[piece, 0] + 8 * row)
                    value ^= (value >> _SIGN) & turned
                    if not there[answer] or ((value < extremes[answer]) == least and value != extremes[answer]):
                        extremes[answer] = value
                    there[answer] = True
