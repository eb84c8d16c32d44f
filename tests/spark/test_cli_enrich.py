"""`millpond enrich` and `load --spark`, typed as a user would, in the session of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from millpond.clock import SystemClock
from tests.cli.conftest import Shell, millpond, weather  # noqa: F401 - fixtures
from tests.cli.test_known_at import moment
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.sample(1, of="file")]

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
    report = flights(*ENRICH, "--out", "out.parquet", "--json").object
    assert report["rows"] == 3
    assert report["lookups"] == [{"map": "weather", "column": "weather", "found": 2, "share": pytest.approx(2 / 3)}]
    rows = parquet.read_table("out.parquet").to_pylist()
    assert [row["weather"] for row in rows] == [JFK, {"temp": 34.0, "wind_speed": 18.4}, None]
    assert rows[0]["departure"].isoformat() == "2013-02-08T18:42:00+00:00"
    assert sorted(path.name for path in Path().glob("*out*")) == ["out.parquet"]


def test_several_maps_are_queried_at_once_and_text_stays_text(flights: Shell) -> None:
    flights(
        "enrich", "flights.csv", "--with", "weather on origin at departure", "--with", "planes on tail as plane",
        "--null", "NA", "--out", "out.jsonl",
    )  # fmt: skip
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(row["tail"], row["plane"]) for row in rows] == [("007", "Aston"), ("N1", "One"), (None, None)]
    assert rows[0]["weather"] == JFK


def test_spark_asks_as_known_at_a_column(millpond: Shell) -> None:  # noqa: F811 - the fixture
    millpond("create", "sales", "--kind", "aggregate", "--value", "n long count", "--resolution", "1 hour",
             "--store", "layers")  # fmt: skip
    moments = []
    for hour in (1, 2):
        Path("sales.csv").write_text(f"key,time\na,2024-03-01T0{hour}:10Z\n")
        millpond("load", "sales", "sales.csv")
        moments.append(moment())
    lines = [f"a,2024-03-01T03:30:00Z,{known}" for known in moments]
    Path("events.csv").write_text("\n".join(["shop,at,seen", *lines]))
    phrase = ("--with", "sales on shop at at over 1 day as day", "--known-at", "SEEN")
    millpond("enrich", "events.csv", *phrase, "--out", "out.jsonl", "--spark")
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["day"] for row in rows] == [{"n": 1}, {"n": 2}]


def test_csv_gets_a_column_for_every_field(flights: Shell) -> None:
    flights(*ENRICH, "--out", "out.csv")
    head, first, *_ = Path("out.csv").read_text().replace('"', "").splitlines()
    assert head == "flight,tail,origin,departure,scheduled,weather_temp,weather_wind_speed"
    assert first == "1545,007,JFK,2013-02-08T18:42:00Z,2013-02-08T18:42:00,32,24.2"


def test_a_folder_keeps_a_file_of_every_task(flights: Shell) -> None:
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


def test_mistakes_are_reported_before_the_work(flights: Shell) -> None:
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


KINDS = {
    "state": ("value", "key,value\na,1\nb,2\n", "code"),
    "temporal_state": (
        "value", "key,effective_time,value\na,2013-02-08T12:00Z,1\na,2013-02-08T18:00Z,2\n", "code at at",
    ),
    "ranged_state": ("value", "key_start,key_end,value\n0,9,1\n20,29,2\n", "number"),
    "temporal_ranged_state": (
        "value", "key_start,key_end,effective_time,value\n0,29,2013-02-08T12:00Z,1\n5,5,2013-02-08T18:00Z,2\n",
        "number at at",
    ),
    "session": ("", "key,start,end\na,2013-02-08T12:00Z,2013-02-08T13:00Z\nb,2013-02-08T12:00Z,2013-02-08T20:00Z\n",
                "code at at"),
}  # fmt: skip
ODD_EVENTS = """\
code,number,at,note,count
a,5,2013-02-08T12:30:00Z,x,1
b,25,2013-02-08T18:30:00Z,,2
,,,"y, z",
a,9999999999,1999-01-01T00:00:00Z,w,4
"""


def test_spark_and_one_process_answer_alike(millpond: Shell) -> None:  # noqa: F811 - the fixture
    Path("events.csv").write_text(ODD_EVENTS)
    lookups: list[str] = []
    for kind, (value, rows, on) in KINDS.items():
        millpond("create", kind, "--kind", kind, *(("--value", "long") if value else ()))
        Path("rows.csv").write_text(rows)
        millpond("load", kind, "rows.csv")
        lookups += ["--with", f"{kind} on {on}"]
    for suffix in ("parquet", "csv", "jsonl"):
        found = {}
        for where in ("--spark", "--no-spark"):
            out = f"out{where}.{suffix}"
            found[where] = millpond("enrich", "events.csv", *lookups, where, "--out", out, "--json").object["lookups"]
        assert found["--spark"] == found["--no-spark"]
        if suffix == "parquet":
            here, there = (parquet.read_table(f"out{where}.parquet") for where in ("--no-spark", "--spark"))
            assert here.to_pylist() == there.to_pylist()
            assert here.schema.names == there.schema.names
        else:
            assert Path(f"out--spark.{suffix}").read_text() == Path(f"out--no-spark.{suffix}").read_text()


def test_layers_are_folded_by_spark(millpond: Shell) -> None:  # noqa: F811 - the fixture
    millpond("create", "m", "--kind", "state", "--value", "long")
    for number in range(2):
        Path("rows.csv").write_text(f"key,value\na,{number}\nb{number},1\n")
        millpond("load", "m", "rows.csv")
    assert millpond("maintenance", "compact", "m", "--spark", "--json").object["rows_after"] == 3
    assert millpond("get", "m", "a").out == "1\n"


def test_columns_of_several_types_are_read_by_spark(flights: Shell) -> None:
    Path("events.jsonl").write_text('{"tail": "N1", "n": 1}\n{"tail": "7", "n": "x"}\n')
    flights("enrich", "events.jsonl", "--with", "planes on tail as plane", "--out", "out.jsonl")
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(row["n"], row["plane"]) for row in rows] == [("1", "One"), ("x", "Seven")]


def test_what_fails_in_spark_is_one_sentence(flights: Shell) -> None:
    flights("create", "blocks", "--kind", "ranged_state", "--value", "string")
    Path("blocks.csv").write_text("key_start,key_end,value\n0,10,small\n")
    flights("load", "blocks", "blocks.csv")
    Path("odd.csv").write_text("address\n5\nabc\n")
    Path("damaged.parquet").write_bytes(b"PAR1 and nothing more")
    for events in drawn(("odd.csv", "damaged.parquet"), 1, name="what fails in Spark"):
        # in a process of its own: Spark's logs and its workers' do not pass through this one's standard error
        command = ["enrich", events, "--with", "blocks on address", "--spark", "--out", "out.csv"]
        done = subprocess.run([sys.executable, "-m", "millpond", *command], capture_output=True, text=True, check=False)
        assert done.returncode in (5, 7), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert "at org.apache" not in done.stderr


def test_spark_loads_what_one_process_loads(flights: Shell, spark: SparkSession) -> None:
    flights("create", "again", "--kind", "temporal_state", "--value", "temp double, wind_speed double")
    clock = SystemClock()
    began = clock.monotonic()
    report = flights("load", "again", "weather.csv", "--key", "airport", "--spark", "--json").object
    assert report["seconds"] > (clock.monotonic() - began) / 2, "it is what the user waited, not what adopting took"
    assert report["maps"] == {"again": 3}
    assert flights("scan", "again", "--json").out == flights("scan", "weather", "--json").out
    assert spark.range(1).count() == 1, "the session goes on"
