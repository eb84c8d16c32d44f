"""Reports of work: what a load, a merge or a commit says of itself while it runs.

Whoever works knows `JobReports` and nothing of where reports go; `NO_REPORTS` drops them.

    with reports.job("load/weather", rows=0) as job:      submitted
        job.running()                                     running
        job.progress(10_000)                              progress: rows so far
        job.note(rows=20_000)                             facts for the end
                                                          succeeded; or failed, with the reason, when it raises

Invariants:
* a report never raises, and never waits for storage: the work goes as it would without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

__all__ = ("NO_JOB", "NO_REPORTS", "Fact", "JobReport", "JobReports", "Story")

Fact: TypeAlias = "str | int | float"
"""The value of a fact: a name, a count, or seconds. No path, no secret."""
Story: TypeAlias = "Callable[[str, str, Mapping[str, Fact]], AbstractContextManager[Callable[..., object]]]"
"""Tells of a job by its set, its id and its first facts, while it lasts; what it gives takes the facts for the end."""


class JobReport(Protocol):
    """The report of one job, while it lasts."""

    def running(self, **facts: Fact) -> None:
        """Report that the work has begun."""

    def progress(self, rows: int) -> None:
        """Report rows so far; several in one second may become one event."""

    def note(self, **facts: Fact) -> None:
        """Add facts to the event that ends the job."""


class JobReports(Protocol):
    """The place that jobs report to."""

    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> AbstractContextManager[JobReport]:
        """A job, from `submitted` to `succeeded`, or to `failed` when the block raises. Its id is drawn without one."""

    def begin(self, job_set: str, job_id: str, owner: int, **facts: Fact) -> None:
        """Report a job that another process will end; it is lost when the process `owner` is dead."""

    def resume(self, job_set: str, job_id: str) -> AbstractContextManager[JobReport]:
        """A job that was begun, to its end; nothing is reported of one that has ended, or was not begun."""

    def rows(self, job_set: str, job_id: str, rows: int) -> None:
        """Report the rows so far of a job that was begun and that another process will end."""

    def leave_to_client(self, job_id: str) -> None:
        """Report a job no more: the client that does it reports it."""


class _Silent:
    """A job that nobody reads of, and the place of such jobs."""

    def running(self, *_names: Fact, **facts: Fact) -> None:
        """Report nothing."""

    # One method takes what all of them are called with: nothing that is dropped may raise.
    progress = note = begin = rows = leave_to_client = running

    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> AbstractContextManager[JobReport]:
        return nullcontext(self)

    def resume(self, job_set: str, job_id: str) -> AbstractContextManager[JobReport]:
        return nullcontext(self)


NO_JOB: JobReport = _Silent()
"""A job that is not reported."""
NO_REPORTS: JobReports = _Silent()
"""The place where reports are dropped."""
