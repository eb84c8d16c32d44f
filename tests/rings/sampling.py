"""Sampled rings: of many like cases, `make test` tries some that a seed draws, `make test-full` tries all.

`@pytest.mark.sample(3)` keeps three of the parameters of a test, `sample(3, of="file")` three tests of a file beside
its unit tests, `sample(3, of="a name")` three of the tests of all files that say that name, and `drawn(moments, 3)`
three of the moments of a walk. The seed is the day, as in `TEST_SEED=20261124`, and always the same with
`HYPOTHESIS_PROFILE=ci`. It is printed.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pytest

__all__ = ("Sampling", "drawn", "everything", "examples", "seed")

T = TypeVar("T")
_RING, _SEED = "TEST_RING", "TEST_SEED"


def everything() -> bool:
    """True where all cases are tried, not a sample."""
    return os.environ.get(_RING) == "full"


def seed() -> int:
    """The seed of this run."""
    if chosen := os.environ.get(_SEED):
        return int(chosen)
    if os.environ.get("HYPOTHESIS_PROFILE") == "ci":
        return 1
    return int(datetime.now(UTC).strftime("%Y%m%d"))


def drawn(cases: Sequence[T], count: int, *, name: str = "") -> list[T]:
    """Some of the cases, in their order: others for each seed and name. All of them in the full ring."""
    if everything() or len(cases) <= count:
        return list(cases)
    numbers = random.Random(f"{seed()} {name}").sample(range(len(cases)), count)
    return [cases[number] for number in sorted(numbers)]


def examples(few: int, many: int) -> int:
    """The number of examples that a property is tried with: few in the sampled rings, many in the full one."""
    return many if everything() else few


class Sampling:
    """The plugin: it leaves out the parameters that the seed has not drawn, and prints the seed."""

    def pytest_configure(self) -> None:
        os.environ.setdefault(_SEED, str(seed()))  # workers, and the processes of tests, draw the same

    def pytest_report_header(self) -> str:
        return "every case" if everything() else f"sampled cases: TEST_SEED={seed()}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if everything():
            return
        groups: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            marker = item.get_closest_marker("sample")
            if marker is None or item.get_closest_marker("full") is not None:
                continue
            of = marker.kwargs.get("of")
            if of is None:
                groups[item.nodeid.partition("[")[0]].append(item)
            elif item.get_closest_marker("unit") is None:
                groups[item.nodeid.partition("::")[0] if of == "file" else of].append(item)
        left = set()
        for name, group in groups.items():
            marker = group[0].get_closest_marker("sample")
            assert marker is not None
            left |= set(group) - set(drawn(group, marker.args[0], name=name))
        if left:
            config.hook.pytest_deselected(items=list(left))
            items[:] = [item for item in items if item not in left]
