"""Ids of jobs: ULIDs, 26 letters and digits whose order is that of the milliseconds in which they were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.clock import Clock

__all__ = ("draw_job_id",)

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80


def draw_job_id(clock: Clock) -> str:
    """A new id of a job.

    >>> from millpond.clock import ManualClock
    >>> draw_job_id(ManualClock(1_700_000_000_000))
    '01hf7yat000000000000000002'
    """
    drawn = int(clock.random_id() + clock.random_id(), 16) & ((1 << _RANDOM_BITS) - 1)
    number = (clock.now_ms() << _RANDOM_BITS) | drawn
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -5, -5))
