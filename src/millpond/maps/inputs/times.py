"""Instants: every way people write a time becomes UTC milliseconds, or is refused.

Accepted: ISO 8601 text with a zone, timezone-aware datetimes and timestamp columns of any unit, and whole
numbers, which are UTC milliseconds. Text is `2013-02-08T18:00:00.123+01:00`: seconds and fraction may be left
out, `T` may be a space, the zone is `Z`, `UTC`, `+01`, `+0100` or `+01:00`. Text of 11 to 15 digits is milliseconds,
too: fewer could be seconds, or a date without its dashes.

Invariants:
* Nothing naive is ever given a zone in silence: text, datetimes, columns and dates without one are refused.
* Finer than a millisecond is floored, also before 1970.
* An instant lies in the years 1 to 9999 (UTC), so that every reader can show it.
* `parse_instant` and `to_millis` read the same language.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from operator import index
from typing import Any, SupportsIndex, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid

__all__ = ("FEW_ROWS", "INSTANT_MAX", "INSTANT_MIN", "parse_instant", "to_millis")

INSTANT_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00.000Z."""
INSTANT_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""

FEW_ROWS = 500
"""Columns of text of at most so many rows are read one by one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_WAY_OUT = "write ISO 8601 with a zone, such as 2013-02-08T18:00:00Z or 2013-02-08T19:00:00+01:00, or UTC milliseconds"
_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?( ?(?:Z|z|UTC)|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?\d{11,15}", re.ASCII)
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


def parse_instant(value: object) -> int:
    """One instant as UTC milliseconds: text, an aware datetime, a whole number or an Arrow scalar.

    >>> parse_instant("1970-01-01T01:00:00.5+01:00")
    500
    >>> parse_instant(-1)
    -1

    Raises: `Invalid` when it is missing, naive, not understood or outside the years 1 to 9999.
    """
    if type(value) is int:  # first, and cheap: single questions come by the million
        return _in_years(value, value)
    if isinstance(value, str):
        return _in_years(_parse_text(value), value)
    if isinstance(value, datetime):
        return _parse_datetime(value)
    if isinstance(value, pa.Scalar):
        return _parse_scalar(value)
    if isinstance(value, date | np.datetime64):
        raise _naive(value)
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        return _in_years(index(value), value)
    raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=repr(value))


def _in_years(millis: int, told: object) -> int:
    if not INSTANT_MIN <= millis <= INSTANT_MAX:
        raise Invalid("time is outside the years 1 to 9999", kind="time_range", hint=_WAY_OUT, time=repr(told))
    return millis


def _naive(value: object) -> Invalid:
    return Invalid("time has no zone", kind="time_naive", hint=_WAY_OUT, time=str(value))


def _parse_datetime(value: datetime) -> int:
    if value.utcoffset() is None:
        raise _naive(value)
    return _in_years((value - _EPOCH) // _MILLISECOND, value)


def _parse_scalar(value: pa.Scalar[Any]) -> int:
    if not value.is_valid:
        raise Invalid("time is missing", kind="time_unknown", hint=_WAY_OUT)
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return parse_instant(value.as_py())
    millis, invalid = to_millis(pa.array([value], value.type))
    if invalid[0].as_py():
        raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=str(value))
    return int(millis[0].as_py())


def _parse_text(text: str) -> int:
    if _NUMBER.fullmatch(text.strip(" ")):
        return int(text)
    found = _TEXT.fullmatch(text.strip(" "))
    if not found:
        raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=repr(text))
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if zone is None:
        raise _naive(text)
    try:
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
        shift = _offset_minutes(zone)
    except ValueError as error:
        raise Invalid("time does not exist", kind="time_unknown", hint=_WAY_OUT, time=repr(text)) from error
    millis = int((fraction or "")[:3].ljust(3, "0"))
    return (local - _EPOCH) // _MILLISECOND + millis - shift * 60_000


def _offset_minutes(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)


def to_millis(times: pa.Array[Any] | pa.ChunkedArray[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """A column of instants as UTC milliseconds, and which rows are not instants (those are null).

    Null rows stay null and are not called invalid. Dictionary-encoded columns are read too.

    Raises: `Invalid` when the column as a whole cannot hold instants: naive timestamps, dates, times of day,
    booleans, decimals, bytes, lists.
    """
    if isinstance(times, pa.ChunkedArray):
        times = times.combine_chunks()
    kind = times.type
    if pa.types.is_dictionary(kind):
        return _dictionary_millis(times)
    if pa.types.is_timestamp(kind):
        return _timestamp_millis(times)
    if pa.types.is_integer(kind):
        return _integer_millis(times)
    if pa.types.is_floating(kind):
        return _floating_millis(times)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _text_millis(times)
    if pa.types.is_null(kind):
        return pa.nulls(len(times), pa.int64()), _flags(np.zeros(len(times), np.bool_))
    naive = pa.types.is_date(kind)
    raise Invalid(
        "dates have no time and no zone" if naive else "column does not hold times",
        kind="time_naive" if naive else "time_unknown", hint=_WAY_OUT, type=kind,
    )  # fmt: skip


def _flags(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.BooleanArray:
    return pa.array(mask, pa.bool_())


def _checked(
    millis: np.ndarray[Any, np.dtype[np.int64]], good: np.ndarray[Any, np.dtype[np.bool_]], given: pa.Array[Any]
) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """Values where `good` and in range; the other rows that were given a value are invalid."""
    present = np.ones(len(given), np.bool_) if not given.null_count else given.is_valid().to_numpy(False)
    kept = good & present & (millis >= INSTANT_MIN) & (millis <= INSTANT_MAX)
    return pa.array(millis, pa.int64(), mask=~kept), _flags(present & ~kept)


def _timestamp_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    if times.type.tz is None:
        raise Invalid(
            "timestamps have no zone", kind="time_naive", type=times.type,
            hint="say which zone they are in, such as zone='UTC', or --zone UTC",
        )  # fmt: skip
    raw = _raw(times.view(pa.int64()))
    per_second = _PER_SECOND[times.type.unit]
    if per_second >= 1000:
        return _checked(raw // (per_second // 1000), np.ones(len(raw), np.bool_), times)
    good = (raw >= INSTANT_MIN // 1000) & (raw <= INSTANT_MAX // 1000)
    return _checked(np.where(good, raw, 0) * 1000, good, times)


def _raw(times: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers, zero where null."""
    filled: np.ndarray[Any, np.dtype[np.int64]] = (times.fill_null(0) if times.null_count else times).to_numpy(False)
    return filled


def _integer_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    raw = _raw(times)
    good = raw <= np.array(INSTANT_MAX).astype(raw.dtype) if raw.dtype == np.uint64 else np.ones(len(raw), np.bool_)
    return _checked(np.where(good, raw, 0).astype(np.int64), good, times)


def _floating_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """Whole numbers that became floats because some row is missing, as pandas does."""
    raw = times.cast(pa.float64()).fill_null(0).to_numpy(False)
    good = np.isfinite(raw) & (np.floor(raw) == raw) & (np.abs(raw) < 2.0**53)
    return _checked(np.where(good, raw, 0).astype(np.int64), good, times)


def _text_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    if len(times) <= FEW_ROWS:
        return _few_text_millis(times)
    # Loaded when a long text column comes: a few rows must not wait for the compiler.
    from millpond.maps.inputs.iso8601 import text_millis

    if pa.types.is_string_view(times.type):
        times = times.cast(pa.large_string())
    millis, good = text_millis(times)
    return _checked(millis, good, times)


def _few_text_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    millis = np.zeros(len(times), np.int64)
    good = np.zeros(len(times), np.bool_)
    for row, text in enumerate(times.to_pylist()):
        if text is not None:
            with suppress(Invalid):
                millis[row] = parse_instant(text)
                good[row] = True
    return _checked(millis, good, times)


def _dictionary_millis(times: pa.Array[Any]) -> tuple[pa.Int64Array, pa.BooleanArray]:
    encoded = cast("pa.DictionaryArray[Any, Any]", times)
    millis, invalid = to_millis(encoded.dictionary)
    flags = pc.take(invalid, encoded.indices).fill_null(False)
    return pc.take(millis, encoded.indices), cast("pa.BooleanArray", flags)
