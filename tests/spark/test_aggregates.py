"""Aggregates by Spark: loads, streams of which each epoch counts once, reads and features."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

import millpond
from millpond import spark as mp
from millpond.errors import Invalid
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond import Map, Pond

pytestmark = pytest.mark.sample(3, of="file")

BEGAN = 1_704_100_000


@pytest.fixture
def sales(pond: Pond) -> Map:
    value = "orders long count, total double sum, last string latest, mean average of total/orders"
    return pond.create_map("sales", kind="aggregate", value=value, resolution="1 hour", time_zone="Europe/Paris")


def events(spark: SparkSession, count: int) -> DataFrame:
    number = functions.col("id")
    return spark.range(count).select(
        (number % 7).cast("string").alias("key"), functions.timestamp_seconds(BEGAN + number * 60).alias("time"),
        functions.lit(1.0).alias("total"), number.cast("string").alias("last"),
    )  # fmt: skip


def test_loads_count_once_and_rows_are_read_and_joined(spark: SparkSession, pond: Pond, sales: Map) -> None:
    for _ in range(2):
        mp.load(events(spark, 500), pond, "sales", load_id="first")
    mp.load(events(spark, 10), pond, "sales")
    assert sum(sales.scan().read_all()["orders"].to_pylist()) == 510
    read = spark.read.format("millpond").option("pond", str(pond.folder)).option("map", "sales").load()
    assert read.agg(functions.sum("orders"), functions.sum("total")).collect()[0][:] == (510, 510.0)
    questions = spark.sql(f"select '3' as key, timestamp_seconds({BEGAN + 600}) as at union all select 'x', now()")
    features = mp.enrich(questions, pond=pond, map="sales", key="key", at="at", into="hour").collect()
    expected = sales.get("3", at=(BEGAN + 600) * 1000)
    hours = {row["key"]: row["hour"] for row in features}
    assert (hours["3"]["orders"], hours["3"]["mean"], hours["x"]) == (expected["orders"], 1.0, None)
    assert read.where("mean = 1").count() == read.count() > 0


def test_a_shard_that_is_rolled_up_takes_late_events_and_shows_wide_buckets(spark: SparkSession, pond: Pond) -> None:
    made: dict[str, Any] = {"kind": "aggregate", "value": "orders long count, total double sum", "resolution": "1 hour"}
    sales = pond.create_map("sales", **made, store="shard", roll_up="1 day")
    frame = events(spark, 3000).drop("last")
    mp.load(frame, pond, "sales")
    sales.retain(before=(BEGAN + 86_400) * 1000)
    mp.load(frame.where("key = '3'").limit(5), pond, "sales")
    read = spark.read.format("millpond").option("pond", str(pond.folder)).option("map", "sales").load()
    rows = sorted(sales.scan(columns=["key", "time", "orders"]).read_all().to_pylist(), key=repr)
    shown = [row.asDict() for row in read.select("key", "time", "orders").collect()]
    assert sorted((row["key"], row["orders"]) for row in shown) == sorted((row["key"], row["orders"]) for row in rows)
    assert sum(row["orders"] for row in rows) == 3005
    questions = spark.sql(f"select '3' as key, timestamp_seconds({BEGAN + 600}) as at")
    (answer,) = mp.enrich(questions, pond=pond, map="sales", key="key", at="at", into="day").collect()
    assert answer["day"]["orders"] == sales.get("3", at=(BEGAN + 600) * 1000)["orders"] > 60


def test_tags_are_loaded_as_maps_and_asked_as_maps(spark: SparkSession, pond: Pond) -> None:
    hits = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
    frame = spark.sql(
        f"select map('host', string(id % 3), 'dc', 'x') as tags, timestamp_seconds({BEGAN} + id) as time from range(30)"
    )
    mp.load(frame, pond, "hits")
    assert hits.get({"dc": "x", "host": 1}, BEGAN * 1000) == {"value": 10}
    reader = spark.read.format("millpond").option("pond", str(pond.folder)).option("map", "hits")
    rows = reader.option("columns", "tags,value").load().where("tags['host'] = '2'").collect()
    assert [(row["tags"], row["value"]) for row in rows] == [({"dc": "x", "host": "2"}, 10)]
    assert reader.option("where", "tags['host'] = '0'").load().columns == ["tags", "value"]
    questions = spark.sql(f"select map('host', '0', 'dc', 'x') as tags, timestamp_seconds({BEGAN}) as at")
    (answer,) = mp.enrich(questions, pond=pond, map="hits", key="tags", at="at", into="hour").collect()
    assert answer["hour"]["value"] == 10


def test_epochs_with_equal_events_all_count(spark: SparkSession, pond: Pond, sales: Map, tmp_path: Path) -> None:
    for name in ("a", "b"):
        event = {"key": "s", "time": "2024-01-01T10:00:00Z", "total": 1.0, "last": "tea"}
        (tmp_path / f"{name}.json").write_text("\n".join([json.dumps(event)] * 3))
    schema = "key string, time timestamp, total double, last string"
    arriving = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "*.json"))
    writer = arriving.writeStream.format("millpond").option("pond", str(pond.folder)).option("map", "sales")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        writer.trigger(availableNow=True).start().awaitTermination()
    bucket = sales.get("s", at="2024-01-01T10:30Z")
    assert (bucket["orders"], bucket["total"]) == (6, 6.0)


def test_a_stream_of_changes_is_refused_by_name(spark: SparkSession, pond: Pond, sales: Map, tmp_path: Path) -> None:
    sales.load([{"key": "a", "time": "2024-01-01T10:00Z", "total": 1, "last": "tea"}])
    changes = spark.readStream.format("millpond").option("pond", str(pond.folder)).option("map", "sales").load()
    writer = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"an aggregate does not do this.*operation=changes"):
        writer.start().awaitTermination()


def test_raw_rows_are_grouped_by_the_query_of_a_table(spark: SparkSession, pond: Pond) -> None:
    query = """select key, date_trunc('hour', time) as time, count(*) filter (where n % 2 = 0) as even,
        avg(n) as mean, sum(n::bigint) as total, arg_max(last, time) as last from raw where n <> 5 group by 1, 2"""
    table = pond.create_map("by_query", as_=query)
    frame = events(spark, 900).withColumn("n", functions.col("last").cast("int")).drop("total")
    mp.load(frame.repartition(3), pond, "by_query")
    columns = ["key", "time", "even", "mean", "total", "last"]
    held = table.scan(columns=columns).read_all().to_pylist()
    grouped = spark.sql(
        "select key, date_trunc('hour', time) as time, count(*) filter (where n % 2 = 0) as even, avg(n) as mean, "
        "sum(n) as total, max_by(last, time) as last from {raw} where n <> 5 group by 1, 2", raw=frame,
    )  # fmt: skip
    assert sorted(map(repr, (tuple(row.values())[2:] for row in held))) == sorted(
        repr(tuple(row)[2:]) for row in grouped.collect()
    )
    assert len(held) == grouped.count()


def test_epochs_of_raw_rows_are_grouped_once(spark: SparkSession, pond: Pond, tmp_path: Path) -> None:
    query = (
        "select lower(name) as key, date_trunc('hour', seen) as time, sum(n) as total from r where n > 1 group by all"
    )
    table = pond.create_map("by_stream", as_=query)
    for number, name in enumerate(("Ann", "ANN")):
        raw = [{"name": name, "seen": "2024-01-01T10:05:00Z", "n": n, "other": number} for n in range(4)]
        (tmp_path / f"{number}.json").write_text("\n".join(map(json.dumps, raw)))
    arriving = spark.readStream.schema("name string, seen timestamp, n int, other int")
    rows = arriving.option("maxFilesPerTrigger", 1).json(str(tmp_path / "*.json"))
    writer = rows.writeStream.format("millpond").option("pond", str(pond.folder)).option("map", "by_stream")
    for _ in range(2):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert table.get("ann", at="2024-01-01T10:30Z") == {"total": 10.0}


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_features_are_of_the_buckets_before_that_of_the_event(spark: SparkSession, pond: Pond, store: str) -> None:
    sales = pond.create_map(
        "sales", kind="aggregate", value="n long count, most long max", resolution="1 day", time_zone="Europe/Paris",
        store=store,
    )  # fmt: skip
    days = [f"2024-{day}T12:00Z" for day in ("03-25", "03-26", "03-30", "04-01", "04-02")]
    sales.load([{"key": "a", "time": time, "most": number} for number, time in enumerate(days)])
    questions = spark.sql(
        "select * from values ('a', timestamp'2024-04-02T23:59:00Z'), ('a', timestamp'2024-04-01T00:00:00Z'),"
        " ('b', timestamp'2024-04-02T00:00:00Z'), ('a', timestamp'2024-03-25T12:30:00Z'), ('a', null) as t(key, at)"
    )
    request: dict[str, Any] = {"pond": pond, "map": "sales", "key": "key", "at": "at", "into": "week"}
    for partition in (None, "key"):
        answers = mp.enrich(questions, **request, window="7 days", partition=partition).collect()
        weeks = {(row["key"], row["at"] and row["at"].day): row["week"] for row in answers}
        # In Paris it is the 3rd, whose week begins on the 27th, and the 1st, whose week begins on the 25th.
        assert {key: value and tuple(value) for key, value in weeks.items()} == {
            ("a", 2): (3, 4), ("a", 1): (3, 2), ("b", 2): None, ("a", 25): None, ("a", None): None,
        }  # fmt: skip
    with pytest.raises(Invalid, match="do not make up the window"):
        mp.enrich(questions, **request, window="36 hours")
    pond.create_map("state", kind="temporal_state", value="long")
    with pytest.raises(Invalid) as raised:
        mp.enrich(questions, **(request | {"map": "state"}), window="7 days")
    assert raised.value.kind == "between_unsupported"


@pytest.mark.parametrize("served", [False, pytest.param(True, marks=pytest.mark.full)])
def test_features_of_a_window_are_those_that_were_known(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, served: bool
) -> None:
    where, ticks = str(tmp_path / "here"), nullcontext()
    if served:
        where, ticks = request.getfixturevalue("serve")().url, ticking(request.getfixturevalue("clock"))
    with ticks, millpond.open(where) as pond:
        sales = pond.create_map("sales", kind="aggregate", value="n long count", resolution="1 day", store="layers")
        for day in (1, 1, 2, 5):
            sales.load([{"key": "a", "time": f"2024-03-0{day}T12:00Z"}], again=True)
        moments = [row["time"] for row in pond.history("sales").to_pylist() if row["rows"]][::-1]
        questions = [(key, datetime(2024, 3, day, 9, tzinfo=UTC), moment)
                 for key in "ab" for day in (3, 7) for moment in (*moments, None)]  # fmt: skip
        expected = [*(1, 2, 3, 3, None), *(None, None, None, 1, None), *[None] * 10]
        frame = spark.createDataFrame(
            [(number, *question) for number, question in enumerate(questions)],
            "number int, key string, at timestamp, known timestamp",
        )
        window: dict[str, Any] = {"key": "key", "at": "at", "known_at": "known", "window": "2 days"}
        for partition in (None, "key"):
            answers = (
                mp.enrich(frame, pond=pond, map="sales", partition=partition, **window).orderBy("number").collect()
            )
            assert [row["sales"] and row["sales"]["n"] for row in answers] == expected
        features = mp.training_set(frame, {"sales": mp.Lookup("sales", **window)}, pond=pond).orderBy("number")
        assert [row["sales"] and row["sales"]["n"] for row in features.collect()] == expected
        columns = [pa.array(column) for column in zip(*questions, strict=True)]
        here = pond.training_set(
            pa.table(columns, ["key", "at", "known"]), {"sales": mp.Lookup("sales", **window)}, flat=True
        )
        assert here["sales_n"].to_pylist() == expected
