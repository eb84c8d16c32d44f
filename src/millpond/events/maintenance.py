"""Maintenance of streams: due days are compressed, old ones dropped, streams without events forgotten.

The registry says which streams have work; each is done by itself, and a fault of one is reported beside the others.
Several processes may do it at the same time: days are fenced.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.events.compress import Compressed, compress_stream, compress_together
from millpond.events.days import DAY_MAX, DAY_MS, day_of, latest_due_day
from millpond.events.names import StreamName
from millpond.events.protocol import Due, Together, Work

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.protocol import StreamStore

__all__ = ("EventMaintenance", "MaintenanceReport", "MaintenanceRules", "due_streams")

_LOG = logging.getLogger(__name__)
_PAGE = 500
TOGETHER_STREAMS = 250
"""Streams that share writes, where the store can do that."""
FAULTS_MAX = 20
"""Faults that a report names; more are counted."""


@dataclass(frozen=True, slots=True)
class MaintenanceRules:
    """The ages at which days are compressed and dropped; 0 turns one off.

    * `compress_after_ms`, `retention_ms`: counted from the end of a day.
    * `bytes_per_second`: compressed bytes that are written in a second, so that others are served meanwhile; 0: any.
    """

    compress_after_ms: int = 2 * DAY_MS
    retention_ms: int = 14 * DAY_MS
    bytes_per_second: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        if min(self.compress_after_ms, self.retention_ms, self.bytes_per_second) < 0:
            raise Invalid("an age is not negative", kind="event_rules", retention=self.retention_ms)


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The work of one run: streams and days with work done, and bytes of days before and after compression.

    `events`: those that were dropped. `left`: due streams that somebody else worked on meanwhile.
    """

    streams: int = 0
    days: int = 0
    events: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: int = 0
    failed: int = 0
    faults: tuple[str, ...] = ()

    def with_fault(self, fault: str) -> MaintenanceReport:
        """The report with one more fault."""
        faults = self.faults if len(self.faults) >= FAULTS_MAX else (*self.faults, fault)
        return replace(self, failed=self.failed + 1, faults=faults)

    def __add__(self, other: MaintenanceReport) -> MaintenanceReport:
        """The work of two runs."""
        return MaintenanceReport(
            self.streams + other.streams, self.days + other.days, self.events + other.events,
            self.bytes_before + other.bytes_before, self.bytes_after + other.bytes_after, self.left + other.left,
            self.failed + other.failed, (*self.faults, *other.faults)[:FAULTS_MAX],
        )  # fmt: skip


_Shared: TypeAlias = Callable[
    [Sequence[StreamName], Together], tuple[MaintenanceReport, Sequence[StreamName]]
]  # fmt: skip
"""Work on streams that share writes: what was done, and the streams that are left."""


class _Stopped(Exception):
    """The end of work that was interrupted: what is done is done."""


class _Pace:
    """Bytes per second: who spends more waits, until the work is stopped."""

    def __init__(self, clock: Clock, bytes_per_second: int, stopping: threading.Event) -> None:
        self._clock, self._rate, self._stopping = clock, bytes_per_second, stopping
        self._free_at = clock.monotonic()

    def spend(self, size: int) -> None:
        if self._rate:
            self._clock.wait(self._stopping, self._free_at)
            self._free_at = max(self._free_at, self._clock.monotonic()) + size / self._rate
        if self._stopping.is_set():
            raise _Stopped


class EventMaintenance:
    """Maintenance of the streams in a store. `stopping` ends it between two batches."""

    def __init__(self, store: StreamStore, clock: Clock, rules: MaintenanceRules, forget_ms: int) -> None:
        self._store, self._clock, self._rules, self._forget_ms = store, clock, rules, forget_ms

    def compress(
        self, stopping: threading.Event | None = None, *, day: int | None = None,
        streams: Iterable[StreamName] | None = None,
    ) -> MaintenanceReport:  # fmt: skip
        """Compress the days that are due, or all up to a day; of all streams, or of some."""
        stopping = stopping or threading.Event()
        after_ms = self._rules.compress_after_ms
        latest = day if day is not None else latest_due_day(self._store.now_ms(), after_ms) if after_ms else -1
        streams = self._pulled_back(streams, stopping)
        pace = _Pace(self._clock, self._rules.bytes_per_second, stopping)

        def work(stream: StreamName) -> MaintenanceReport:
            return _report_of(compress_stream(self._store, stream, latest, pace.spend))

        def together(streams: Sequence[StreamName], writes: Together) -> tuple[MaintenanceReport, Sequence[StreamName]]:
            done, left = compress_together(self._store, writes, streams, latest, pace.spend)
            return sum(map(_report_of, done), MaintenanceReport()), left

        due = due_streams(self._store, Work.COMPRESS, latest) if streams is None else streams
        return self._run(due, stopping, work, together)

    def expire(
        self, stopping: threading.Event | None = None, *, day: int | None = None,
        streams: Iterable[StreamName] | None = None,
    ) -> MaintenanceReport:  # fmt: skip
        """Drop the days that are past retention, or all up to a day; forget streams without events. Of all, or some."""
        stopping = stopping or threading.Event()
        now_ms, after_ms = self._store.now_ms(), self._rules.retention_ms
        latest = day if day is not None else latest_due_day(now_ms, after_ms) if after_ms else -1
        streams = self._pulled_back(streams, stopping)

        def work(stream: StreamName) -> MaintenanceReport:
            return MaintenanceReport(streams=1, events=self._store.expire(stream, latest))

        def together(streams: Sequence[StreamName], writes: Together) -> tuple[MaintenanceReport, Sequence[StreamName]]:
            return MaintenanceReport(streams=len(streams), events=writes.expire_many(streams, latest)), ()

        if streams is not None:
            return self._run(streams, stopping, work, together)
        report = self._run(due_streams(self._store, Work.EXPIRE, latest), stopping, work, together)
        forgotten = due_streams(self._store, Work.FORGET, latest_due_day(now_ms, self._forget_ms))
        return report + self._run(forgotten, stopping, work, together)

    def _pulled_back(
        self, streams: Iterable[StreamName] | None, stopping: threading.Event
    ) -> Iterable[StreamName] | None:
        """The same streams, of which no day is in the future any more: a clock that was ahead made such days."""
        latest = day_of(self._store.now_ms()) + 1
        known = None if streams is None else dict.fromkeys(streams)
        ahead = due_streams(self._store, Work.COMPRESS, DAY_MAX, Due(latest, StreamName("", "")))
        for stream in ahead:
            if stopping.is_set():
                break
            if (known is None or stream in known) and self._store.pull_back(stream, latest):
                _LOG.warning("days of %s lay in the future, and are pulled back: a clock was ahead", stream)
        return known

    def _run(
        self, due: Iterable[StreamName], stopping: threading.Event, act: Callable[[StreamName], MaintenanceReport],
        together: _Shared,
    ) -> MaintenanceReport:  # fmt: skip
        """The work on streams: many at once where they can share writes, and each that is left by itself."""
        report, streams = MaintenanceReport(), iter(due)
        try:
            while not stopping.is_set() and (group := list(islice(streams, TOGETHER_STREAMS))):
                done, left = self._done_together(group, together)
                report += done
                for stream in left:
                    if stopping.is_set():
                        break
                    try:
                        report += act(stream)
                    except Unavailable:
                        raise  # the store itself: the others would fare no better
                    except MillpondError as error:
                        report = report.with_fault(f"{stream}: {error}")
        except _Stopped:
            pass
        return report

    def _done_together(
        self, streams: Sequence[StreamName], together: _Shared
    ) -> tuple[MaintenanceReport, Sequence[StreamName]]:
        """The work on streams that share writes, and those that are left."""
        if isinstance(self._store, Together):
            try:
                return together(streams, self._store)
            except Unavailable:
                raise
            except MillpondError:
                pass  # a fault of one of them: each by itself shows of which
        return MaintenanceReport(), streams


def _report_of(done: Compressed) -> MaintenanceReport:
    return MaintenanceReport(
        streams=1, days=done.days, left=int(done.fenced), bytes_before=done.bytes_before, bytes_after=done.bytes_after
    )


def due_streams(store: StreamStore, work: Work, day: int, after: Due | None = None) -> Iterator[StreamName]:
    """The streams with work for a day or an earlier one, page by page from the registry, from behind one listed."""
    while page := store.due(work, day, after, limit=_PAGE):
        yield from (due.stream for due in page)
        after = page[-1]
