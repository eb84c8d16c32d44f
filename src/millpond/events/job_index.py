"""The rows of jobs leave with their events: with days that are dropped, and with jobs that are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.events.days import day_of
from millpond.events.index import State
from millpond.events.shared_jobs import HoldsJobs, JobLocation

if TYPE_CHECKING:
    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore

__all__ = ("collect_jobs", "forget_job")


def forget_job(store: StreamStore, stream: StreamName, job_id: str) -> None:
    """Delete the row of a job whose events are deleted from its stream, if it has one."""
    if isinstance(store, HoldsJobs):
        jobs = store.job_rows.jobs
        jobs.delete({id_: job for id_, job in jobs.find([job_id]).items() if job.stream == stream})


def collect_jobs(store: StreamStore) -> int:
    """Delete the rows of jobs whose day was dropped from their streams, or with them; how many."""
    if not isinstance(store, HoldsJobs):
        return 0
    first_days: dict[StreamName, int | None] = {}

    def is_gone(job: JobLocation) -> bool:
        if job.stream not in first_days:
            index = store.index(job.stream)
            there = () if index is None else index.segments
            days = (day.day for segment in there if segment.state is not State.EXPIRED for day in segment.days)
            first_days[job.stream] = min(days, default=None)
        first = first_days[job.stream]
        # The clock of a store may be a day ahead of, or behind, that of the machine which noted the job.
        return first is None or job.day + 1 < first

    return store.job_rows.jobs.collect(day_of(store.now_ms()) - 1, is_gone)
