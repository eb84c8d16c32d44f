"""The alerts of a map on nodes, `map.alerts`: its rules are at the primary, which judges the loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millpond.kernel.operations import Operation
from millpond.maps.alerts.operations import AlertOperations

__all__ = ("RemoteAlerts",)


class RemoteAlerts(AlertOperations):
    """The alerts of one map; `perform` has a declared operation done."""

    def __init__(self, perform: Callable[[Operation, Mapping[str, Any]], Any]) -> None:
        self._perform = perform
