"""The order of a run: the tests of a file stay in one worker, the longest files first; those of Spark are one group.

So a worker starts what a file shares once, one JVM with Spark runs at a time, and no long file is begun last.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.rings.ledger import LEDGER

__all__ = ("Order",)

_FIRST = 1e6
"""Seconds of a group that is begun before all others."""
ROOT = Path(__file__).parents[2]


@functools.cache
def _starts_spark(file: str) -> bool:
    """True for a file all of whose tests need a JVM with Spark."""
    return file.startswith("tests/spark/") or 'pytestmark = pytest.mark.usefixtures("spark_process")' in (
        ROOT / file
    ).read_text(encoding="utf-8")


def _group(nodeid: str) -> str:
    """The group of a test; the process that hands out tests knows their ids alone, so one of Spark's is named so."""
    file, _, name = nodeid.partition("::")
    return "spark" if "spark" in name or _starts_spark(file) else file


class _Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


class Order:
    """The plugin."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        return _Groups(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds: dict[str, float] = {}
        if LEDGER.exists():
            for costs in json.loads(LEDGER.read_text(encoding="utf-8")).values():
                for name, (wall, _) in costs.items():
                    seconds[name] = seconds.get(name, 0.0) + wall

        def weight(item: pytest.Item) -> tuple[float, str]:
            group = _group(item.nodeid)
            return -_FIRST if group == "spark" else -seconds.get(group, 0.0), item.nodeid.partition("::")[0]

        items.sort(key=weight)
