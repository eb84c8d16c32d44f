"""The story of loads with Spark: progress by the driver, and an end, also of the one that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond import spark as mp
from millpond.clock import SystemClock
from millpond.events.reports import QUEUE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120.0


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[millpond.Pond]:
    with millpond.open(tmp_path / "pond", events_reports=True) as opened:
        opened.create_map("weather", kind="state", value="double")
        yield opened


def story(pond: millpond.Pond, ends: int = 1) -> list[tuple[str, dict[str, str]]]:
    """The events of the loads so far, once so many have ended."""
    found: list[tuple[str, dict[str, str]]] = []
    clock = SystemClock()
    due = clock.monotonic() + WAIT_SECONDS
    with pond.events.watch(QUEUE, "load/weather") as watch:
        while ends > 0:
            assert clock.monotonic() < due, found
            for event in watch.next_batch(due):
                found.append((event.kind, dict(event.headers)))
                ends -= event.kind in ("succeeded", "failed")
    return found


def test_a_load_tells_of_its_rows_and_its_end(spark: SparkSession, pond: millpond.Pond) -> None:
    def slow(batches):  # type: ignore[no-untyped-def]
        import threading

        for batch in batches:
            yield batch
            threading.Event().wait(1.5)  # a task that takes long enough to be seen at work

    frame = spark.range(0, 40_000, 1, 2).selectExpr("cast(id as string) key", "double(id) value")
    frame = frame.mapInPandas(slow, frame.schema)
    result = mp.load(frame, pond, "weather")
    found = story(pond)
    assert [kind for kind, _ in found][:2] == ["submitted", "running"] and found[-1][0] == "succeeded"
    assert found[0][1]["by"] == "spark" and found[-1][1]["rows"] == str(result.rows) == "40000"
    assert len({headers["job_id"] for _, headers in found}) == 1
    progress = [int(headers["rows"]) for kind, headers in found if kind == "progress"]
    assert progress and progress == sorted(progress) and progress[-1] <= 40_000


def test_a_load_that_fails_says_so(spark: SparkSession, pond: millpond.Pond) -> None:
    frame = spark.range(0, 10).selectExpr("cast(id as string) key", "double(raise_error('boom')) value")
    with pytest.raises(Exception, match="boom"):
        mp.load(frame, pond, "weather")
    found = story(pond)
    assert [kind for kind, _ in found] == ["submitted", "running", "failed"]
    assert "boom" not in found[-1][1]["reason"]


def test_the_data_source_tells_one_story_over_its_processes(spark: SparkSession, pond: millpond.Pond) -> None:
    frame = spark.range(0, 100).selectExpr("cast(id as string) key", "double(id) value")
    frame.write.format("millpond").mode("append").options(pond=str(pond.folder), map="weather").save()
    broken = spark.range(0, 10).selectExpr("cast(id as string) key", "double(raise_error('boom')) value")
    with pytest.raises(Exception, match="boom"):
        broken.write.format("millpond").mode("append").options(pond=str(pond.folder), map="weather").save()
    found = story(pond, ends=2)
    assert [kind for kind, _ in found] == ["submitted", "running", "succeeded", "submitted", "running", "failed"]
    assert found[2][1]["rows"] == "100" and found[2][1]["job_id"] == found[0][1]["job_id"] != found[3][1]["job_id"]
    assert not list((pond.folder / "running").glob("*"))
