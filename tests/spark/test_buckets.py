"""A pond in a bucket by Spark: tasks reach the bucket themselves, and nothing but the bucket is shared."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import millpond
from millpond import ranges
from millpond import spark as mp
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Conflict, Invalid
from millpond.maps.snapshots.layers import fold_layers
from millpond.spark import write_jobs
from millpond.spark.bucket_staging import LEFT_MS, BucketStagingDir, job_name
from millpond.spark.locations import SparkBucket, location_of
from millpond.spark.staging import Entered
from millpond.spark.write_jobs import LoadSettings, load_partition
from millpond.stores.objects import open_objects
from tests.spark.test_cluster import cluster, expected, submit
from tests.spark.test_compaction import SMALL, manifest_of, tasks, three_layers
from tests.spark.test_compaction import layers_of as layers_of_map
from tests.spark.test_layered import counted, writes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from millpond import Pond
    from millpond.maps.layered.share_ranges import ShareRanges, ShareWriter
    from tests.s3_server import S3Server

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def bucket_spark(
    spark: SparkSession, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:  # fmt: skip
    """The session, whose workers have credentials, and a cache of their own."""
    workers = spark.sparkContext.environment
    before = dict(workers)
    workers |= {**s3_server.environment, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    mp.register(spark)
    yield spark
    workers.clear()
    workers |= before
    mp.register(spark)


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3_server.make_bucket(f'spark-{os.getpid()}-{next(_NUMBERS)}')}/pond"


@pytest.fixture
def pond(url: str, tmp_path: Path) -> Iterator[Pond]:
    with opened(url, tmp_path / "driver") as pond:
        yield pond


def opened(url: str, cache: Path) -> Pond:
    pond = millpond.open(url, cache=cache, max_staleness=0)
    assert isinstance(pond, millpond.Pond)
    return pond


def layers_of(pond: Pond, name: str) -> tuple[str, ...]:
    """The ids of the layers of a map, which are digests of their rows."""
    layers = pond.map(name).layers
    assert layers is not None
    manifest = layers.head().manifest
    assert manifest is not None
    return tuple(layer.index for layer in manifest.layers)


def staged(url: str) -> list[str]:
    """The objects of jobs in a pond."""
    return [info.name for info in open_objects(url).list("writer")]


@pytest.mark.full
def test_a_map_is_loaded_read_and_enriched_from(bucket_spark: SparkSession, pond: Pond, url: str) -> None:
    numbers = pond.create_map("numbers", kind="state", value="long")
    where = {"pond": url, "map": "numbers"}
    assert mp.load(counted(bucket_spark, 0, 300), pond, "numbers").rows == 300
    again = bucket_spark.range(250, 400, 1, 2).selectExpr("concat('k', id) as key", "-id as value")
    again.write.format("millpond").options(**where).mode("append").save()
    assert (numbers.info()["rows"], numbers.info()["version"], staged(url)) == (400, 2, [])
    read = bucket_spark.read.format("millpond").options(**where).load()
    assert read.selectExpr("count(*)", "sum(value)").first()[:] == (400, sum(range(250)) - sum(range(250, 400)))
    enriched = mp.enrich(counted(bucket_spark, 249, 251), pond=url, map="numbers", key="key", into="known")
    assert sorted(row["known"] for row in enriched.collect()) == [-250, 249]
    fix = pond.branch("fix", source="main")
    assert mp.load(again.selectExpr("key", "1L as value"), fix, "numbers").rows == 150
    on_branch = bucket_spark.read.format("millpond").options(**where, branch="fix").load()
    assert on_branch.where("value = 1").count() == 151
    known = mp.enrich(
        counted(bucket_spark, 249, 251), pond=pond, map="numbers", key="key", into="n", known_at="2999-01-01T00:00Z"
    )
    assert sorted(row["n"] for row in known.collect()) == [-250, 249]


@pytest.mark.full
def test_streams_write_and_follow_a_map_and_enrich(
    bucket_spark: SparkSession, pond: Pond, url: str, tmp_path: Path
) -> None:
    numbers = pond.create_map("numbers", kind="state", value="long")
    where = {"pond": url, "map": "numbers"}
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text('{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n')
    rows = bucket_spark.readStream.schema("key string, value long").json(str(tmp_path / "rows"))
    sink = rows.writeStream.format("millpond").options(**where, checkpointLocation=str(tmp_path / "sink"))
    enriched = mp.enrich(rows.select("key"), pond=url, map="numbers", key="key", into="n")
    answered = enriched.writeStream.format("memory").queryName("in_a_bucket")
    followed = bucket_spark.readStream.format("millpond").options(**where).load()
    changes = followed.writeStream.format("memory").queryName("changes_of_a_bucket")
    for query in (sink, answered, changes):
        query.trigger(availableNow=True).start().awaitTermination()
    assert (numbers.get("a"), numbers.get("b"), staged(url)) == (1, 2, [])
    assert sorted(row["n"] for row in bucket_spark.sql("select n from in_a_bucket").collect()) == [1, 2]
    assert bucket_spark.sql("select sum(value) from changes_of_a_bucket").first()[0] == 3

    fix = pond.branch("fix", source="main")
    for _ in range(2):
        fix.map("numbers").load([{"key": "b", "value": 7}], again=True)
        to_branch = rows.writeStream.format("millpond").options(**where, branch="fix")
        to_branch = to_branch.option("checkpointLocation", str(tmp_path / "branch")).trigger(availableNow=True)
        to_branch.start().awaitTermination()
        for file in (tmp_path / "branch" / "commits").iterdir():
            file.unlink()  # the epoch runs again
    assert (fix.map("numbers").get("a"), fix.map("numbers").get("b"), staged(url)) == (1, 7, [])
    assert sum("epoch" in commit.metadata for commit in pond.refs.log("fix")) == 1
    fix.map("numbers").delete("key = 'b'")
    on_branch = bucket_spark.readStream.format("millpond").options(**where, branch="fix", changes="true").load()
    for name in ("first", "again"):  # from one checkpoint
        query = on_branch.writeStream.foreachBatch(lambda rows, _: rows.write.mode("append").saveAsTable("changed"))
        query = query.option("checkpointLocation", str(tmp_path / "changed")).trigger(availableNow=True)
        query.start().awaitTermination()
        if name == "first":
            fix.map("numbers").load([{"key": "c", "value": 9}])
    counted_changes = bucket_spark.sql("select _change, count(*), sum(value) from changed group by 1 order by 1")
    assert [tuple(row) for row in counted_changes.collect()] == [
        ("added", 3, 12),
        ("changed", 3, 16),
        ("removed", 1, 7),
    ]


@pytest.mark.full
def test_any_number_of_tasks_makes_the_same_map(
    bucket_spark: SparkSession, pond: Pond, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, tasks = writes(monkeypatch, rows=200), (2, 7, 64)
    for number in tasks:
        pond.create_map(f"by_{number}", kind="temporal_state", value="long")
        frame = bucket_spark.range(0, 1_000, 1, number).selectExpr(
            "concat('k', id % 300) as key", "timestamp_millis(id) as effective_time", "id as value"
        )
        assert mp.load(frame, pond, f"by_{number}").rows == 1_000
    assert len({layers_of(pond, f"by_{number}") for number in tasks}) == 1
    assert min(counts) > 2
    assert staged(url) == []


@pytest.mark.full
def test_any_number_of_tasks_folds_to_the_same_layer(
    bucket_spark: SparkSession, pond: Pond, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges.write, "__defaults__", (SMALL,))
    numbers = pond.create_map("numbers", kind="state", value="long")
    three_layers(numbers)
    manifest = manifest_of(numbers)
    expected = fold_layers(layers_of_map(numbers).objects, manifest, manifest.layers).output
    made = tasks(monkeypatch, 7)
    mp.compact_map(bucket_spark, "numbers", pond=url)
    assert made[0] > 3
    assert manifest_of(numbers).layers == (expected,)
    assert (numbers.get("k99"), numbers.get("none"), numbers.info()["rows"]) == (99, None, 100)


@pytest.mark.full
def test_a_second_stage_that_fails_leaves_nothing_visible(
    bucket_spark: SparkSession, pond: Pond, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(monkeypatch, rows=100)
    numbers = pond.create_map("numbers", kind="state", value="long")
    whole = write_jobs.write_by_tasks

    def damaged(session: SparkSession, writer: ShareWriter) -> list[ShareRanges]:
        open_objects(url).put(writer.files[1].path, b"no rows")
        return whole(session, writer)

    monkeypatch.setattr(write_jobs, "write_by_tasks", damaged)
    with pytest.raises(PySparkException, match="cannot be read"):
        mp.load(counted(bucket_spark, 0, 900), pond, "numbers")
    assert (numbers.info()["rows"], staged(url)) == (0, [])
    monkeypatch.setattr(write_jobs, "write_by_tasks", whole)
    assert mp.load(counted(bucket_spark, 0, 900), pond, "numbers").rows == 900


ROWS = pa.record_batch({"key": ["a", "b"], "value": pa.array([1, 2], pa.int64())})


@pytest.mark.parametrize("lasting", [True, False])
def test_attempts_that_are_late_or_die_leave_nothing(pond: Pond, url: str, lasting: bool) -> None:
    definition = pond.create_map("numbers", kind="state", value="long").definition
    job = BucketStagingDir(open_objects(url), job_name(SystemClock()), lasting)
    if lasting:
        with pytest.raises(Conflict, match="the load is over"):
            load_partition([ROWS], job, definition, LoadSettings())
        job.begin()
    first = load_partition([ROWS], job, definition, LoadSettings())
    [twice] = load_partition([ROWS], replace(job, job=job.job), definition, LoadSettings()).parts

    def rows_of_a_dying_task() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise RuntimeError("killed")

    before = staged(url)
    with pytest.raises(RuntimeError, match="killed"):
        load_partition(
            rows_of_a_dying_task(), replace(job, job=f"{job.job}x", lasting=False), definition, LoadSettings()
        )
    assert staged(url) == before

    def rows_of_a_late_task() -> Iterator[pa.RecordBatch]:
        yield ROWS
        job.enter(pond, first.parts, Entered())
        job.end()

    with pytest.raises(Conflict, match="the load is over"):
        load_partition(rows_of_a_late_task(), job, definition, LoadSettings())
    assert (twice.rows, pond.map("numbers").info()["rows"], staged(url)) == (2, 2, [])


def test_what_killed_jobs_left_goes_after_some_days(pond: Pond, url: str) -> None:
    objects, now = open_objects(url), SystemClock().now_ms()
    old, young = (job_name(ManualClock(at)) for at in (now - LEFT_MS - 1_000, now - 1_000))
    for job in (old, young):
        objects.put(f"writer/{job}/000000-0/0", b"rows")
    job = BucketStagingDir(objects, job_name(SystemClock()))
    job.begin()
    job.end()
    assert staged(url) == [f"writer/{young}/000000-0/0"]


def test_a_place_in_a_bucket_is_named_and_refs_are_only_read(pond: Pond, url: str) -> None:
    assert location_of(pond) == location_of(f"{url}/") == SparkBucket(url)
    assert location_of(pond.branch("fix", source="main"), refs=True) == SparkBucket(url, "fix")
    with pytest.raises(Invalid, match="only read"):
        location_of(url).at(None, "main~1").staging_dir(SystemClock(), 1)


@pytest.mark.full
def test_workers_that_share_only_the_bucket_load_and_enrich(url: str, pond: Pond, tmp_path: Path) -> None:
    pond.create_map("numbers", kind="temporal_state", value="long")
    answer = tmp_path / "answer.json"
    with cluster(tmp_path, apart=True) as cluster_url:
        submit(tmp_path, cluster_url, str(Path(__file__).with_name("cluster_job.py")), url, str(answer))
    assert answer.with_suffix(".failed").exists()
    report = json.loads(answer.read_text())
    assert (report["executors"], report["rows"], len(report["answers"])) == (2, 20_000, 5_000)
    assert [row for row in report["answers"] if not row[2] == row[3] == expected(row[0], row[1])] == []
    assert pond.map("numbers").get("k7", at="2013-01-01T12:00Z") == 19_007
    assert staged(url) == []
    caches = [tmp_path / f"home{number}" / "millpond" / "buckets" for number in range(2)]
    assert all(any(cache.rglob("ranges/*")) for cache in caches)
