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


def sums_of_runs(
    table: npt.NDArray[np.int64], kind: pa.DataType, runs: Runs, places: I64, count: int
) -> tuple[npt.NDArray[Any], Flags, bool]:
    """The sum of each answer at its place among so many, where there is a value, and if one is larger than its type
    holds. Answers whose place is -1 have none.
    """
    there, sums = np.zeros(count, np.bool_), np.zeros(count, np.float64 if pa.types.is_floating(kind) else np.int64)
    sum_up = _sum_doubles if pa.types.is_floating(kind) else _sum_longs
    return sums, there, bool(sum_up(table, runs.begins, runs.counts, runs.starts, places, sums, there))


def extremes_of_runs(
    table: npt.NDArray[np.int64], kind: pa.DataType, runs: Runs, places: I64, count: int, *, least: bool
) -> tuple[npt.NDArray[Any], Flags]:
    """The least, or the greatest, of each answer at its place among so many, and where there is a value."""
    extremes, there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    turned = _DOUBLE_ORDER if pa.types.is_floating(kind) else np.int64(0)
    _extremes(table, runs.begins, runs.counts, runs.starts, places, turned, least, extremes, there)
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
def _sum_longs(table, begins, counts, starts, places, sums, there):  # type: ignore[no-untyped-def]
    """Fill in the sums; True when one does not fit."""
    wrong = False
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        high = low = np.int64(0)
        valid = False
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    value = load_i64(table[piece, 0] + 8 * row)
                    high += value >> _HALF
                    low += value & _LOW
                    valid = True
        if valid and places[answer] >= 0:
            # The halves of 2^31 rows add up within 64 bits each, and tell together if their sum does not.
            upper = high + (low >> _HALF)
            if upper >= 1 << (_HALF - 1) or upper < -(1 << (_HALF - 1)):
                wrong = True
            sums[places[answer]], there[places[answer]] = (high << _HALF) + low, True
    return wrong


@kernel
def _sum_doubles(table, begins, counts, starts, places, sums, there):  # type: ignore[no-untyped-def]
    """Fill in the sums; True when one does not fit."""
    wrong = False
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        total, valid = 0.0, False
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    total += np.int64(load_i64(table[piece, 0] + 8 * row)).view(np.float64)
                    valid = True
        if valid and places[answer] >= 0:
            if not np.isfinite(total):
                wrong = True
            sums[places[answer]], there[places[answer]] = total, True
    return wrong


@kernel
def _extremes(table, begins, counts, starts, places, turned, least, extremes, there):  # type: ignore[no-untyped-def]
    """Fill in the extremes; `turned` are the bits of negative doubles that put them in the order of longs."""
    for answer in range(len(starts)):
        stop = starts[answer + 1] if answer + 1 < len(starts) else len(begins)
        best, valid = np.int64(0), False
        for run in range(starts[answer], stop):
            _ask_ahead(table, begins, run + AHEAD)
            piece, number = begins[run] >> _PIECE, begins[run] & _NUMBER
            for row in range(number, number + counts[run]):
                if _is_there(table, piece, row):
                    value = load_i64(table[piece, 0] + 8 * row)
                    value ^= (value >> _SIGN) & turned
                    if not valid or ((value < best) == least and value != best):
                        best = value
                    valid = True
        if valid and places[answer] >= 0:
            extremes[places[answer]] = best ^ ((best >> _SIGN) & turned)
            there[places[answer]] = True
