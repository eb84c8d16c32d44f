"""The jobs of a node: each runs by itself at its own interval, with status, runs on request, and pauses.

    job ──interval──▶ run ──▶ outcome: in words and numbers, and what failed
              ▲
              └── now, also while it is paused

One thread waits for the next due time of `kernel/schedule.py`, which has the rules, and gives what begins to a pool.

Invariants:
* A job runs at most once at a time. What is due while it runs is not run twice afterwards.
* A requested run starts after the request: its caller sees everything that was there at the request.
* A job that fails shows its error and runs again when it is due; no job ever stops another.
* Pauses survive a restart: `jobs.json` names the paused jobs.
* Intervals are of monotonic time: to set the clock, forwards or back, moves no run.
* After `stop` no job runs, and `stop` returns when the last one has ended. A process may also end without it: Python
  waits for the jobs that run, and begins no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from millpond.clock import Clock
from millpond.errors import Closed, Internal, MillpondError, NotFound, Unavailable
from millpond.json_forms import JsonForm
from millpond.kernel.schedule import Schedule
from millpond.kernel.signal import Signal
from millpond.kernel.worker import WorkerThread
from millpond.stores.files import write_file_atomically

__all__ = ("WAIT_SECONDS", "Job", "JobRun", "JobStatus", "Outcome", "Scheduler")

WAIT_SECONDS = 600.0
"""Seconds for which `run` waits for a job by default."""

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
    summary: Annotated[str, Meta(description="what it did, in words")]
    numbers: Annotated[Mapping[str, int], Meta(description="what it did, in numbers")]
    error: Annotated[str | None, Meta(description="what went wrong, also where the rest was done")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as it stands. `next_ms` is None while it is paused, or never runs by itself."""

    name: str
    purpose: str
    interval_ms: Annotated[int, Meta(description="how often it runs by itself; 0: only on request")]
    paused: bool
    running_since_ms: int | None
    next_ms: Annotated[int | None, Meta(description="when it runs next by itself; null while it is paused")]
    runs: Annotated[int, Meta(description="runs that have ended since the node was started")]
    failures: int
    last: JobRun | None


@dataclass(frozen=True, slots=True)
class _PausedJobs:
    """The content of `jobs.json`."""

    paused: tuple[str, ...]


_PAUSED = JsonForm(_PausedJobs)


@dataclass(slots=True)
class _JobState:
    """A job and its runs so far. Guarded by the scheduler's lock."""

    job: Job
    begun: int = 0
    ended: int = 0
    failures: int = 0
    paused: bool = False
    running_since_ms: int | None = None
    last: JobRun | None = None


class Scheduler:
    """Runs jobs; `start` it, and `stop` it before what the jobs work on is closed.

    `changed` rings when a run has ended, and when the scheduler stops.
    """

    def __init__(self, jobs: Iterable[Job], *, state: Path, clock: Clock) -> None:
        self._jobs = {job.name: _JobState(job) for job in jobs}
        self._schedule: Schedule[str] = Schedule()
        self._state, self._clock = state, clock
        self._lock, self.changed = threading.RLock(), Signal(clock)
        self._worker = WorkerThread("the clock of jobs", self._begin_due, clock)
        self._stopping = self._worker.stopping
        # As many threads as jobs: no run waits for another job's.
        self._pool = ThreadPoolExecutor(max(1, len(self._jobs)), thread_name_prefix="job")

    def start(self) -> None:
        """Begin: every job for the first time when its interval has passed.

        Raises: `Corrupt` when the file with the pauses cannot be read: better than to run what was paused.
        """
        assert not self._worker.started, "started once"
        paused = _read_paused(self._state)
        now = self._elapsed_ms()
        for name, state in self._jobs.items():
            interval = state.job.interval_ms
            state.paused = name in paused
            _hold(state)
            start = now + round(interval * state.job.lag)
            self._schedule.add(name, start=start, interval=interval, now=now, paused=state.paused)
        self._worker.start()

    def stop(self) -> None:
        """End: running jobs come to an end, no other begins. Stopping twice is harmless."""
        with self._lock:
            self._worker.interrupt()
        self.changed.ring()
        self._worker.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _elapsed_ms(self) -> int:
        """Monotonic time in whole milliseconds: multiples of an interval are then exact."""
        return round(1000 * self._clock.monotonic())

    def _is_going(self) -> bool:
        return self._worker.started and not self._stopping.is_set()

    # -- seen -----------------------------------------------------------------------------------------

    def status(self, name: str | None = None) -> list[JobStatus]:
        """All jobs in the order they were given, or one.

        Raises: `NotFound`.
        """
        states = self._jobs.values() if name is None else [self._job_state(name)]
        with self._lock:
            return [self._status_of(state) for state in states]

    def _status_of(self, state: _JobState) -> JobStatus:
        job = state.job
        due = self._schedule.due(job.name) if self._is_going() else None
        left_ms = None if due is None else max(0, round(due) - self._elapsed_ms())
        return JobStatus(
            name=job.name, purpose=job.purpose, interval_ms=job.interval_ms, paused=state.paused,
            running_since_ms=state.running_since_ms, runs=state.ended, failures=state.failures, last=state.last,
            next_ms=None if left_ms is None else self._clock.now_ms() + left_ms,
        )  # fmt: skip

    # -- requests -------------------------------------------------------------------------------------

    def call(self, name: str) -> int:
        """Run a job now, also when it is paused; the number of the run, which begins after this call.

        Raises: `NotFound`; `Closed` when the node stops.
        """
        state = self._job_state(name)
        with self._lock:
            if not self._is_going():
                raise _stopped()
            self._schedule.request(name)
            self._worker.wake()
            return state.begun + 1

    def has_ended(self, name: str, number: int) -> bool:
        """True when a run has ended; `changed` rings when one has.

        Raises: `NotFound`; `Closed` when the node stops before.
        """
        state = self._job_state(name)
        with self._lock:
            if state.ended < number and self._stopping.is_set():
                raise _stopped()
            return state.ended >= number

    def wait(self, name: str, number: int, seconds: float) -> JobStatus:
        """The job as it stands when a run has ended, or so many seconds have passed: its `runs` tell which.

        Raises: `NotFound`; `Closed` when the node stops before.
        """
        self.changed.wait_for(lambda: self.has_ended(name, number), self._clock.monotonic() + seconds)
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

    def _set_paused(self, state: _JobState, paused: bool) -> JobStatus:
        name = state.job.name
        with self._lock:
            if not self._is_going():
                raise _stopped()
            names = {job for job, other in self._jobs.items() if other.paused} - {name}
            jobs = _PausedJobs(tuple(sorted(names | {name} if paused else names)))
            write_file_atomically(self._state, _PAUSED.encode(jobs))
            state.paused = paused
            _hold(state)
            self._schedule.set_paused(name, paused, self._elapsed_ms())
            self._worker.wake()
        return self.status(name)[0]

    def _job_state(self, name: str) -> _JobState:
        state = self._jobs.get(name)
        if state is None:
            raise NotFound(
                "there is no such job", kind="job_not_found", job=name, hint=f"one of: {', '.join(self._jobs)}"
            )
        return state

    # -- at work --------------------------------------------------------------------------------------

    def _begin_due(self) -> float | None:
        with self._lock:
            begun = self._schedule.begin(self._elapsed_ms())
            for name in begun:
                self._jobs[name].begun += 1
            due = self._schedule.next_due()
        try:
            for name in begun:
                self._pool.submit(self._work, self._jobs[name])
        except RuntimeError:
            return None  # the process ends
        return None if due is None else due / 1000

    def _work(self, state: _JobState) -> None:
        if self._stopping.is_set():
            return
        began_ms, began = self._clock.now_ms(), self._clock.monotonic()
        with self._lock:
            state.running_since_ms = began_ms
        outcome = self._outcome(state.job)
        error = "; ".join(outcome.faults) or None
        if error is not None and (state.last is None or error != state.last.error):
            _log.warning("job %s: %s", state.job.name, error)  # said once, however often it fails for that
        with self._lock:
            state.last = JobRun(
                began_ms=began_ms, seconds=self._clock.monotonic() - began, summary=outcome.summary,
                numbers=outcome.numbers, error=error,
            )  # fmt: skip
            state.ended += 1
            state.failures += error is not None
            state.running_since_ms = None
            if self._schedule.end(state.job.name):
                self._worker.wake()
        self.changed.ring()

    def _outcome(self, job: Job) -> Outcome:
        try:
            outcome = job.work(self._stopping)
        except MillpondError as error:
            outcome = Outcome("failed", faults=(str(error),))
        except BaseException as error:  # also an exit: nobody else hears of it in this thread, and the run must end
            _log.exception("job failed: %s", job.name)
            outcome = Outcome("failed", faults=(str(Internal(f"{type(error).__name__}: {error}", job=job.name)),))
        return outcome


def _hold(state: _JobState) -> None:
    if state.job.pause is not None:
        state.job.pause(state.paused)


def _stopped() -> Closed:
    return Closed("the node's jobs are stopped", kind="jobs_stopped", hint="ask again when the node is up")


def _read_paused(file: Path) -> set[str]:
    if not file.exists():
        return set()
    paused = _PAUSED.stored(
        file.read_bytes(), "cannot read which jobs are paused", kind="jobs_damaged", file=file,
        hint="remove the file, start the node, and pause again what should be",
    )  # fmt: skip
    return set(paused.paused)
