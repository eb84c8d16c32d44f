"""Streams that look up: which snapshots a micro-batch asks, and when they are newer ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from millpond import spark as mp
from millpond.errors import Invalid
from tests.spark.test_streams import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond import Map, Pond

pytestmark = pytest.mark.sample(1, of="file")


@pytest.fixture
def planes(pond: Pond) -> Map:
    made = pond.create_map("planes", kind="state", value="string")
    made.load({"key": ["a", "b"], "value": ["0", "0"]})
    return made


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


class Running:
    """A stream that is told its files one by one; what each micro-batch answered."""

    def __init__(self, source: Source, enriched: DataFrame, checkpoint: Path) -> None:
        self.source, self.answers, self._ended = source, list[dict[str, Any]](), threading.Semaphore(0)
        self.query = (
            enriched.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="50 milliseconds").start()
        )  # fmt: skip

    def _take(self, rows: DataFrame, _epoch: int) -> None:
        self.answers.append({row.key: row.planes for row in rows.collect()})
        self._ended.release()

    def batch(self) -> dict[str, Any]:
        self.source.add({"key": "a"}, {"key": "b"})
        while not self._ended.acquire(timeout=0.2):
            if (error := self.query.exception()) is not None:
                raise error
        return self.answers[-1]


@pytest.fixture
def running(source: Source, pond: Pond, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(**options: Any) -> Running:
        frame = source.frame("key string")
        enriched = mp.enrich(frame, pond=str(pond.folder), map="planes", key="key", into="planes", **options)
        assert enriched.columns == ["key", "planes"]
        made.append(Running(source, enriched, tmp_path / "checkpoint"))
        return made[-1]

    yield start
    for stream in made:
        stream.query.stop()


def put(planes: Map, value: str) -> None:
    planes.load({"key": ["a", "b"], "value": [value, value]})


@pytest.mark.parametrize("options", [{}, {"partition": "key", "partitions": 2}], ids=["whole", "shares"])
def test_each_micro_batch_asks_the_newest_snapshot(
    running: Callable[..., Running], planes: Map, options: dict[str, Any]
) -> None:
    stream = running(**options)
    for value in "123":
        put(planes, value)
        assert stream.batch() == {"a": value, "b": value}


def test_never_asks_the_snapshot_of_the_call(running: Callable[..., Running], planes: Map) -> None:
    stream = running(refresh="never")
    put(planes, "1")
    assert stream.batch() == stream.batch() == {"a": "0", "b": "0"}


def test_a_snapshot_serves_until_it_is_of_an_age(running: Callable[..., Running], planes: Map) -> None:
    stream = running(refresh="1d")
    put(planes, "1")
    assert stream.batch() == {"a": "0", "b": "0"}, "the call made one a moment ago"
    planes.freeze()
    assert stream.batch() == {"a": "1", "b": "1"}, "somebody made a newer one: it serves as well"


def test_layers_serve_as_of_the_call_for_as_long(running: Callable[..., Running], pond: Pond) -> None:
    layered = pond.create_map("planes", kind="state", value="string", store="layers")
    put(layered, "0")
    stream = running(refresh="1d")
    for value in "12":
        put(layered, value)
        assert stream.batch() == {"a": "0", "b": "0"}


def test_two_maps_of_one_pass(source: Source, pond: Pond, planes: Map, tmp_path: Path) -> None:
    owners = pond.create_map("owners", kind="temporal_state", value="long")
    owners.load({"key": ["a"], "effective_time": ["2026-01-01T00:00Z"], "value": [7]})
    lookups = [mp.Lookup("planes", key="key"), mp.Lookup("owners", key="key")]
    seen: list[Any] = []
    enriched = mp.enrich(source.frame("key string"), lookups, pond=str(pond.folder))
    put(planes, "1")
    source.add({"key": "a"}, {"key": "b"})
    query = enriched.writeStream.foreachBatch(lambda rows, _: seen.extend(map(tuple, rows.collect())))
    query.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "two")).start().awaitTermination()
    assert sorted(seen) == [("a", "1", 7), ("b", "1", None)], "rows without a time are asked as of the micro-batch"


def test_a_map_that_was_replaced_ends_the_stream(running: Callable[..., Running], pond: Pond, planes: Map) -> None:
    stream = running()
    assert stream.batch() == {"a": "0", "b": "0"}
    pond.drop_map("planes")
    pond.create_map("planes", kind="state", value="long")
    with pytest.raises(StreamingQueryException, match="another kind or type"):
        stream.batch()


def test_what_is_no_refresh_is_refused(source: Source, pond: Pond, planes: Map) -> None:
    with pytest.raises(Invalid, match="duration"):
        mp.enrich(source.frame("key string"), pond=str(pond.folder), map="planes", key="key", refresh="sometimes")
