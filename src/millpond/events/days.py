"""Days of events: UTC dates as the number of days since 1970-01-01, and the rules about them, all pure.

The day of an event is the later of the day of its time and the last day of its stream. So days never go back, whatever
clocks say. A time that is far ahead of our clock counts as the present and an allowance: one producer in the next
century must not take its stream there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

__all__ = (
    "DAY_MS", "DAY_MAX", "Run", "day_of", "format_day", "latest_due_day", "parse_day", "pulled_back", "runs_of",
    "stored_day",
)  # fmt: skip

DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
DAY_MAX = (date.max - _EPOCH).days


class Run(NamedTuple):
    """Events of a batch, from `start` up to and without `stop`, that belong to one day."""

    day: int
    start: int
    stop: int


def day_of(time_ms: int) -> int:
    """The day of an instant; those before 1970 and after 9999 count as the first and the last.

    >>> format_day(day_of(1_700_000_000_000))
    '2023-11-14'
    """
    return min(max(time_ms // DAY_MS, 0), DAY_MAX)


def stored_day(time_ms: int, floor_day: int, latest_ms: int) -> int:
    """The day that an event of that time goes to: no day before `floor_day`, no time after `latest_ms`."""
    return max(day_of(min(time_ms, latest_ms)), floor_day)


def runs_of(times_ms: Sequence[int], floor_day: int, latest_ms: int) -> list[Run]:
    """The days of the events of a batch, in order: days only grow.

    >>> runs_of([5, DAY_MS, 7], 0, 3 * DAY_MS)
    [Run(day=0, start=0, stop=1), Run(day=1, start=1, stop=3)]
    """
    assert times_ms
    if stored_day(max(times_ms), floor_day, latest_ms) == floor_day:
        return [Run(floor_day, 0, len(times_ms))]
    runs: list[Run] = []
    day, start = stored_day(times_ms[0], floor_day, latest_ms), 0
    for position, time_ms in enumerate(times_ms):
        if (next_day := stored_day(time_ms, day, latest_ms)) > day:
            runs.append(Run(day, start, position))
            day, start = next_day, position
    return [*runs, Run(day, start, len(times_ms))]


def pulled_back(days: Sequence[int], latest: int, floor: int) -> list[int]:
    """Days that a clock far ahead made, as days up to `latest`; they still grow, and come after `floor`.

    >>> pulled_back([7, 8, 400], 9, floor=6), pulled_back([400, 401], 9, floor=-1), pulled_back([400, 401], 9, floor=9)
    ([7, 8, 9], [8, 9], [10, 11])
    """
    numbers: list[int] = []
    for position, day in enumerate(days, 1):
        floor = max(min(day, latest - len(days) + position), floor + 1)
        numbers.append(floor)
    return numbers


def latest_due_day(now_ms: int, after_ms: int) -> int:
    """The latest day that ended at least `after_ms` ago; -1 when none has.

    >>> format_day(latest_due_day(3 * DAY_MS, 2 * DAY_MS)), latest_due_day(3 * DAY_MS, 9 * DAY_MS)
    ('1970-01-01', -1)
    """
    return max((now_ms - after_ms) // DAY_MS - 1, -1)


def format_day(day: int) -> str:
    """The date of a day, such as `2026-11-22`."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def parse_day(text: str) -> int:
    """The day of a date.

    >>> parse_day(format_day(20_779))
    20779

    Raises:
        ValueError: the text is no date.
    """
    return (date.fromisoformat(text) - _EPOCH).days
