"""Jobs that are reported, as runs of OpenLineage: loads and enrichments, by Python, the command line and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.kernel.job_reports import Fact, JobReport, JobWithin, ReportsWithin
from millpond.lineage.place import PARENT
from millpond.lineage.run_events import Dataset, Kind, Run, run_event

if TYPE_CHECKING:
    from millpond.lineage.targets import Lineage

__all__ = ("LineageReports",)

Fields = Callable[[str], dict[str, str]]
_REASON_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class _Noted(JobWithin):
    """The report of a job, and the facts that were noted in it."""

    facts: dict[str, Fact] = field(default_factory=dict)

    def note(self, **facts: Fact) -> None:
        """As the job; kept."""
        self.facts.update(facts)
        self.job.note(**facts)


@dataclass(frozen=True, slots=True)
class LineageReports(ReportsWithin):
    """Reports that send run events of loads, too; `fields_of` gives the columns of a map."""

    lineage: Lineage
    fields_of: Fields

    def job(self, job_set: str, job_id: str = "", **facts: Fact) -> AbstractContextManager[JobReport]:
        """A job; of a load, with its run events."""
        if job_set.split("/")[0] != "load":
            return self.reports.job(job_set, job_id, **facts)
        return self._load(job_set, job_id or self.lineage.clock.random_id(), **facts)

    @contextmanager
    def _load(self, job_set: str, job_id: str, **facts: Fact) -> Iterator[JobReport]:
        run = Run(key=job_id, namespace=self.lineage.namespace, job=job_set, parent=PARENT.get())
        name = job_set.partition("/")[2]
        with self.reports.job(job_set, job_id, **facts) as job:
            noted = _Noted(job)
            self._send("START", run, self._outputs(name, {}))
            try:
                yield noted
            except BaseException as error:
                reason = f"{type(error).__name__}: {shown(str(error))}"[:_REASON_CHARACTERS]
                self._send("FAIL", run, self._outputs(name, {}), reason)
                raise
            self._send("COMPLETE", run, self._outputs(name, noted.facts))

    def _outputs(self, name: str, facts: dict[str, Fact]) -> list[Dataset]:
        rows = {name: facts.get("rows")} if name else {}
        for pair in str(facts.get("maps", "")).split():  # a load of several maps
            own, _, count = pair.rpartition(":")
            rows[own] = int(count)
        return [
            Dataset(namespace=self.lineage.namespace, name=own, fields=self.fields_of(own),
                    version=str(facts.get("load", "")), rows=None if count is None else int(count))
            for own, count in rows.items()
        ]  # fmt: skip

    def _send(self, kind: Kind, run: Run, outputs: list[Dataset], error: str = "") -> None:
        event = run_event(kind, self.lineage.clock.now_ms(), run, outputs=outputs, error=error)
        self.lineage.send(event)
