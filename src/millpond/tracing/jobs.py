"""Jobs that are reported, as spans: loads, merges, maintenance, acts on branches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millpond.kernel.job_reports import Fact, JobReport, JobReports, JobWithin, ReportsWithin
from millpond.tracing.doors import Noted, is_traced, span

__all__ = ("traced",)


def traced(reports: JobReports) -> JobReports:
    """The reports of a pond, each job of which is a span, where this process makes spans."""
    return _TracedReports(reports) if is_traced() else reports


@dataclass(frozen=True, slots=True)
class _Job(JobWithin):
    own: Noted

    def note(self, **facts: Fact) -> None:
        """As the job; attributes of its span, too."""
        self.own.note(None, **facts)
        self.job.note(**facts)


class _TracedReports(ReportsWithin):
    @contextmanager
    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> Iterator[JobReport]:
        """A job, within its span, which has the name of what the job does."""
        act, _, about = job_set.partition("/")
        with (
            span(str(facts.get("act", act)), job=act, about=about, **facts) as own,
            self.reports.job(job_set, job_id, **facts) as job,
        ):
            yield _Job(job, own)
