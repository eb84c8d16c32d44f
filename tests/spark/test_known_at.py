"""Layered maps as they were known, by Spark: each row at its own moment, in one pass, wherever the pond lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millpond
from millpond import spark as mp
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.loads.pond_folder import StorageFolder
from millpond.spark.locations import POND
from millpond.times.instants import instant_text
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.test_bucket_nodes import SETTINGS
from tests.nodes.test_bucket_nodes import url as url
from tests.spark.test_streams import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from millpond import Pond
    from millpond.clock import ManualClock
    from millpond.maps.protocols import PondLike
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(1, of="file")

LATE = 4_000_000_000_000
"""A moment after every load, and after the query is planned."""


def test_rows_are_enriched_as_known_at_their_moments(spark: SparkSession, pond: Pond) -> None:
    loaded(pond, pond)
    check(spark, pond, pond)


def test_a_node_answers_as_known(spark: SparkSession, serve: Callable[..., Served], clock: ManualClock) -> None:
    node = serve(maps_store="auto")
    with millpond.open(node.url) as remote:
        loaded(remote, node.pond, clock)
        check(spark, remote, node.pond)


@pytest.mark.full
def test_nodes_on_a_bucket_answer_as_known(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock, url: str
) -> None:  # fmt: skip
    one, other = (serve(server_data=url, client_cache=f"cache{number}", **SETTINGS) for number in range(2))
    with millpond.open(one.url) as remote:
        loaded(remote, one.pond, clock)
    clock.advance(2_000)
    one.close()
    with millpond.open(other.url) as remote:
        check(spark, remote, other.pond)
        events = spark.sql("select 'a' as key")
        now = mp.enrich(events, pond=remote, map="numbers", key="key", into="value").first()
        assert now["value"] == 2, "the other node gives the files of a snapshot that it has no copies of"


def loaded(made_by: PondLike, holding: Pond, clock: ManualClock | None = None) -> None:
    """A sharded map where there can be one, and a layered one that is changed three times."""
    if isinstance(holding.location, StorageFolder):
        made_by.create_map("sharded", kind="state", value="long", store="shard")
    layered = made_by.create_map("numbers", kind="state", value="long", store="layers")
    for value in range(3):
        layered.load([{"key": "a", "value": value}])
        if clock is not None:
            clock.advance(1_000)


def check(spark: SparkSession, pond: PondLike, holding: Pond) -> None:
    layered = holding.map("numbers")
    moments = [change.moment_ms for change in layered.rows.past.changes()]
    queried = [moments[0] - 1, *moments, LATE]
    rows = ", ".join(f"('a', timestamp_millis({moment}))" for moment in queried)
    events = spark.sql(f"select * from values {rows}, ('a', null) as events(key, moment)")
    expected = [*layered.lookup(["a"] * 5, known_at=queried).to_pylist(), None]
    assert (expected[0], expected[-2]) == (None, 2)

    def answers(frame: Any, **lookup: Any) -> list[Any]:
        enriched = mp.enrich(frame, pond=pond, map="numbers", key="key", into="value", **lookup)
        return [row["value"] for row in enriched.collect()]

    assert answers(events, known_at="moment") == expected
    training = mp.training_set(events, {"numbers": "key"}, pond=pond, at="moment").collect()
    assert [row["numbers"] for row in training] == expected
    assert answers(events.limit(1), known_at="moment") == [None], "a row that comes alone is as any"
    assert answers(events, known_at=moments[0]) == [layered.get("a", known_at=moments[0])] * 6
    with pytest.raises(Invalid, match="nothing was known of the map then"):
        answers(events, known_at=moments[0] - 1)
    for moment in (*moments, LATE):
        assert read(spark, pond, known_at=instant_text(moment)) == layered.scan(known_at=moment).read_all().to_pylist()
    assert read(spark, pond, known_at=instant_text(moments[0]), where="value > 5", columns="value") == []
    with pytest.raises(PySparkException, match="nothing was known of the map then"):
        read(spark, pond, known_at=instant_text(moments[0] - 1))
    with pytest.raises(PySparkException, match="zone"):
        read(spark, pond, known_at="2026-03-01T00:00")
    shares = mp.enrich(events, pond=pond, map="numbers", key="key", into="value", known_at="moment",
                       partition="key", partitions=3)  # fmt: skip
    assert {(row["moment"], row["value"]) for row in shares.collect()} == {
        (row["moment"], said) for row, said in zip(events.collect(), expected, strict=True)
    }
    if any(map_.name == "sharded" for map_ in holding.maps()):
        with pytest.raises(Invalid) as refused:
            mp.enrich(events, pond=pond, map="sharded", key="key", into="value", known_at="moment")
        assert refused.value.kind == "known_at_unsupported"
        with pytest.raises(PySparkException, match="no state but the present one"):
            read(spark, pond, map="sharded", known_at=instant_text(LATE))


def read(spark: SparkSession, pond: PondLike, map: str = "numbers", **options: str) -> list[dict[str, Any]]:
    """The rows of a map in Spark."""
    reader = spark.read.format("millpond").option("pond", where(pond)).option("map", map).options(**options)
    return [row.asDict() for row in reader.load().collect()]


def where(pond: PondLike) -> str:
    return str(pond.folder) if isinstance(pond, millpond.Pond) else pond.nodes.where  # type: ignore[attr-defined]


def test_get_state_asks_as_known(spark: SparkSession, pond: Pond) -> None:
    loaded(pond, pond)
    moments = [change.moment_ms for change in pond.map("numbers").rows.past.changes()]
    spark.conf.set(POND, str(pond.folder))
    mp.register(spark)
    try:
        query = ", ".join(
            f"get_state('numbers', 'a', current_timestamp(), timestamp_millis({moment})) as v{moment}"
            for moment in (*dict.fromkeys(moments), LATE)
        )
        known = [pond.map("numbers").get("a", known_at=moment) for moment in dict.fromkeys(moments)]
        assert list(spark.sql(f"select {query}").first() or ()) == [*known, 2]
    finally:
        spark.conf.unset(POND)


def test_a_branch_answers_as_its_commits_were(spark: SparkSession, pond: Pond) -> None:
    loaded(pond, pond)
    fix = pond.branch("fix", source="main")
    before = SystemClock().now_ms()
    while SystemClock().now_ms() <= before:
        pass
    fix.map("numbers").load([{"key": "a", "value": 7}])
    events = spark.sql(f"select 'a' as key, timestamp_millis(m) as moment from values ({before}), ({LATE}) as t(m)")
    options: dict[str, Any] = {"map": "numbers", "key": "key", "into": "value", "known_at": "moment"}
    for frame in (
        mp.enrich(events, pond=pond, branch="fix", **options), mp.enrich(events, pond=fix, **options),
        mp.enrich(events, pond=str(pond.folder), ref="fix", **options),
    ):  # fmt: skip
        assert [row["value"] for row in frame.collect()] == [2, 7]
    moments = {before: 2, LATE: 7}
    for moment, value in moments.items():
        for at in ({"branch": "fix"}, {"ref": "fix"}):
            assert read(spark, pond, known_at=instant_text(moment), **at) == [{"key": "a", "value": value}]


def test_the_past_is_read_as_a_table_alone(spark: SparkSession, pond: Pond) -> None:
    loaded(pond, pond)
    pond.alter_map("numbers", widen={"value": "double"})
    first = pond.map("numbers").rows.past.changes()[0].moment_ms
    assert (
        read(spark, pond, known_at=instant_text(first))
        == pond.map("numbers").scan(known_at=first).read_all().to_pylist()
    )
    options = {"pond": str(pond.folder), "map": "numbers", "known_at": instant_text(first)}
    with pytest.raises(PySparkException, match="only read"):
        spark.sql("select 'a' key, 5L value").write.format("millpond").options(**options).mode("append").save()
    with pytest.raises(PySparkException, match="a state of the past has no changes"):
        changes = spark.readStream.format("millpond").options(**options).load()
        changes.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    "options", [{}, {"partition": "key", "partitions": 2}, {"branch": "fix"}, {"refresh": "never"}],
    ids=["whole", "shares", "branch", "never"],
)  # fmt: skip
def test_each_micro_batch_asks_the_newest_past(
    spark: SparkSession, pond: Pond, tmp_path: Path, options: dict[str, Any]
) -> None:
    loaded(pond, pond)
    numbers = pond.branch("fix", source="main").map("numbers") if "branch" in options else pond.map("numbers")
    source, seen, began = Source(spark, tmp_path / "source"), list[Any](), SystemClock().now_ms()
    events = source.frame("key string, m long").selectExpr("key", "timestamp_millis(m) as moment")
    enriched = mp.enrich(
        events, pond=str(pond.folder), map="numbers", key="key", into="value", known_at="moment", **options
    )
    for value in (7, 8):
        numbers.load([{"key": "a", "value": value}])
        source.add({"key": "a", "m": began}, {"key": "a", "m": LATE}, {"key": "a", "m": 0})
        started = enriched.writeStream.foreachBatch(lambda rows, _: seen.append([row.value for row in rows.collect()]))
        started.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
        known = numbers.lookup(["a"] * 3, known_at=[began, LATE, 0]).to_pylist()
        assert sorted(map(str, seen.pop())) == sorted(map(str, [2, 2, None] if "refresh" in options else known))
