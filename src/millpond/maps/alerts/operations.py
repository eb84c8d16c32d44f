"""The alerts of a map as operations: those of `MapAlerts`, with the requests by which a client has them done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millpond.kernel.operations import declared, operation
from millpond.maps.alerts.map_alerts import AlertTrial
from millpond.maps.alerts.rules import AlertRule

__all__ = ("AlertOperations",)

_ALERTS = "/v1/maps/{name}/alerts"
_WORDS = {"when": "rows to tell of, as in a scan", "name": "the name of the alert", "buckets": "it holds in so many"}


class AlertOperations(Protocol):
    """The alerts of a map: see `map_alerts.MapAlerts` for what each does."""

    @operation("POST", _ALERTS, right="admin", sent={"name": "alert"}, words=_WORDS)
    def add(self, when: str, *, name: str = "", buckets: int | str = 1) -> AlertRule:
        """Add a rule of alerts to a map."""
        declared()

    @operation("GET", _ALERTS, right="read", answer="alerts")
    def list(self) -> Sequence[AlertRule]:
        """The rules of alerts of a map."""
        declared()

    @operation("DELETE", _ALERTS + "/{alert}", right="admin", sent={"name": "alert"}, repeatable=False)
    def remove(self, name: str) -> None:
        """Remove a rule of alerts."""
        declared()

    @operation(
        "POST", _ALERTS + "/trial", right="read", large=True, words=_WORDS | {"since": "only loads of this age, as 30d"}
    )
    def try_(self, when: str, *, buckets: int | str = 1, since: str | int | None = None) -> AlertTrial:
        """The alerts that a rule would have told of the loads so far."""
        declared()
