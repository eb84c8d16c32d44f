"""The order of a run: the tests of a file stay in one worker, the longest files first; those of Spark are two groups.

One group shares a session of Spark, and the processes of the other start one each. So a worker starts what a file
shares once, few JVMs with Spark run at a time, and no long file is begun last.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.rings.ledger import LEDGER, read_ledger

__all__ = ("Order",)

_FIRST = 1e6
"""Seconds of a group that is begun before all others."""
_NEW = 30.0
"""Seconds of a file that the ledger does not have: it may need as many, and is not begun last."""
_SESSION, _PROCESSES = "spark", "processes of spark"
ROOT = Path(__file__).parents[2]


@functools.cache
def _starts_spark(file: str) -> bool:
    """True for a file all of whose tests start a JVM with Spark."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.search(r"^pytestmark = .*spark_process", text, re.MULTILINE) is not None


def _group(nodeid: str) -> str:
    """The group of a test; the process that hands out tests knows their ids alone, so one of Spark's is named so."""
    file, _, name = nodeid.partition("::")
    if file.startswith("tests/spark/"):
        return _SESSION
    return _PROCESSES if "spark" in name or _starts_spark(file) else file


class _Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@dataclass(eq=False)
class Order:
    """The plugin: it orders by the ledger at `path`."""

    path: Path = LEDGER

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        return _Groups(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds: dict[str, float] = defaultdict(float)
        for costs in read_ledger(self.path).values():
            for name, cost in costs.items():
                seconds[name] += cost.wall

        def weight(item: pytest.Item) -> tuple[float, str]:
            group = _group(item.nodeid)
            first = _FIRST if group in (_SESSION, _PROCESSES) else seconds.get(group, _NEW)
            return -first, item.nodeid.partition("::")[0]

        for item in items:
            if item.get_closest_marker("spark") and _group(item.nodeid) not in (_SESSION, _PROCESSES):
                raise pytest.UsageError(f"{item.nodeid} starts Spark: say so in its name, or in the file's pytestmark")
        items.sort(key=weight)
