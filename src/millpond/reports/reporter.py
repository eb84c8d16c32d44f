"""Millpond's own story: events about the work of a pond, in job sets of the queue `millpond`.

    work ─ report ─▶ queue in memory ─▶ one thread, a few appends a second ─▶ streams

Invariants:
* who reports never waits for storage, and never gets an error of it;
* the thread appends at most once in `PAUSE_SECONDS`, all events together: however many jobs there are, no more syncs;
* the first events of a job are stored when it ends, or after `GATHER_SECONDS`: work that is short is done before any
  stream is touched. A process that is killed sooner leaves no story;
* memory is bounded: beyond `EVENTS_MAX` waiting events, or `JOBS_PER_SECOND` jobs, reports are left out, and an event
  `omitted` says how many jobs; a job that fails is reported all the same while there is room;
* an event tells names, counts and seconds: no path, no URL, no text of a user but the names of his maps and branches.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from millpond.errors import MillpondError
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import JOB_SET_CHARS_MAX, OWN_QUEUE, StreamName
from millpond.kernel.cache import Cache
from millpond.kernel.job_reports import NO_JOB, Fact, JobReport
from millpond.kernel.worker import begin_thread
from millpond.reports.open_jobs import Marks, OpenJob

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.local_maintenance import OwnMaintenance

__all__ = ("Appends", "ReportedJob", "Reporter", "reason_of")

PAUSE_SECONDS = 0.25
GATHER_SECONDS = 1.0
PROGRESS_SECONDS = 1.0
"""The time between two events about the rows of one job."""
EVENTS_MAX = 10_000
JOBS_PER_SECOND = 20.0
JOBS_AT_ONCE = 200.0
CLIENT_JOBS_MAX = 10_000
"""The jobs that are remembered as reported by clients."""
CLOSE_SECONDS = 5.0
"""The time for which closing waits until the last events are stored."""
_SHOWN = frozenset(
    ("map", "maps", "column", "kind", "repository", "branch", "rows", "rejected", "max_rejects", "position", "limit")
)
"""The values of errors that are shown: others may be paths, or data."""
_QUOTING = re.compile(r"""[/\\:'"=]""")
"""Signs of a message that quotes a path, or a row; the kind is shown instead."""
_REASON_CHARS_MAX = 500
_LOG = logging.getLogger(__name__)


def reason_of(error: BaseException) -> dict[str, str]:
    """The facts about an error: its kind, and a reason without paths or data.

    >>> from millpond.errors import Invalid
    >>> reason_of(Invalid("column is missing", kind="column_missing", column="temp", file="/data/x.csv"))
    {'error': 'column_missing', 'reason': 'column is missing. column=temp'}
    """
    if not isinstance(error, MillpondError):
        return {"error": type(error).__name__, "reason": "the work ended early"}
    shown = " ".join(f"{name}={value}" for name, value in error.values.items() if name in _SHOWN)
    message = error.kind.replace("_", " ") if _QUOTING.search(error.message) else error.message
    reason = f"{message}. {shown}" if shown else message
    return {"error": error.kind, "reason": reason[:_REASON_CHARS_MAX]}


class Appends(Protocol):
    """The streams that reports are appended to."""

    def append(self, batches: Sequence[EventBatch]) -> object:
        """As `StreamStore.append`."""


class ReportedJob:
    """The report of one job. A `muted` one is left out, unless it fails."""

    def __init__(self, reporter: Reporter, job_set: str, job_id: str, *, muted: bool) -> None:
        self._reporter, self.job_set, self.job_id = reporter, job_set, job_id
        self._muted = muted
        self._facts: dict[str, Fact] = {}
        self._progress_due = 0.0

    def running(self, **facts: Fact) -> None:
        self.tell("running", facts)

    def progress(self, rows: int) -> None:
        """Report rows so far, at most once in `PROGRESS_SECONDS`."""
        now = self._reporter.clock.monotonic()
        if now >= self._progress_due:
            self._progress_due = now + PROGRESS_SECONDS
            self.tell("progress", {"rows": rows})

    def note(self, **facts: Fact) -> None:
        self._facts.update(facts)

    def tell(self, kind: str, facts: dict[str, Fact], *, ends: bool = False) -> None:
        """Report an event; one that ends the job brings what was noted."""
        if self._muted and kind != "failed":
            return
        noted = self._facts | facts if ends else facts
        headers = {"job_id": self.job_id, **{name: str(fact) for name, fact in noted.items()}}
        self._reporter.put(OpenJob(self.job_set, self.job_id), kind, headers, ends=ends)


class Reporter:
    """The place that the jobs of a pond report to; its thread runs from the first event on. `store` is not its own.

    `maintenance` of the story's own streams begins with the first events.
    """

    def __init__(
        self, store: Appends, clock: Clock, open_jobs: Marks, maintenance: OwnMaintenance | None = None
    ) -> None:
        self.clock = clock
        self._store, self._open_jobs, self._maintenance = store, open_jobs, maintenance
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._pending: deque[tuple[OpenJob, NewEvent, bool]] = deque()
        self._due = False  # an event is pending that ends a job, or whose job has a story already
        self._omitted: Counter[str] = Counter()
        self._noted: set[OpenJob] = set()
        self._of_clients: Cache[str, bool] = Cache(CLIENT_JOBS_MAX)
        self._thread: threading.Thread | None = None
        self._allowance, self._counted_at = JOBS_AT_ONCE, clock.monotonic()

    @contextmanager
    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> Iterator[JobReport]:
        if job_id in self._of_clients:
            yield NO_JOB
            return
        job_set = job_set[:JOB_SET_CHARS_MAX]
        muted = not self._admit(job_set)
        job = ReportedJob(self, job_set, job_id or self.clock.random_id(), muted=muted)
        job.tell("submitted", facts)
        with self._ending(job):
            yield job

    def leave_to_client(self, job_id: str) -> None:
        self._of_clients.put(job_id, True)

    def begin(self, job_set: str, job_id: str, owner: int, **facts: Fact) -> None:
        opened = OpenJob(job_set, job_id)
        self._open_jobs.add(opened, owner)
        with self._changed:
            self._noted.add(opened)
        job = ReportedJob(self, job_set, job_id, muted=False)
        job.tell("submitted", facts)
        job.running()

    @contextmanager
    def resume(self, job_set: str, job_id: str) -> Iterator[JobReport]:
        opened = OpenJob(job_set, job_id)
        if not self._open_jobs.has(opened):
            yield NO_JOB
            return
        with self._changed:
            self._noted.add(opened)
        job = ReportedJob(self, job_set, job_id, muted=False)
        with self._ending(job):
            yield job

    def rows(self, job_set: str, job_id: str, rows: int) -> None:
        job = OpenJob(job_set, job_id)
        if self._open_jobs.has(job):
            with self._changed:
                self._noted.add(job)
            ReportedJob(self, job_set, job_id, muted=False).tell("progress", {"rows": rows})

    @contextmanager
    def _ending(self, job: ReportedJob) -> Iterator[None]:
        began = self.clock.monotonic()
        try:
            yield
        except BaseException as error:
            job.tell("failed", {"seconds": self._since(began), **reason_of(error)}, ends=True)
            raise
        job.tell("succeeded", {"seconds": self._since(began)}, ends=True)

    def put(self, job: OpenJob, kind: str, headers: dict[str, str], *, ends: bool) -> None:
        """Queue an event about a job. It is left out when too many wait."""
        event = NewEvent(self.clock.now_ms(), b"", kind, headers)
        with self._changed:
            if self._stopping.is_set() or len(self._pending) >= EVENTS_MAX:
                self._omitted[job.job_set] += ends
                return
            self._pending.append((job, event, ends))
            self._due |= ends or job in self._noted
            if self._thread is None:
                self._thread = begin_thread("millpond-reports", self._run)
            self._changed.notify_all()

    def recover(self) -> None:
        """Report the jobs whose processes were killed: they failed, as far as anybody knows."""
        for file, job in self._open_jobs.lost():
            headers = {"job_id": job.job_id, "error": "process_ended", "reason": "its process ended before it did"}
            event = NewEvent(self.clock.now_ms(), b"", "failed", headers)
            # The source makes it one event, also when two processes find the file, or this one is killed now.
            lost = EventBatch(StreamName(OWN_QUEUE, job.job_set), [event], f"lost:{job.job_id}", [1])
            if self._stored([lost]):
                file.unlink(missing_ok=True)

    def close(self) -> None:
        """Store what waits, for at most `CLOSE_SECONDS`, and end. Closing twice is harmless."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        if self._maintenance is not None:
            self._maintenance.stop()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._maintenance is not None:
            self._maintenance.wait(CLOSE_SECONDS)

    def _admit(self, job_set: str) -> bool:
        """True when the job is to be reported: so many in a second, and some more at once."""
        with self._changed:
            now = self.clock.monotonic()
            self._allowance = min(JOBS_AT_ONCE, self._allowance + (now - self._counted_at) * JOBS_PER_SECOND)
            self._counted_at = now
            if self._allowance < 1:
                self._omitted[job_set] += 1
                return False
            self._allowance -= 1
            return True

    def _since(self, began: float) -> float:
        return round(self.clock.monotonic() - began, 3)

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self.clock.wait_for(self._changed, lambda: bool(self._pending) or self._stopping.is_set(), None)
                gathered = self.clock.monotonic() + GATHER_SECONDS
                self.clock.wait_for(self._changed, lambda: self._due or self._stopping.is_set(), gathered)
                if not self._pending:
                    return
                events, self._due = list(self._pending), False
                self._pending.clear()
                omitted, self._omitted = self._omitted, Counter()
            self._store_events(events, omitted)
            if self._maintenance is not None:
                self._maintenance.begin()
            self.clock.wait(self._stopping, self.clock.monotonic() + PAUSE_SECONDS)

    def _store_events(self, taken: list[tuple[OpenJob, NewEvent, bool]], omitted: Counter[str]) -> None:
        ended = {job for job, _, ends in taken if ends}
        for job in {job for job, _, _ in taken} - ended - self._noted:
            self._open_jobs.add(job, os.getpid())
            self._noted.add(job)
        events: dict[str, list[NewEvent]] = {}
        for job, event, _ in taken:
            events.setdefault(job.job_set, []).append(event)
        for job_set, count in omitted.items():
            noted = NewEvent(self.clock.now_ms(), b"", "omitted", {"jobs": str(count)})
            events.setdefault(job_set, []).append(noted)
        self._stored([EventBatch(StreamName(OWN_QUEUE, job_set), batch) for job_set, batch in events.items()])
        for job in ended & self._noted:
            self._open_jobs.remove(job)
        self._noted -= ended

    def _stored(self, batches: list[EventBatch]) -> bool:
        try:
            self._store.append([batch for batch in batches if _acceptable(batch)])
        except Exception as error:  # whatever it is, the work goes on
            _LOG.warning("events about the work of the pond could not be stored: %s", reason_of(error))
            return False
        return True


def _acceptable(batch: EventBatch) -> bool:
    """False for a name that no stream has; the events of others are stored all the same."""
    try:
        batch.check()
    except MillpondError:
        return False
    return True
