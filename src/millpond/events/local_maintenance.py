"""Maintenance of a pond's own streams by the processes that write them: a folder without a node has nobody else.

    first events of a process ─▶ one thread: own streams with due days ─▶ dropped, compressed ─▶ end of the thread

Invariants:
* streams of users are left alone: their owner decides when they are maintained;
* it runs on a thread of its own, slowly, at most once a day for each open pond. It ends between two batches when the
  pond is closed, and the next process goes on;
* a stream without due days costs one read: no write, no lock. One small write a day says that the clock was seen;
* several processes may do it at once: days are fenced. A fault is logged, and stops no work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import chain

from millpond.clock import Clock
from millpond.events.days import DAY_MS, latest_due_day
from millpond.events.index import State, StreamIndex, forget_day
from millpond.events.maintenance import EventMaintenance, MaintenanceReport, MaintenanceRules, due_streams
from millpond.events.names import StreamName
from millpond.events.protocol import HIDDEN_DAY, StreamStore, Work
from millpond.events.witness import Doubt
from millpond.kernel.page import all_behind
from millpond.kernel.schedule import Recurring
from millpond.kernel.worker import begin_thread

__all__ = ("OwnMaintenance",)

_PAGE = 500
_LOG = logging.getLogger(__name__)


class OwnMaintenance:
    """Maintenance of the streams of one queue. `rules` gives the ages when it begins; None: a node sees to it."""

    def __init__(
        self, store: StreamStore, clock: Clock, queue: str, rules: Callable[[], MaintenanceRules | None],
        forget_ms: int, doubt: Callable[[], Doubt | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._store, self._clock, self._queue = store, clock, queue
        self._rules, self._forget_ms, self._doubt = rules, forget_ms, doubt
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._days = Recurring(0, DAY_MS)

    def begin(self) -> None:
        """Begin the work of today, unless it was begun, and return at once. One thread calls it."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or self._stopping.is_set() or not self._days.begin(self._clock.now_ms()):
            return
        self._thread = begin_thread("millpond-own-maintenance", self._run)

    def stop(self) -> None:
        """Let the work end between two batches."""
        self._stopping.set()

    def wait(self, seconds: float) -> None:
        """Wait until nothing is under way, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            rules = self._rules()
            if rules is not None:
                self._maintain(rules)
        except Exception as error:  # whatever it is, the pond is in use
            _LOG.warning("the pond's own streams of events could not be maintained: %s", error)

    def _maintain(self, rules: MaintenanceRules) -> None:
        now_ms = self._clock.now_ms()
        forget = latest_due_day(now_ms, self._forget_ms)
        doubt = self._doubt()
        maintenance = EventMaintenance(self._store, self._clock, rules, self._forget_ms, doubt=doubt)

        def expires(index: StreamIndex) -> bool:
            return _expires(index, maintenance.ages.latest_day(Work.EXPIRE, index.stream, now_ms), forget)

        def compresses(index: StreamIndex) -> bool:
            return _compresses(index, maintenance.ages.latest_day(Work.COMPRESS, index.stream, now_ms))

        done = MaintenanceReport()
        if doubt is not None:
            _LOG.warning("the pond's own old events are kept: %s", doubt)
        else:
            done += maintenance.expire(self._stopping, streams=chain(self._hidden(), self._due(expires)))
        done += maintenance.compress(self._stopping, streams=self._due(compresses))
        for fault in done.faults:
            _LOG.warning("a stream of the pond's own events could not be maintained: %s", fault)

    def _hidden(self) -> Iterator[StreamName]:
        """The own streams whose deletion was interrupted."""
        hidden = due_streams(self._store, Work.EXPIRE, HIDDEN_DAY)
        return (due.stream for due in hidden if due.stream.queue == self._queue)

    def _due(self, due: Callable[[StreamIndex], bool]) -> Iterator[StreamName]:
        """The own streams with work, page by page; streams of users may have far more of it than these."""
        for stream in all_behind(lambda after: self._store.streams(self._queue, after, limit=_PAGE)):
            index = self._store.index(stream)
            if index is not None and due(index):
                yield stream


def _expires(index: StreamIndex, day: int, forgotten: int) -> bool:
    if not index.segments:
        return forget_day(index.last_id, index.last_day) <= forgotten
    return index.segments[0].days[0].day <= day


def _compresses(index: StreamIndex, day: int) -> bool:
    raw = (segment for segment in index.segments if segment.state in (State.OPEN, State.CLOSED))
    return any(segment.days[-1].day <= day for segment in raw)
