"""The clockwork of a node: jobs that run by themselves, each at its own interval, with status, runs on request, and
pauses.

    job ──interval──▶ run ──▶ outcome: in words and numbers, and what failed
              ▲
              └── now, also while it is paused

Invariants:
* A job runs at most once at a time. What is due while it runs is not run twice afterwards.
* A requested run starts after the request: its caller sees everything that was there at the request.
* A job that fails shows its error and runs again when it is due; no job ever stops another.
* Pauses survive a restart: `jobs.json` names the paused jobs.
* A clock that is set back keeps no job from running: all are due anew, each when its interval has passed.
* After `stop` no job runs, and none is waited for. A process may also end without it, and says nothing of that.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor as DuePool
from apscheduler.schedulers.background import BackgroundScheduler

from millpond.clock import Clock
from millpond.errors import Closed, Corrupt, Internal, MillpondError, NotFound, Unavailable
from millpond.stores.files import write_file_atomically

__all__ = ("WAIT_SECONDS", "Job", "JobRun", "JobStatus", "Outcome", "Scheduler")

THREADS = 4
WAIT_SECONDS = 600.0
"""Seconds for which `run` waits for a job by default."""

CLOCK_SECONDS = 5.0
"""So often it is looked whether the clock was set back."""
SET_BACK_MS_MIN = 1_000

_log = logging.getLogger("millpond.jobs")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: a summary, figures, and the faults of single items."""

    summary: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """Work with a name. `interval_ms` 0: only on request. `work` is given what says that it should come to an end.

    `lag`: by how much of its interval it runs after those of the same interval. `pause` is called when it is paused
    and resumed, for work that also goes on between its runs.
    """

    name: str
    purpose: str
    interval_ms: int
    work: Callable[[threading.Event], Outcome]
    lag: float = 0.0
    pause: Callable[[bool], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A run that has ended. `error` is None when all went well; the rest may have been done all the same."""

    began_ms: int
    seconds: float
    summary: str
    numbers: Mapping[str, int]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as it stands. `next_ms` is None while it is paused, or never runs by itself."""

    name: str
    purpose: str
    interval_ms: int
    paused: bool
    running_since_ms: int | None
    next_ms: int | None
    runs: int
    failures: int
    last: JobRun | None


@dataclass(slots=True)
class _JobState:
    """A job and where it has got to. Guarded by the scheduler's condition, but for `busy`."""

    job: Job
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while the job runs."""
    begun: int = 0
    ended: int = 0
    failures: int = 0
    called: bool = False
    """True when a run was requested and has not begun."""
    paused: bool = False
    running_since_ms: int | None = None
    last: JobRun | None = None


class _Due(DuePool):  # type: ignore[misc]  # it comes without types
    """Threads for what is due; none any more when the process ends."""

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        with suppress(RuntimeError):
            super()._do_submit_job(job, run_times)


class Scheduler:
    """Runs jobs; `start` it, and `stop` it before what the jobs work on is closed."""

    def __init__(self, jobs: Iterable[Job], *, state: Path, clock: Clock) -> None:
        self._courses = {job.name: _JobState(job) for job in jobs}
        self._state, self._clock = state, clock
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._clockwork: BackgroundScheduler | None = None
        # A requested run does not queue behind scheduled ones.
        self._on_demand_pool = ThreadPoolExecutor(max(1, len(self._courses)), thread_name_prefix="job")

    def start(self) -> None:
        """Begin: every job for the first time when its interval has passed.

        Raises: `Corrupt` when the file with the pauses cannot be read: better than to run what was paused.
        """
        assert self._clockwork is None, "started once"
        paused = _read_paused(self._state)
        quiet = logging.getLogger("millpond.jobs.clockwork")
        quiet.setLevel(logging.ERROR)  # that a job is still running when it is due again is no news
        clockwork = self._clockwork = BackgroundScheduler(
            timezone=UTC, logger=quiet, executors={"default": _Due(THREADS)}, daemon=True,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )  # fmt: skip
        clockwork.start()
        for name, course in self._courses.items():
            course.paused = name in paused
            _hold(course)
            if course.job.interval_ms:
                self._schedule(clockwork, course)
        threading.Thread(target=self._watch, name="job-clock", daemon=True).start()

    def _schedule(self, clockwork: BackgroundScheduler, course: _JobState) -> None:
        interval_ms = course.job.interval_ms
        first_ms = self._clock.now_ms() + interval_ms * (1 + course.job.lag)
        clockwork.add_job(
            self._due, "interval", seconds=interval_ms / 1000, args=[course], id=course.job.name,
            start_date=datetime.fromtimestamp(first_ms / 1000, UTC), replace_existing=True,
        )  # fmt: skip
        if course.paused:
            clockwork.pause_job(course.job.name)

    def _watch(self) -> None:
        before = self._ahead_ms()
        while not self._stopping.wait(CLOCK_SECONDS):
            now = self._ahead_ms()
            if now < before - SET_BACK_MS_MIN:
                self._begin_anew()
            before = now

    def _ahead_ms(self) -> float:
        """By how much the time of day is ahead of the clock that nobody sets."""
        return self._clock.now_ms() - 1000 * self._clock.monotonic()

    def _begin_anew(self) -> None:
        with self._changed:
            clockwork = self._clockwork
            for course in self._courses.values() if clockwork is not None else ():
                if course.job.interval_ms:
                    self._schedule(clockwork, course)

    def stop(self) -> None:
        """End: running jobs come to an end, no other begins. Stopping twice is harmless."""
        with self._changed:
            # Nobody asks the clockwork from here on: it holds its locks until the last job has ended.
            clockwork, self._clockwork = self._clockwork, None
            self._stopping.set()
            self._changed.notify_all()
        if clockwork is not None:
            clockwork.shutdown(wait=True)
            self._on_demand_pool.shutdown(wait=True, cancel_futures=True)

    # -- seen -----------------------------------------------------------------------------------------

    def status(self, name: str | None = None) -> list[JobStatus]:
        """All jobs in the order they were given, or one.

        Raises: `NotFound`.
        """
        courses = self._courses.values() if name is None else [self._job_state(name)]
        with self._changed:
            return [self._status_of(course) for course in courses]

    def _status_of(self, course: _JobState) -> JobStatus:
        job, clockwork = course.job, self._clockwork
        entry = clockwork.get_job(job.name) if clockwork is not None else None
        following = None if entry is None or entry.next_run_time is None else entry.next_run_time
        return JobStatus(
            name=job.name, purpose=job.purpose, interval_ms=job.interval_ms, paused=course.paused,
            running_since_ms=course.running_since_ms, runs=course.ended, failures=course.failures, last=course.last,
            next_ms=None if following is None else int(following.timestamp() * 1000),
        )  # fmt: skip

    # -- requests -------------------------------------------------------------------------------------

    def call(self, name: str) -> int:
        """Run a job now, also when it is paused; the number of the run, which begins after this call.

        Raises: `NotFound`; `Closed` when the node stops.
        """
        course = self._job_state(name)
        with self._changed:
            if self._clockwork is None:
                raise _stopped()
            if not course.called:
                course.called = True
                self._on_demand_pool.submit(self._called, course)
            return course.begun + 1

    def wait(self, name: str, number: int, seconds: float) -> JobStatus:
        """The job as it stands when a run has ended, or so many seconds have passed: its `runs` tell which.

        Raises: `NotFound`; `Closed` when the node stops before.
        """
        course = self._job_state(name)
        with self._changed:
            self._changed.wait_for(lambda: course.ended >= number or self._stopping.is_set(), seconds)
            if course.ended < number and self._stopping.is_set():
                raise _stopped()
        return self.status(name)[0]

    def run(self, name: str, *, seconds: float = WAIT_SECONDS) -> JobStatus:
        """Run a job now, and answer when that has ended.

        Raises: as `call`; `Unavailable` when it has not ended in time (it goes on).
        """
        number = self.call(name)
        status = self.wait(name, number, seconds)
        if status.runs < number:
            raise Unavailable(
                "the job has not ended yet", kind="job_slow", job=name, seconds=seconds,
                hint="it goes on; see millpond jobs",
            )  # fmt: skip
        return status

    def pause(self, name: str) -> JobStatus:
        """Do not run a job by itself any more, until it is resumed. A run that is going on ends as it would.

        Raises: `NotFound`; `Unavailable` when that cannot be written down.
        """
        return self._set_paused(self._job_state(name), True)

    def resume(self, name: str) -> JobStatus:
        """Run a job by itself again, when it is due next.

        Raises: `NotFound`; `Unavailable` when that cannot be written down.
        """
        return self._set_paused(self._job_state(name), False)

    def _set_paused(self, course: _JobState, paused: bool) -> JobStatus:
        name = course.job.name
        with self._changed:
            clockwork = self._clockwork
            if clockwork is None:
                raise _stopped()
            names = {job for job, other in self._courses.items() if other.paused} - {name}
            write_file_atomically(
                self._state, json.dumps({"paused": sorted(names | {name} if paused else names)}).encode()
            )
            course.paused = paused
            _hold(course)
            if clockwork.get_job(name) is not None:
                (clockwork.pause_job if paused else clockwork.resume_job)(name)
        return self.status(name)[0]

    def _job_state(self, name: str) -> _JobState:
        course = self._courses.get(name)
        if course is None:
            raise NotFound(
                "there is no such job", kind="job_not_found", job=name, hint=f"one of: {', '.join(self._courses)}"
            )
        return course

    # -- at work, in the threads of the pool ----------------------------------------------------------

    def _due(self, course: _JobState) -> None:
        # Whoever runs it now does what is due: the next time comes soon enough.
        if course.busy.acquire(blocking=False):
            try:
                self._work(course)
            finally:
                course.busy.release()

    def _called(self, course: _JobState) -> None:
        with course.busy:
            self._work(course)

    def _work(self, course: _JobState) -> None:
        if self._stopping.is_set():
            return
        began_ms, began = self._clock.now_ms(), self._clock.monotonic()
        with self._changed:
            course.begun += 1
            course.called = False
            course.running_since_ms = began_ms
        outcome = self._outcome(course.job)
        error = "; ".join(outcome.faults) or None
        if error is not None and (course.last is None or error != course.last.error):
            _log.warning("job %s: %s", course.job.name, error)  # said once, however often it fails for that
        with self._changed:
            course.last = JobRun(
                began_ms=began_ms, seconds=self._clock.monotonic() - began, summary=outcome.summary,
                numbers=outcome.numbers, error=error,
            )  # fmt: skip
            course.ended += 1
            course.failures += error is not None
            course.running_since_ms = None
            self._changed.notify_all()

    def _outcome(self, job: Job) -> Outcome:
        try:
            outcome = job.work(self._stopping)
        except MillpondError as error:
            outcome = Outcome("failed", faults=(str(error),))
        except Exception as error:
            _log.exception("job failed: %s", job.name)
            outcome = Outcome("failed", faults=(str(Internal(f"{type(error).__name__}: {error}", job=job.name)),))
        return outcome


def _hold(course: _JobState) -> None:
    if course.job.pause is not None:
        course.job.pause(course.paused)


def _stopped() -> Closed:
    return Closed("the node's jobs are stopped", kind="jobs_stopped", hint="ask again when the node is up")


def _read_paused(file: Path) -> set[str]:
    if not file.exists():
        return set()
    try:
        payload: Any = json.loads(file.read_bytes())
        return {str(name) for name in payload["paused"]}
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(
            "cannot read which jobs are paused", kind="jobs_damaged", file=file,
            hint="remove the file, start the node, and pause again what should be",
        ) from error  # fmt: skip
