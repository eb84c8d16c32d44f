"""Fixtures of pytest. A `conftest.py` takes them with one line: `pytest_plugins = ["millpond.testing.fixtures"]`.

| fixture | is |
|---|---|
| `millpond_clock` | a `ManualClock` that stands at 2024-01-01T00:00Z until the test moves it |
| `millpond_pond` | an empty pond on this clock; `faults_of` gives its faults |
| `millpond_runs` | `WorkflowRuns` on this clock; skips the test without the extra `workflows` |
| `millpond_pipelines` | `PipelineRuns` on this pond; skips the test, too |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock
from millpond.testing.ponds import BEGINNING_MS, temporary_pond

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.pond import Pond
    from millpond.testing.pipelines import PipelineRuns
    from millpond.testing.workflows import WorkflowRuns

__all__ = ("millpond_clock", "millpond_pipelines", "millpond_pond", "millpond_runs")


@pytest.fixture
def millpond_clock() -> ManualClock:
    """The clock of the test's pond and runs."""
    return ManualClock(now=BEGINNING_MS)


@pytest.fixture
def millpond_pond(millpond_clock: ManualClock) -> Iterator[Pond]:
    """A pond of the test's own."""
    with temporary_pond(clock=millpond_clock) as pond:
        yield pond


@pytest.fixture
def millpond_runs(millpond_clock: ManualClock) -> WorkflowRuns:
    """Runs of workflows in this process."""
    pytest.importorskip("littlehorse", reason="runs of workflows need the extra `workflows`")
    from millpond.testing.workflows import WorkflowRuns

    return WorkflowRuns(clock=millpond_clock)


@pytest.fixture
def millpond_pipelines(millpond_pond: Pond) -> PipelineRuns:
    """Runs of pipelines on the test's pond."""
    pytest.importorskip("littlehorse")
    from millpond.testing.pipelines import PipelineRuns

    return PipelineRuns(millpond_pond)
