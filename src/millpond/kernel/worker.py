"""A thread that acts again and again: when it is woken, and at the time it asked for.

    start ─▶ act ─▶ wait until that time, or a wake ─▶ act ─▶ … ─▶ stop

Invariants:
* `act` runs in one thread at a time, and not at all after `stop`.
* A wake that comes while `act` runs is not lost: it runs once more.
* With `pause_seconds`, so many pass from one act to the next, and `retry_seconds` after a failure: wakes that come
  meanwhile are one.
* A failure ends no worker. It is logged once for as long as it stays the same, stands in `failure`, and `act` runs
  again after `retry_seconds`.
* From `start` to `stop` a worker is one of `workers()`: whoever looks after the process sees what it does, and what
  went wrong with it last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millpond.clock import Clock
from millpond.errors import MillpondError

__all__ = ("WorkerStatus", "WorkerThread", "begin_thread", "repeating", "wait_ended", "workers")

TELL_SECONDS = 10.0
_LOG = logging.getLogger(__name__)
_STARTED: dict[int, WorkerThread] = {}
"""The workers of this process, by their identities; one that was not stopped stays until the process ends."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker as it stands. `last_ms`: when it acted last; `failed_ms`: when an act failed last, with `failure`."""

    name: str
    state: str
    """`acting`, `waiting`; `failing` while it waits after a failure; `ended` when its thread is gone."""
    last_ms: int | None
    failed_ms: int | None
    failure: str | None


def workers() -> list[WorkerStatus]:
    """The workers of this process, and its threads that act once and are still at it, by their names."""
    once = [thread.name for thread in threading.enumerate() if isinstance(thread, _Once)]
    acting = [WorkerStatus(name, "acting", None, None, None) for name in once]
    seen = [worker.status() for worker in tuple(_STARTED.values())]
    return sorted(acting + seen, key=lambda status: status.name)


class WorkerThread:
    """Calls `act` until it is stopped: it returns the monotonic time of its next call; None: not before it is woken.

    `name` says what it does, for the log: `offers of tasks`. It may be started anew after it was stopped.
    """

    def __init__(
        self, name: str, act: Callable[[], float | None], clock: Clock, *, retry_seconds: float = 1.0,
        pause_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self._name, self._act, self._clock = name, act, clock
        self._retry_seconds, self._pause_seconds = retry_seconds, pause_seconds
        self.stopping, self.woken = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self._acting, self._last_ms = False, None  # type: tuple[bool, int | None]
        self._failed: tuple[int, str] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; starting twice is harmless."""
        if self._thread is None:
            self.stopping.clear()
            self._thread = _thread(self._name, self._run)
            _STARTED[id(self)] = self

    def wake(self) -> None:
        """Act now, or once more if it is acting."""
        self.woken.set()

    def interrupt(self) -> None:
        """Act no more; `stop` follows."""
        self.stopping.set()
        self.woken.set()

    def stop(self) -> None:
        """Act no more, and wait until the act that runs has ended; stopping twice is harmless."""
        self.interrupt()
        if self._thread is not None:
            wait_ended(self._thread, self._name)
            self._thread = None
            _STARTED.pop(id(self), None)

    @property
    def started(self) -> bool:
        """True between `start` and `stop`."""
        return self._thread is not None

    @property
    def alive(self) -> bool:
        """True when its thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def status(self) -> WorkerStatus:
        """The worker as it stands."""
        resting = "waiting" if self.failure is None else "failing"
        state = ("acting" if self._acting else resting) if self.alive else "ended"
        failed_ms, failure = self._failed or (None, None)
        return WorkerStatus(self._name, state, self._last_ms, failed_ms, failure)

    def _run(self) -> None:
        while True:
            # In this order: `interrupt` sets the other one first, so that it is not missed.
            self.woken.clear()
            if self.stopping.is_set():
                return
            due = self._next()
            if self._pause_seconds:
                pause = self._pause_seconds if self.failure is None else self._retry_seconds
                self._clock.wait(self.stopping, self._clock.monotonic() + pause)
            self._clock.wait(self.woken, due)

    def _next(self) -> float | None:
        self._acting, self._last_ms = True, self._clock.now_ms()
        try:
            due = self._act()
        except Exception as error:
            self._failed = self._clock.now_ms(), str(error)
            # By their texts: each failure is another object.
            if str(error) != str(self.failure):
                _LOG.warning("%s: %s", self._name, error, exc_info=None if isinstance(error, MillpondError) else error)
            self.failure = error
            return self._clock.monotonic() + self._retry_seconds
        finally:
            self._acting = False
        self.failure = None
        return due


@contextmanager
def repeating(name: str, act: Callable[[], object], seconds: float, clock: Clock) -> Iterator[None]:
    """Call `act` again and again while this lasts, for the first time when so many seconds have passed."""
    first = clock.monotonic() + seconds

    def tick() -> float:
        if clock.monotonic() >= first:
            act()
        return clock.monotonic() + seconds

    worker = WorkerThread(name, tick, clock, retry_seconds=seconds)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def begin_thread(name: str, act: Callable[[], object]) -> threading.Thread:
    """A thread that acts once. It is no reason for the process to stay: what must end well is waited for."""
    return _thread(name, act, _Once)


class _Once(threading.Thread):
    """A thread that acts once."""


def _thread(name: str, act: Callable[[], object], kind: type[threading.Thread] = threading.Thread) -> threading.Thread:
    thread = kind(target=act, name=name, daemon=True)
    thread.start()
    return thread


def wait_ended(thread: threading.Thread, what: str) -> None:
    """Wait until a thread has ended, however long that takes, and say so now and then.

    There is no limit after which to go on: the pond would be closed under the thread.
    """
    while True:
        thread.join(TELL_SECONDS)
        if not thread.is_alive():
            return
        _LOG.warning("waiting for %s to end", what)
