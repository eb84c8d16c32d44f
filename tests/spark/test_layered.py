"""Layered maps by Spark: a job loads one, and reads and enriches from it, as any map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from millpond import spark as mp
from millpond.errors import Invalid
from millpond.maps.layered import share_ranges
from millpond.spark import files, write_jobs
from millpond.spark.layer_tasks import write_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond
    from millpond.maps.layered.share_ranges import ShareRanges, ShareWriter


pytestmark = pytest.mark.sample(3, of="file")


def counted(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("concat('k', id) as key", "id as value")


def test_a_layered_map_is_loaded_read_and_enriched_from(spark: SparkSession, pond: Pond) -> None:
    layered = pond.create_map("numbers", kind="state", value="long", store="layers")
    where = {"pond": str(pond.folder), "map": "numbers"}
    assert mp.load(counted(spark, 0, 300), pond, "numbers").rows == 300
    again = spark.range(250, 400, 1, 2).selectExpr("concat('k', id) as key", "-id as value")
    again.write.format("millpond").options(**where).mode("append").save()
    assert (layered.info()["rows"], layered.info()["version"]) == (400, 2)
    read = spark.read.format("millpond").options(**where).load()
    assert read.selectExpr("count(*)", "sum(value)").first()[:] == (400, sum(range(250)) - sum(range(250, 400)))
    assert read.where("key = 'k260'").collect()[0]["value"] == -260
    enriched = mp.enrich(counted(spark, 249, 251), pond=pond, map="numbers", key="key", into="known")
    assert sorted(row["known"] for row in enriched.collect()) == [-250, 249]


def writes(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[int]:
    """Let a task of the second stage write so many rows; the numbers of stretches that were written by tasks."""
    monkeypatch.setattr(share_ranges, "TASK_ROWS_MIN", rows)
    monkeypatch.setattr(share_ranges, "TASK_ROWS_MAX", rows)
    counts: list[int] = []

    def write(session: SparkSession, writer: ShareWriter) -> list[ShareRanges]:
        written = write_by_tasks(session, writer)
        counts.append(len(written))
        return written

    for module in (files, write_jobs):
        monkeypatch.setattr(module, "write_by_tasks", write)
    return counts


def test_many_rows_are_written_by_tasks_of_a_second_stage(
    spark: SparkSession, pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = writes(monkeypatch, rows=100)
    layered = pond.create_map("numbers", kind="state", value="long", store="layers")
    for number, first in enumerate((0, 200)):
        lines = "".join(f"k{n},{n + number}\n" for n in range(first, first + 400))
        (tmp_path / f"{number}.csv").write_text("key,value\n" + lines + "k1,none\n")
    loaded = mp.load([tmp_path / "0.csv", tmp_path / "1.csv"], pond, "numbers", max_rejects=2)
    assert (loaded.rows, loaded.rejected) == (600, 2)
    rows = {row["key"]: row["value"] for row in layered.scan().read_all().to_pylist()}
    assert rows == {f"k{n}": n + (n >= 200) for n in range(600)}
    first = pond.create_map("first", kind="state", value="long", store="layers", overwrite=False)
    frame = spark.range(0, 800, 1, 4).selectExpr("concat('k', id % 500) as key", "id as value")
    assert mp.load(frame, pond, "first").rows == 500
    assert mp.load(frame.selectExpr("key", "-value as value"), pond, "first").rows == 500
    assert {row["key"]: row["value"] for row in first.scan().read_all().to_pylist()} == {
        f"k{n}": n for n in range(500)
    }  # fmt: skip
    assert min(counts) > 2
    assert list((pond.folder / "writer").iterdir()) == []


def test_a_second_stage_that_fails_leaves_nothing(
    spark: SparkSession, pond: Pond, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = writes(monkeypatch, rows=100)
    layered = pond.create_map("numbers", kind="state", value="long", store="layers")
    whole = write_jobs.write_by_tasks

    def damaged(session: SparkSession, writer: ShareWriter) -> list[ShareRanges]:
        Path(writer.files[1].path).write_bytes(b"")
        return whole(session, writer)

    monkeypatch.setattr(write_jobs, "write_by_tasks", damaged)
    with pytest.raises(PySparkException, match="cannot be read"):
        mp.load(counted(spark, 0, 900), pond, "numbers")
    assert (layered.info()["rows"], list((pond.folder / "writer").iterdir()), counts) == (0, [], [])
    layered.compact()
    assert layered.layers is not None
    assert list(layered.layers.objects.list("ranges")) == []
    monkeypatch.setattr(write_jobs, "write_by_tasks", whole)
    assert mp.load(counted(spark, 0, 900), pond, "numbers").rows == 900


def test_fields_change_under_loads_and_readers_and_columns_that_are_lacking_are_told(
    spark: SparkSession, pond: Pond, tmp_path: Path
) -> None:
    layered = pond.create_map("numbers", kind="state", value="n long", store="layers")
    rows = spark.range(0, 9, 1, 2).selectExpr("concat('k', id) as key", "id as n")
    where = {"pond": str(pond.folder), "map": "numbers"}
    assert mp.load(rows, pond, "numbers").rows == 9
    pond.alter_map("numbers", add={"note": "string"}, default={"note": "-"}, widen={"n": "double"})
    read = spark.read.format("millpond").options(**where).load()
    assert read.where("n = 8").collect()[0].asDict() == {"key": "k8", "n": 8.0, "note": "-"}
    enriched = mp.enrich(rows.select("key"), pond=pond, map="numbers", key="key", into="m")
    assert {row["m"]["note"] for row in enriched.collect()} == {"-"}
    wide = rows.selectExpr("key", "cast(n as double) as n", "'x' as note", "true as odd")
    with pytest.raises(Invalid, match="columns=odd"):
        mp.load(wide, pond, "numbers")
    with pytest.raises(PySparkException, match="columns=odd"):
        wide.write.format("millpond").options(**where).mode("append").save()
    wide.write.format("millpond").options(**where, extra="ignore").mode("append").save()
    assert layered.get("k8") == {"n": 8.0, "note": "x"}
    wide.write.format("millpond").options(**where, extra="add", again="true").mode("append").save()
    assert layered.get("k8") == {"n": 8.0, "note": "x", "odd": True}
    wider = wide.selectExpr("*", "1 as one")
    wider.write.parquet(str(tmp_path / "wider"))
    stream = spark.readStream.schema(wider.schema).parquet(str(tmp_path / "wider"))
    query = stream.writeStream.format("millpond").options(
        **where, extra="add", checkpointLocation=str(tmp_path / "checkpoint")
    )  # fmt: skip
    query.trigger(availableNow=True).start().awaitTermination()
    assert layered.get("k8") == {"n": 8.0, "note": "x", "odd": True, "one": 1}
    result = mp.load([tmp_path / "wider"], pond, "numbers", extra="add")
    assert result.rows == 9
    fix = pond.branch("fix", source="main")
    mp.load(wider.selectExpr("*", "2 as two"), pond, "numbers", branch="fix", extra="add")
    more = wider.selectExpr("key", "cast(7 as double) as n", "note", "odd", "one", "2 as two", "3 as three")
    more.write.format("millpond").options(**where, branch="fix", extra="add").mode("append").save()
    assert fix.map("numbers").get("k8") == {"n": 7.0, "note": "x", "odd": True, "one": 1, "two": 2, "three": 3}
    assert layered.get("k8") == {"n": 8.0, "note": "x", "odd": True, "one": 1}
    fix.merge("main")
    assert pond.map("numbers").get("k8") == fix.map("numbers").get("k8")


def test_branches_and_refs_are_read_and_asked(spark: SparkSession, pond: Pond, tmp_path: Path) -> None:
    numbers = pond.create_map("numbers", kind="state", value="long", store="layers")
    numbers.load([{"key": "a", "value": 1}])
    first = pond.refs.states.record().id
    fix = pond.branch("fix", source="main")
    fix.map("numbers").load([{"key": "a", "value": 2}])
    numbers.load([{"key": "a", "value": 3}])

    def read(**at: str) -> list[int]:
        options = {"pond": str(pond.folder), "map": "numbers"} | at
        return [row["value"] for row in spark.read.format("millpond").options(**options).load().collect()]

    assert (read(), read(branch="fix"), read(branch="main"), read(ref=first)) == ([3], [2], [3], [1])
    events = spark.createDataFrame([("a",)], "key string")

    def answer(**at: object) -> int | None:
        (row,) = mp.enrich(events, **{"pond": pond, "map": "numbers", "key": "key", "into": "n"} | at).collect()
        return row["n"]

    assert (answer(), answer(branch="fix"), answer(ref="main~1"), answer(pond=fix)) == (3, 2, 1, 2)
    (tmp_path / "events").mkdir()
    stream = spark.readStream.schema("key string").json(str(tmp_path / "events"))
    query = mp.enrich(stream, pond=pond, map="numbers", key="key", into="n", branch="fix").writeStream
    query = query.format("memory").queryName("of_a_branch").start()
    for count, value in enumerate((4, 5), 1):
        fix.map("numbers").load([{"key": "a", "value": value}])
        (tmp_path / "events" / f"{count}.json").write_text('{"key": "a"}')
        query.processAllAvailable()
    query.stop()
    assert sorted(row["n"] for row in spark.sql("select n from of_a_branch").collect()) == [4, 5]
    for at, kind in (({"known_at": "2026-01-01T00:00:00Z"}, "nothing_known"), ({"ref": "main"}, "ref_twice")):
        with pytest.raises(Invalid) as error:
            answer(branch="fix", **at)
        assert error.value.kind == kind


def test_rows_of_a_map_that_keeps_update_times_are_as_old_as_their_loads(
    spark: SparkSession, pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = writes(monkeypatch, rows=100)
    layered = pond.create_map("numbers", kind="state", value="long", retain="10y", store="layers")
    where = {"pond": str(pond.folder), "map": "numbers"}
    assert mp.load(counted(spark, 0, 300), pond, "numbers").rows == 300
    assert max(counts) > 1, "several tasks wrote"
    counted(spark, 200, 400).write.format("millpond").options(**where).mode("append").save()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text('{"key": "k0", "value": -1}\n{"key": "k500", "value": 500}\n')
    sink = spark.readStream.schema("key string, value long").json(str(tmp_path / "rows")).writeStream
    options = {**where, "checkpointLocation": str(tmp_path / "checkpoint")}
    sink.format("millpond").options(**options).trigger(availableNow=True).start().awaitTermination()
    changes = layered.rows.past.changes()
    moments = [change.moment_ms for change in changes]
    assert [change.rows for change in changes] == [300, 200, 2]
    assert layered.freeze().updates
    events = ", ".join(f"('k0', timestamp_millis({moment}))" for moment in moments)
    frame = spark.sql(f"select * from values {events} as events(key, moment)")
    enriched = mp.enrich(frame, pond=pond, map="numbers", key="key", into="n", known_at="moment")
    for moment, removed in ((moments[0], 199), (moments[1], 200)):
        assert sorted(row["n"] for row in enriched.collect()) == [-1, 0, 0]
        assert layered.retain(before=moment + 1).rows_removed == removed
    assert {row["key"]: row["value"] for row in layered.scan().read_all().to_pylist()} == {"k0": -1, "k500": 500}
    now = mp.enrich(counted(spark, 0, 2), pond=pond, map="numbers", key="key", into="n").collect()
    assert {row["key"]: row["n"] for row in now} == {"k0": -1, "k1": None}
