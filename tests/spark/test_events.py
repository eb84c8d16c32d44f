"""`format("millpond.events")`: reading, appending, following, and maintenance as jobs, on a real pond."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond import spark as mp
from millpond.errors import Invalid
from millpond.events.days import DAY_MS, format_day
from millpond.events.event import NewEvent
from millpond.events.ids import id_time_ms
from millpond.events.index import State
from millpond.spark.events import plan
from millpond.spark.events.columns import form_of
from tests.spark.test_loads import left_behind

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.sample(2, of="file")


DAY = 20_000
SCHEMA = "queue string, job_set string, time timestamp, kind string, payload string, headers map<string,string>"


def filled(pond: millpond.Pond, job_set: str = "nightly", days: int = 3, events: int = 5) -> None:
    for day in range(DAY, DAY + days):
        some = [
            NewEvent(day * DAY_MS + n, f"{job_set} {day} {n}".encode(), "running", {"job_id": str(n)} if n % 2 else {})
            for n in range(events)
        ]
        pond.events.append("etl", job_set, some)


def stored(pond: millpond.Pond, job_set: str = "nightly") -> list[tuple[Any, ...]]:
    return [
        (event.id, event.time_ms, event.kind, event.payload, dict(event.headers))
        for event in pond.events.read("etl", job_set)
    ]


def shown(frame: DataFrame, job_set: str = "nightly") -> list[tuple[Any, ...]]:
    rows = [row for row in frame.collect() if row.job_set == job_set]
    zone = datetime.UTC
    return sorted(
        (row.id, round(row.time.replace(tzinfo=zone).timestamp() * 1_000), row.kind, bytes(row.payload), row.headers)
        for row in rows
    )


def reading(spark: SparkSession, pond: millpond.Pond, **options: object) -> DataFrame:
    reader = spark.read.format("millpond.events").option("pond", str(pond.folder))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def rows_of(spark: SparkSession, count: int, job_sets: int = 1, start: int = 0) -> DataFrame:
    at = datetime.datetime(2024, 10, 4, tzinfo=datetime.UTC)
    rows = [
        ("etl", f"set {n % job_sets}", at + datetime.timedelta(milliseconds=n), "running", f"event {n}", {"n": str(n)})
        for n in range(start, start + count)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def test_a_read_is_what_the_streams_hold_before_and_after_compression(
    spark: SparkSession, pond: millpond.Pond, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(pond)
    filled(pond, "other", days=1)
    monkeypatch.setattr(plan, "TASK_BYTES", 200)
    before = shown(reading(spark, pond))
    assert before == stored(pond)
    pond.events.compress("1d")
    assert {state for _, state in pond.events.index("etl", "nightly").days()} == {State.COMPRESSED}  # type: ignore[union-attr]
    assert shown(reading(spark, pond)) == before
    assert shown(reading(spark, pond, queue="etl", job_set="other"), "other") == stored(pond, "other")
    assert reading(spark, pond, queue="none").count() == 0
    days = [row.day.isoformat() for row in reading(spark, pond, job_set="nightly", columns="day").collect()]
    assert sorted(set(days)) == [format_day(day) for day in range(DAY, DAY + 3)]


def test_options_and_filters_pick_days_ids_and_streams(spark: SparkSession, pond: millpond.Pond) -> None:
    filled(pond)
    filled(pond, "other")
    ids = [row[0] for row in stored(pond)]
    day = format_day(DAY + 1)
    assert [row[0] for row in shown(reading(spark, pond, job_set="nightly", day=day))] == ids[5:10]
    assert [row[0] for row in shown(reading(spark, pond, job_set="nightly", after=ids[3], until=ids[6]))] == ids[4:7]
    assert [row[0] for row in shown(reading(spark, pond, from_day=day, to_day=day))] == ids[5:10]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, wanted in (
            (f"queue = 'etl' and job_set in ('nightly', 'x') and day = date '{day}'", ids[5:10]),
            (f"job_set = 'nightly' and id > '{ids[2]}' and id <= '{ids[4]}'", ids[3:5]),
            (f"job_set = 'nightly' and day >= date '{day}' and id < 'zzz' and kind = 'running'", ids[5:]),
            (f"job_set = 'nightly' and day < date '{day}' and payload is not null", ids[:5]),
        ):
            frame = reading(spark, pond, pushdown="true").where(condition)
            assert [row[0] for row in shown(frame)] == wanted, condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_exported_file_is_read(spark: SparkSession, pond: millpond.Pond, tmp_path: Path) -> None:
    filled(pond)
    pond.events.compress("1d")
    filled(pond, "other/÷", days=1)
    assert pond.events.export(tmp_path / "etl.parquet").events == 20
    frame = spark.read.parquet(str(tmp_path / "etl.parquet"))
    for job_set in ("nightly", "other/÷"):
        assert shown(frame, job_set) == stored(pond, job_set)
    job = frame.where(f"queue = 'etl' and day = date '{format_day(DAY + 1)}' and headers['job_id'] = '1'")
    assert [(row.job, bytes(row.payload)) for row in job.collect()] == [("1", b"nightly 20001 1")]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_an_exported_file_has_types_of_spark_and_the_same_instants_in_every_zone(
    spark: SparkSession, pond: millpond.Pond, tmp_path: Path, zone: str
) -> None:
    times = [DAY * DAY_MS + 1, DAY * DAY_MS + DAY_MS - 1, -1]
    pond.events.append(
        "etl", "nightly", [NewEvent(at, b"\xff\x00", "running", {"job_id": "7"} if at > 0 else {}) for at in times]
    )
    pond.events.export(tmp_path / "etl.parquet")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.read.parquet(str(tmp_path / "etl.parquet"))
        assert dict(frame.dtypes) == {
            "queue": "string", "job_set": "string", "id": "string", "day": "date", "appended": "timestamp",
            "time": "timestamp", "kind": "string", "job": "string", "payload": "binary",
            "headers": "map<string,string>",
        }  # fmt: skip
        rows = frame.selectExpr(
            "id", "unix_micros(time) as time", "unix_micros(appended) as appended", "cast(day as string) as day", "job",
            "hex(payload) as payload",
        ).collect()  # fmt: skip
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    events = list(pond.events.read("etl", "nightly"))
    assert [(row.id, row.time) for row in rows] == [(event.id, event.time_ms * 1_000) for event in events]
    assert [row.appended for row in rows] == [id_time_ms(event.number) * 1_000 for event in events]
    assert [(row.day, row.job, row.payload) for row in rows] == [
        (format_day(DAY), "7", "FF00"), (format_day(DAY), "7", "FF00"), (format_day(DAY), None, "FF00"),
    ]  # fmt: skip


def test_a_batch_is_appended_once_where_its_source_has_a_name(spark: SparkSession, pond: millpond.Pond) -> None:
    frame = rows_of(spark, 50, job_sets=3)
    for partitions in (2, 5):
        writing = frame.repartition(partitions).write.format("millpond.events").option("pond", str(pond.folder))
        writing.option("source", "load-7").mode("append").save()
    found = [event for name in pond.events.streams("etl") for event in pond.events.read(*name)]
    assert sorted(event.payload for event in found) == sorted(f"event {n}".encode() for n in range(50))
    assert found[1].headers == {"n": found[1].payload.decode().split()[1]}
    assert [event.time_ms for event in pond.events.read("etl", "set 0")] == sorted(
        event.time_ms for event in pond.events.read("etl", "set 0")
    )
    assert left_behind(pond) == []


def test_rows_that_are_no_events_are_refused_with_a_reason(spark: SparkSession, pond: millpond.Pond) -> None:
    frame = rows_of(spark, 2)
    for wrong, words in (
        (frame.drop("time"), "a column is missing.*time"),
        (frame.drop("queue"), r"a column is missing.*option\('queue'"),
        (frame.withColumn("extra", frame.kind), "no such column.*extra"),
        (frame.withColumn("time", frame.payload), "another type.*time"),
        (frame.withColumn("topic", frame.payload), "come together.*topic"),
    ):
        with pytest.raises(Invalid, match=words):
            form_of(wrong.schema, None, None)
    nameless = frame.selectExpr("nullif(queue, 'etl') queue", "job_set", "time", "payload")
    for rows, mode, words in ((nameless, "append", "null.*queue"), (frame, "overwrite", r"mode\('append'\)")):
        with pytest.raises(Exception, match=words):
            rows.write.format("millpond.events").option("pond", str(pond.folder)).mode(mode).save()
    with pytest.raises(Exception, match="did you mean 'job_set'"):
        reading(spark, pond, jobset="x")
    assert list(pond.events.streams()) == []
    assert left_behind(pond) == []


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for part in range(3):
        rows_of(spark, 20, job_sets=2, start=20 * part).coalesce(1).write.mode("append").parquet(str(folder))
    return folder


def test_a_stream_of_rows_is_appended_and_read_as_a_stream(
    spark: SparkSession, pond: millpond.Pond, source: Path, tmp_path: Path
) -> None:
    def append() -> None:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)).repartition(2)
        query = rows.writeStream.format("millpond.events").option("pond", str(pond.folder)).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "appending")).start().awaitTermination()

    def follow() -> list[int]:
        """Follow the streams to their end; the sizes of the micro-batches."""
        reader = spark.readStream.format("millpond.events").option("pond", str(pond.folder))
        frame = reader.option("queue", "etl").option("maxEventsPerTrigger", 7).load()
        query = frame.writeStream.format("parquet").option("path", str(tmp_path / "followed"))
        query = query.option("checkpointLocation", str(tmp_path / "following")).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        return [progress.numInputRows for progress in running.recentProgress if progress.numInputRows]

    append()
    append()
    sizes = follow()
    assert sum(sizes) == 60 and max(sizes) <= 8
    pond.events.compress("1d")
    pond.events.append("etl", "set 1", [b"new", b"newer"])
    pond.events.append("etl", "set 2", [b"first"])
    assert sum(follow()) == 3
    frame = spark.read.parquet(str(tmp_path / "followed"))
    for name in pond.events.streams():
        assert shown(frame, name.job_set) == stored(pond, name.job_set)
    assert len({row.id + row.job_set for row in frame.collect()}) == 63
    assert left_behind(pond) == []


def test_a_query_meets_events_that_have_expired(spark: SparkSession, pond: millpond.Pond, tmp_path: Path) -> None:
    def follow(fail: str) -> int:
        reader = spark.readStream.format("millpond.events").option("pond", str(pond.folder))
        frame = reader.option("queue", "etl").option("failOnExpired", fail).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        return sum(progress.numInputRows for progress in running.recentProgress)

    filled(pond, days=1)
    assert follow("true") == 5
    for day in (DAY + 1, DAY + 2):
        pond.events.append("etl", "nightly", [NewEvent(day * DAY_MS, b"later")])
    pond.events.store.expire(next(pond.events.streams()), DAY + 1)
    with pytest.raises(Exception, match="events that come next have expired"):
        follow("true")
    assert follow("false") == 1


def test_many_job_sets_are_compressed_and_dropped_by_executors(spark: SparkSession, pond: millpond.Pond) -> None:
    for number in range(12):
        filled(pond, f"set {number}")
    before = {name: stored(pond, name.job_set) for name in pond.events.streams()}
    report = mp.compress_events(spark, "1d", pond=pond)
    assert (report.streams, report.days, report.failed) == (12, 36, 0)
    assert {name: stored(pond, name.job_set) for name in pond.events.streams()} == before
    for name in before:
        assert {state for _, state in pond.events.index(*name).days()} == {State.COMPRESSED}  # type: ignore[union-attr]
    assert mp.compress_events(spark, "1d", pond=pond).streams == 0
    assert not pond.verify().problems
    report = mp.expire_events(spark, "1d", pond=pond)
    assert report.events == 12 * 15
    assert all(stored(pond, name.job_set) == [] for name in before)
