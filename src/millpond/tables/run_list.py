"""Runs of workflows as Python and notebooks have them: the newest, one by its id, and the steps of each.

pond.runs                                  a notebook shows the newest
pond.runs.newest(20, status="ERROR")
pond.runs["nightly-1"].steps()             from the events of the run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from numbers import Integral
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from millpond.argument_types import need_type
from millpond.error_values import ROWS_SHOWN, SHOWN_MAX, html_bars, html_facts, html_rows, html_table
from millpond.errors import MillpondError, NotFound
from millpond.kernel.page import pages
from millpond.tables.runs import RUNS, RunReading, RunSearch, runs_in
from millpond.workflows.newest import newest

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.interface import EventsLike
    from millpond.tables.rows import Row

__all__ = ("Run", "RunStep", "Runs", "runs_in")

NEWEST_MAX = 1_000
STEPS_MAX = 1_000
"""The steps that are told of a run: the events of more are not read."""
_EVENTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run, as its events tell it: `running`, `failed` or `succeeded`, and why it failed last."""

    step: str
    status: str
    attempts: int
    began: datetime
    seconds: float
    reason: str


class Run:
    """A run as it stood when it was read. `ended` and `error` are None where it has none; `version` is `0.1`."""

    def __init__(self, row: Mapping[str, Any], events: Callable[[], EventsLike]) -> None:
        self.tenant, self.id, self.workflow, self.status = (
            str(row[name]) for name in ("tenant", "id", "workflow", "status")
        )
        self.version = f"{row['version']}.{row['revision']}"
        self.began, self.ended = (_instant(row[name]) for name in ("began", "ended"))
        self.error: str | None = row["error"]
        self._events = events

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.status})"

    def steps(self) -> list[RunStep]:
        """The steps that have begun, in their order; none for a run whose events are gone.

        Raises: as `Events.read`.
        """
        steps: dict[str, RunStep] = {}
        try:
            for event in islice(self._events().read(self.tenant, self.id), _EVENTS_MAX):
                key, headers = event.headers.get("job_id", ""), event.headers
                if "step" not in headers or (key not in steps and len(steps) == STEPS_MAX):
                    continue
                at = event.time
                began = steps[key].began if key in steps else at
                name, attempt = headers.get("pipeline_step", headers["step"]), int(headers.get("attempt", 0))
                seconds, reason = (at - began).total_seconds(), headers.get("reason", "")
                steps[key] = RunStep(name, event.kind, attempt + 1, began, seconds, reason)
        except NotFound:
            return []
        return list(steps.values())

    def _repr_html_(self) -> str | None:
        facts = {name: getattr(self, name) for name in ("workflow", "version", "status", "began", "ended", "error")}
        with suppress(MillpondError):
            steps = self.steps()
            words = [f"{step.step}: {step.seconds:,.1f} s" for step in steps]
            return (
                html_facts(repr(self), {name: fact for name, fact in facts.items() if fact is not None})
                + html_rows("its steps", steps)
                + html_bars("seconds of each step", [step.seconds for step in steps], words)
            )
        return None  # the pond was closed, or no node answers: a notebook shows the text


class Runs:
    """The runs of a pond that may be read. Iterated over, all of them, in no order that holds."""

    def __init__(
        self, title: str, reading: Callable[[], RunReading | None], events: Callable[[], EventsLike], clock: Clock
    ) -> None:
        self._title, self.reading, self._events, self._clock = title, reading, events, clock

    def __repr__(self) -> str:
        return f"Runs({self._title})"

    def __getitem__(self, id: str) -> Run:
        """The run with an id, of whatever tenant.

        Raises: `NotFound`, kind `run`.
        """
        need_type("id", id, str)
        for tenant, reading in self._tenants():
            for row in reading.named(tenant, [id]):
                return self._run(row)
        raise NotFound("no run has this id", kind="run", run=id, hint="list them with runs.newest()")

    def __iter__(self) -> Iterator[Run]:
        for tenant, reading in self._tenants():
            for rows, _ in pages(partial(reading.page, tenant, RunSearch()), b"", itemgetter(1)):
                yield from map(self._run, rows)

    def newest(
        self, limit: int = ROWS_SHOWN, *, workflow: str | None = None, status: str | None = None
    ) -> list[Run]:  # fmt: skip
        """The newest runs, of a workflow, or of a status (`RUNNING`, `COMPLETED`, `ERROR` …); at most 1,000.

        Raises: `Denied` for what the token may not read.
        """
        need_type("limit", limit, Integral)
        rows, limit = [], min(int(limit), NEWEST_MAX)
        for tenant, reading in self._tenants() if limit > 0 else ():
            rows += _newest(reading, tenant, limit, self._clock.now_ms(), workflow, status)
        rows.sort(key=lambda row: row[RUNS.get_field_index("began")] or 0, reverse=True)
        return list(map(self._run, rows[:limit]))

    def _tenants(self) -> Iterator[tuple[str, RunReading]]:
        reading = self.reading()
        if reading is not None:
            for tenant in reading.tenants():
                yield tenant, reading

    def _run(self, row: Any) -> Run:
        return Run(dict(zip(RUNS.names, row, strict=True)), self._events)

    def _repr_html_(self) -> str | None:
        with suppress(MillpondError):
            names = ("id", "workflow", "version", "status", "began", "ended", "error")
            rows = ([str(getattr(run, name))[:SHOWN_MAX] for name in names] for run in self.newest())
            return html_table(f"{self!r}: the newest", names, rows)
        return None


def _newest(
    reading: RunReading, tenant: str, limit: int, now_ms: int, workflow: str | None, status: str | None
) -> list[Row]:  # fmt: skip
    def page(first: int, last: int | None, bookmark: bytes = b"") -> tuple[list[Row], bytes | None]:
        return reading.page(tenant, RunSearch(workflow, status, first, last), bookmark)

    def first_of(first: int, last: int | None) -> tuple[list[Row], bool]:
        rows, bookmark = page(first, last)
        return rows, bookmark is not None

    def all_of(first: int, last: int | None) -> Iterator[Row]:
        return (row for rows, _ in pages(partial(page, first, last), b"", itemgetter(1)) for row in rows)

    return newest(first_of, all_of, limit, now_ms)


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
