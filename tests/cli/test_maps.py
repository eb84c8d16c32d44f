"""Ponds and maps from the command line: make, list, show, alter, drop."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.cli import maps as commands
from millpond.maps.model.aggregation import Form
from millpond.maps.model.definition import PLAIN_KINDS, Kind, Scheme, Store
from millpond.maps.model.new_map import KEY_TYPES
from tests.cli.conftest import Shell


def test_a_pond_is_made_once(millpond: Shell) -> None:
    assert "made a pond" in millpond("init").out
    assert "already" in millpond("init").out
    assert millpond("init", "other", "--json").object == {"pond": "other", "made": True, "moved": False}
    assert Path("other/pond.json").is_file()


def test_a_folder_with_other_things_is_left_alone(millpond: Shell) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    assert "holds something else" in millpond("init", "mine", code=5).err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_nothing_but_init_and_create_makes_a_pond(millpond: Shell) -> None:
    assert "millpond init" in millpond("maps", code=3).err
    assert "--pond" in millpond("get", "weather", "JFK", code=3).err
    assert not Path("pond").exists()
    millpond("create", "weather", "--kind", "state")
    assert Path("pond/pond.json").is_file()


@pytest.mark.usefixtures("processor")
def test_every_kind_and_scheme_can_be_created(millpond: Shell) -> None:
    assert [str(kind) for kind in commands.KindChoice] == [*map(str, Kind), *map(str, Form)]
    assert [str(key) for key in commands.KeyChoice] == list(KEY_TYPES)
    assert [str(scheme) for scheme in commands.SchemeChoice] == [str(scheme) for scheme in Scheme]
    for kind in PLAIN_KINDS:
        for scheme in Scheme:
            millpond("create", f"{kind}_{scheme}", "--kind", kind, "--scheme", scheme)
    listed = millpond("maps", "--json").objects
    assert {(entry["kind"], entry["scheme"]) for entry in listed} == {
        (str(k), str(s)) for k in PLAIN_KINDS for s in Scheme
    }


@pytest.mark.usefixtures("processor")
def test_an_aggregate_is_made_loaded_and_asked(millpond: Shell) -> None:
    value = "orders long count, total double sum, last string latest, mean average of total/orders"
    made = ("create", "sales", "--kind", "aggregate", "--value", value, "--resolution")
    millpond(*made, "1 hour", "--time-zone", "Europe/Paris")
    assert "--resolution hour" in millpond(*made[:-1], code=5).err
    Path("events.csv").write_text("city,when,price\nLyon,2024-03-30T22:59Z,2.5\nLyon,2024-03-30T22:10Z,nan\n")
    mapped = ("--key", "city", "--time", "when", "--value", "total=price,last=price", "--max-rejects", "1")
    millpond("load", "sales", "events.csv", *mapped)
    assert millpond("get", "sales", "Lyon", "--at", "2024-03-30T22:00Z", "--json").object["value"]["mean"] == 2.5
    between = ("--between", "2024-03-30T22:00Z", "2024-03-30T23:00Z")
    assert millpond("get", "sales", "Lyon", *between, "--json").object["value"]["orders"] == 1
    day = ("--at", "2024-03-30T12:00Z", "--resolution", "1 day", "--json")
    assert millpond("get", "sales", "Lyon", *day).object["value"]["orders"] == 1
    assert millpond("scan", "sales", "--resolution", "day", "--json").object["time"] == "2024-03-29T23:00:00Z"
    assert "Europe/Paris" in millpond("maps", "sales").out
    assert millpond("get", "sales", "Lyon", "--history", "--json").objects[0]["orders"] == 1
    assert "aggregate" in millpond("alter", "sales", "--condense", "1d", code=5).err


@pytest.mark.usefixtures("processor")
def test_a_table_by_query_is_made_loaded_and_rolled_up(millpond: Shell) -> None:
    query = "select origin as key, date_trunc('hour', departed) as time, avg(delay::double) as late from f group by all"
    said = millpond("create", "late", "--as", query, "--retain", "10d", "--roll-up", "day").out
    assert "late_sum double sum, late_count long count, late average of late_sum/late_count" in said
    Path("raw.csv").write_text(
        "tail,origin,departed,delay\nN1,JFK,2024-01-01T10:05Z,10\nN2,JFK,2024-01-01T11:50Z,30\nN3,JFK,2024-01-01T10:59Z,much\n"
    )
    assert "2 rows" in millpond("load", "late", "raw.csv", "--max-rejects", "1").out
    report = millpond("maintenance", "retain", "late", "--json").objects[0]
    assert (report["rows_before"], report["rows_after"]) == (2, 1)
    assert "late        20" in millpond("get", "late", "JFK", "--at", "2024-01-01T23:00Z").out
    shown = millpond("maps", "late", "--json").object
    assert (shown["query"], shown["roll_up"]) == (query, "1 day")
    assert query in millpond("maps", "late").out.replace("\n", " ")
    assert "aggregate=median" in millpond("create", "m", "--as", query.replace("avg", "median"), code=5).err
    assert "kind is not known" in millpond("create", "m", code=5).err


def test_a_histogram_of_tags_is_made_loaded_and_asked(millpond: Shell) -> None:
    made = millpond("create", "logons", "--kind", "histogram", "--key", "tags", "--resolution", "1 second")
    assert made.out == (
        "created logons: histogram, of tags, value value long count, buckets of 1 second, UTC, in layers\n"
    )
    Path("events.csv").write_text("who,where,time\nann,York,2024-03-30T22:59Z\nann,York,2024-03-30T22:59Z\n")
    millpond("load", "logons", "events.csv", "--key", "user=who,where")
    at = ("--at", "2024-03-30T22:59Z", "--json")
    assert millpond("get", "logons", "where=York, user=ann", *at).object["value"] == {"value": 2}
    row = millpond("scan", "logons", "--where", "tags['user'] = 'ann'", "--json").object
    assert (row["key"], row["value"]) == ("user=ann,where=York", 2)
    assert "host=a" in millpond("get", "logons", "York", *at, code=5).err
    assert "histogram" in millpond("maps").out
    assert "only aggregates" in millpond("create", "site", "--kind", "state", "--key", "tags", code=5).err


def test_maps_are_listed_and_shown(weather: Shell) -> None:
    listed = weather("maps").out
    assert "weather" in listed
    assert "temporal_state" in listed
    assert "temp double, wind_speed double" in listed
    shown = weather("maps", "weather", "--json").object
    assert shown["rows"] == 3
    assert shown["value"] == "temp double, wind_speed double"
    assert "rows" in weather("maps", "WEATHER").out


@pytest.mark.usefixtures("processor")
def test_a_map_in_layers_is_made_loaded_and_shown(millpond: Shell) -> None:
    assert [str(store) for store in commands.StoreChoice] == [str(store) for store in Store]
    made = millpond("create", "planes", "--kind", "state", "--value", "long", "--store", "layers", "--json").object
    assert made["store"] == "layers"
    Path("planes.csv").write_text("key,value\nN1,1999\nN2,2013\n")
    assert millpond("load", "planes", "planes.csv", "--json").object["rows"] == 2
    assert "1999" in millpond("get", "planes", "N1").out
    assert "layers" in millpond("maps").out
    assert millpond("maps", "planes", "--json").object["store"] == "layers"
    millpond("alter", "planes", "--store", "shard")
    assert millpond("maps", "planes", "--json").object["store"] == "shard"
    refused = millpond("delete", "planes", "--where", "value > 2000", "--json", code=5).err
    assert "--yes" in refused
    assert millpond("delete", "planes", "--where", "value > 2000", "--yes", "--json").object["rows_removed"] == 1
    millpond("alter", "planes", "--store", "layers")
    millpond("branch", "create", "pond/fix")
    purged = millpond("delete", "planes", "--where", "value > 1000", "--yes", "--now", "--branches").out
    assert "also from branch fix: 1 row, commit" in purged
    assert "purged: no file of the map has such rows" in purged
    made = millpond(
        "create", "p", "--kind", "state", "--store", "layers", "--retain-by", "update_time", "--json"
    ).object
    assert made["store"] == "layers"


def test_a_new_pond_says_what_to_do(millpond: Shell) -> None:
    millpond("init")
    assert "millpond create" in millpond("maps").out
    assert millpond("maps", "--json").object == []


def test_settings_are_altered_and_shapes_are_not(weather: Shell) -> None:
    weather("alter", "weather", "--retain", "10y", "--suspend-maintenance")
    shown = weather("maps", "weather").out
    assert "10y" in shown
    assert weather("maps", "weather", "--json").object["maintenance_suspended"] is True
    weather("alter", "weather", "--resume-maintenance", "--retain", "never")
    info = weather("maps", "weather", "--json").object
    assert info["maintenance_suspended"] is False
    assert info["retain_ms"] is None
    weather("alter", "weather", code=2)


def test_a_map_is_condensed_by_the_time_of_its_loads(weather: Shell) -> None:
    assert weather("create", "late", "--kind", "session", "--condense-by", "update_time", "--json").object[
        "condense_by"
    ] == "update_time"  # fmt: skip
    Path("late.csv").write_text(
        "key,start,end\na,2013-01-01T00:00Z,2013-01-02T00:00Z\na,2013-01-02T00:00Z,2013-01-03T00:00Z\n"
    )
    weather("load", "late", "late.csv")
    assert "update_time" in weather("maps", "late").out
    condense = "maintenance", "condense", "late", "--before", "2020-01-01T00:00Z", "--json"
    assert weather(*condense).object["rows_removed"] == 0
    assert weather("alter", "late", "--condense-by", "effective_time").out
    assert "condense_by" not in weather("maps", "late", "--json").object
    assert weather(*condense).object["rows_removed"] == 1
    weather("alter", "late", "--condense-by", "mood", code=2)


def test_dropping_asks_first(weather: Shell) -> None:
    assert "--yes" in weather("drop", "weather", code=5).err
    assert weather("get", "weather", "JFK", "--json").object["value"] == {"temp": 32.0, "wind_speed": 24.2}
    assert weather("drop", "weather", "--yes", "--json").object == {"map": "weather", "dropped": True}
    weather("get", "weather", "JFK", code=3)


def test_names_that_are_nearly_right_are_recognised(weather: Shell) -> None:
    assert "weather" in weather("get", "wether", "JFK", code=3).err
    assert "map_not_found" in weather("get", "wether", "JFK", "--json", code=3).err
    weather("create", "Weather", "--kind", "state", code=4)
    weather("create", "9weather", "--kind", "state", code=5)
    weather("create", "other", "--kind", "no_kind", code=2)
