"""Ids of jobs: ULIDs, 26 letters and digits whose order is that of the milliseconds in which they were drawn."""

from __future__ import annotations

import re

from millpond.clock import Clock
from millpond.events.days import day_of

__all__ = ("draw_job_id", "is_job_id", "job_id_day")

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_TEXT = re.compile(f"[0-7][{_DIGITS}]{{25}}")


def draw_job_id(clock: Clock) -> str:
    """A new id of a job.

    >>> from millpond.clock import ManualClock
    >>> draw_job_id(ManualClock(1_700_000_000_000))
    '01hf7yat000000000000000002'
    """
    drawn = int(clock.random_id() + clock.random_id(), 16) & ((1 << _RANDOM_BITS) - 1)
    number = (clock.now_ms() << _RANDOM_BITS) | drawn
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -5, -5))


def is_job_id(text: str) -> bool:
    """True for a text that may be the id of a job."""
    return _TEXT.fullmatch(text) is not None


def job_id_day(job_id: str) -> int:
    """The day on which an id of a job was drawn.

    >>> job_id_day("01hf7yat000000000000000002")
    19675
    """
    milliseconds = 0
    for digit in job_id[:10]:
        milliseconds = milliseconds << 5 | _DIGITS.index(digit)
    return day_of(milliseconds)
