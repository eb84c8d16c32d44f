"""`millpond alert add`, `list`, `remove` and `try`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millpond import json_forms
from millpond.cli.options import Json, MapName, PondPlace, pond_at
from millpond.cli.terminal import console
from millpond.cli.verbs import verb

if TYPE_CHECKING:
    from millpond.maps.alerts.map_alerts import TrialCrossing
    from millpond.maps.alerts.rules import AlertRule

__all__ = ("add", "listed", "remove", "tried")

_HERE = "pond"
When = Annotated[str, typer.Option("--when", metavar="CONDITION", help="Rows to tell of, as in scan: 'flights > 100'.")]
For = Annotated[
    str, typer.Option("--for", metavar="BUCKETS", help="It holds in so many, one after another: '2 buckets'.")
]
AlertName = Annotated[str, typer.Argument(metavar="ALERT", help="The alert's name.")]


@verb(
    "alert add",
    'millpond alert add late_flights --when "flights > 100 and avg_delay > 60" --for "2 buckets"',
    'millpond alert add sales --when "total > 10000" --name large --json',
)
def add(
    name: MapName,
    when: When,
    buckets: For = "1",
    alert: Annotated[
        str, typer.Option("--name", metavar="ALERT", help="The alert's name.", show_default="alert_1, alert_2, …")
    ] = "",
    pond: PondPlace = _HERE,
    json: Json = False,
) -> None:
    """Tell an event when a load lets a condition hold in an aggregate: once, until it fell back."""
    with pond_at(pond, None) as opened:
        rule = opened.map(name).alerts.add(when, name=alert, buckets=buckets)
    if json:
        console.print_json(json_forms.plain(rule))
        return
    console.say(f"alert {rule.name} of {name}: {_words(rule)}; its events: millpond events read millpond alerts/{name}")


@verb("alert list", "millpond alert list late_flights", "millpond alert list late_flights --json")
def listed(name: MapName, pond: PondPlace = _HERE, json: Json = False) -> None:
    """List the alerts of a map."""
    with pond_at(pond, None) as opened:
        rules = opened.map(name).alerts.list()
    if json:
        console.print_json_list(json_forms.plain(rule) for rule in rules)
    elif rules:
        console.print_table(["alert", "when", "buckets"], [[rule.name, rule.when, rule.buckets] for rule in rules])
    else:
        console.say(f"{name} has no alerts")


@verb("alert remove", "millpond alert remove late_flights alert_1")
def remove(name: MapName, alert: AlertName, pond: PondPlace = _HERE, json: Json = False) -> None:
    """Remove an alert of a map."""
    with pond_at(pond, None) as opened:
        opened.map(name).alerts.remove(alert)
    console.answer({"map": name, "removed": alert}, f"removed alert {alert} of {name}", as_json=json)


@verb(
    "alert try",
    'millpond alert try late_flights --when "avg_delay > 60" --since 30d',
    'millpond alert try late_flights --when "avg_delay > 60" --for 3 --json',
)
def tried(
    name: MapName,
    when: When,
    buckets: For = "1",
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only what is younger.", show_default="all kept")
    ] = None,
    pond: PondPlace = _HERE,
    json: Json = False,
) -> None:
    """Show what an alert would have told of the loads so far, or in a shard of the buckets."""
    with pond_at(pond, None) as opened:
        trial = opened.map(name).alerts.try_(when, buckets=buckets, since=since)
    if json:
        console.print_json(json_forms.plain(trial))
        return
    if trial.alerts:
        columns = ["loaded" if trial.of == "load" else "time", "key", "bucket", "before", "after"]
        console.print_table(columns, [_row(made) for made in trial.alerts])
    alerts = console.human_count(len(trial.alerts) + trial.omitted, "alert")
    began = f" since {trial.since}" if trial.since else ""
    console.say(f"{alerts} of {console.human_count(trial.changes, trial.of)}{began}")


def _words(rule: AlertRule) -> str:
    return rule.when if rule.buckets == 1 else f"{rule.when}, for {rule.buckets} buckets"


def _row(made: TrialCrossing) -> list[object]:
    return [made.time, made.key, made.bucket, _values(made.before), _values(made.after)]


def _values(values: dict[str, object] | None) -> str | None:
    return None if values is None else ", ".join(f"{name} {value}" for name, value in values.items())
