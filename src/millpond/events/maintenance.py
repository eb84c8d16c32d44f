"""Maintenance of streams: due days are compressed, old ones dropped, streams without events forgotten.

The registry says which streams have work; each is done by itself, and a fault of one is reported beside the others.
Several processes may do it at the same time: days are fenced. Where there are rules their ages hold: a stream that the
registry lists is looked up among them, and left alone while its own age has not come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
from typing import TypeAlias

from millpond.argument_types import need_type
from millpond.clock import Clock
from millpond.error_values import ShownAsTable
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.events.age_settings import ages_in
from millpond.events.ages import Ages, is_hidden
from millpond.events.compress import Compressed, compress_stream, compress_together
from millpond.events.days import DAY_MAX, DAY_MS, day_of, latest_due_day
from millpond.events.deletion import finish_deletions
from millpond.events.job_index import collect_jobs
from millpond.events.names import StreamName
from millpond.events.protocol import HIDDEN_DAY, BatchedStore, Due, StreamStore, Work
from millpond.events.witness import Doubt
from millpond.kernel.page import all_behind

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
        need_type("bytes_per_second", self.bytes_per_second, Integral)
        if min(self.compress_after_ms, self.retention_ms, self.bytes_per_second) < 0:
            raise Invalid("an age is not negative", kind="event_rules", retention=self.retention_ms)


@dataclass(frozen=True, slots=True)
class MaintenanceReport(ShownAsTable):
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
    [Sequence[StreamName], int, BatchedStore], tuple[MaintenanceReport, Sequence[StreamName]]
]  # fmt: skip
"""Work on the days of streams up to one, which share writes: what was done, and the streams that are left."""


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
    """One run of maintenance of the streams in a store, by rules where there are some. `stopping` ends it between two
    batches; its first work on all streams ends the deletions of jobs that were interrupted.

    `ages`: those of a caller that read them before, such as the driver of a job. Where the clock is in `doubt`, no day
    is pulled back: a clock that is behind sees the present as the future.
    """

    def __init__(
        self, store: StreamStore, clock: Clock, rules: MaintenanceRules, forget_ms: int, ages: Ages | None = None,
        doubt: Doubt | None = None,
    ) -> None:  # fmt: skip
        self._doubt = doubt
        self._store, self._clock, self._rules, self._forget_ms = store, clock, rules, forget_ms
        self.ages = ages or ages_in(store, rules)
        self._finishes = True

    def compress(
        self, stopping: threading.Event | None = None, *, streams: Iterable[StreamName] | None = None
    ) -> MaintenanceReport:
        """Compress the days that are due, of some streams, or of all."""
        stopping = stopping or threading.Event()
        report = MaintenanceReport() if streams is not None else self._finished()
        streams = self._pulled_back(streams, stopping)
        pace = _Pace(self._clock, self._rules.bytes_per_second, stopping)

        def work(stream: StreamName, latest: int) -> MaintenanceReport:
            return _report_of(compress_stream(self._store, stream, latest, pace.spend))

        def together(
            streams: Sequence[StreamName], latest: int, writes: BatchedStore
        ) -> tuple[MaintenanceReport, Sequence[StreamName]]:
            done, rest = compress_together(self._store, writes, streams, latest, pace.spend)
            return sum(map(_report_of, done), MaintenanceReport()), rest

        now_ms = self._store.now_ms()
        due = self.due(Work.COMPRESS, now_ms) if streams is None else self._days(Work.COMPRESS, now_ms, streams)
        return report + self._run(due, stopping, work, together)

    def expire(
        self, stopping: threading.Event | None = None, *, streams: Iterable[StreamName] | None = None
    ) -> MaintenanceReport:
        """Drop the days that are past retention, of some streams; or of all, with what deletions left.

        Of all, streams that are without events for long are forgotten, and the rows of jobs of dropped days.
        """
        stopping = stopping or threading.Event()
        report = MaintenanceReport() if streams is not None else self._finished()
        now_ms = self._store.now_ms()
        streams = self._pulled_back(streams, stopping)

        def work(stream: StreamName, latest: int) -> MaintenanceReport:
            return MaintenanceReport(streams=1, events=self._store.expire(stream, latest))

        def together(
            streams: Sequence[StreamName], latest: int, writes: BatchedStore
        ) -> tuple[MaintenanceReport, Sequence[StreamName]]:
            return MaintenanceReport(streams=len(streams), events=writes.expire_many(streams, latest)), ()

        if streams is not None:
            return report + self._run(self._days(Work.EXPIRE, now_ms, streams), stopping, work, together)
        report += self._run(self.due(Work.EXPIRE, now_ms), stopping, work, together)
        report += self._run(self.due(Work.FORGET, now_ms), stopping, work, together)
        if not stopping.is_set():
            collect_jobs(self._store)
        return report

    def due(self, work: Work, now_ms: int) -> Iterator[tuple[StreamName, int]]:
        """The streams with work, and the latest day of each that it is about."""
        if work is Work.FORGET:
            forgotten = (due.stream for due in due_streams(self._store, work, latest_due_day(now_ms, self._forget_ms)))
            yield from self._days(Work.EXPIRE, now_ms, forgotten)
            return
        latest_of_any = self.ages.latest_day_of_any(work, now_ms)
        if work is Work.EXPIRE:
            latest_of_any = max(latest_of_any, HIDDEN_DAY)
        for due in due_streams(self._store, work, latest_of_any):
            latest = self.ages.latest_day(work, due.stream, now_ms)
            if due.day <= latest or is_hidden(work, due.day):
                yield due.stream, latest

    def _finished(self) -> MaintenanceReport:
        faults = finish_deletions(self._store) if self._finishes else ()
        self._finishes = False
        return sum((MaintenanceReport().with_fault(fault) for fault in faults), MaintenanceReport())

    def _days(self, work: Work, now_ms: int, streams: Iterable[StreamName]) -> Iterator[tuple[StreamName, int]]:
        return ((stream, self.ages.latest_day(work, stream, now_ms)) for stream in streams)

    def _pulled_back(
        self, streams: Iterable[StreamName] | None, stopping: threading.Event
    ) -> Iterable[StreamName] | None:
        """The same streams, of which no day is in the future any more: a clock that was ahead made such days."""
        latest = day_of(self._store.now_ms()) + 1
        selected = None if streams is None else dict.fromkeys(streams)
        if self._doubt is not None:
            return selected
        ahead = due_streams(self._store, Work.COMPRESS, DAY_MAX, Due(latest, StreamName("", "")))
        for _, stream in ahead:
            if stopping.is_set():
                break
            if (selected is None or stream in selected) and self._store.pull_back(stream, latest):
                _LOG.warning("days of %s lay in the future, and are pulled back: a clock was ahead", stream)
        return selected

    def _run(
        self, due: Iterable[tuple[StreamName, int]], stopping: threading.Event,
        act: Callable[[StreamName, int], MaintenanceReport], together: _Shared,
    ) -> MaintenanceReport:  # fmt: skip
        """The work on streams: many at once where they can share writes, and each that is left by itself."""
        report, streams = MaintenanceReport(), iter(due)
        try:
            while not stopping.is_set() and (group := list(islice(streams, TOGETHER_STREAMS))):
                by_day: dict[int, list[StreamName]] = {}
                for stream, latest in group:
                    by_day.setdefault(latest, []).append(stream)
                for latest, same in by_day.items():
                    done, rest = self._done_together(same, latest, together)
                    report += done
                    for done in self._done_singly(rest, latest, stopping, act):
                        report += done
        except _Stopped:
            pass
        return report

    def _done_singly(
        self, streams: Sequence[StreamName], latest: int, stopping: threading.Event,
        act: Callable[[StreamName, int], MaintenanceReport],
    ) -> Iterator[MaintenanceReport]:  # fmt: skip
        for stream in streams:
            if stopping.is_set():
                break
            try:
                yield act(stream, latest)
            except Unavailable:
                raise  # the store itself: the others would fare no better
            except MillpondError as error:
                yield MaintenanceReport().with_fault(f"{stream}: {error}")

    def _done_together(
        self, streams: Sequence[StreamName], latest: int, together: _Shared
    ) -> tuple[MaintenanceReport, Sequence[StreamName]]:
        """The work on streams that share writes, and those that are left."""
        if isinstance(self._store, BatchedStore):
            try:
                return together(streams, latest, self._store)
            except Unavailable:
                raise
            except MillpondError:
                pass  # a fault of one of them: each by itself shows of which
        return MaintenanceReport(), streams


def _report_of(done: Compressed) -> MaintenanceReport:
    return MaintenanceReport(
        streams=1, days=done.days, left=int(done.fenced), bytes_before=done.bytes_before, bytes_after=done.bytes_after
    )


def due_streams(store: StreamStore, work: Work, day: int, after: Due | None = None) -> Iterator[Due]:
    """The streams with work for a day or an earlier one, page by page from the registry, from behind one listed."""
    return all_behind(lambda position: store.due(work, day, position, limit=_PAGE), after)
