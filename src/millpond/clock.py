"""The only module that may ask for the time, wait for it, or draw a random id.

Everything else takes a `Clock`, so that tests decide what time it is. Two times are never confused: the time of day,
which may be set back, is shown and stored; the monotonic time is measured and waited for.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

__all__ = ("Clock", "ManualClock", "SystemClock", "thread_seconds")

LOOK_SECONDS = 0.1
"""The real time after which a thread that waits on a manual clock looks at it again, should nobody have woken it."""
WAKE_SECONDS = 0.005
"""The real time for which a manual clock tries to wake a thread whose condition another one holds."""


def thread_seconds() -> float:
    """Seconds of CPU that this thread has used: what it did, not what time it is."""
    return time.thread_time()


class Clock(Protocol):
    """Time and randomness, as components receive them."""

    def now_ms(self) -> int:
        """UTC milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring how long something took."""

    def wait(self, event: threading.Event, due: float | None) -> bool:
        """Wait for an event, at most until the monotonic time `due`; False when that has come first."""

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        """Wait on a condition, whose lock is held, until a predicate is true; False when `due` has come first."""

    def chance(self) -> float:
        """A random number in `[0, 1)`."""

    def random_id(self) -> str:
        """16 lower-case hexadecimal digits, never drawn twice."""


class SystemClock:
    """The machine's own clock and randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, due: float | None) -> bool:
        return event.wait(None if due is None else max(0.0, due - self.monotonic()))

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        return condition.wait_for(predicate, None if due is None else max(0.0, due - self.monotonic()))

    def chance(self) -> float:
        return secrets.randbits(53) / (1 << 53)

    def random_id(self) -> str:
        return secrets.token_hex(8)


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is moved; its ids count up, and its chance is always the same.

    To set `now` is to set the time of day, forwards or back; the monotonic time is moved by `advance` and `jump` alone.
    Threads may share it: it knows for what times they wait, and counts in `turns` the waits that began and ended, so a
    test moves it when they have nothing else to do.
    """

    now: int = 0
    ids: int = 0
    passed_ms: int = 0
    share: float = 0.5
    turns: int = field(default=0, repr=False, compare=False)
    _waits: list[tuple[float | None, threading.Condition]] = field(default_factory=list, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def wait(self, event: threading.Event, due: float | None) -> bool:
        condition = vars(event)["_cond"]  # an event by itself cannot be woken without being set
        with condition:
            return self.wait_for(condition, event.is_set, due)

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        with self._listed(due, condition):
            while not predicate() and (due is None or self.monotonic() < due):
                condition.wait(LOOK_SECONDS)
        return predicate()

    @contextmanager
    def _listed(self, due: float | None, condition: threading.Condition) -> Iterator[None]:
        wait = (due, condition)
        with self._lock:
            self._waits.append(wait)
            self.turns += 1
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(wait)
                self.turns += 1

    def chance(self) -> float:
        return self.share

    def random_id(self) -> str:
        with self._lock:
            self.ids += 1
            return f"{self.ids:016x}"

    def advance(self, ms: int) -> None:
        """Move the clock forward by `ms` milliseconds."""
        assert ms >= 0
        with self._lock:
            self.now += ms
            self.passed_ms += ms
            woken = [condition for due, condition in self._waits if due is not None and due <= self.monotonic()]
        for condition in woken:
            if condition.acquire(timeout=WAKE_SECONDS):
                try:
                    condition.notify_all()
                finally:
                    condition.release()

    def jump(self, ms_max: int) -> bool:
        """Move the clock to the next time that a thread waits for, at most by `ms_max`.

        False when no thread waits for a time, or one whose time has come has not gone on yet.
        """
        with self._lock:
            dues = [due for due, _ in self._waits if due is not None]
        left_ms = ceil(1000 * (min(dues) - self.monotonic())) if dues else 0
        self.advance(min(max(left_ms, 0), ms_max))
        return left_ms > 0
