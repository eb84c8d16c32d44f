"""Times without a zone, for people who say which zone they are in: wall clocks become instants.

A wall clock shows some times twice and some never, where summer time ends and begins: such a time is no instant, and a
fault of its row. Dates are the midnight that begins them. Times that do have a zone keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.scalars import NAIVE_TEXT, Convert, Converted, is_text, mask_of, masked, present, to_instants
from millpond.times.instants import UNITS
from millpond.times.zones import UTC_NAMES, check_zone

__all__ = ("NAME_THE_ZONE", "TimeForm", "instants_in", "time_form")

NAME_THE_ZONE = "say which zone they are in, such as zone='UTC'"
"""The way out for a column of times without a zone; only who reads a whole column can name one."""

_DATE = r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2} *$"


@dataclass(frozen=True, slots=True)
class TimeForm:
    """The form of an input's times: the zone of those that name none, and the unit of those that are numbers."""

    zone: str | None = None
    unit: str | None = None


def time_form(zone: str | None = None, unit: str | None = None) -> TimeForm:
    """The form of times that a load names.

    Raises: `Invalid` for a zone or a unit that is not known.
    """
    if unit is not None and unit not in UNITS:
        raise Invalid(
            "unit of time is not known", kind="time_unit", unit=unit,
            hint="s, ms, us or ns: seconds, milliseconds, microseconds, nanoseconds",
        )  # fmt: skip
    return TimeForm(None if zone is None else check_zone(zone), unit)


def instants_in(form: TimeForm, ticks: str) -> Convert:
    """The conversion of an input's times to UTC `ticks` (`ms`, `us`)."""

    def read(array: pa.Array[Any]) -> Converted:
        return to_instants(array, ticks, form.unit)

    zone = form.zone
    return read if zone is None else lambda array: _Clocks(zone, ticks, read).instants(array)


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Wall clocks in a zone; `read` reads times that have one."""

    zone: str
    ticks: str
    read: Convert

    def instants(self, array: pa.Array[Any]) -> Converted:
        kind, types = array.type, pa.types
        if types.is_date(kind):
            return self.assumed(array.cast(pa.timestamp("ms" if types.is_date64(kind) else "s")))
        if types.is_timestamp(kind) and kind.tz is None:
            return self.assumed(array)
        if is_text(kind):
            return self.of_text(array.cast(pa.string()))
        return self.read(array)

    def of_text(self, array: pa.Array[Any]) -> Converted:
        naive = mask_of(pc.match_substring_regex(array, NAIVE_TEXT).fill_null(False))
        if not naive.any():
            return self.read(array)
        trimmed = pc.utf8_trim(array, characters=" ")
        ending = pc.if_else(pc.match_substring_regex(array, _DATE), "T00:00Z", "Z")
        as_utc = pc.if_else(pa.array(naive), pc.binary_join_element_wise(trimmed, ending, ""), array)
        read = self.read(as_utc)
        walls = pc.if_else(pa.array(naive), read.values, None).cast(pa.timestamp(self.ticks))
        assumed = self.assumed(walls)
        return Converted(pc.if_else(pa.array(naive), assumed.values, read.values), (*read.faults, *assumed.faults))

    def assumed(self, walls: pa.Array[Any]) -> Converted:
        """Wall clocks as UTC ticks."""
        zone = self.zone
        if zone in UTC_NAMES:
            return self.read(pc.assume_timezone(walls, "UTC"))
        # Years that no clock shows would overflow there; as UTC they are reported as out of range.
        converted = self.read(pc.assume_timezone(walls, "UTC"))
        if converted.faults:
            walls = masked(walls, ~present(converted.values))
        early, late = (
            pc.assume_timezone(walls, zone, ambiguous=which, nonexistent=which) for which in ("earliest", "latest")
        )
        unclear = present(walls) & mask_of(pc.not_equal(early, late).fill_null(False))
        times = self.read(early.cast(pa.timestamp(walls.type.unit, "UTC")))
        faults = (*converted.faults, *times.faults, (unclear, f"is a time that clocks in {zone} show twice or never"))
        return Converted(masked(times.values, unclear), faults)
