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
def add(rule: AlertRule, *, map: str, json: bool, **_: Any) -> None:
    """A rule that was added, and where its events are."""
    when = rule.when if rule.buckets == 1 else f"{rule.when}, for {rule.buckets} buckets"
    text = f"alert {rule.name} of {map}: {when}; its events: millpond events read millpond alerts/{map}"
    console.answer(json_forms.plain(rule), text, as_json=json)


@draws(AlertOperations.list)
def listed(rules: Sequence[AlertRule], *, map: str, json: bool) -> None:
    """The rules of a map."""
    if json:
        console.print_json_list(json_forms.plain(rule) for rule in rules)
    elif rules:
        console.print_table(["alert", "when", "buckets"], [[rule.name, rule.when, rule.buckets] for rule in rules])
    else:
        console.say(f"{map} has no alerts")


@draws(AlertOperations.remove)
def remove(_: None, *, map: str, name: str, json: bool) -> None:
    """A rule that is there no more."""
    console.answer({"map": map, "removed": name}, f"removed alert {name} of {map}", as_json=json)


@draws(AlertOperations.try_)
def tried(trial: AlertTrial, *, json: bool, **_: Any) -> None:
    """The events that a rule would have told."""
    if json:
        console.print_json(json_forms.plain(trial))
        return
    if trial.alerts:
        columns = ["loaded" if trial.of == "load" else "time", "key", "bucket", "before", "after"]
        console.print_table(columns, [_row(made) for made in trial.alerts])
    alerts = console.human_count(len(trial.alerts) + trial.omitted, "alert")
    began = f" since {trial.since}" if trial.since else ""
    console.say(f"{alerts} of {console.human_count(trial.changes, trial.of)}{began}")


def _row(made: TrialCrossing) -> list[object]:
    return [made.time, made.key, made.bucket, _values(made.before), _values(made.after)]


def _values(values: dict[str, object] | None) -> str | None:
    return None if values is None else ", ".join(f"{name} {value}" for name, value in values.items())
