"""Times without a zone, for people who say which zone they are in: wall clocks become instants.

A wall clock shows some times twice and some never, where summer time ends and begins: such a time is no instant, and a
fault of its row. Dates are the midnight that begins them. Times that do have a zone keep it.
"""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.scalars import NAIVE_TEXT, Convert, Converted, is_text, mask_of, masked, present, to_instants

__all__ = ("check_zone", "instants_in")

_DATE = r"^ *[0-9]{4}-[0-9]{2}-[0-9]{2} *$"
_UTC = ("UTC", "Z", "Etc/UTC")


def check_zone(zone: str) -> str:
    """The zone, if there is one of that name.

    Raises: `Invalid`.
    """
    if zone not in _UTC:
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, KeyError) as error:
            raise Invalid(
                "time zone is not known", kind="zone_unknown", zone=zone, hint="such as UTC, or Europe/Berlin"
            ) from error
    return zone


def instants_in(zone: str | None) -> Convert:
    """`to_instants`, with times that have no zone taken to be in `zone`, if there is one."""
    return to_instants if zone is None else lambda array: _instants(array, zone)


def _instants(array: pa.Array[Any], zone: str) -> Converted:
    kind, types = array.type, pa.types
    if types.is_date(kind):
        return _assumed(array.cast(pa.timestamp("s")), zone)
    if types.is_timestamp(kind) and kind.tz is None:
        return _assumed(array, zone)
    if is_text(kind):
        return _of_text(array.cast(pa.string()), zone)
    return to_instants(array)


def _of_text(array: pa.Array[Any], zone: str) -> Converted:
    naive = mask_of(pc.match_substring_regex(array, NAIVE_TEXT).fill_null(False))
    if not naive.any():
        return to_instants(array)
    trimmed = pc.utf8_trim(array, characters=" ")
    ending = pc.if_else(pc.match_substring_regex(array, _DATE), "T00:00Z", "Z")
    as_utc = pc.if_else(pa.array(naive), pc.binary_join_element_wise(trimmed, ending, ""), array)
    read = to_instants(as_utc)
    walls = pc.if_else(pa.array(naive), read.values, None).cast(pa.timestamp("ms"))
    assumed = _assumed(walls, zone)
    return Converted(pc.if_else(pa.array(naive), assumed.values, read.values), (*read.faults, *assumed.faults))


def _assumed(walls: pa.Array[Any], zone: str) -> Converted:
    """Wall clocks in a zone as UTC milliseconds."""
    if zone in _UTC:
        return to_instants(pc.assume_timezone(walls, "UTC"))
    # Years that no clock shows would overflow there; as UTC they are told to be out of range.
    told = to_instants(pc.assume_timezone(walls, "UTC"))
    if told.faults:
        walls = masked(walls, ~present(told.values))
    early, late = (
        pc.assume_timezone(walls, zone, ambiguous=which, nonexistent=which) for which in ("earliest", "latest")
    )
    unclear = present(walls) & mask_of(pc.not_equal(early, late).fill_null(False))
    made = to_instants(early.cast(pa.timestamp(walls.type.unit, "UTC")))
    faults = (*told.faults, *made.faults, (unclear, f"is a time that clocks in {zone} show twice or never"))
    return Converted(masked(made.values, unclear), faults)
