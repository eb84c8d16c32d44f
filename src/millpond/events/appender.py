"""Appending single events together: those of a moment go in one batch a stream, so that each costs little.

    append ─▶ waiting, by stream ─▶ one thread, after the linger or when much waits ─▶ the store, or a node

Invariants:
* the events of a stream are stored in the order in which they were appended here;
* what waits is bounded: `append` waits while there is more than `WAITING_BYTES_MAX`;
* when `flush` or `close` returns, everything appended before is stored; else it raises, and so does the next `append`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from millpond.clock import Clock
from millpond.errors import Closed
from millpond.events.codec import sizes_of
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.kernel.closing import Closing
from millpond.kernel.worker import begin_thread

__all__ = ("LINGER", "Appender")

LINGER = "20ms"
DELIVERY_EVENTS = 10_000
DELIVERY_BYTES = 1024 * 1024
"""So much does not linger."""
WAITING_BYTES_MAX = 16 * 1024 * 1024


class Appender(Closing):
    """Events that are appended a moment later, together; close it after use. Threads may share it.

    A process that ends without `close` loses what lingers. Events of an append that fails are not appended again.
    """

    def __init__(self, deliver: Callable[[Sequence[EventBatch]], Any], clock: Clock, linger_ms: int) -> None:
        self._deliver, self._clock, self._linger = deliver, clock, linger_ms / 1000
        self._changed = threading.Condition()
        self._queued: dict[StreamName, list[NewEvent]] = {}
        self._bytes = self._added = self._stored = self._hurried = 0
        self._due = 0.0
        self._error: BaseException | None = None
        self._closed = False
        self._thread = begin_thread("events-append", self._run)

    def append(self, queue: str, job_set: str, event: NewEvent | bytes) -> None:
        """Append an event soon. Bytes are a payload of now.

        Raises:
            Invalid: a name or the event is not acceptable. Whatever an earlier event failed with.
        """
        new = NewEvent(self._clock.now_ms(), event) if isinstance(event, bytes) else event
        batch = EventBatch(StreamName(queue, job_set), [new]).check()
        (size,) = sizes_of([new.payload], [new.headers])
        with self._changed:
            self._clock.wait_for(self._changed, lambda: self._bytes < WAITING_BYTES_MAX or self._is_over(), None)
            self._check()
            if self._closed:
                raise Closed("the appender is closed", kind="events_closed", hint="open another")
            if not self._queued:
                self._due = self._clock.monotonic() + self._linger
            self._queued.setdefault(batch.stream, []).append(new)
            self._bytes, self._added = self._bytes + size, self._added + 1
            if len(self._queued) == 1 or self._is_much():
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything appended so far is stored.

        Raises:
            Uncertain: the answer was lost: events may be stored. Whatever else an event failed with.
        """
        with self._changed:
            goal = self._hurried = self._added
            self._changed.notify_all()
            self._clock.wait_for(self._changed, lambda: self._stored >= goal or self._error is not None, None)
            self._check()

    def close(self) -> None:
        """Store what lingers, and end; closing twice is harmless.

        Raises: as `flush`.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._check()

    def _is_over(self) -> bool:
        return self._closed or self._error is not None

    def _is_much(self) -> bool:
        return self._bytes >= DELIVERY_BYTES or self._added - self._stored >= DELIVERY_EVENTS

    def _is_hurried(self) -> bool:
        return self._closed or self._is_much() or self._hurried > self._stored

    def _check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while queued := self._next():
            count = sum(map(len, queued.values()))
            error: BaseException | None = None
            try:
                self._deliver([EventBatch(stream, events) for stream, events in queued.items()])
            except Exception as failure:
                error = failure
            with self._changed:
                self._stored += count
                self._error = self._error or error
                self._changed.notify_all()

    def _next(self) -> dict[StreamName, list[NewEvent]]:
        """The events to be stored now; none at the end."""
        with self._changed:
            self._clock.wait_for(self._changed, lambda: bool(self._queued) or self._closed, None)
            self._clock.wait_for(self._changed, self._is_hurried, self._due)
            queued, self._queued, self._bytes = self._queued, {}, 0
            return queued
