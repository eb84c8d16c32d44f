"""The changes of a map, read as a stream: each once, in the order of the log, also from a checkpoint."""

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

pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", maps_part_retention="7d") as opened:
        yield opened


@pytest.fixture
def numbers(pond: Pond) -> Map:
    return pond.create_map("numbers", kind="state", value="long")


def loaded(numbers: Map, *batches: dict[str, int]) -> None:
    for batch in batches:
        numbers.load([{"key": key, "value": value} for key, value in batch.items()], again=True)


def changes(spark: SparkSession, pond: Pond, **options: object) -> DataFrame:
    parameters = {"pond": str(pond.folder), "map": "numbers"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format("millpond").options(**parameters).load()


def drained(frame: DataFrame, checkpoint: Path) -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch until there are no more."""
    batches: list[list[tuple[Any, ...]]] = []

    def take(batch: DataFrame, _epoch: int) -> None:
        batches.append([tuple(row) for row in batch.collect()])

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return batches


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
    parameters = {"pond": str(pond.folder), "map": "numbers"} | {name: str(value) for name, value in options.items()}
    source = MapSource(parameters)
    return source.streamReader(source.schema())


def test_a_query_starts_at_the_given_position(pond: Pond, numbers: Map) -> None:
    loaded(numbers, {"a": 1}, {"a": 2})
    last, _ = pond.log.position()
    assert rows_after(reader(pond)) == [("a", 1), ("a", 2)]
    assert rows_after(reader(pond, startingPosition=last - 1)) == [("a", 2)]
    assert rows_after(reader(pond, startingPosition="latest")) == []
    with pytest.raises(millpond.Invalid, match="not a whole number"):
        reader(pond, startingPosition="first")


def rows_after(changes_reader: ChangesReader, start: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """The rows that a new query would read first."""
    start = changes_reader.initialOffset() if start is None else start
    end = changes_reader.latestOffset(start, changes_reader.getDefaultReadLimit())
    batches = [batch for part in changes_reader.partitions(start, end) for batch in changes_reader.read(part)]
    changes_reader.stop()
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_dropped_map_is_not_reported(pond: Pond, numbers: Map) -> None:
    loaded(numbers, {"a": 1})
    start = reader(pond).initialOffset()
    pond.drop_map("numbers")
    loaded(pond.create_map("numbers", kind="state", value="long"), {"b": 2})
    assert rows_after(reader(pond)) == [("b", 2)]
    assert rows_after(reader(pond), start) == [("b", 2)]


def test_a_map_made_anew_in_another_form_is_read_or_refused(pond: Pond, numbers: Map) -> None:
    changes_reader = reader(pond)
    start = changes_reader.initialOffset()
    pond.drop_map("numbers")
    loaded(pond.create_map("numbers", kind="state", value="long", scheme="lookup"), {"b": 2})
    assert rows_after(changes_reader, start) == [("b", 2)]
    pond.drop_map("numbers")
    anew = pond.create_map("numbers", kind="state", value="string")
    anew.load([{"key": "c", "value": "3"}])
    with pytest.raises(millpond.Conflict, match=r"made anew.*found=state of string.*new checkpointLocation"):
        rows_after(changes_reader, start)
    assert rows_after(reader(pond)) == [("c", "3")]


def test_a_quiet_map_follows_the_log(pond: Pond, numbers: Map) -> None:
    class Clock(SystemClock):
        passed = 0.0

        def monotonic(self) -> float:
            return self.passed

    source = MapSource({"pond": str(pond.folder), "map": "numbers"})
    changes_reader = source.streamReader(source.schema())
    changes_reader.clock = clock = Clock()
    changes_reader._reported_at = 0.0
    start = changes_reader.initialOffset()
    loaded(pond.create_map("other", kind="state", value="long"), {"x": 1})
    assert changes_reader.latestOffset(start, changes_reader.getDefaultReadLimit()) == start
    clock.passed = timedelta(minutes=11).total_seconds()
    assert (
        changes_reader.latestOffset(start, changes_reader.getDefaultReadLimit())["position"] == pond.log.position()[0]
    )
    changes_reader.stop()


def test_a_position_no_longer_retained_is_an_error(
    spark: SparkSession, pond: Pond, numbers: Map, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    loaded(numbers, {"a": 1})
    assert drained(changes(spark, pond), checkpoint) == [[("a", 1)]]
    loaded(numbers, {"a": 2})
    assert pond.parts.expire(SystemClock().now_ms() + 1) == 2
    loaded(numbers, {"a": 3})
    with pytest.raises(PySparkException, match="changes that come next are kept no more"):
        drained(changes(spark, pond), checkpoint)
    assert drained(changes(spark, pond, failOnTrimmed="false"), checkpoint) == [[("a", 3)]]
    assert rows_after(reader(pond)) == [("a", 3)], "a new query starts at what there is"
    with millpond.open(tmp_path / "other") as other:
        other.create_map("numbers", kind="state", value="long")
        with pytest.raises(PySparkException, match="the checkpoint is of another pond"):
            drained(changes(spark, other), checkpoint)
