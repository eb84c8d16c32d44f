"""A load by Spark is seen whole or not at all, whatever becomes of its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from millpond import spark as mp
from millpond.clock import SystemClock
from millpond.errors import Conflict, Invalid
from millpond.maps.inputs.normalise import normalise
from millpond.spark import write_jobs
from millpond.spark.attempts import Attempt, TaskParts, run_attempt
from millpond.spark.locations import location_of
from millpond.spark.staging import FolderStagingDir
from millpond.spark.write_jobs import LoadSettings, adopt, begin_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from millpond import Map, Pond
    from millpond.spark.staging import StagingDir

pytestmark = pytest.mark.sample(6, of="file")


@pytest.fixture
def numbers(pond: Pond) -> Map:
    return pond.create_map("numbers", kind="state", value="long")


def writer(frame: DataFrame, pond: Pond, **options: object) -> DataFrameWriter:
    parameters = {"pond": str(pond.folder), "map": "numbers"} | {name: str(value) for name, value in options.items()}
    return frame.write.format("millpond").options(**parameters).mode("append")


def counted(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("concat('k', id) as key", "id as value")


def left_behind(pond: Pond) -> list[str]:
    """The files left in the folders that a load passes through: all of `writer`, files of the others."""
    folders = ("parts", "quarantine")
    files = [file for folder in folders for file in (pond.folder / folder).rglob("*") if file.is_file()]
    return sorted(str(file) for file in [*files, *(pond.folder / "writer").rglob("*")])


def test_a_session_of_ours_sends_rows_without_adding_up_their_bytes(spark: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows for batch in batches]})

    rows = spark.range(0, 700, 1, 1).selectExpr("repeat('x', 100000) as value")  # more than the 64 MB of Spark
    assert [row.rows for row in rows.mapInArrow(sizes, "rows long").collect()] == [700]


# -- what happens to tasks ----------------------------------------------------------------------------


def test_a_job_that_fails_half_way_publishes_nothing(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    def fail_in_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Two tasks run at a time: when this one does, others have sealed their parts.
        context = TaskContext.get()
        if context is not None and context.partitionId() == 3:
            raise RuntimeError("the task fails")
        yield from batches

    frame = counted(spark, 400, tasks=4).mapInArrow(fail_in_the_last, "key string, value long")
    with pytest.raises(PySparkException, match="the task fails"):
        writer(frame, pond).save()
    assert numbers.info()["rows"] == 0
    assert left_behind(pond) == []
    with pytest.raises(PySparkException, match="the task fails"):
        mp.load(frame, pond, "numbers")
    assert numbers.info()["rows"] == 0
    assert left_behind(pond) == []


def a_job(pond: Pond, owner: int | None = None) -> StagingDir:
    return begin_job(location_of(pond), SystemClock(), os.getpid() if owner is None else owner)


def an_attempt(numbers: Map, job: StagingDir, task: int, rows: int = 10) -> Callable[[], TaskParts]:
    """An attempt at partition 0 that has begun; call it to let it end."""
    attempt = Attempt(job, 0, task)
    batch = pa.RecordBatch.from_pydict({"key": [f"k{n}" for n in range(rows)], "value": list(range(rows))})

    def take(attempt: Attempt) -> None:
        attempt.take(batch, numbers.definition)

    return lambda: run_attempt(attempt, take)


def test_of_two_attempts_at_a_partition_one_counts(pond: Pond, numbers: Map) -> None:
    job = a_job(pond)
    first, second = an_attempt(numbers, job, 1)(), an_attempt(numbers, job, 2)()
    assert first.parts[0].file != second.parts[0].file
    result = adopt(pond, job, [second], LoadSettings())
    assert (result.rows, result.parts) == (10, 1)
    assert numbers.info()["rows"] == 10
    assert left_behind(pond) == []


def test_an_attempt_that_outlives_its_job_leaves_nothing(pond: Pond, numbers: Map) -> None:
    job = a_job(pond)
    late = an_attempt(numbers, job, 2)
    adopt(pond, job, [an_attempt(numbers, job, 1)()], LoadSettings())
    with pytest.raises(Conflict) as caught:
        late()
    assert caught.value.kind == "load_over"
    assert left_behind(pond) == []


def test_an_attempt_that_fails_leaves_nothing(pond: Pond, numbers: Map) -> None:
    job = a_job(pond)

    def fail(attempt: Attempt) -> None:
        attempt.take(pa.RecordBatch.from_pydict({"key": ["a"], "value": [1]}), numbers.definition)
        attempt.finish()
        raise RuntimeError("cut short")

    with pytest.raises(RuntimeError, match="cut short"):
        run_attempt(Attempt(job, 0, 1), fail)
    assert isinstance(job, FolderStagingDir)
    assert list(job.job.iterdir()) == []
    job.give_up(())
    assert left_behind(pond) == []


def test_a_dead_drivers_leftovers_are_swept(pond: Pond, numbers: Map) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    job = a_job(pond, int(gone.stdout))
    an_attempt(numbers, job, 1)()
    assert left_behind(pond)
    subprocess.run([sys.executable, "-c", _OPEN, str(pond.folder)], check=True)
    assert left_behind(pond) == []


_OPEN = "import sys, millpond\nwith millpond.open(sys.argv[1]) as pond: print(pond.map('numbers').get('k7'))"


# -- what comes in ------------------------------------------------------------------------------------


def test_partitions_come_in_order_and_later_rows_win(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    frame = spark.range(0, 1_000, 1, 5).selectExpr("concat('k', id % 10) as key", "id as value")
    writer(frame, pond).save()
    assert [numbers.get(f"k{n}") for n in range(10)] == list(range(990, 1_000))


def test_another_process_sees_what_was_loaded(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    result = mp.load(counted(spark, 100), pond, "numbers", source="counted")
    assert (result.rows, result.rejected, result.parts, result.maps) == (100, 0, 2, {"numbers": 100})
    process = subprocess.run(
        [sys.executable, "-c", _OPEN, str(pond.folder)], capture_output=True, text=True, check=True
    )
    assert process.stdout == "7\n"


def test_the_same_rows_again_are_one_part_by_default(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    one, other = spark.sql("select 'a' key, 1L value"), spark.sql("select 'a' key, 2L value")
    writer(one, pond, freeze="false").save()
    mp.load(other, pond, "numbers", freeze=False)
    assert mp.load(one, pond, "numbers", freeze=False).duplicate_parts == 1
    assert numbers.get("a") == 2
    writer(one, pond, again="true").save()
    assert numbers.get("a") == 1


def test_a_load_with_an_id_is_entered_once(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    first = mp.load(counted(spark, 10), pond, "numbers", load_id="run_0-1")
    mp.load(counted(spark, 5).selectExpr("key", "value + 100 as value"), pond, "numbers")
    again = mp.load(counted(spark, 10, tasks=3), pond, "numbers", load_id="run_0-1")
    assert (first.load, again.load, again.position) == ("run_0-1", "run_0-1", first.position)
    assert numbers.get("k3") == 103
    mp.load(counted(spark, 10), pond, "numbers", load_id="run_0-2")
    assert numbers.get("k3") == 3, "the rows of a load with another id are new"
    assert [entry.body["load"] for entry in pond.log.entries(0) if entry.kind == "load"][::2] == ["run_0-1", "run_0-2"]
    assert left_behind(pond) == []


def test_columns_are_mapped(spark: SparkSession, pond: Pond) -> None:
    pond.create_map("numbers", kind="temporal_state", value="temp double, gusts double")
    frame = spark.sql("select 'JFK' origin, timestamp '2013-01-01 05:00:00' hour, 39.5D air, 12D gusts")
    writer(frame, pond, key="origin", time="hour", value="temp=air, gusts").save()
    assert pond.map("numbers").get("JFK", at="2013-01-01T06:00Z") == {"temp": 39.5, "gusts": 12.0}


def test_rejects_are_written_down(spark: SparkSession, pond: Pond, numbers: Map, tmp_path: Path) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id % 10 = 3, null, concat('k', id)) as key", "id as value")
    with pytest.raises(PySparkException, match="10 rows cannot be stored"):
        writer(frame, pond, rejects=tmp_path / "rejects.jsonl").save()
    assert numbers.info()["rows"] == 0
    assert left_behind(pond) == []

    result = mp.load(frame, pond, "numbers", max_rejects=10, rejects=tmp_path / "rejects.jsonl")
    assert (result.rows, result.rejected) == (90, 10)
    rejected = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["source"], reject["row"], reject["record"]["value"]) for reject in rejected] == [
        (f"partition {n // 50}", n % 50, n) for n in range(3, 100, 10)
    ]
    assert {reject["reason"] for reject in rejected} == {"key is missing"}


def test_an_attempt_stops_when_there_is_no_hope(pond: Pond, numbers: Map) -> None:
    job = a_job(pond)
    attempt = Attempt(job, 0, 1, enough=2)
    batch = pa.RecordBatch.from_pydict({"key": [None, "a", None, None], "value": [1, 2, 3, 4]})
    attempt.take(batch, numbers.definition)
    assert attempt.hopeless
    task_parts = attempt.finish()
    assert (task_parts.parts, task_parts.rejected) == ((), 3)
    with pytest.raises(Invalid) as caught:
        adopt(pond, job, [task_parts], LoadSettings(max_rejects=2))
    assert caught.value.kind == "too_many_rejects"
    assert left_behind(pond) == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("select 'a' name, 1L value", {}, "no such column"),
    ("select 'a' key, 1L value", {"map": "numbres"}, "no such map"),
    ("select 'a' key, 1L value", {"max_reject": 3}, "no such option"),
    ("select 'a' key, 1L value", {"max_rejects": "some"}, "not a whole number"),
    ("select 'a' key, 1L value", {"freeze": "maybe"}, "true or false"),
    ("select 'a' key, map(1, 2) value", {}, "value"),
]


@pytest.mark.parametrize(("query", "options", "said"), WRONG)
def test_what_cannot_work_is_refused_before_any_task(
    spark: SparkSession, pond: Pond, numbers: Map, query: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        writer(spark.sql(query), pond, **options).save()
    assert numbers.info()["rows"] == 0
    assert left_behind(pond) == []


def test_a_map_is_not_overwritten(spark: SparkSession, pond: Pond, numbers: Map) -> None:
    with pytest.raises(PySparkException, match="merged into a map"):
        writer(counted(spark, 1), pond).mode("overwrite").save()
    assert numbers.info()["rows"] == 0


def test_rows_without_a_zone_are_refused(spark: SparkSession, pond: Pond) -> None:
    pond.create_map("numbers", kind="temporal_state", value="long")
    frame = spark.sql("select 'a' key, timestamp_ntz '2013-01-01 05:00:00' effective_time, 1L value")
    for times in (frame, frame.withColumn("effective_time", frame.effective_time.cast("date"))):
        with pytest.raises(PySparkException, match="cast the column to timestamp"):
            writer(times, pond).save()
    assert left_behind(pond) == []


def test_the_check_before_the_tasks_is_that_of_the_tasks(numbers: Map) -> None:
    batch = pa.RecordBatch.from_pydict({"name": ["a"], "value": [1]})
    with pytest.raises(Invalid):
        normalise(batch, numbers.definition, None)


def test_the_seconds_of_a_load_count_from_its_call(
    spark: SparkSession, pond: Pond, numbers: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(SystemClock):
        later = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.later

    run = write_jobs._run

    def run_slowly(*given: Any) -> list[TaskParts]:
        tasks = run(*given)
        Clock.later = 200
        return tasks

    monkeypatch.setattr(write_jobs, "SystemClock", Clock)
    monkeypatch.setattr(write_jobs, "_run", run_slowly)
    assert mp.load(counted(spark, 3), pond, "numbers").seconds >= 200
