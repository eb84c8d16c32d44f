"""The only module that may ask for the time or draw a random id.

Everything else takes a `Clock`, so that tests decide what time it is.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ("Clock", "ManualClock", "SystemClock", "thread_seconds")


def thread_seconds() -> float:
    """Seconds of CPU that this thread has used: what it did, not what time it is."""
    return time.thread_time()


class Clock(Protocol):
    """Time and randomness, as components receive them."""

    def now_ms(self) -> int:
        """UTC milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring how long something took."""

    def random_id(self) -> str:
        """16 lower-case hexadecimal digits, never drawn twice."""


class SystemClock:
    """The machine's own clock and randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def random_id(self) -> str:
        return secrets.token_hex(8)


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is moved; its ids count up."""

    now: int = 0
    ids: int = field(default=0)

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    def random_id(self) -> str:
        self.ids += 1
        return f"{self.ids:016x}"

    def advance(self, ms: int) -> None:
        """Move the clock forward by `ms` milliseconds."""
        assert ms >= 0
        self.now += ms
