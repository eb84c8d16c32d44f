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
def _is_spark(file: str) -> bool:
    """True for a file whose tests start Spark; the process that hands out tests knows the names of files alone."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return file.startswith("tests/spark/") or '("spark_process")' in text or "mark.spark" in text


class _Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if _is_spark(file) else file


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
            file = item.nodeid.partition("::")[0]
            return -_FIRST if _is_spark(file) else -seconds.get(file, 0.0), file

        items.sort(key=weight)
