"""Durations as people write them, for suites over everything that takes one."""

from __future__ import annotations

__all__ = ("ACCEPTED", "OFF", "REFUSED")

_HOUR = 3_600_000

ACCEPTED: dict[str, int] = {
    "0": 0, "0s": 0, "1500ms": 1_500, "90s": 90_000, "15m": 900_000, "10min": 600_000, "10 Min": 600_000,
    "12h": 12 * _HOUR,
    " 30d ": 720 * _HOUR, "1w": 168 * _HOUR, "1W": 168 * _HOUR, "2y": 730 * 24 * _HOUR, "007d": 168 * _HOUR,
    "P1W": 168 * _HOUR, "P30D": 720 * _HOUR, "PT15M": 900_000, "P1DT12H": 36 * _HOUR, "PT1H30M5S": 5_405_000,
    "PT1.5S": 1_500, "PT0,25S": 250, "PT0S": 0, "pt2h": 2 * _HOUR,
}  # fmt: skip
"""Text, and its milliseconds."""

OFF = ("off", "never", "OFF", " Never ")
"""Text that switches something off."""

REFUSED = (
    "", " ", "15", "1500", "d", "soon", "-1d", "+1d", "1.5h", "1h30m", "30days", "10 mins", "1M2", "5µs", "٣d", "1e3s",
    "1mo",
    "P", "PT", "P1Y", "P1M", "P1DT", "P-1D", "PT1.5H", "PT1.0005S", "PT1S5M", "1d/2", "999999999999999y", "10006y",
    "9999999999999999d",
)  # fmt: skip
"""Text that is no duration."""
