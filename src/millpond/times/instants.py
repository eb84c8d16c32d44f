"""Instants: every way people write a time becomes UTC milliseconds or microseconds, or is refused.

Accepted: ISO 8601 text with a zone, timezone-aware datetimes and timestamp columns of any unit, and whole
numbers, which are UTC milliseconds unless a unit is named. Text is `2013-02-08T18:00:00.123+01:00`: seconds and
fraction may be left out, `T` may be a space, the zone is `Z`, `UTC`, `+01`, `+0100` or `+01:00`. Text of 11 to 15
digits is milliseconds, too: fewer could be seconds, or a date without its dashes; where a unit is named, digits are
in it however many they are.

Invariants:
* Nothing naive is ever given a zone in silence: text, datetimes, columns and dates without one are refused.
* Finer than the ticks that are wanted is floored, also before 1970, and `Times` says where.
* A number without a unit that could be seconds is never taken for one in early 1970.
* An instant lies in the years 1 to 9999 (UTC), so that every reader can show it.
* `parse_moment` and `read_times` read the same language.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeAlias, cast

from millpond.deferred import np, pa, pc
from millpond.error_values import shown
from millpond.errors import Invalid

__all__ = (
    "FEW_ROWS", "INSTANT_MAX", "INSTANT_MIN", "MILLIS_CLEAR", "UNITS", "Times", "clear_instant", "instant_text",
    "parse_instant", "parse_moment", "read_times",
)  # fmt: skip

INSTANT_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00.000Z."""
INSTANT_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""

FEW_ROWS = 500
"""Columns of text of at most so many rows are read one by one."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WAY_OUT = "write ISO 8601 with a zone, such as 2013-02-08T18:00:00Z or 2013-02-08T19:00:00+01:00, or UTC milliseconds"
_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?( ?(?:Z|z|UTC)|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"-?(\d{1,19})", re.ASCII)
_DIGITS = (11, 15)
"""Of milliseconds in text, where no unit is named."""
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
UNITS = tuple(_PER_SECOND)
"""In which numbers may count."""
_VAGUE = (10**8, 10**10)
"""Numbers of 9 or 10 digits are what seconds since 1970 have from 1973 to 2286; as milliseconds they are early 1970."""
MILLIS_CLEAR = (_VAGUE[1], INSTANT_MAX)
"""Numbers from the first to the second are milliseconds beyond doubt."""

Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Ticks: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times as counts since 1970, null where a row is missing or `invalid`.

    `finer`: what was below a tick is left out. `vague`: a number without a unit that could be seconds.
    """

    values: pa.Int64Array
    invalid: pa.BooleanArray
    finer: Flags
    vague: Flags


def parse_instant(value: object) -> int:
    """One instant as UTC milliseconds: text, an aware datetime, a whole number or an Arrow scalar.

    >>> parse_instant("1970-01-01T01:00:00.5+01:00")
    500
    >>> parse_instant(-1)
    -1

    Raises: `Invalid` when it is missing, naive, not understood, a number that could be seconds, or outside the years
        1 to 9999.
    """
    if type(value) is int:  # first, and cheap: single questions come by the million
        return _of_number(value) // 1000
    return parse_moment(value) // 1000


def clear_instant(millis: int) -> int | str:
    """UTC milliseconds in a form that every reader takes for them: as text where the number could be seconds.

    >>> clear_instant(1_360_346_400_000), clear_instant(1_360_346_400)
    (1360346400000, '1970-01-16T17:52:26.400000+00:00')
    """
    return instant_text(millis) if _is_vague(millis) else millis


def instant_text(millis: int) -> str:
    """UTC milliseconds as ISO 8601 text, with a fraction where there is one.

    >>> instant_text(1_360_346_400_000)
    '2013-02-08T18:00:00+00:00'
    """
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat()


def parse_moment(value: object) -> int:
    """One instant as UTC microseconds, see `parse_instant`: numbers are milliseconds here, too.

    >>> parse_moment("1970-01-01T00:00:00.000001Z")
    1
    """
    if isinstance(value, str):
        return _in_years(_parse_text(value), value)
    if isinstance(value, datetime):
        if value != value:  # pandas' NaT
            raise Invalid("time is missing", kind="time_unknown", hint=_WAY_OUT)
        return _parse_datetime(value)
    if isinstance(value, pa.Scalar):
        return _parse_scalar(value)
    if isinstance(value, date | np.datetime64):
        raise _naive(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        return _of_number(int(value))
    raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=shown(value))


def _of_number(millis: int) -> int:
    if _is_vague(millis):
        raise Invalid(
            "a number of 9 or 10 digits could be seconds, and times are UTC milliseconds", kind="time_unknown",
            time=millis, hint=f"multiply seconds by 1000: {millis * 1000}; or {_WAY_OUT}",
        )  # fmt: skip
    return _in_years(millis * 1000, millis)


def _is_vague(millis: int) -> bool:
    return _VAGUE[0] <= abs(millis) < _VAGUE[1]


def _in_years(micros: int, text: object) -> int:
    if not INSTANT_MIN <= micros // 1000 <= INSTANT_MAX:
        raise Invalid("time is outside the years 1 to 9999", kind="time_range", hint=_WAY_OUT, time=shown(text))
    return micros


def _naive(value: object) -> Invalid:
    return Invalid("time has no zone", kind="time_naive", hint=_WAY_OUT, time=str(value))


def _parse_datetime(value: datetime) -> int:
    if value.utcoffset() is None:
        raise _naive(value)
    return _in_years((value - _EPOCH) // _MICROSECOND, value)


def _parse_scalar(value: pa.Scalar[Any]) -> int:
    if not value.is_valid:
        raise Invalid("time is missing", kind="time_unknown", hint=_WAY_OUT)
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return parse_moment(value.as_py())
    try:
        read = read_times(pa.array([value], value.type), "us")
    except pa.ArrowException:
        raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, type=value.type) from None
    if read.vague[0]:
        return _of_number(int(value.as_py()))
    if read.invalid[0].as_py():
        raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=_text_of(value))
    return int(read.values[0].as_py())


def _text_of(value: pa.Scalar[Any]) -> str:
    """An Arrow scalar for people, also a time that Python cannot hold."""
    try:
        return str(value)
    except (OverflowError, ValueError):
        return f"{getattr(value, 'value', '?')} ({value.type})"


def _parse_text(text: str) -> int:
    if (whole := _whole_second(text)) is not None:
        return whole
    number = _parse_number(text, _DIGITS)
    return _parse_iso(text)[0] if number is None else number * 1000


def _whole_second(text: str) -> int | None:
    """Microseconds of text as people and programs mostly write it, 2013-02-08T18:00:00Z; None for every other form."""
    if len(text) != 20 or text[4::3] != "--T::Z" or text[11:13] > "23":
        return None
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
    except ValueError:
        return None


def _parse_number(text: str, digits: tuple[int, int]) -> int | None:
    match = _NUMBER.fullmatch(text.strip(" "))
    if not match or not digits[0] <= len(match[1]) <= digits[1] or int(match[1]) >= 1 << 63:
        return None
    return int(text)


def _parse_iso(text: str) -> tuple[int, bool]:
    """Microseconds, and whether finer digits were left out."""
    match = _TEXT.fullmatch(text.strip(" "))
    if not match:
        raise Invalid("time is not understood", kind="time_unknown", hint=_WAY_OUT, time=repr(text))
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if zone is None:
        raise _naive(text)
    try:
        local = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
        shift = _offset_minutes(zone)
    except ValueError as error:
        raise Invalid("time does not exist", kind="time_unknown", hint=_WAY_OUT, time=repr(text)) from error
    fraction = fraction or ""
    micros = int(fraction[:6].ljust(6, "0"))
    return (local - _EPOCH) // _MICROSECOND + micros - shift * 60_000_000, bool(fraction[6:].strip("0"))


def _offset_minutes(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(zone)
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)


# -- columns ------------------------------------------------------------------------------------------


def read_times(
    times: pa.Array[Any] | pa.ChunkedArray[Any], ticks: str, unit: str | None = None
) -> Times:  # fmt: skip
    """A column of instants as UTC `ticks`: `ms` or `us`. Numbers count in `unit`, else in milliseconds.

    Null rows stay null and are not called invalid. Dictionary-encoded columns are read too.

    Raises: `Invalid` when the column as a whole cannot hold instants: naive timestamps, dates, times of day,
    booleans, decimals, bytes, lists.
    """
    if isinstance(times, pa.ChunkedArray):
        times = times.combine_chunks()
    kind = times.type
    if pa.types.is_dictionary(kind):
        return _of_dictionary(times, ticks, unit)
    if pa.types.is_timestamp(kind):
        return _of_timestamps(times, ticks)
    if pa.types.is_integer(kind):
        return _of_integers(times, ticks, unit)
    if pa.types.is_floating(kind):
        return _of_floats(times, ticks, unit)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _of_text(times, ticks, unit)
    if pa.types.is_null(kind):
        none = np.zeros(len(times), np.bool_)
        return Times(pa.nulls(len(times), pa.int64()), pa.array(none), none, none)
    naive = pa.types.is_date(kind)
    raise Invalid(
        "dates have no time and no zone" if naive else "column does not hold times",
        kind="time_naive" if naive else "time_unknown", hint=_WAY_OUT, type=kind,
    )  # fmt: skip


def _counted(raw: Ticks, good: Flags, unit: str, ticks: str) -> tuple[Ticks, Flags, Flags]:
    """Numbers of a unit as ticks; masks of those in the years 1 to 9999, and of those with digits left out."""
    per, target = _PER_SECOND[unit], _PER_SECOND[ticks]
    first, end = INSTANT_MIN // 1000, (INSTANT_MAX + 1) // 1000  # in seconds
    if per < 1_000_000_000:  # 64 bits of nanoseconds hold the years 1677 to 2262 only
        good = good & (raw >= first * per) & (raw < end * per)
    raw = np.where(good, raw, 0)
    if per <= target:
        return raw * (target // per), good, np.zeros(len(raw), np.bool_)
    step = per // target
    return raw // step, good, raw % step != 0


def _checked(counted: tuple[Ticks, Flags, Flags], source: pa.Array[Any], vague: Flags | None = None) -> Times:
    """Values where they are good; the other rows that were given a value are invalid."""
    values, good, finer = counted
    present = np.ones(len(source), np.bool_) if not source.null_count else source.is_valid().to_numpy(False)
    valid = good & present
    vague = np.zeros(len(source), np.bool_) if vague is None else vague & valid
    return Times(pa.array(values, pa.int64(), mask=~valid), pa.array(present & ~valid), finer & valid, vague)


def _of_timestamps(times: pa.Array[Any], ticks: str) -> Times:
    if times.type.tz is None:
        raise Invalid(
            "timestamps have no zone", kind="time_naive", type=times.type,
            hint="give them their zone first: timestamps with a zone, or UTC milliseconds",
        )  # fmt: skip
    raw = _raw(times.view(pa.int64()))
    return _checked(_counted(raw, np.ones(len(raw), np.bool_), times.type.unit, ticks), times)


def _raw(times: pa.Array[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """The numbers, zero where null."""
    filled: np.ndarray[Any, np.dtype[Any]] = (times.fill_null(0) if times.null_count else times).to_numpy(False)
    return filled


def _numbers(raw: Ticks, good: Flags, ticks: str, unit: str | None, values: pa.Array[Any]) -> Times:
    vague = (np.abs(raw) >= _VAGUE[0]) & (np.abs(raw) < _VAGUE[1]) if unit is None else None
    return _checked(_counted(raw, good, unit or "ms", ticks), values, vague)


def _of_integers(times: pa.Array[Any], ticks: str, unit: str | None) -> Times:
    raw = _raw(times)
    good = raw <= np.iinfo(np.int64).max if raw.dtype == np.uint64 else np.ones(len(raw), np.bool_)
    return _numbers(np.where(good, raw, 0).astype(np.int64), good, ticks, unit, times)


def _of_floats(times: pa.Array[Any], ticks: str, unit: str | None) -> Times:
    """Whole numbers that became floats because some row is missing, as pandas does."""
    raw = times.cast(pa.float64()).fill_null(0).to_numpy(False)
    good = np.isfinite(raw) & (np.floor(raw) == raw) & (np.abs(raw) < 2.0**53)
    return _numbers(np.where(good, raw, 0).astype(np.int64), good, ticks, unit, times)


def _of_text(times: pa.Array[Any], ticks: str, unit: str | None) -> Times:
    digits = _DIGITS if unit is None else (1, 19)
    if len(times) <= FEW_ROWS:
        read = _few_texts(times, digits)
    else:
        # Loaded when a long text column comes: a few rows must not wait for the compiler.
        from millpond.times.iso8601 import read_texts

        wide = times.cast(pa.large_string()) if pa.types.is_string_view(times.type) else times
        texts = read_texts(wide, digits)
        read = texts.ticks, texts.good, texts.numeric, texts.finer
    raw, good, numeric, finer = read
    numbers = _counted(raw, good & numeric, unit or "ms", ticks)
    written = _counted(raw, good & ~numeric, "us", ticks)
    both = [np.where(numeric, number, text) for number, text in zip(numbers, written, strict=True)]
    return _checked((both[0], both[1], both[2] | finer), times)


def _few_texts(times: pa.Array[Any], digits: tuple[int, int]) -> tuple[Ticks, Flags, Flags, Flags]:
    raw = np.zeros(len(times), np.int64)
    good, numeric, finer = (np.zeros(len(times), np.bool_) for _ in range(3))
    for row, text in enumerate(times.to_pylist()):
        if text is None:
            continue
        number = _parse_number(text, digits)
        if number is not None:
            raw[row], good[row], numeric[row] = number, True, True
            continue
        with suppress(Invalid):
            raw[row], finer[row] = _parse_iso(text)
            good[row] = True
    return raw, good, numeric, finer


def _of_dictionary(times: pa.Array[Any], ticks: str, unit: str | None) -> Times:
    encoded = cast("pa.DictionaryArray[Any, Any]", times)
    read = read_times(encoded.dictionary, ticks, unit)
    invalid, finer, vague = (
        pc.take(pa.array(flags), encoded.indices).fill_null(False) for flags in (read.invalid, read.finer, read.vague)
    )
    return Times(pc.take(read.values, encoded.indices), cast("pa.BooleanArray", invalid), *map(_mask, (finer, vague)))


def _mask(flags: pa.Array[Any]) -> Flags:
    mask: Flags = flags.to_numpy(zero_copy_only=False)
    return mask
