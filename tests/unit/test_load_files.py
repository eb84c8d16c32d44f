"""Files into a pond: all of them as one load or nothing, for one map or many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import millpond
from millpond import Invalid, NotFound, Pond


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="temporal_state", value="temp double, note string")
        pond.create_map("site", kind="state")
        yield pond


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


WEATHER = "airport,time,temp,note\nJFK,2020-01-01T00:00Z,1.5,\n007,2020-01-01T00:00Z,,cold\n"
COLUMNS = {"key": "airport"}


def test_a_file_and_what_it_did(pond: Pond, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    file = write(tmp_path, "w.csv", WEATHER)
    result = pond.load_files(file, "Weather", columns=COLUMNS, advance=lambda rows, size: progress.append((rows, size)))
    assert (result.rows, result.rejected, result.maps) == (2, 0, {"weather": 2})
    assert [sum(column) for column in zip(*progress, strict=True)] == [2, file.stat().st_size]
    assert pond.map("weather").get("007", at="2020-01-02T00:00Z") == {"temp": None, "note": "cold"}
    assert list((tmp_path / "pond" / "writer").iterdir()) == []


def test_several_files_are_one_load(pond: Pond, tmp_path: Path) -> None:
    first = write(tmp_path, "b.jsonl", '{"key":"a","value":1}\n{"key":"b","value":1}\n')
    second = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"key": ["a"], "value": [2]}), second)
    result = pond.load_files([first, second], "site")
    assert result.parts == 1
    assert [pond.map("site").get(key) for key in "ab"] == [2, 1]
    assert pond.load_files([first, second], "site").duplicate_parts == 1
    assert pond.load_files([first, second], "site", again=True).parts == 1


def test_one_bad_row_in_the_last_file_keeps_all_out(pond: Pond, tmp_path: Path) -> None:
    good = write(tmp_path, "a.csv", "key,value\na,1\n")
    bad = write(tmp_path, "b.csv", "key,value\nb,1\n,2\n")
    with pytest.raises(Invalid, match=r"b\.csv row 2: key is missing"):
        pond.load_files([good, bad], "site")
    assert pond.map("site").get("a") is None
    assert list((tmp_path / "pond" / "writer").iterdir()) == []
    rejects = tmp_path / "rejects.jsonl"
    result = pond.load_files([good, bad], "site", max_rejects=1, rejects=rejects)
    assert (result.rows, result.rejected) == (2, 1)
    assert json.loads(rejects.read_text()) == {
        "source": str(bad), "row": 2, "reason": "key is missing", "record": {"key": None, "value": "2"},
    }  # fmt: skip


def test_xml_feeds_the_maps_it_names(pond: Pond, tmp_path: Path) -> None:
    pond.create_map("teams", kind="ranged_state", value="string")
    file = write(
        tmp_path, "r.xml",
        "<referenceData><reference><map>SITE</map><key>web-7</key><value>Leeds</value></reference>"
        "<reference><map>teams</map><from>500</from><to>599</to><value>Red</value></reference></referenceData>",
    )  # fmt: skip
    result = pond.load_files(file)
    assert result.maps == {"site": 1, "teams": 1}
    assert (pond.map("site").get("web-7"), pond.map("teams").get(550)) == ("Leeds", "Red")


def test_what_scan_writes_is_read_again(pond: Pond, tmp_path: Path) -> None:
    values = [1, 1.5, True, "x", None, b"\xff", "2020-01-01"]
    pond.map("site").load([{"key": str(number), "value": value} for number, value in enumerate(values)])
    table = pond.map("site").scan().read_all()
    parquet.write_table(table, tmp_path / "s.parquet")
    write(tmp_path, "s.jsonl", "".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    for name in ("s.parquet", "s.jsonl"):
        copy = pond.create_map(f"copy_{name[2:]}", kind="state")
        pond.load_files(tmp_path / name, copy.name)
        copied = [copy.get(str(number)) for number in range(len(values))]
        assert [(type(value), value) for value in copied] == [(type(value), value) for value in values]


def test_zones_and_nulls(pond: Pond, tmp_path: Path) -> None:
    file = write(tmp_path, "w.csv", "key,effective_time,temp,note\nJFK,2020-07-01 12:00,NA,\n")
    with pytest.raises(Invalid, match="--zone ZONE"):
        pond.load_files(file, "weather")
    pond.load_files(file, "weather", zone="America/New_York", null="NA")
    weather = pond.map("weather")
    assert weather.get("JFK", at="2020-07-01T15:59:59Z") is None
    assert weather.get("JFK", at="2020-07-01T16:00:00Z") == {"temp": None, "note": None}


def test_frames_without_a_zone_need_to_say_it(pond: Pond) -> None:
    weather = pond.map("weather")
    frame = pd.DataFrame({"key": ["JFK"], "time": pd.to_datetime(["2020-07-01 12:00"]), "temp": [1.0], "note": ["x"]})
    with pytest.raises(Invalid, match="zone='UTC'"):
        weather.load(frame)
    with pytest.raises(Invalid, match="time zone is not known"):
        weather.load(frame, zone="Mars")
    weather.load(frame, zone="America/New_York")
    assert weather.get("JFK", at="2020-07-01T15:59:59Z") is None
    assert weather.get("JFK", at="2020-07-01T16:00:00Z") == {"temp": 1.0, "note": "x"}


def test_the_reject_file_may_not_be_an_input(pond: Pond, tmp_path: Path) -> None:
    file = write(tmp_path, "w.csv", WEATHER)
    with pytest.raises(Invalid, match="reject file is a file to load"):
        pond.load_files(file, "weather", columns=COLUMNS, rejects=tmp_path / "pond" / ".." / "w.csv")
    assert file.read_text() == WEATHER


def test_mistakes_in_the_call_are_errors(pond: Pond, tmp_path: Path) -> None:
    file = write(tmp_path, "w.csv", WEATHER)
    with pytest.raises(NotFound, match="wether"):
        pond.load_files(file, "wether")
    with pytest.raises(Invalid, match="which map"):
        pond.load_files(file)
    with pytest.raises(Invalid, match="time zone is not known"):
        pond.load_files(file, "weather", zone="Mars/Olympus")
    with pytest.raises(Invalid, match="time"):
        pond.load_files(file, "weather", effective_time="yesterday")
    with pytest.raises(NotFound, match="file does not exist"):
        pond.load_files("none.csv", "weather")
    with pytest.raises(Invalid, match="no file to load"):
        pond.load_files([], "weather")
