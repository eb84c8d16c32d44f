"""`millpond enrich` and `load --spark`, typed as a user would, in the session of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from tests.cli.conftest import Shell, millpond, weather  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

FLIGHTS = """\
flight,tail,origin,departure,scheduled
1545,007,JFK,2013-02-08T18:42:00Z,2013-02-08 18:42:00
1141,N1,LGA,2013-02-08T18:05:00Z,2013-02-08 18:05:00
461,NA,JFK,2013-02-08T12:00:00Z,2013-02-08 12:00:00
"""
ENRICH = ("enrich", "flights.csv", "--with", "weather", "--key", "origin", "--time", "departure")
JFK = {"temp": 32.0, "wind_speed": 24.2}


@pytest.fixture
def flights(weather: Shell) -> Shell:  # noqa: F811 - the fixture
    Path("flights.csv").write_text(FLIGHTS)
    weather("create", "planes", "--kind", "state", "--value", "string")
    Path("planes.csv").write_text("key,value\n007,Aston\n7,Seven\nN1,One\n")
    weather("load", "planes", "planes.csv")
    return weather


def test_events_are_enriched_as_of_their_time(flights: Shell) -> None:
    told = flights(*ENRICH, "--out", "out.parquet", "--json").object
    assert told["rows"] == 3
    assert told["lookups"] == [{"map": "weather", "column": "weather", "found": 2, "share": pytest.approx(2 / 3)}]
    rows = parquet.read_table("out.parquet").to_pylist()
    assert [row["weather"] for row in rows] == [JFK, {"temp": 34.0, "wind_speed": 18.4}, None]
    assert rows[0]["departure"].isoformat() == "2013-02-08T18:42:00+00:00"
    assert sorted(path.name for path in Path().glob("*out*")) == ["out.parquet"]


def test_several_maps_are_asked_at_once_and_text_stays_text(flights: Shell) -> None:
    flights(
        "enrich", "flights.csv", "--with", "weather on origin at departure", "--with", "planes on tail as plane",
        "--null", "NA", "--out", "out.jsonl",
    )  # fmt: skip
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(row["tail"], row["plane"]) for row in rows] == [("007", "Aston"), ("N1", "One"), (None, None)]
    assert rows[0]["weather"] == JFK


def test_csv_gets_a_column_for_each_field(flights: Shell) -> None:
    flights(*ENRICH, "--out", "out.csv")
    head, first, *_ = Path("out.csv").read_text().replace('"', "").splitlines()
    assert head == "flight,tail,origin,departure,scheduled,weather_temp,weather_wind_speed"
    assert first == "1545,007,JFK,2013-02-08T18:42:00Z,2013-02-08T18:42:00,32,24.2"


def test_a_folder_keeps_a_file_of_each_task(flights: Shell) -> None:
    flights(*ENRICH, "--flat", "--out", "out/")
    (row, *_) = parquet.read_table("out").to_pylist()
    assert (row["weather_temp"], row["weather_wind_speed"]) == (32.0, 24.2)


def test_times_without_a_zone_need_one(flights: Shell) -> None:
    command = ("enrich", "flights.csv", "--with", "weather on origin at scheduled", "--out", "out.parquet")
    assert "--zone" in flights(*command, code=5).err
    flights(*command, "--zone", "UTC")
    assert parquet.read_table("out.parquet").to_pylist()[0]["weather"] == JFK
    flights(*command, "--zone", "America/New_York")
    assert parquet.read_table("out.parquet").to_pylist()[2]["weather"] == {"temp": 33.1, "wind_speed": 20.7}


def test_mistakes_are_told_before_the_work(flights: Shell) -> None:
    Path("flights.xyz").write_text(FLIGHTS)
    for words, hint, code in [
        ((*ENRICH, "--out", "out.docx"), ".parquet", 5),
        ((*ENRICH, "--out", "nowhere/out.csv"), "make it first", 3),
        (("enrich", "flights.csv", "--with", "weather on orgin at departure", "--out", "out.csv"), "origin", 5),
        (("enrich", "flights.csv", "--with", "planes on tail as flight", "--out", "out.csv"), "there already", 5),
        (("enrich", "flights.csv", "--with", "weather on origin", "--out", "out.csv"), "--time", 5),
        (("enrich", "nowhere.csv", "--with", "planes on tail", "--out", "out.csv"), "nowhere.csv", 3),
        (("enrich", "flights.xyz", "--with", "planes on tail", "--out", "out.csv"), "--format", 5),
        (("enrich", "flights.csv", "--with", "plains on tail", "--out", "out.csv"), "planes", 3),
    ]:
        assert hint in flights(*words, code=code).err
    assert not Path("out.csv").exists()


def test_spark_loads_what_one_process_loads(flights: Shell, spark: SparkSession) -> None:
    flights("create", "again", "--kind", "temporal_state", "--value", "temp double, wind_speed double")
    told = flights("load", "again", "weather.csv", "--key", "airport", "--spark", "--json").object
    assert told["maps"] == {"again": 3}
    assert flights("scan", "again", "--json").out == flights("scan", "weather", "--json").out
    assert spark.range(1).count() == 1, "the session goes on"
