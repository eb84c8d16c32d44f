"""The changes of a branch, read as a stream by queries that fail and are started again from their checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import millpond
from millpond.errors import Conflict, Invalid, MillpondError, NotFound
from millpond.spark.micro_batches import PARTITION_ROWS
from millpond.spark.sources import MapSource
from tests.models.test_branch_changes_model import Clock, reader, rows_between
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.spark.test_branch_loads import Place
from tests.spark.test_branch_loads import place as place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond


class Query:
    """A query over the changes of the map on `fix`, which keeps the rows of each micro-batch."""

    def __init__(self, spark: SparkSession, place: Place, checkpoint: Path, **options: object) -> None:
        self.spark, self.checkpoint = spark, checkpoint
        self.options = {"pond": place.where, "map": "numbers", "branch": "fix", "changes": "true"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.dies = False

    def run(self) -> list[list[tuple[Any, ...]]]:
        """Read what is there; the rows of each micro-batch, without their commits."""
        batches: list[list[tuple[Any, ...]]] = []

        def take(batch: DataFrame, _epoch: int) -> None:
            batches.append(sorted(tuple(row)[:3] for row in batch.collect()))
            if self.dies:
                raise RuntimeError("died")

        frame = self.spark.readStream.format("millpond").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            if "died" not in str(error):
                raise
        return [batch for batch in batches if batch]


def put(pond: Any, **rows: int) -> None:
    pond.map("numbers").load([{"key": key, "value": value} for key, value in rows.items()], again=True)


@pytest.mark.sample(1, of="streams of branches")
def test_each_change_of_a_branch_comes_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    pond = place.pond
    fix, query = pond.branch("fix", source="main"), Query(spark, place, tmp_path / "checkpoint", maxRowsPerTrigger=3)
    put(fix, a=1, b=1)
    fix.map("numbers").load([{"key": "staged", "value": 1}], commit=False)
    first = [("a", 1, "added"), ("b", 1, "added"), ("k0", -1, "added")]
    assert query.run() == [first], "what is staged comes with its commit"
    put(fix, a=1, b=2, c=2)
    fix.map("numbers").delete("key = 'k0'")
    put(fix, d=3)
    query.options["where"] = "key <> 'd'"
    last = [("k0", -1, "removed")]
    assert query.run() == [[("b", 2, "changed"), ("c", 2, "added"), ("staged", 1, "added")], last]

    # A micro-batch that was planned comes again, also from a branch that was reset meanwhile.
    query.dies = True
    put(fix, e=4)
    assert query.run() == [[("e", 4, "added")]]
    pond.refs.reset("fix", "fix~2")
    put(fix, f=5)
    query.dies = False
    assert query.run() == [[("e", 4, "added")], [("e", 4, "removed"), ("f", 5, "added")]]

    # Merged into main, deleted, and made anew from there.
    put(pond, main=6)
    fix.merge()
    pond.refs.delete_branch("fix")
    with pytest.raises(PySparkException, match=r"branch not found.*make it anew"):
        query.run()
    fix = pond.branch("fix", source="main")
    put(fix, f=7)
    del query.options["maxRowsPerTrigger"]
    assert query.run() == [[("f", 7, "changed"), ("main", 6, "added")]]
    put(pond, g=8)
    pond.refs.merge("main", "fix", squash=True)
    assert query.run() == [[("g", 8, "added")]]


@pytest.mark.sample(1, of="streams of branches")
def test_rows_without_their_change_are_those_that_are_there(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    fix = place.pond.branch("fix", source="main")
    put(fix, a=1)
    fix.map("numbers").delete("key = 'k0'")
    query = Query(spark, place, tmp_path / "checkpoint", changes="false", columns="value, key", startingPosition="main")
    assert query.run() == [[(1, "a")]]
    late = Query(spark, place, tmp_path / "late", startingPosition="latest")
    assert late.run() == []
    put(fix, b=2)
    assert (query.run(), late.run()) == ([[(2, "b")]], [[("b", 2, "added")]])


@pytest.fixture
def numbers(tmp_path: Path) -> Any:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
        pond.branch("fix", source="main")
        yield pond


def read(pond: Pond, start: dict[str, Any] | None = None, **options: Any) -> tuple[Any, list[Any]]:
    stream = reader(pond, **options)
    try:
        start = stream.initialOffset() if start is None else start
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        return end, [row[:3] for row in rows_between(stream, start, end)]
    finally:
        stream.stop()


def test_a_query_that_began_at_the_latest_reads_nothing_before(numbers: Pond) -> None:
    fix, stream = numbers.branch("fix"), reader(numbers, startingPosition="latest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    fix.map("m").load([{"key": "b", "value": 2}])
    later = stream.initialOffset()
    assert rows_between(stream, start, end) == rows_between(stream, later, end) == []
    assert [row[:2] for row in rows_between(stream, end, {**later, "latest": False})] == [("b", "added")]
    stream.stop()


def test_a_commit_that_is_kept_no_more_is_an_error(numbers: Pond) -> None:
    fix = numbers.branch("fix").map("m")
    old, _ = read(numbers)
    fix.load([{"key": "b", "value": 2}, {"key": "c", "value": 2}])
    fix.load([{"key": "d", "value": 2}])
    fix.delete("key = 'b'", now=True)
    numbers.refs.merge("fix")
    numbers.map("m").delete("key = 'b'", now=True)  # lets go of all commits that have the row
    with pytest.raises(NotFound) as refused:
        read(numbers, old)
    assert (refused.value.kind, refused.value.values["branch"]) == ("changes_trimmed", "fix")
    end, rows = read(numbers, old, failOnTrimmed="false")
    assert end["commit"] == numbers.refs.resolve("fix") and ("b", "added", 2) not in rows
    assert sorted(read(numbers)[1]) == [("a", "added", 1), ("c", "added", 2), ("d", "added", 2)]
    gone = {**old, "commit": "f" * 64}
    with pytest.raises(NotFound) as refused:
        read(numbers, gone)
    assert (refused.value.kind, refused.value.values["commit"]) == ("changes_trimmed", "f" * 64)


def test_a_map_that_changes_its_columns_stops_the_query(numbers: Pond) -> None:
    fix, stream = numbers.branch("fix"), reader(numbers)
    end, _ = read(numbers)
    fix.alter_map("m", widen={"value": "double"})
    fix.map("m").load([{"key": "b", "value": 2.5}])
    with pytest.raises(Conflict) as refused:
        stream.latestOffset(end, stream.getDefaultReadLimit())
    assert refused.value.kind == "fields_changed"
    stream.stop()
    end, rows = read(numbers, end)
    assert rows == [("b", "added", 2.5)], "started again, it goes on with the columns of now"
    assert read(numbers)[1] == [("a", "added", 1.0), ("b", "added", 2.5)]
    fix.drop_map("m")
    fix.create_map("m", kind="state", value="double").load([{"key": "a", "value": 1.0}])
    end, rows = read(numbers, end)
    assert sorted(rows) == [("a", "added", 1.0), ("a", "removed", 1.0), ("b", "removed", 2.5)]
    fix.drop_map("m")
    fix.create_map("m", kind="state", value="string").load([{"key": "a", "value": "1"}])
    with pytest.raises(Conflict) as refused:
        read(numbers, end)
    assert refused.value.kind == "map_made_anew"
    assert read(numbers)[1] == [("a", "added", "1")]


def test_a_map_that_is_gone_has_no_rows(numbers: Pond) -> None:
    fix, stream = numbers.branch("fix"), reader(numbers)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    fix.drop_map("m")
    gone = stream.latestOffset(end, stream.getDefaultReadLimit())
    assert [row[:3] for row in rows_between(stream, end, gone)] == [("a", "removed", 1)]
    stream.stop()


def test_a_large_change_is_read_in_pieces(numbers: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    fix, stream, count = numbers.branch("fix"), reader(numbers, startingPosition="fix"), 40_000
    fix.map("m").load([{"key": f"k{number}", "value": number} for number in range(count)])
    fix.map("m").load([{"key": f"k{number}", "value": -number} for number in range(0, count, 2)])
    start, end = stream.initialOffset(), {**stream.reportLatestOffset()}
    start["commit"] = numbers.refs.resolve("fix~2")
    whole = rows_between(stream, start, end)
    assert len(whole) == count + count // 2 - 1 and len(whole) < PARTITION_ROWS
    monkeypatch.setattr("millpond.spark.branch_changes.PARTITION_ROWS", 1_000)
    monkeypatch.setattr("millpond.spark.micro_batches.PARTITION_ROWS", 1_000)
    assert len(stream.partitions(start, end)) >= 3, "the first layer has two ranges"
    assert sorted(rows_between(stream, start, end)) == sorted(whole)
    stream.stop()


def test_a_quiet_map_follows_its_branch(numbers: Pond) -> None:
    fix, stream = numbers.branch("fix"), reader(numbers)
    end, _ = read(numbers)
    fix.create_map("other", kind="state", value="long").load([{"key": "x", "value": 1}])
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    clock = stream.clock
    assert isinstance(clock, Clock)
    stream._reported_at, clock.passed = clock.passed, clock.passed + 3600
    assert stream.latestOffset(end, stream.getDefaultReadLimit())["commit"] == numbers.refs.resolve("fix")
    stream.stop()


@pytest.mark.parametrize("kind", ["temporal_state", "ranged_state", "temporal_ranged_state", "session", "histogram"])
def test_maps_of_all_kinds_are_followed(tmp_path: Path, kind: str) -> None:
    keys: dict[str, Any] = {"key_start": 1, "key_end": 5} if "ranged" in kind else {"key": "a"}
    times = {"effective_time": "2026-01-01T00:00Z"} if "temporal" in kind else {}
    if kind == "session":
        times = {"start": "2026-01-01T00:00Z", "end": "2026-01-01T01:00Z"}
    if kind == "histogram":
        times = {"time": "2026-01-01T00:00Z"}
    value = {} if kind in ("session", "histogram") else {"value": 1}
    with millpond.open(tmp_path / "pond") as pond:
        about = {"resolution": "hour"} if kind == "histogram" else {} if kind == "session" else {"value": "long"}
        pond.create_map("m", kind=kind, store="layers", **about).load([{**keys, **times, **value}])
        fix = pond.branch("fix", source="main").map("m")
        end, rows = read_dicts(pond)
        assert [row["_change"] for row in rows] == ["added"]
        assert rows[0].keys() >= {*keys, *times}
        other = {name: 9 if "key_" in name else "b" for name in keys}
        fix.load([{**other, **times, **value}])
        if kind == "histogram":
            fix.load([{**keys, **times}], again=True)
            _, rows = read_dicts(pond, end)
            assert [(row["key"], row["_change"], row["value"]) for row in rows] == [
                ("b", "added", 1),
                ("a", "changed", 2),
            ]
            return
        if value:
            fix.load([{**keys, **times, "value": 2}])
        fix.delete(f"{next(iter(keys))} = {next(iter(other.values()))!r}")
        _, rows = read_dicts(pond, end)
        assert [row["_change"] for row in rows] == ["added", *(["changed"] if value else []), "removed"]


def read_dicts(pond: Pond, start: dict[str, Any] | None = None) -> tuple[Any, list[dict[str, Any]]]:
    stream = reader(pond)
    start = stream.initialOffset() if start is None else start
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts = [rows for part in stream.partitions(start, end) for rows in stream.read(part)]
    stream.stop()
    return end, [row for rows in parts for row in rows.to_pylist()]


def test_what_cannot_be_followed_is_refused(numbers: Pond) -> None:
    numbers.create_map("sharded", kind="state", value="long", store="shard")
    numbers.branch("fix").create_map("taken", kind="state", value="_change long")

    def refused(words: str, act: str = "streamReader", **options: str) -> None:
        with pytest.raises(MillpondError, match=words):
            source = MapSource({"pond": str(numbers.folder), "map": "m"} | options)
            getattr(source, act)(source.schema())

    refused("a state of the past has no changes.*follow a branch", ref="fix")
    refused("a state of the past has no changes", branch="fix", known_at="2026-01-01T00:00Z")
    refused("read as a stream of a branch.*name a branch", changes="true")
    refused("read as a stream of a branch", "reader", branch="fix", changes="true")
    refused("a map with branches is in layers", map="sharded", branch="fix")
    refused("column of the name of one of changes", map="taken", branch="fix", changes="true")
    refused("branch not found", branch="nothing")
    stream = reader(numbers)
    with pytest.raises(Conflict, match="of a stream of main"):
        stream.latestOffset({"pond": numbers.log.pond_id, "position": 1}, stream.getDefaultReadLimit())
    stream.stop()
    with pytest.raises(Invalid):
        reader(numbers, startingPosition="fix~~~~x").initialOffset()
