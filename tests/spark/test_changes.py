"""What is loaded into a map, read as a stream: each change once, in the order of the log, also from a checkpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millpond
from millpond.clock import SystemClock
from millpond.spark.changes import ChangesReader
from millpond.spark.sources import MapSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond import Map, Pond

pytestmark = pytest.mark.spark


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", part_retention="7d") as opened:
        yield opened


@pytest.fixture
def numbers(pond: Pond) -> Map:
    return pond.create_map("numbers", kind="state", value="long")


def loaded(numbers: Map, *batches: dict[str, int]) -> None:
    for batch in batches:
        numbers.load([{"key": key, "value": value} for key, value in batch.items()], again=True)


def changes(spark: SparkSession, pond: Pond, **options: object) -> DataFrame:
    told = {"pond": str(pond.folder), "map": "numbers"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format("millpond").options(**told).load()


def drained(frame: DataFrame, checkpoint: Path) -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch until there are no more."""
    told: list[list[tuple[Any, ...]]] = []

    def take(batch: DataFrame, _epoch: int) -> None:
        told.append([tuple(row) for row in batch.collect()])

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return told


def test_changes_come_in_order_and_once(spark: SparkSession, pond: Pond, numbers: Map, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    other = pond.create_map("other", kind="state", value="long")
    loaded(numbers, {"a": 1, "b": 1}, {"a": 2}, {"a": 1})
    assert drained(changes(spark, pond), checkpoint) == [[("a", 1), ("b", 1), ("a", 2), ("a", 1)]]
    loaded(other, {"x": 1})
    assert drained(changes(spark, pond), checkpoint) == []
    loaded(numbers, {"a": 5, "b": 5}, {"c": 6}, {"d": 7})
    limited = changes(spark, pond, maxRowsPerTrigger=2, columns="value", where="key <> 'b'")
    assert drained(limited, checkpoint) == [[(5,)], [(6,), (7,)]]


def reader(pond: Pond, **options: object) -> ChangesReader:
    told = {"pond": str(pond.folder), "map": "numbers"} | {name: str(value) for name, value in options.items()}
    source = MapSource(told)
    return source.streamReader(source.schema())


def test_a_query_starts_where_it_is_told(pond: Pond, numbers: Map) -> None:
    loaded(numbers, {"a": 1}, {"a": 2})
    last, _ = pond.position()
    assert rows_after(reader(pond)) == [("a", 1), ("a", 2)]
    assert rows_after(reader(pond, startingPosition=last - 1)) == [("a", 2)]
    assert rows_after(reader(pond, startingPosition="latest")) == []
    with pytest.raises(millpond.Invalid, match="not a whole number"):
        reader(pond, startingPosition="first")


def rows_after(told: ChangesReader, start: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """The rows that a new query would read first."""
    start = told.initialOffset() if start is None else start
    end = told.latestOffset(start, told.getDefaultReadLimit())
    batches = [batch for part in told.partitions(start, end) for batch in told.read(part)]
    told.stop()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_dropped_map_is_not_told_of(pond: Pond, numbers: Map) -> None:
    loaded(numbers, {"a": 1})
    start = reader(pond).initialOffset()
    pond.drop_map("numbers")
    loaded(pond.create_map("numbers", kind="state", value="long"), {"b": 2})
    assert rows_after(reader(pond)) == [("b", 2)]
    assert rows_after(reader(pond), start) == [("b", 2)]


def test_a_map_made_anew_in_another_form_is_read_or_refused(pond: Pond, numbers: Map) -> None:
    told = reader(pond)
    start = told.initialOffset()
    pond.drop_map("numbers")
    loaded(pond.create_map("numbers", kind="state", value="long", scheme="lookup"), {"b": 2})
    assert rows_after(told, start) == [("b", 2)]
    pond.drop_map("numbers")
    anew = pond.create_map("numbers", kind="state", value="string")
    anew.load([{"key": "c", "value": "3"}])
    with pytest.raises(millpond.Conflict, match=r"made anew.*found=state of string.*new checkpointLocation"):
        rows_after(told, start)
    assert rows_after(reader(pond)) == [("c", "3")]


def test_a_quiet_map_follows_the_log(pond: Pond, numbers: Map) -> None:
    class Clock(SystemClock):
        passed = 0.0

        def monotonic(self) -> float:
            return self.passed

    source = MapSource({"pond": str(pond.folder), "map": "numbers"})
    told = source.streamReader(source.schema())
    told.clock = clock = Clock()
    told._reported_at = 0.0
    start = told.initialOffset()
    loaded(pond.create_map("other", kind="state", value="long"), {"x": 1})
    assert told.latestOffset(start, told.getDefaultReadLimit()) == start
    clock.passed = timedelta(minutes=11).total_seconds()
    assert told.latestOffset(start, told.getDefaultReadLimit())["position"] == pond.position()[0]
    told.stop()


def test_what_is_kept_no_more_is_an_error(spark: SparkSession, pond: Pond, numbers: Map, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    loaded(numbers, {"a": 1})
    assert drained(changes(spark, pond), checkpoint) == [[("a", 1)]]
    loaded(numbers, {"a": 2})
    assert pond.expire_parts(SystemClock().now_ms() + 1) == 2
    loaded(numbers, {"a": 3})
    with pytest.raises(PySparkException, match="changes that come next are kept no more"):
        drained(changes(spark, pond), checkpoint)
    assert drained(changes(spark, pond, failOnTrimmed="false"), checkpoint) == [[("a", 3)]]
    assert rows_after(reader(pond)) == [("a", 3)], "a new query starts at what there is"
    with millpond.open(tmp_path / "other") as other:
        other.create_map("numbers", kind="state", value="long")
        with pytest.raises(PySparkException, match="the checkpoint is of another pond"):
            drained(changes(spark, other), checkpoint)
