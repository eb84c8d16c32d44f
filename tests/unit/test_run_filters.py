"""Searches for runs by variables: each run once, page by page, also while runs are added."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    LHStatus,
    RunWfRequest,
    SearchWfRunRequest,
    StopWfRunRequest,
    VariableMatch,
    VariableValue,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid
from millpond.server.workflows import run_filters
from millpond.server.workflows.reads import READS
from tests.unit.test_processor import Ground, opened

COLORS, SIZES = ("red", "blue"), (1, 2, 3)


def thing(wf: WorkflowThread) -> None:
    wf.declare_str("color").searchable()
    wf.declare_int("size")
    wf.spawn_thread(lambda inner: inner.declare_str("own") and None, "child")
    wf.wait_for_event("ready")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Runs of all colors and sizes, each thrice; every other one is stopped."""
    made = Ground(opened("lmdb", tmp_path_factory.mktemp("space")))
    from littlehorse.model import PutExternalEventDefRequest

    made.do(PutExternalEventDefRequest(name="ready"))
    made.do(Workflow("thing", thing).compile())
    for number, (_copy, color, size) in enumerate(product(range(3), COLORS, SIZES)):
        start(made, f"r-{number}", color, size)
        if number % 2:
            made.do(StopWfRunRequest(wf_run_id=WfRunId(id=f"r-{number}")))
    yield made
    made.processor.stop()
    made.space.close()


def start(ground: Ground, run: str, color: str, size: int) -> None:
    variables = {"color": VariableValue(str=color), "size": VariableValue(int=size)}
    ground.do(RunWfRequest(wf_spec_name="thing", id=run, variables=variables))
    ground.clock.now += 1


def match(name: str, value: str | int) -> VariableMatch:
    found = VariableValue(str=value) if isinstance(value, str) else VariableValue(int=value)
    return VariableMatch(var_name=name, value=found)


def searched(ground: Ground, request: SearchWfRunRequest, added: str = "") -> list[str]:
    """All pages of a search; a run that fits is added after each of the first two."""
    found: list[str] = []
    pages = 0
    while True:
        with ground.space.read() as tx:
            page = READS[SearchWfRunRequest](ground.processor.partition.reads(tx, "acme"), request)
        found += [run.id for run in page.results]  # type: ignore[attr-defined]
        if not page.bookmark:  # type: ignore[attr-defined]
            return found
        if added and pages < 2:
            start(ground, f"{added}-{pages}", "red", 1)
        pages += 1
        request.bookmark = page.bookmark  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize("names", [("color",), ("size",), ("size", "color"), ("color", "size")])
@pytest.mark.parametrize("status", [None, LHStatus.RUNNING, LHStatus.HALTED])
def test_a_search_finds_the_runs_with_the_values(
    ground: Ground, limit: int, names: tuple[str, ...], status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_filters, "_AT_ONCE", 3)
    values: dict[str, str | int] = {"color": "red", "size": 2}
    request = SearchWfRunRequest(wf_spec_name="thing", limit=limit, status=status)
    request.variable_filters.extend(match(name, values[name]) for name in names)
    wanted = [
        f"r-{number}" for number, (_copy, color, size) in enumerate(product(range(3), COLORS, SIZES))
        if all({"color": color, "size": size}[name] == values[name] for name in names)
        and (status is None or (status == LHStatus.HALTED) == bool(number % 2))
    ]  # fmt: skip
    assert [run for run in searched(ground, request) if run.startswith("r-")] == wanted


def test_case_40_each_run_is_found_once_while_runs_are_added(ground: Ground) -> None:
    for names in (["color"], ["size"]):
        request = SearchWfRunRequest(wf_spec_name="thing", limit=1, status=LHStatus.RUNNING)
        request.variable_filters.extend(match(name, {"color": "red", "size": 1}[name]) for name in names)
        before = searched(ground, request)
        request.ClearField("bookmark")
        during = searched(ground, request, f"late-{names[0]}")
        assert during == [*before, f"late-{names[0]}-0", f"late-{names[0]}-1"]


def test_a_page_reads_so_many_candidates_and_no_more(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_filters, "CANDIDATES_MAX", 4)
    request = SearchWfRunRequest(wf_spec_name="thing", variable_filters=[match("size", 99)])
    with ground.space.read() as tx:
        page = READS[SearchWfRunRequest](ground.processor.partition.reads(tx, "acme"), request)
    assert not page.results and page.bookmark  # type: ignore[attr-defined]
    assert searched(ground, request) == []


@pytest.mark.parametrize(("spec", "name"), [("", "color"), ("none", "color"), ("thing", "own"), ("thing", "none")])
def test_a_filter_names_a_variable_of_the_first_thread(ground: Ground, spec: str, name: str) -> None:
    request = SearchWfRunRequest(wf_spec_name=spec, variable_filters=[match(name, "red")])
    with pytest.raises(Invalid):
        searched(ground, request)
