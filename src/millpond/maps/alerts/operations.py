"""The alerts of a map as operations: those of `MapAlerts`, with the requests by which a client has them done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from millpond.deferred import DeferredModule
from millpond.kernel.operations import declared, operation

if TYPE_CHECKING:
    from millpond.maps.alerts import map_alerts, rules
else:  # help names the arguments of commands, and no results
    map_alerts, rules = (DeferredModule(f"millpond.maps.alerts.{name}") for name in ("map_alerts", "rules"))

__all__ = ("AlertOperations",)

_ALERTS = "/v1/maps/{name}/alerts"
_WORDS = {
    "when": "Rows to tell of, as in scan: 'flights > 100'.", "name": "The alert's name.",
    "buckets": "It holds in so many, one after another: '2 buckets'.", "since": "Only what is younger.",
}  # fmt: skip
_FORMS = {"when": "--when CONDITION", "buckets": "--for BUCKETS"}


class AlertOperations(Protocol):
    """The alerts of a map: see `map_alerts.MapAlerts` for what each does."""

    @operation(
        "POST", _ALERTS, right="admin", sent={"name": "alert"}, words=_WORDS, command="alert add",
        forms=_FORMS | {"name": "--name ALERT=alert_1, alert_2, …"},
        examples=(
            'millpond alert add late_flights --when "flights > 100 and avg_delay > 60" --for "2 buckets"',
            'millpond alert add sales --when "total > 10000" --name large --json',
        ),
    )  # fmt: skip
    def add(self, when: str, *, buckets: int | str = 1, name: str = "") -> rules.AlertRule:
        """Tell an event when a load lets a condition hold in an aggregate: once, until it fell back."""
        declared()

    @operation(
        "GET", _ALERTS, right="read", answer="alerts", command="alert list",
        examples=("millpond alert list late_flights", "millpond alert list late_flights --json"),
    )  # fmt: skip
    def list(self) -> Sequence[rules.AlertRule]:
        """List the alerts of a map."""
        declared()

    @operation(
        "DELETE", _ALERTS + "/{alert}", right="admin", sent={"name": "alert"}, words=_WORDS, command="alert remove",
        forms={"name": "ALERT"}, examples=("millpond alert remove late_flights alert_1",),
    )  # fmt: skip
    def remove(self, name: str) -> None:
        """Remove an alert of a map."""
        declared()

    @operation(
        "POST", _ALERTS + "/trial", right="read", large=True, words=_WORDS, command="alert try",
        forms=_FORMS | {"since": "--since AGE=all kept"},
        examples=(
            'millpond alert try late_flights --when "avg_delay > 60" --since 30d',
            'millpond alert try late_flights --when "avg_delay > 60" --for 3 --json',
        ),
    )  # fmt: skip
    def try_(self, when: str, *, buckets: int | str = 1, since: str | int | None = None) -> map_alerts.AlertTrial:
        """Show what an alert would have told of the loads so far, or in a shard of the buckets."""
        declared()
