"""Rows in and out from the command line: load, get, scan, query, maintenance, verify."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from millpond.cli.terminal import console
from tests.cli.conftest import Shell

AT = ("--at", "2013-02-08T18:42Z")


def test_one_key_is_looked_up(weather: Shell) -> None:
    assert weather("get", "weather", "JFK", *AT).out.split() == ["temp", "32", "wind_speed", "24.2"]
    answer = weather("get", "weather", "JFK", *AT, "--json").object
    assert answer["value"] == {"temp": 32.0, "wind_speed": 24.2}
    assert weather("get", "weather", "JFK", "--at", "2013-01-01T00:00Z", "--json", code=1).object["value"] is None
    assert weather("get", "weather", "EWR", code=1).out == ""


def test_a_time_without_a_zone_is_refused(weather: Shell) -> None:
    assert "zone" in weather("get", "weather", "JFK", "--at", "2013-02-08T18:42", code=5).err


def test_ranged_maps_are_looked_up_by_number(millpond: Shell) -> None:
    millpond("create", "blocks", "--kind", "ranged_state", "--value", "string")
    Path("blocks.jsonl").write_text('{"key_start": -5, "key_end": 5, "value": "small"}\n')
    millpond("load", "blocks", "blocks.jsonl")
    assert millpond("get", "blocks", "-3").out == "small\n"
    millpond("get", "blocks", "6", code=1)
    assert "whole number" in millpond("get", "blocks", "three", code=5).err


def test_sessions_are_shown_with_their_zone(millpond: Shell) -> None:
    millpond("create", "airborne", "--kind", "session")
    Path("legs.csv").write_text("tail,off,on\nN1,2013-01-01T10:00Z,2013-01-01T12:00Z\n")
    millpond("load", "airborne", "legs.csv", "--key", "tail", "--start", "off", "--end", "on")
    said = millpond("get", "airborne", "N1", "--at", "2013-01-01T11:00Z").out
    assert said.split() == ["start", "2013-01-01T10:00:00Z", "end", "2013-01-01T12:00:00Z"]


def test_bad_rows_fail_the_load_until_they_are_allowed(weather: Shell) -> None:
    Path("more.csv").write_text(
        "airport,time,temp,wind_speed\nEWR,2013-02-08T17:00Z,cold,1\nEWR,2013-02-08T18:00Z,30,1\n"
    )
    command = ("load", "weather", "more.csv", "--key", "airport")
    assert "'cold'" in weather(*command, code=5).err
    weather("get", "weather", "EWR", code=1)
    report = weather(*command, "--max-rejects", "1", "--rejects", "bad.jsonl", "--json").object
    assert (report["rows"], report["rejected"]) == (1, 1)
    (rejected,) = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert rejected["row"] == 1
    assert "cold" in rejected["reason"]


def test_loading_the_same_file_twice_changes_nothing(weather: Shell) -> None:
    assert "nothing was changed" in weather("load", "weather", "weather.csv", "--key", "airport").out
    assert weather("maps", "weather", "--json").object["rows"] == 3


def test_obstacles_of_a_load_are_reported(weather: Shell) -> None:
    assert "did you mean 'airport'" in weather("load", "weather", "weather.csv", "--key", "airpot", code=5).err
    assert "no file" in weather("load", "weather", code=5).err
    assert "nowhere.csv" in weather("load", "weather", "nowhere.csv", code=3).err
    Path("weather.xyz").write_text("?")
    assert "--format" in weather("load", "weather", "weather.xyz", code=5).err


def test_scans_show_the_requested_rows(weather: Shell) -> None:
    where = "key = 'JFK' and effective_time >= '2013-02-08T18:00Z'"
    assert weather("scan", "weather", "--where", where, "--json").objects == [
        {"key": "JFK", "effective_time": "2013-02-08T18:00:00Z", "temp": 32.0, "wind_speed": 24.2}
    ]
    assert len(weather("scan", "weather", "--limit", "2", "--json").objects) == 2
    assert weather("scan", "weather", "--columns", "key,temp", "--limit", "1", "--json").objects == [
        {"key": "JFK", "temp": 33.1}
    ]
    assert "2013-02-08T17:00:00Z" in weather("scan", "weather").out
    weather("scan", "weather", "--where", "temp >>> 3", code=5)
    weather("scan", "weather", "--columns", "colour", code=5)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
def test_scans_are_written_to_files(weather: Shell, suffix: str) -> None:
    out = f"out.{suffix}"
    assert weather("scan", "weather", "--out", out, "--json").object["rows"] == 3
    readers = {
        "parquet": lambda: parquet.read_table(out).to_pylist(),
        "csv": lambda: csv.read_csv(out).to_pylist(),
        "jsonl": lambda: [json.loads(line) for line in Path(out).read_text().splitlines()],
        "arrow": lambda: pa.ipc.open_stream(Path(out).read_bytes()).read_all().to_pylist(),
    }
    rows = readers[suffix]()
    assert [row["temp"] for row in rows] == [33.1, 32.0, 34.0]
    assert not list(Path().glob(".*unfinished"))


@pytest.mark.usefixtures("processor")
def test_what_was_written_can_be_loaded_again(weather: Shell) -> None:
    for suffix in ("parquet", "csv", "jsonl"):
        weather("scan", "weather", "--out", f"out.{suffix}")
        weather("create", f"copy_{suffix}", "--kind", "temporal_state", "--value", "temp double, wind_speed double")
        weather("load", f"copy_{suffix}", f"out.{suffix}")
        assert weather("scan", f"copy_{suffix}", "--json").out == weather("scan", "weather", "--json").out


def test_an_output_that_cannot_be_is_refused(weather: Shell) -> None:
    assert ".parquet" in weather("scan", "weather", "--out", "out.docx", code=5).err
    weather("scan", "weather", "--out", "nowhere/out.csv", code=3)


@pytest.mark.usefixtures("processor")
def test_questions_in_sql(weather: Shell) -> None:
    answer = weather("query", "select key, max(temp) as warmest from weather group by key order by key", "--json")
    assert answer.objects == [{"key": "JFK", "warmest": 33.1}, {"key": "LGA", "warmest": 34.0}]
    assert "33.1" in weather("query", "select max(temp) from weather where key = 'JFK'").out
    assert weather("query", "select get_state('weather', 'JFK', '2013-02-08T18:42Z') as w", "--json").object["w"]
    assert "not understood" in weather("query", "selec 1", code=5).err


def test_maintenance_reports_what_it_did(weather: Shell) -> None:
    assert (
        weather("maintenance", "condense", "weather", "--before", "2014-01-01T00:00Z", "--json").object["rows_removed"]
        == 0
    )
    assert "retain" in weather("maintenance", "retain", "weather", code=5).err
    report = weather("maintenance", "retain", "weather", "--before", "2013-02-08T18:00Z", "--json").object
    assert report["rows_removed"] == 2
    assert "weather" in weather("maintenance", "compact", "--all").out
    weather("maintenance", "compact", code=2)


@pytest.mark.usefixtures("process")
def test_all_is_well(weather: Shell) -> None:
    assert "all is well" in weather("verify").out
    report = weather("verify", "--json").object
    assert report["problems"] == []
    assert report["checked"] > 0


@pytest.mark.usefixtures("process")
def test_problems_are_reported(weather: Shell) -> None:
    weather("query", "select get_state('weather', 'JFK', '2013-02-08T18:42Z')")
    victims = [path for path in Path("pond/snapshots").rglob("*") if path.is_file() and path.stat().st_size > 200]
    victim = max(victims, key=lambda path: path.stat().st_size)
    damaged = bytearray(victim.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    victim.chmod(0o644)
    victim.write_bytes(bytes(damaged))
    said = weather("verify", "--json", code=1)
    assert said.object["problems"]


def test_columns_that_may_be_spared_are_left_out_when_empty(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(["map", "behind"], [["weather", None]], spared=("behind",))
    console.print_table(["map", "behind"], [["weather", 3]], spared=("behind",))
    assert capsys.readouterr().out.count("behind") == 1


def test_a_map_of_arrow_is_written_as_an_object(millpond: Shell) -> None:
    millpond("init")
    query = "select map {'a': 1, 'b': 2} as m, [map {7: 'x'}] as n"
    assert millpond("query", query, "--json").object == {"m": {"a": 1, "b": 2}, "n": [{"7": "x"}]}
    assert '{"a": 1, "b": 2}' in millpond("query", query).out
    millpond("query", query, "--out", "rows.csv")
    assert csv.read_csv("rows.csv").to_pylist() == [{"m": '{"a": 1, "b": 2}', "n": '[{"7": "x"}]'}]
