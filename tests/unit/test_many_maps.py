"""A pond of many maps: what is done with one of them, or with a few, costs the same as in a pond of few.

Costs are counted in calls of Python functions, not in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.pond import Pond
from tests.harness.call_counts import counted_calls

FEW, MANY = 4, 64


def calls(act: Callable[[], object]) -> Counter[str]:
    """The calls of Python functions that this thread makes, by their names."""
    with counted_calls() as counted:
        act()
    return counted


def name_of(number: int) -> str:
    return f"map_{number:03d}"


def made(folder: Path, maps: int) -> Pond:
    pond = millpond.open(folder, events_reports=False)
    for number in range(maps):
        pond.create_map(name_of(number), kind="state", value="long")
    return pond


def load(pond: Pond, number: int, value: int) -> None:
    pond.map(name_of(number)).load([{"key": "a", "value": value}])


def costs(folder: Path, maps: int) -> dict[str, int]:
    """The calls that each work takes in a pond of so many maps, done before at least once."""
    with made(folder, maps) as pond:
        for number in range(2):
            load(pond, number, 1)
            pond.map(name_of(number)).freeze()
        works: dict[str, Callable[[], object]] = {
            "load": lambda: load(pond, 0, 2),
            "get": lambda: pond.map(name_of(0)).get("a"),
            "freeze": lambda: pond.map(name_of(0)).freeze(),
            "parts": pond.parts.list,
            "wait": lambda: pond.log.wait_applied(1),
            "merge": pond.merge,
            "create": lambda: pond.create_map("another", kind="state", value="long"),
            "drop": lambda: pond.drop_map(name_of(1)),
        }
        return {work: calls(act).total() for work, act in works.items()}


@pytest.mark.usefixtures("processor")
def test_work_on_one_map_costs_the_same_among_many(tmp_path: Path) -> None:
    few, many = costs(tmp_path / "few", FEW), costs(tmp_path / "many", MANY)
    grown = {work: (few[work], many[work]) for work in few if many[work] > 1.1 * few[work] + MANY // 2}
    assert grown == {}
