"""`millpond alert`: rules of an aggregate are added, listed, tried and removed, and its events are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell

WHEN = "flights > 1 and mean > 10"


@pytest.mark.usefixtures("processor")
def test_alerts_are_added_told_tried_and_removed(millpond: Shell) -> None:
    value = "flights long count, delay double sum, mean average of delay/flights"
    millpond("create", "late", "--kind", "aggregate", "--value", value, "--resolution", "1 hour")
    assert millpond("alert", "list", "late").out.strip() == "late has no alerts"
    added = millpond("alert", "add", "late", "--when", WHEN, "--for", "2 buckets", "--json").object
    assert (added["name"], added["when"], added["buckets"]) == ("alert_1", WHEN, 2)
    assert "alerts/late" in millpond("alert", "add", "late", "--when", "flights > 2", "--name", "many").out
    for hour in (10, 11):
        rows = [f"JFK,2024-03-30T{hour}:{minute}Z,20" for minute in (10, 20, 30)]
        Path("events.csv").write_text("\n".join(["key,time,delay", *rows]))
        millpond("load", "late", "events.csv")
    lines = [line["headers"] for line in millpond("events", "read", "millpond", "alerts/late", "--json").objects]
    assert [(headers["rule"], headers["bucket"][11:16]) for headers in lines] == [
        ("many", "10:00"),
        ("alert_1", "11:00"),
    ]
    (made,) = (trial := millpond("alert", "try", "late", "--when", WHEN, "--since", "30d", "--json").object)["alerts"]
    assert (trial["changes"], made["key"], made["before"], made["after"]["mean"]) == (2, "JFK", None, 20.0)
    assert "1 alert of 2 loads" in millpond("alert", "try", "late", "--when", WHEN).out
    assert [rule["name"] for rule in millpond("alert", "list", "late", "--json").objects] == ["alert_1", "many"]
    assert WHEN in millpond("alert", "list", "late").out
    assert millpond("alert", "remove", "late", "many", "--json").object == {"map": "late", "removed": "many"}
    assert "there is: alert_1" in millpond("alert", "remove", "late", "many", code=3).err
    refused = millpond("alert", "add", "late", "--when", "delays > 1", code=5).err
    assert "column=delays" in refused
    assert "flights, delay, mean" in refused


def test_a_trial_on_a_shard_shows_the_times_of_buckets(millpond: Shell) -> None:
    fields = ("--value", "n long count", "--resolution", "1 hour")
    millpond("create", "late", "--kind", "aggregate", *fields, "--store", "shard")
    Path("events.csv").write_text("key,time\nJFK,2024-03-30T10:10Z\n")
    millpond("load", "late", "events.csv")
    shown = millpond("alert", "try", "late", "--when", "n = 1").out
    assert "loaded" not in shown
    assert "1 alert of 1 bucket" in shown
