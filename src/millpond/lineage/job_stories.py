"""Jobs that are reported to several places at once: the pond's own story, spans, run events of OpenLineage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.kernel.job_reports import Fact, JobReport, JobReports, Story
from millpond.lineage.context import fields_of, lineage_of
from millpond.tracing.jobs import span_stories

if TYPE_CHECKING:
    from millpond.clock import Clock

__all__ = ("with_stories",)


def with_stories(reports: JobReports, pond: Any) -> JobReports:
    """The reports of a pond, whose jobs are spans, and run events of OpenLineage, where these are wanted."""
    stories = span_stories()
    if (lineage := lineage_of(pond)) is not None:
        from millpond.lineage.job_lineage import LineageStory

        stories.append(LineageStory(lineage, lambda name: fields_of(lambda: pond.map(name))))
    return _Reports(reports, pond.clock, stories) if stories else reports


@dataclass(frozen=True, slots=True)
class _Job:
    job: JobReport
    notes: Sequence[Callable[..., object]]

    def running(self, **facts: Fact) -> None:
        self.job.running(**facts)

    def progress(self, rows: int) -> None:
        self.job.progress(rows)

    def note(self, **facts: Fact) -> None:
        for note in (*self.notes, self.job.note):
            note(**facts)


@dataclass(frozen=True, slots=True)
class _Reports:
    """Reports whose jobs have stories besides, under the same ids; a job of several processes has none."""

    # The methods are written out, so that mypy finds the one that is missing when `JobReports` gets another.
    reports: JobReports
    clock: Clock
    stories: Sequence[Story]

    @contextmanager
    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> Iterator[JobReport]:
        job_id = job_id or self.clock.random_id()
        with ExitStack() as all_:
            notes = [all_.enter_context(story(job_set, job_id, facts)) for story in self.stories]
            yield _Job(all_.enter_context(self.reports.job(job_set, job_id, **facts)), notes)

    def begin(self, job_set: str, job_id: str, owner: int, **facts: Fact) -> None:
        self.reports.begin(job_set, job_id, owner, **facts)

    def resume(self, job_set: str, job_id: str) -> AbstractContextManager[JobReport]:
        return self.reports.resume(job_set, job_id)

    def rows(self, job_set: str, job_id: str, rows: int) -> None:
        self.reports.rows(job_set, job_id, rows)

    def leave_to_client(self, job_id: str) -> None:
        self.reports.leave_to_client(job_id)
