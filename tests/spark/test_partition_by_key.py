"""Enriching with `partition="key"`: the same answers, and each task opens its share of the snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from millpond import spark as mp
from millpond.errors import Invalid
from tests.spark.worlds import START_MS, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond

pytestmark = pytest.mark.sample(1, of="file")


KEYS = 500
EVENTS = 4_000


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(7)
    keys = [None if number % 9 == 0 else f"k{number}" for number in random.integers(0, KEYS + 50, EVENTS)]
    keys[: EVENTS // 4] = ["k1"] * (EVENTS // 4)  # a hot key
    rows = [(place, key, moment(START_MS + int(random.integers(-50, 150)))) for place, key in enumerate(keys)]
    return spark.createDataFrame(rows, "id int, key string, at timestamp").repartition(3)


@pytest.fixture
def known(pond: Pond) -> Pond:
    pond.create_map("now", kind="state", value="long")
    pond.create_map("then", kind="temporal_state", value="a double, b string")
    pond.create_map("seen", kind="session")
    pond.create_map("blocks", kind="ranged_state", value="long")
    keys = [f"k{number}" for number in range(1, KEYS)]
    pond.map("now").load([{"key": key, "value": place} for place, key in enumerate(keys)])
    times = pa.array([START_MS + (place % 70) for place in range(2 * len(keys))], pa.timestamp("ms", tz="UTC"))
    doubled = [key for key in keys for _ in range(2)]
    numbers = [float(place) for place in range(len(doubled))]
    pond.map("then").load(
        pa.table({"key": doubled, "effective_time": times, "a": numbers, "b": [f"b{n}" for n in numbers]})
    )
    pond.map("then").freeze()
    pond.map("then").load(pa.table({"key": keys[:20], "effective_time": times[:20], "a": numbers[:20], "b": keys[:20]}))
    pond.map("seen").load(pa.table({"key": doubled, "start": times, "end": times}))
    return pond


LOOKUPS = (mp.Lookup("now", "key"), mp.Lookup("then", "key", at="at"), mp.Lookup("seen", "key", at="at"))


@pytest.mark.parametrize("partitions", [3, 16])
def test_answers_are_those_of_rows_that_stay_where_they_are(events: DataFrame, known: Pond, partitions: int) -> None:
    plain = mp.enrich(events, LOOKUPS, pond=known)
    shuffled = mp.enrich(events, LOOKUPS, pond=known, partition="key", partitions=partitions)
    assert shuffled.columns == plain.columns
    assert sorted(shuffled.collect()) == sorted(plain.collect())
    one = mp.enrich(events, pond=known, map="now", key="key", partition="key").orderBy("id")
    assert one.collect() == mp.enrich(events, pond=known, map="now", key="key").orderBy("id").collect()


def test_a_task_has_the_keys_of_one_share_and_rows_without_key_go_to_all(events: DataFrame, known: Pond) -> None:
    rows = mp.enrich(events, pond=known, map="now", key="key", partition="key", partitions=4)
    placed = rows.withColumn("task", sf.spark_partition_id())
    tasks = placed.where("key is not null").groupBy("key").agg(sf.countDistinct("task").alias("tasks"))
    assert {row.tasks for row in tasks.collect()} == {1}
    unknown = {row.task: row["count"] for row in placed.where("key is null").groupBy("task").count().collect()}
    assert set(unknown) == {0, 1, 2, 3}
    assert max(unknown.values()) <= 2 * min(unknown.values())


def test_keys_may_be_an_expression_of_another_type(events: DataFrame, known: Pond) -> None:
    known.create_map("numbers", kind="state", value="string")
    known.map("numbers").load([{"key": str(number), "value": f"v{number}"} for number in range(10)])
    rows = mp.enrich(
        events, pond=known, map="numbers", key=sf.col("id") % 10, into="value", partition="key", partitions=5
    )
    assert {(row.id % 10, row.value) for row in rows.collect()} == {(number, f"v{number}") for number in range(10)}


def test_what_cannot_be_partitioned_says_why(events: DataFrame, known: Pond) -> None:
    with pytest.raises(Invalid, match="hash") as caught:
        mp.enrich(events, pond=known, map="now", key="key", partition="hash")  # type: ignore[arg-type]
    assert caught.value.kind == "partition_unknown"
    for partitions, partition in ((0, "key"), (1 << 20, "key"), (3, None)):
        with pytest.raises(Invalid) as caught:
            mp.enrich(events, pond=known, map="now", key="key", partition=partition, partitions=partitions)  # type: ignore[arg-type]
        assert caught.value.kind == "partition_count"
    with pytest.raises(Invalid) as caught:
        mp.enrich(events, pond=known, map="blocks", key="id", partition="key")
    assert caught.value.kind == "partition_ranged"
    with pytest.raises(Invalid) as caught:
        two = [mp.Lookup("now", "key"), mp.Lookup("now", "id", into="other")]
        mp.enrich(events, two, pond=known, partition="key")
    assert (caught.value.kind, caught.value.values["other"]) == ("partition_keys", "id")


def test_keys_that_are_none_are_errors_or_misses(spark: SparkSession, known: Pond) -> None:
    rows = spark.createDataFrame([(1.5,), (2.0,)], "key double")
    lookup = mp.Lookup("now", "key", on_invalid="miss", into="found")
    assert mp.enrich(rows, lookup, pond=known, partition="key", partitions=2).count() == 2
    with pytest.raises(PySparkException, match="key"):
        mp.enrich(rows, pond=known, map="now", key="key", into="found", partition="key", partitions=2).collect()
