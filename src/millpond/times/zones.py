"""The names of time zones."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from millpond.errors import Invalid

__all__ = ("UTC_NAMES", "check_zone")

UTC_NAMES = ("UTC", "Z", "Etc/UTC")
"""The names of the zone that has no clocks to ask."""


def check_zone(zone: str) -> str:
    """The zone, if there is one of that name.

    Raises: `Invalid`.
    """
    if zone not in UTC_NAMES:
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise Invalid(
                "time zone is not known", kind="zone_unknown", zone=zone, hint="such as UTC, or Europe/Berlin"
            ) from error
    return zone
