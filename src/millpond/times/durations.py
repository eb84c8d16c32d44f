"""Durations: the one grammar of settings, options of maps, columns of inputs and commands.

| written | is |
|---|---|
| `1500ms`, `90s`, `15min` (or `15m`), `12h`, `30d`, `1w`, `10y` | a whole number and a unit, also with a space |
| `P1W`, `P30D`, `PT15M`, `P1DT12H`, `PT1.5S` | ISO 8601, as XML and JSON have it |
| `0` | no time at all |
| `off`, `never` | nothing: only where something can be switched off |
| a whole number that is no text | milliseconds |

Letters may be large or small. A day has 24 hours, a week 7 days, a year 365 days: durations are lengths, not dates.

Refused are:
* text of digits alone, but `0`: it could be seconds or milliseconds;
* months and years of ISO 8601: how long they are depends on when they begin;
* fractions, but of the seconds of ISO 8601, down to a millisecond;
* several units in a row (`1h30m`): ISO 8601 has a form for that;
* what is negative, and what is longer than the years 1 to 9999, in which all times lie.
"""

from __future__ import annotations

import re

from millpond.errors import Invalid

__all__ = (
    "DURATION_MS_MAX", "NUMBER_AND_UNIT", "UNITS_MS", "format_duration", "is_off", "optional_duration",
    "parse_duration",
)  # fmt: skip

_DAY_MS = 86_400_000
UNITS_MS = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": _DAY_MS, "w": 7 * _DAY_MS, "y": 365 * _DAY_MS,
}  # fmt: skip
"""Milliseconds of each unit."""

DURATION_MS_MAX = 3_652_059 * _DAY_MS - 1
"""From the first to the last millisecond of the years 1 to 9999."""

NUMBER_AND_UNIT = rf"^\s*(?P<count>[0-9]{{1,15}})\s*(?P<unit>{'|'.join(UNITS_MS)})\s*$"
"""A whole number and a unit, in small letters: a pattern for `re` and for Arrow alike."""

_NUMBER_AND_UNIT = re.compile(NUMBER_AND_UNIT, re.ASCII)
_COUNT = "[0-9]{1,15}"
_ISO = re.compile(
    rf"\s*p(?:(?P<w>{_COUNT})w)?(?:(?P<d>{_COUNT})d)?"
    rf"(?:t(?=[0-9])(?:(?P<h>{_COUNT})h)?(?:(?P<m>{_COUNT})m)?(?:(?P<s>{_COUNT})(?:[.,](?P<ms>[0-9]{{1,9}}))?s)?)?\s*",
    re.ASCII,
)
_OFF = ("off", "never")
_SHOWN = ("y", "d", "h", "min", "s", "ms")
_HINT = f"write a whole number and a unit ({', '.join(UNITS_MS)}), such as 10min or 30d, or ISO 8601, such as PT15M"


def parse_duration(value: object) -> int:
    """A duration in milliseconds.

    >>> parse_duration("10min"), parse_duration("1W"), parse_duration("PT1H30M"), parse_duration(1500)
    (600000, 604800000, 5400000, 1500)

    Raises: `Invalid`, kind `duration`, for anything that is not written as this module says, and for `off`.
    """
    millis = _of_text(value.lower()) if isinstance(value, str) else value
    if not isinstance(millis, int) or isinstance(millis, bool):
        raise Invalid("duration is not understood", kind="duration", value=repr(value), hint=_HINT)
    if not 0 <= millis <= DURATION_MS_MAX:
        reason = "a duration is not negative, and not longer than 9999 years"
        raise Invalid("duration is out of range", kind="duration", value=repr(value), hint=reason)
    return millis


def is_off(value: object) -> bool:
    """True for the words that switch something off.

    >>> is_off("Off"), is_off(" never "), is_off(0), is_off("0")
    (True, True, False, False)
    """
    return isinstance(value, str) and value.strip().lower() in _OFF


def optional_duration(value: object) -> int | None:
    """A duration in milliseconds; None for None and for `off`.

    >>> optional_duration("30s"), optional_duration("never"), optional_duration(None)
    (30000, None, None)

    Raises: as `parse_duration`.
    """
    return None if value is None or is_off(value) else parse_duration(value)


def format_duration(milliseconds: int) -> str:
    """A duration in the largest unit that divides it, as `parse_duration` reads it back; weeks are days.

    >>> format_duration(600_000), format_duration(14 * 86_400_000), format_duration(1_500), format_duration(0)
    ('10min', '14d', '1500ms', '0')
    """
    if milliseconds == 0:
        return "0"
    unit = next(unit for unit in _SHOWN if milliseconds % UNITS_MS[unit] == 0)
    return f"{milliseconds // UNITS_MS[unit]}{unit}"


def _of_text(text: str) -> int | None:
    """Milliseconds of text in small letters; None when it is not understood."""
    match = _NUMBER_AND_UNIT.match(text)
    if match is not None:
        return int(match["count"]) * UNITS_MS[match["unit"]]
    if text.strip() == "0":
        return 0
    match = _ISO.fullmatch(text)
    # A `P` with nothing behind it names no duration.
    if match is None or not any(match.groupdict().values()):
        return None
    fraction = (match["ms"] or "").ljust(3, "0")
    if fraction[3:].strip("0"):
        return None  # finer than a millisecond
    whole = sum(int(match[unit] or 0) * UNITS_MS[unit] for unit in ("w", "d", "h", "m", "s"))
    return whole + int(fraction[:3])
