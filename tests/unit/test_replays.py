"""Recorded runs of pipelines against changed files: what would break is named, and what would not is not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("littlehorse")

from millpond.errors import Invalid
from millpond.testing.pipelines import PipelineRuns, recorded, replayed
from millpond.testing.ponds import temporary_pond

HEAD = "from millpond.pipelines import pipeline, python\n\n\ndef made(*given):\n    return {'rows': len(given)}\n\n\n"
TAKEN = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
"""The steps of the pipeline as it was, and those whose rows each takes."""


def source(steps: tuple[str, ...], parameters: str = "", taken: dict[str, list[str]] | None = None) -> str:
    lines = []
    for name in steps:
        words = ["made", *(f"{own}.rows" for own in (taken or TAKEN)[name]), f"name='{name}'"]
        lines.append(f"    {name} = python({', '.join(words)})")
    return f"{HEAD}@pipeline\ndef nightly({parameters}):\n" + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """A run for each number of steps done: its worker is lost at the checkpoint of the next step."""
    file = tmp_path_factory.mktemp("file") / "nightly.py"
    file.write_text(source(("a", "b", "c", "d")))
    with temporary_pond() as pond:
        runs = PipelineRuns(pond)
        runs.deploy(file)
        made = []
        for number in range(2, 6):  # a step stores its result; before them, the parameters store a key, and theirs
            with runs.worker_lost_at(number):
                made.append(recorded(runs, runs.run("nightly")))
        made.append(recorded(runs, runs.run("nightly")))
        yield made


def broken(steps: tuple[str, ...], done: int) -> bool:
    """The model: the run goes on at the step at which it stands, with the values of the steps that it did."""
    names = tuple(TAKEN)
    values = set(names[:done])
    if names[done] not in steps:
        return True
    for name in steps[steps.index(names[done]) :]:
        if name in values or not values.issuperset(TAKEN[name]):
            return True
        values.add(name)
    return False


def declarable(steps: tuple[str, ...]) -> bool:
    return all(set(TAKEN[name]) <= set(steps[:number]) for number, name in enumerate(steps))


def test_what_would_break_is_what_could_not_go_on(records: list[dict[str, Any]], tmp_path: Path) -> None:
    orders = [
        order for size in range(1, 5) for order in itertools.permutations(TAKEN, size) if declarable(order)
    ]  # fmt: skip
    assert len(orders) > 5
    file = tmp_path / "nightly.py"
    for order in orders:
        file.write_text(source(order))
        replay = replayed(file, records)
        assert replay.open == 4, "the last one has ended"
        expected = {records[done]["run"]["id"]["id"] for done in range(4) if broken(order, done)}
        assert set(replay.broken) == expected, (order, replay)


def test_the_reason_names_the_step_and_the_value(records: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "nightly.py"
    texts = []
    for record in records:
        (tmp_path / f"{record['run']['id']['id']}.json").write_text(json.dumps(record))
    files = list(tmp_path.glob("*.json"))
    for changed in (
        source(("a", "b", "c", "d")),
        source(("a", "b", "d"), taken={**TAKEN, "d": ["b"]}),
        source(("a", "b", "c", "d")).replace("a.rows, name='c'", "a.columns, name='c'"),
        source(("a", "n", "b", "c", "d"), taken={**TAKEN, "n": [], "d": ["n"]}),
        source(("a", "b", "c", "d")).replace("nightly", "weekly"),
    ):
        file.write_text(changed)
        texts.append(str(replayed(file, files)))
    assert texts == [
        "0 of 4 open runs would break",
        "1 of 4 open runs would break\n1: the step c, at which it stands, is gone",
        "2 of 4 open runs would break\n2: the step c: the run has no such value. value=a.columns",
        "3 of 4 open runs would break\n3: the step d: the run has no such value. value=n",
        "0 of 0 open runs would break",
    ]


def test_a_run_that_has_done_nothing_needs_the_parameters(tmp_path: Path) -> None:
    file = tmp_path / "nightly.py"
    file.write_text(source(("a",)))
    with temporary_pond() as pond:
        runs = PipelineRuns(pond)
        runs.deploy(file)
        with runs.worker_lost_at(0):
            record = recorded(runs, runs.run("nightly"))
    file.write_text(source(("a",), "day: str"))
    assert "a parameter is missing. parameter=day" in str(replayed(file, [record]))


@pytest.mark.parametrize("record", [{}, {"run": 1, "tasks": [], "variables": []}, "nowhere.json"])
def test_what_is_no_record_is_refused(tmp_path: Path, record: Any) -> None:
    file = tmp_path / "nightly.py"
    file.write_text(source(("a",)))
    with pytest.raises(Invalid, match="run show RUN --json"):
        replayed(file, [record])
