"""The runs of a pond as Python and notebooks have them: the newest first, one by its id, and the steps of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.reports.steps import StepReports
from millpond.tables import runs as run_rows
from millpond.tables import runs_in
from millpond.tables.run_list import Run, Runs
from tests.rings.sampling import examples
from tests.unit.test_sql_tables import BEGIN, SPECS, STATUSES, Row, _space_of, row_lists

NOW = ManualClock(now=BEGIN + 3_600_000)
NOTHING: Callable[[], millpond.events.interface.EventsLike] = lambda: pytest.fail("nobody asks for events")  # noqa: E731


@settings(max_examples=examples(20, 500), deadline=None)
@given(
    row_lists, st.integers(0, 15), st.sampled_from((None, *SPECS)), st.sampled_from((None, *STATUSES)),
    st.integers(1, 5),
)  # fmt: skip
def test_the_newest_are_those_of_a_model(
    rows: list[Row], limit: int, workflow: str | None, status: str | None, page: int
) -> None:
    space = _space_of(rows)
    runs = Runs("here", lambda: runs_in(space, Path("nowhere")), NOTHING, NOW)
    began = {f"r{number}": minute for number, (_, spec, own, minute) in enumerate(rows)
             if spec == (workflow or spec) and own == (status or own)}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_rows, "PAGE", page)
        newest = runs.newest(limit, workflow=workflow, status=status)
        assert sorted(run.id for run in runs) == sorted(f"r{number}" for number in range(len(rows)))
    times = [began[run.id] for run in newest]
    assert times == sorted(began.values(), reverse=True)[:limit]
    assert len({run.id for run in newest}) == len(newest)
    for number, (tenant, spec, own, minute) in enumerate(rows):
        run = runs[f"r{number}"]
        assert (run.tenant, run.workflow, run.status, run.version, run.ended) == (
            tenant,
            spec,
            own,
            f"1.{number}",
            None,
        )
        assert run.began == datetime.fromtimestamp(BEGIN / 1000 + 60 * minute, UTC)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        assert list(pond.runs) == pond.runs.newest() == []
        with pytest.raises(NotFound, match=r"no run has this id.*run=none"):
            pond.runs["none"]
        with pytest.raises(Invalid, match="argument=id"):
            pond.runs[3]  # type: ignore[index]
        with pytest.raises(Invalid, match="argument=limit"):
            pond.runs.newest("3")  # type: ignore[arg-type]
        assert pond.runs._repr_html_()
        (tmp_path / "pond" / "workflows").mkdir()
        with pytest.raises(Unavailable, match="store of their own"):
            pond.runs.newest()
        assert pond.runs._repr_html_() is None


def test_a_run_tells_its_steps_and_a_notebook_shows_them_as_text(tmp_path: Path) -> None:
    row = {"tenant": "default", "id": "nightly-1", "workflow": "<b>", "version": 0, "revision": 1, "status": "ERROR",
           "began": BEGIN, "ended": None, "error": "<i>"}  # fmt: skip
    with millpond.open(tmp_path / "pond") as pond:
        run = Run(row, lambda: pond.events)
        assert run.steps() == [] and repr(run) == "Run('nightly-1', ERROR)"
        first = StepReports("default", "nightly-1", "k1", {"step": "load", "pipeline_step": "<u>"}, 0, 0.0)
        first.running(pond)
        first.failed(pond, Unavailable("it is away"), retryable=True)
        replace(first, attempt=1, _runs=False).succeeded(pond, {"rows": 3})
        StepReports("default", "nightly-1", "k2", {"step": "check"}, 0, 0.0).running(pond)
        load, check = run.steps()
        assert (load.step, load.status, load.attempts, load.reason) == ("<u>", "succeeded", 2, "")
        assert (check.step, check.status, check.attempts) == ("check", "running", 1)
        shown = run._repr_html_()
        assert shown is not None and "&lt;b&gt;" in shown and "&lt;u&gt;" in shown and "<svg" in shown
        assert not any(tag in shown for tag in ("<b>", "<i>", "<u>"))
    assert run._repr_html_() is None
