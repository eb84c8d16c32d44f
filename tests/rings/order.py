"""The order of a run: the files of tests are groups that stay in one worker, the longest first; Spark's are one group.

So a worker starts what a file shares once, one JVM with Spark runs at a time, and no long file is begun last.
"""

from __future__ import annotations

import json

import pytest

from tests.rings.ledger import LEDGER

__all__ = ("Order",)

_FIRST = 1e6
"""Seconds of a group that is begun before all others."""


class Order:
    """The plugin."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seconds: dict[str, float] = {}
        if LEDGER.exists():
            for costs in json.loads(LEDGER.read_text(encoding="utf-8")).values():
                for name, (wall, _) in costs.items():
                    seconds[name] = seconds.get(name, 0.0) + wall

        def weight(item: pytest.Item) -> tuple[float, str]:
            file = item.nodeid.partition("::")[0]
            if item.get_closest_marker("spark"):
                return -_FIRST, file
            return -seconds.get(file, 0.0), file

        for item in items:
            group = "spark" if item.get_closest_marker("spark") else f"{item.path.parent.name}.{item.path.stem}"
            item.add_marker(pytest.mark.xdist_group(group))
        items.sort(key=weight)
