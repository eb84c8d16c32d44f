"""ISO 8601 text to UTC microseconds, a whole column at a time.

Reads exactly the language of `times.parse_moment`; a row that is not of it is reported, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import bytes_of
from millpond.arrays.compiled import kernel

__all__ = ("TimeTexts", "read_texts")


@dataclass(frozen=True, slots=True)
class TimeTexts:
    """The values of texts, row by row: microseconds since 1970, or a bare number where `numeric`; `good`: either of
    them.
    """

    ticks: npt.NDArray[np.int64]
    good: npt.NDArray[np.bool_]
    numeric: npt.NDArray[np.bool_]
    finer: npt.NDArray[np.bool_]
    """Mask of the rows whose digits below the microsecond were left out."""


def read_texts(times: pa.Array[Any], digits: tuple[int, int]) -> TimeTexts:
    """A column of text; null rows are empty text, which is not well-formed. `digits`: how many a bare number has."""
    column = bytes_of(times)
    flags = [np.zeros(len(column), np.bool_) for _ in range(3)]
    read = TimeTexts(np.zeros(len(column), np.int64), *flags)
    _parse_rows(column.offsets, column.data, digits[0], digits[1], read.ticks, read.good, read.numeric, read.finer)
    return read


@kernel
def _parse_rows(offsets, data, fewest, most, ticks, good, numeric, finer):  # type: ignore[no-untyped-def]
    for i in range(len(ticks)):
        start, stop = offsets[i], offsets[i + 1]
        while start < stop and data[start] == 32:
            start += 1
        while start < stop and data[stop - 1] == 32:
            stop -= 1
        number = _number(data, start, stop, fewest, most)
        if number != _BAD:
            ticks[i] = number
            good[i] = True
            numeric[i] = True
            continue
        day = _day(data, start, stop)
        clock = _clock(data, start, stop)
        end = _clock_end(data, start, stop)
        zone = _zone(data, end, stop)
        if day == _BAD or clock == _BAD or zone == _BAD:
            continue
        ticks[i] = day * 86_400_000_000 + clock - zone * 60_000_000
        good[i] = True
        for k in range(start + 26, end):
            finer[i] |= data[k] != 48


_BAD = -(1 << 63)


@kernel
def _digits(data, at, count):  # type: ignore[no-untyped-def]
    number = np.int64(0)
    for k in range(at, at + count):
        digit = np.int64(data[k]) - 48
        if digit < 0 or digit > 9:
            return _BAD
        number = number * 10 + digit
    return number


@kernel
def _number(data, start, stop, fewest, most):  # type: ignore[no-untyped-def]
    """A number of so many digits, at most 19, with a sign or none."""
    negative = start < stop and data[start] == 45
    first = start + 1 if negative else start
    if stop - first < fewest or stop - first > most:
        return _BAD
    number = _digits(data, first, stop - first)
    if number < 0:
        return _BAD  # no digit, or 19 of them that are more than 64 bits hold
    return -number if negative else number


@kernel
def _day(data, at, stop):  # type: ignore[no-untyped-def]
    """Days since 1970 of `YYYY-MM-DD` at `at`."""
    if stop - at < 16 or data[at + 4] != 45 or data[at + 7] != 45:
        return _BAD
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return _BAD
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = 31
    if month == 2:
        length = 29 if leap else 28
    elif month in (4, 6, 9, 11):
        length = 30
    if day > length:
        return _BAD
    # Years that begin in March put the leap day last, which makes the months regular.
    shifted = year - 1 if month <= 2 else year
    month_in = month + 9 if month <= 2 else month - 3
    day_of_year = (153 * month_in + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + day_of_year - 719_468


@kernel
def _clock_end(data, start, stop):  # type: ignore[no-untyped-def]
    """The offset at which the zone of the text that starts at `start` begins."""
    at = start + 16
    if at + 3 <= stop and data[at] == 58:
        at += 3
        if at < stop and (data[at] == 46 or data[at] == 44):
            at += 1
            while at < stop and 48 <= data[at] <= 57:
                at += 1
    return at


@kernel
def _clock(data, start, stop):  # type: ignore[no-untyped-def]
    """Microseconds of the day of `THH:MM[:SS[.fraction]]` in the text that starts at `start`."""
    if stop - start < 16 or data[start + 13] != 58:
        return _BAD
    between = data[start + 10]
    if between != 84 and between != 116 and between != 32:
        return _BAD
    hour, minute = _digits(data, start + 11, 2), _digits(data, start + 14, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return _BAD
    end = _clock_end(data, start, stop)
    if end == start + 16:
        return (hour * 60 + minute) * 60_000_000
    second = _digits(data, start + 17, 2)
    if second < 0 or second > 59:
        return _BAD
    micros, worth, at = np.int64(0), 100_000, start + 20
    if at == end:
        return _BAD
    while at < end and worth > 0:
        micros += (np.int64(data[at]) - 48) * worth
        worth //= 10
        at += 1
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros


@kernel
def _zone(data, at, stop):  # type: ignore[no-untyped-def]
    """The offset in minutes that is all the text from `at` to `stop`."""
    named = at + 1 if at < stop and data[at] == 32 else at
    left = stop - named
    if left == 1 and (data[named] == 90 or data[named] == 122):
        return 0
    if left == 3 and data[named] == 85 and data[named + 1] == 84 and data[named + 2] == 67:
        return 0
    left = stop - at
    if left != 3 and left != 5 and left != 6:
        return _BAD
    if data[at] != 43 and data[at] != 45:
        return _BAD
    if left == 6 and data[at + 3] != 58:
        return _BAD
    hours = _digits(data, at + 1, 2)
    minutes = 0 if left == 3 else _digits(data, stop - 2, 2)
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return _BAD
    shift = hours * 60 + minutes
    return -shift if data[at] == 45 else shift
