"""A thread that acts again and again: when it is woken, and at the time it asked for.

    start ─▶ act ─▶ wait until that time, or a wake ─▶ act ─▶ … ─▶ stop

Invariants:
* `act` runs in one thread at a time, and not at all after `stop`.
* A wake that comes while `act` runs is not lost: it runs once more.
* A failure ends no worker. It is logged once for as long as it stays the same, stands in `failure`, and `act` runs
  again after `retry_seconds`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millpond.clock import Clock
from millpond.errors import MillpondError

__all__ = ("WorkerThread", "wait_ended")

TELL_SECONDS = 10.0
_LOG = logging.getLogger(__name__)


class WorkerThread:
    """Calls `act` until it is stopped: it returns the monotonic time of its next call; None: not before it is woken.

    `name` says what it does, for the log: `offers of tasks`. It may be started anew after it was stopped.
    """

    def __init__(self, name: str, act: Callable[[], float | None], clock: Clock, *, retry_seconds: float = 1.0) -> None:
        self._name, self._act, self._clock, self._retry_seconds = name, act, clock, retry_seconds
        self.stopping, self._woken = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; starting twice is harmless."""
        if self._thread is None:
            self.stopping.clear()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Act now, or once more if it is acting."""
        self._woken.set()

    def interrupt(self) -> None:
        """Act no more; `stop` follows."""
        self.stopping.set()
        self._woken.set()

    def stop(self) -> None:
        """Act no more, and wait until the act that runs has ended; stopping twice is harmless."""
        self.interrupt()
        if self._thread is not None:
            wait_ended(self._thread, self._name)
            self._thread = None

    @property
    def started(self) -> bool:
        """True between `start` and `stop`."""
        return self._thread is not None

    @property
    def alive(self) -> bool:
        """True when its thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while True:
            # In this order: `interrupt` sets the other one first, so that it is not missed.
            self._woken.clear()
            if self.stopping.is_set():
                return
            self._clock.wait(self._woken, self._next())

    def _next(self) -> float | None:
        try:
            due = self._act()
        except Exception as error:
            if str(error) != str(self.failure):
                _LOG.warning("%s: %s", self._name, error, exc_info=None if isinstance(error, MillpondError) else error)
            self.failure = error
            return self._clock.monotonic() + self._retry_seconds
        self.failure = None
        return due


def wait_ended(thread: threading.Thread, what: str) -> None:
    """Wait until a thread has ended, however long that takes, and say so now and then.

    There is no limit after which to go on: the pond would be closed under the thread.
    """
    while True:
        thread.join(TELL_SECONDS)
        if not thread.is_alive():
            return
        _LOG.warning("waiting for %s to end", what)
