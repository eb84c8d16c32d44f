"""The outbox of a partition: a thread that sends the rows that wait there, and deletes them when they are sent.

    processor ─▶ rows, in the write of their command ─▶ a ring ─▶ a page is sent ─▶ its rows are deleted

Invariants:
* the processor waits for nobody: a row that cannot be sent waits, and is tried again;
* what waits already is sent when the outbox starts; after that nothing is read before the processor writes;
* many rows are one page, and pages are at most four a second while the work is little;
* a row is deleted after what it tells is durable elsewhere;
* at most `waiting_max` wait for what cannot be reached: the oldest beyond it are dropped, which is counted, and said in
  the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.kernel.space import ReadTransaction, Space
from millpond.kernel.worker import WorkerThread

__all__ = ("Outbox", "Tally")

PAGE_ROWS = 1_000
PAUSE_SECONDS = 0.25
RETRY_SECONDS = 1.0
_DROPPED_AT_ONCE = 100
"""The part of the limit that is dropped in one write, so that one row more is no write more."""
_LOG = logging.getLogger(__name__)
_Position = tuple[int, int]
T = TypeVar("T", bound=tuple[Any, ...])
"""A row, which begins with its place."""


class Tally:
    """A number that several threads add to."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()

    def add(self, more: int) -> None:
        """Count more."""
        with self._lock:
            self.number += more


class Outbox(Generic[T]):
    """Sends the rows of one partition."""

    def __init__(
        self, what: str, space: Space, clock: Clock, send: Callable[[Sequence[T]], object], *,
        page: Callable[[ReadTransaction, _Position, int], Sequence[T]],
        sizes: Callable[[ReadTransaction, _Position], Iterator[tuple[_Position, int]]], waiting_max: int,
        ended: Callable[[_Position, bool], object], dropped: Callable[[int], object],
    ) -> None:  # fmt: skip
        """`page` reads so many rows behind a place, `sizes` what each takes of `waiting_max`: 0 is not dropped.

        `ended` deletes the rows up to a place, True for those that are dropped; `dropped` gets their number.
        """
        self._what, self._space, self._clock, self._send = what, space, clock, send
        self._page, self._sizes, self._waiting_max = page, sizes, waiting_max
        self._ended, self._dropped = ended, dropped
        self._after = self._deleted = self._seen = (0, 0)
        self._queued = self._lost = 0
        self._worker = WorkerThread(
            what, self._send_all, clock, retry_seconds=RETRY_SECONDS, pause_seconds=PAUSE_SECONDS
        )
        self.start, self.wake = self._worker.start, self._worker.wake

    def stop(self) -> None:
        """Send what waits, unless that just failed, and end. The space is its owner's to close."""
        self._worker.stop()
        try:
            while self._worker.failure is None and self.turn():
                pass
        except Exception as error:
            is_ours = isinstance(error, MillpondError)
            _LOG.warning("%s stay for the next owner: %s", self._what, error, exc_info=None if is_ours else error)

    def turn(self) -> int:
        """Send one page of the rows that wait; how many there were.

        Raises: as `send`; what was not sent is sent by another turn.
        """
        with self._space.read() as tx:
            page = self._page(tx, self._after, PAGE_ROWS)
        if page:
            self._send(page)
            self._after = self._seen = page[-1][0]
            self._queued = 0
            if self._lost:
                _LOG.error("%s are sent again, but for the oldest that waited. dropped=%s", self._what, self._lost)
                self._lost = 0
        # Apart: what is sent, and could not be deleted, is not sent twice.
        if self._deleted < self._after:
            self._ended(self._after, False)
            self._deleted = self._after
        return len(page)

    def drop(self) -> None:
        """Drop the oldest rows beyond the limit. It reads those that came since it was called before."""
        with self._space.read() as tx:
            for position, size in self._sizes(tx, max(self._seen, self._after)):
                self._seen, self._queued = position, self._queued + size
            left, count, oldest = self._queued, 0, self._after
            most = self._waiting_max - self._waiting_max // _DROPPED_AT_ONCE
            for position, size in self._sizes(tx, self._after) if left > self._waiting_max else ():
                if left <= most:
                    break
                if size:
                    oldest, left, count = position, left - size, count + 1
        if not count:
            return
        if not self._lost:
            _LOG.error("more %s wait than may: the oldest are dropped. waiting_max=%s", self._what, self._waiting_max)
        self._ended(oldest, True)
        self._dropped(count)
        self._lost, self._queued = self._lost + count, left

    def _send_all(self) -> float | None:
        try:
            while (count := self.turn()) == PAGE_ROWS and not self._worker.stopping.is_set():
                pass
        except Exception:
            self.drop()
            raise
        return self._clock.monotonic() if count else None
