"""`millpond alert add`, `list`, `remove` and `try`: what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond import json_forms
from millpond.cli.declared import commands, draws
from millpond.cli.options import MapName
from millpond.cli.terminal import console
from millpond.maps.alerts.operations import AlertOperations

if TYPE_CHECKING:
    from millpond.maps.alerts.map_alerts import AlertTrial, TrialCrossing
    from millpond.maps.alerts.rules import AlertRule

__all__ = ("add", "listed", "remove", "tried")

commands(AlertOperations, lambda pond, map: pond.map(map).alerts, {"map": MapName})


@draws(AlertOperations.add)
def add(rule: AlertRule, *, map: str, **_: Any) -> console.Shown:
    """A rule that was added, and where its events are."""
    when = rule.when if rule.buckets == 1 else f"{rule.when}, for {rule.buckets} buckets"
    text = f"alert {rule.name} of {map}: {when}; its events: millpond events read millpond alerts/{map}"
    return console.said(json_forms.plain(rule), text)


@draws(AlertOperations.list)
def listed(rules: Sequence[AlertRule], *, map: str) -> console.Shown:
    """The rules of a map."""
    return console.table(
        (json_forms.plain(rule) for rule in rules),
        ["alert", "when", "buckets"],
        [[rule.name, rule.when, rule.buckets] for rule in rules],
        nothing=f"{map} has no alerts",
    )


@draws(AlertOperations.remove)
def remove(_: None, *, map: str, name: str) -> console.Shown:
    """A rule that is there no more."""
    return console.said({"map": map, "removed": name}, f"removed alert {name} of {map}")


@draws(AlertOperations.try_)
def tried(trial: AlertTrial, **_: Any) -> console.Shown:
    """The events that a rule would have told."""
    return console.Shown(lambda: console.print_json(json_forms.plain(trial)), lambda: _draw(trial))


def _draw(trial: AlertTrial) -> None:
    if trial.alerts:
        columns = ["loaded" if trial.of == "load" else "time", "key", "bucket", "before", "after"]
        console.print_table(columns, [_row(crossing) for crossing in trial.alerts])
    alerts = console.human_count(len(trial.alerts) + trial.omitted, "alert")
    began = f" since {trial.since}" if trial.since else ""
    console.say(f"{alerts} of {console.human_count(trial.changes, trial.of)}{began}")


def _row(crossing: TrialCrossing) -> list[object]:
    return [crossing.time, crossing.key, crossing.bucket, _values(crossing.before), _values(crossing.after)]


def _values(values: dict[str, object] | None) -> str | None:
    return None if values is None else ", ".join(f"{name} {value}" for name, value in values.items())
