"""Buckets of time: the instant at which the bucket of an instant begins, in a time zone.

| resolution | a bucket begins |
|---|---|
| `1 second` … `1 hour`, `15 minutes` | where the clock of the zone shows a multiple, counted from its midnight |
| `6 hours`, `1 day`, `1 week`, `1 month`, `1 year` | likewise; weeks on Monday, months and years on the first |
| `none` | never: all instants are in one bucket, that of 1970-01-01T00:00Z |

Up to an hour, the hour that clocks show twice in autumn is two buckets, and a bucket that clocks are moved in is cut
there. Above an hour a bucket is what the calendar says: a day has 23, 24 or 25 hours.

Invariants:
* a bucket begins in itself: the start of a start is that start;
* of an instant, the start is never later;
* a bucket of a width lies in one bucket of each coarser width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from millpond.deferred import np, pa, pc
from millpond.errors import Invalid
from millpond.times.instants import INSTANT_MAX
from millpond.times.zones import UTC_NAMES

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = (
    "BucketWidth", "bucket_ends", "bucket_start", "bucket_starts", "bucket_width", "coarser_width", "is_made_up",
    "starts_before", "window_width",
)  # fmt: skip

_UNITS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_DAY_MS = _UNITS_MS["day"]
_HOUR_MS = _UNITS_MS["hour"]
_LONGEST_MS = {"week": 7 * _DAY_MS, "month": 31 * _DAY_MS, "year": 366 * _DAY_MS}
_CALENDAR = tuple(_LONGEST_MS)
_RESOLUTION = re.compile(rf"\s*(?:(\d{{1,5}})\s*)?({'|'.join((*_UNITS_MS, *_CALENDAR))})s?\s*")
_HINT = "a whole part of a day (1 second, 15 minutes, 6 hours), 1 day, 1 week, 1, 2, 3, 4 or 6 months, 1 year, or none"
_HALVINGS = 22
"""Halvings of an hour down to a millisecond."""


@dataclass(frozen=True, slots=True)
class BucketWidth:
    """The width of a bucket: a number of units, or `none`."""

    count: int
    unit: str

    @property
    def text(self) -> str:
        """The width as it is stored and shown."""
        return "none" if self.unit == "none" else f"{self.count} {self.unit}{'s' if self.count > 1 else ''}"

    @property
    def longest_ms(self) -> int:
        """A time that no bucket is longer than; clocks may be moved back within those above an hour."""
        longest = self.count * _LONGEST_MS.get(self.unit, _UNITS_MS.get(self.unit, 0))
        return longest if self.count * _UNITS_MS.get(self.unit, _DAY_MS) <= _HOUR_MS else longest + _DAY_MS

    @property
    def shortest_ms(self) -> int:
        """A time that no bucket is shorter than, but those that clocks are moved in."""
        return max(1, self.longest_ms // 2 if self.unit in _UNITS_MS else _DAY_MS)


def bucket_width(resolution: str) -> BucketWidth:
    """The width that a resolution names.

    >>> bucket_width("hour").text, bucket_width("15 minutes").text
    ('1 hour', '15 minutes')

    Raises: `Invalid`.
    """
    width = _named_width(resolution)
    if not _is_whole_part(width):
        raise Invalid("the resolution is not understood", kind="resolution", resolution=repr(resolution)[:100],
                      hint=f"write {_HINT}")  # fmt: skip
    return width


def _named_width(text: str) -> BucketWidth:
    """The width that a text names; of no units where it names none."""
    lowered = str(text).lower()
    if lowered.strip() == "none":
        return BucketWidth(1, "none")
    match = _RESOLUTION.fullmatch(lowered)
    return BucketWidth(0, "") if match is None else BucketWidth(int(match.group(1) or 1), match.group(2))


def window_width(window: str, resolution: str) -> BucketWidth:
    """The width of a window, if buckets of a resolution make it up.

    >>> window_width("7 days", "1 hour").text
    '7 days'

    Raises: `Invalid`, kind `window`.
    """
    wide, fine = _named_width(window), bucket_width(resolution)
    alike = wide.unit == fine.unit and wide.count % fine.count == 0
    if wide.count < 1 or "none" in (wide.unit, fine.unit) or not (alike or is_made_up(wide, fine)) or (
        wide.unit in ("month", "year") and fine.unit not in ("month", "year")
    ):  # fmt: skip
        raise Invalid(
            "buckets of the map do not make up the window", kind="window", window=repr(window)[:100],
            resolution=fine.text, hint="write a multiple of the map's resolution, such as '7 days' of hours or days",
        )  # fmt: skip
    return wide


def _is_whole_part(width: BucketWidth) -> bool:
    if width.unit == "none":
        return True
    if width.count < 1:
        return False
    if width.unit in _UNITS_MS:
        return _DAY_MS % (width.count * _UNITS_MS[width.unit]) == 0
    return (12 % width.count == 0 and width.count < 12) if width.unit == "month" else width.count == 1


def coarser_width(resolution: str, stored: str) -> str:
    """The width that a resolution names, if buckets of the stored one make up its own.

    >>> coarser_width("day", "15 minutes")
    '1 day'

    Raises: `Invalid`.
    """
    wide, fine = bucket_width(resolution), bucket_width(stored)
    if not is_made_up(wide, fine):
        raise Invalid(
            "buckets of the map do not make up this resolution", kind="resolution_finer", resolution=wide.text,
            stored=fine.text, hint="name a multiple of the stored one: of hours 6 hours, of days a month; or none",
        )  # fmt: skip
    return wide.text


def is_made_up(wide: BucketWidth, fine: BucketWidth) -> bool:
    """True when buckets of the fine width make up those of the wide one."""
    if wide.unit == "none" or wide == fine:
        return True
    if fine.unit in _UNITS_MS:
        step = wide.count * _UNITS_MS.get(wide.unit, _DAY_MS)
        return step % (fine.count * _UNITS_MS[fine.unit]) == 0
    months = {"month": wide.count, "year": 12}.get(wide.unit, 0)
    return fine.unit == "month" and months > 0 and months % fine.count == 0


def starts_before(starts: npt.NDArray[np.int64], window: BucketWidth, zone: str) -> npt.NDArray[np.int64]:
    """The instants that lie a window before the starts of buckets: from a day on, by the clocks of the zone."""
    elapsed = window.unit in ("second", "minute", "hour") or zone in UTC_NAMES
    walls = starts if elapsed else _walls(starts, zone)
    if window.unit in ("month", "year"):
        months = walls.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)
        months = months - window.count * (12 if window.unit == "year" else 1)
        before = months.astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64)
    else:
        before = walls - window.count * (7 * _DAY_MS if window.unit == "week" else _UNITS_MS[window.unit])
    return before if elapsed else _instants(before, zone)


def bucket_ends(starts: npt.NDArray[np.int64], resolution: str, zone: str) -> npt.NDArray[np.int64]:
    """The first instant after each bucket that begins at a start; `none` ends after all times."""
    width = _width(resolution)
    if width.unit == "none":
        return np.full(len(starts), INSTANT_MAX + 1, np.int64)
    ends = np.minimum(starts + width.longest_ms, INSTANT_MAX + 1)
    while True:
        last = np.flatnonzero(bucket_starts(ends - 1, resolution, zone) > starts)
        if not len(last):
            return ends
        ends[last] = bucket_starts(ends[last] - 1, resolution, zone)


def bucket_starts(instants: npt.NDArray[np.int64], resolution: str, zone: str) -> npt.NDArray[np.int64]:
    """The start of the bucket of each instant, in UTC milliseconds."""
    width = _width(resolution)
    if width.unit == "none":
        return np.zeros(len(instants), np.int64)
    if zone in UTC_NAMES:
        return _floored(instants, width)
    walls = _walls(instants, zone)
    floored = _floored(walls, width)
    if width.count * _UNITS_MS.get(width.unit, _DAY_MS) > _HOUR_MS:
        return np.minimum(_instants(floored, zone), instants)
    starts = instants - (walls - floored)
    moved = np.flatnonzero(_walls(starts, zone) != floored)
    if len(moved):
        starts[moved] = _moves(starts[moved], instants[moved], zone)
    return starts


def bucket_start(instant: int, resolution: str, zone: str) -> int:
    """The start of the bucket of one instant."""
    return int(bucket_starts(np.array([instant], np.int64), resolution, zone)[0])


@lru_cache(maxsize=64)
def _width(resolution: str) -> BucketWidth:
    return bucket_width(resolution)


def _floored(walls: npt.NDArray[np.int64], width: BucketWidth) -> npt.NDArray[np.int64]:
    """Clocks, as milliseconds from 1970-01-01T00:00 on them, at the start of their buckets."""
    if width.unit in _UNITS_MS:
        step = width.count * _UNITS_MS[width.unit]
        return walls // step * step
    if width.unit == "week":
        days = walls // _DAY_MS
        return ((days + 3) // 7 * 7 - 3) * _DAY_MS  # 1970-01-01 was a Thursday
    months = walls.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)
    step = 12 if width.unit == "year" else width.count
    floored: npt.NDArray[np.int64] = (
        (months // step * step).astype("datetime64[M]").astype("datetime64[ms]").astype(np.int64)
    )
    return floored


def _walls(instants: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """The times that the clocks of a zone show."""
    local = pc.local_timestamp(pa.array(instants).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms", zone)))
    walls: npt.NDArray[np.int64] = local.cast(pa.int64()).to_numpy()
    return walls


def _instants(walls: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """The first instant at which the clocks of a zone show this, or more where they skip it."""
    naive = pa.array(walls).cast(pa.timestamp("ms"))
    aware = pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="latest")
    instants: npt.NDArray[np.int64] = aware.cast(pa.int64()).to_numpy()
    return instants


def _moves(
    before: npt.NDArray[np.int64], after: npt.NDArray[np.int64], zone: str
) -> npt.NDArray[np.int64]:  # fmt: skip
    """The first instants at which clocks show the time of day that they have `after`, not that of `before`."""
    low, high, offset = before.copy(), after.copy(), _walls(after, zone) - after
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        moved = _walls(middle, zone) - middle == offset
        high = np.where(moved, middle, high)
        low = np.where(moved, low, middle)
    return high
