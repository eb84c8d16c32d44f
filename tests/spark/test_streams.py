"""Streams into maps and out of them: each epoch once, each change once, also from a checkpoint."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from millpond import spark as mp
from millpond.errors import Invalid
from millpond.spark.epochs import epoch_rejects
from tests.spark.test_loads import left_behind

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond import Map, Pond

pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture
def numbers(pond: Pond) -> Map:
    return pond.create_map("numbers", kind="state", value="long")


class Source:
    """A folder of files, each of which becomes a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.count = spark, folder, 0
        folder.mkdir()

    def add(self, *rows: dict[str, Any]) -> None:
        hidden = self.folder / f".{self.count}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + self.count,) * 2)  # Spark takes files by their age
        hidden.rename(self.folder / f"{self.count:04d}.json")
        self.count += 1

    def frame(self, schema: str = "key string, value long") -> DataFrame:
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self.folder))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def drain(frame: DataFrame, pond: Pond, checkpoint: Path, mode: str = "append", **options: object) -> None:
    """Write all that is there, then stop."""
    parameters = {"pond": str(pond.folder), "map": "numbers", "checkpointLocation": str(checkpoint)}
    parameters |= {name: str(value) for name, value in options.items()}
    query = (
        frame.writeStream.format("millpond").options(**parameters).outputMode(mode).trigger(availableNow=True).start()
    )
    query.awaitTermination()


def loads(pond: Pond) -> list[dict[str, Any]]:
    return [entry.body for entry in pond.log.entries(0) if entry.kind == "load"]


# -- into a map ---------------------------------------------------------------------------------------


def test_every_epoch_is_a_load_and_is_read_at_once(spark: SparkSession, pond: Pond, numbers: Map, source: Source,
                                                  tmp_path: Path) -> None:  # fmt: skip
    source.add({"key": "a", "value": 1})
    source.add({"key": "a", "value": 2}, {"key": "b", "value": 2})
    source.add({"key": "a", "value": 1})
    drain(source.frame(), pond, tmp_path / "checkpoint")
    assert (numbers.get("a"), numbers.get("b")) == (1, 2), "what came before comes again, and wins again"
    streams = [load["stream"] for load in loads(pond)]
    assert [epoch for _, epoch in streams] == [0, 1, 2]
    assert len({query for query, _ in streams}) == 1
    assert left_behind(pond) == []

    # The same checkpoint goes on; an epoch without rows is no load.
    source.add({"key": "c", "value": 3})
    drain(source.frame().where("value > 3"), pond, tmp_path / "checkpoint")
    assert len(loads(pond)) == 3
    source.add({"key": "c", "value": 4})
    drain(source.frame(), pond, tmp_path / "checkpoint")
    assert numbers.get("c") == 4
    assert [load["stream"][1] for load in loads(pond)] == [0, 1, 2, 4]
    assert left_behind(pond) == []


def test_an_epoch_that_spark_forgot_is_not_entered_again(
    spark: SparkSession, pond: Pond, numbers: Map, source: Source, tmp_path: Path
) -> None:
    """As when the driver died between our commit and Spark's; the rows come in another order and partitioning."""
    source.add(*({"key": f"k{n}", "value": n} for n in range(100)))
    drain(source.frame(), pond, tmp_path / "checkpoint")
    numbers.load([{"key": "k7", "value": -7}])
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    drain(source.frame().repartition(3), pond, tmp_path / "checkpoint")
    assert len(loads(pond)) == 2
    assert numbers.get("k7") == -7, "the epoch did not win a second time"
    assert left_behind(pond) == []


def test_a_query_that_feeds_two_maps_feeds_both_once(
    spark: SparkSession, pond: Pond, numbers: Map, source: Source, tmp_path: Path
) -> None:
    """It dies after the first map took an epoch, and again after the second did."""
    doubles = pond.create_map("doubles", kind="state", value="long")
    dies = [True, True, False]

    def feed(frame: DataFrame, epoch: int) -> None:
        mp.load(frame.repartition(1 + len(dies)), pond, "numbers", epoch=epoch)
        if dies.pop(0):
            raise RuntimeError("died")
        mp.load(frame.selectExpr("key", "value * 2 as value"), pond, "doubles", epoch=epoch)
        if dies.pop(0):
            raise RuntimeError("died")

    def run() -> None:
        query = source.frame().writeStream.foreachBatch(feed).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    source.add({"key": "a", "value": 1}, {"key": "b", "value": 2})
    with pytest.raises(PySparkException):
        run()
    numbers.load([{"key": "a", "value": -1}])
    dies[:] = [False, True]
    with pytest.raises(PySparkException):
        run()
    doubles.load([{"key": "a", "value": -2}])
    dies[:] = [False, False]
    run()
    assert [(pond_map.get("a"), pond_map.get("b")) for pond_map in (numbers, doubles)] == [(-1, 2), (-2, 4)]
    assert len(loads(pond)) == 4
    with pytest.raises(Invalid, match="no query is running"):
        mp.load(spark.sql("select 'a' key, 1L value"), pond, "numbers", epoch=1)


def test_an_epoch_that_one_map_took_is_taken_by_another(
    spark: SparkSession, pond: Pond, numbers: Map, source: Source, tmp_path: Path
) -> None:
    """Its sink was changed, or its map made anew, while the query was stopped: the last epoch is still its own."""
    source.add({"key": "a", "value": 1})
    drain(source.frame(), pond, tmp_path / "checkpoint")
    others = pond.create_map("others", kind="state", value="long")
    for again in (others, None):
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            file.unlink()
        if again is None:
            pond.drop_map("others")
            others = pond.create_map("others", kind="state", value="long")
        drain(source.frame(), pond, tmp_path / "checkpoint", map="others")
        assert others.get("a") == 1


def test_rejects_are_counted_and_written_by_epoch(
    spark: SparkSession, pond: Pond, numbers: Map, source: Source, tmp_path: Path
) -> None:
    rejects = tmp_path / "rejects.jsonl"
    source.add({"key": "a", "value": 1})
    source.add({"key": None, "value": 2}, {"key": "b", "value": 2})
    source.add({"key": None, "value": 3}, {"value": 4}, {"key": "c", "value": 3})
    options = {"max_rejects": 1, "rejects": rejects}
    with pytest.raises(PySparkException, match="2 rows cannot be stored"):
        drain(source.frame(), pond, tmp_path / "checkpoint", **options)
    assert [numbers.get(key) for key in "abc"] == [1, 2, None]
    assert left_behind(pond) == []
    drain(source.frame(), pond, tmp_path / "checkpoint", **(options | {"max_rejects": 2}))
    assert numbers.get("c") == 3
    files = [epoch_rejects(str(rejects), epoch) for epoch in (1, 2)]
    assert sorted(str(file) for file in tmp_path.glob("*.jsonl")) == files
    lines = [json.loads(line) for line in (tmp_path / "rejects-000002.jsonl").read_text().splitlines()]
    assert [(line["reason"], line["record"]["value"]) for line in lines] == [("key is missing", n) for n in (3, 4)]
    assert [load["rejected"] for load in loads(pond)] == [0, 1, 2]


def test_what_cannot_work_says_so(spark: SparkSession, pond: Pond, numbers: Map, source: Source,
                                  tmp_path: Path) -> None:  # fmt: skip
    source.add({"key": "a", "value": 1})
    with pytest.raises(PySparkException, match="does not support Update mode"):
        drain(source.frame(), pond, tmp_path / "update", "update")
    counted = source.frame().groupBy("key").agg({"value": "max"}).withColumnRenamed("max(value)", "value")
    with pytest.raises(PySparkException, match="merged into a map"):
        drain(counted, pond, tmp_path / "complete", "complete")
    with pytest.raises(PySparkException, match="no such column"):
        drain(source.frame().withColumnRenamed("key", "name"), pond, tmp_path / "columns")
    with pytest.raises(PySparkException, match="did you mean 'failOnTrimmed'"):
        drain(source.frame(), pond, tmp_path / "options", failOnTrim=True)
    assert loads(pond) == []
    assert left_behind(pond) == []
