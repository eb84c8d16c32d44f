"""The story of loads with Spark: progress by the driver, and an end, also of the one that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond import spark as mp
from millpond.clock import SystemClock
from millpond.events.names import OWN_QUEUE
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.following import ticking, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from millpond.client.pond import RemotePond
    from millpond.clock import ManualClock
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(3, of="file")

WAIT_SECONDS = 120.0


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[millpond.Pond]:
    with millpond.open(tmp_path / "pond", events_reports=True) as opened:
        opened.create_map("weather", kind="state", value="double")
        yield opened


def story(pond: millpond.Pond | RemotePond, ends: int = 1) -> list[tuple[str, dict[str, str]]]:
    """The events of the loads so far, once so many have ended."""
    found: list[tuple[str, dict[str, str]]] = []
    clock = SystemClock()
    due = clock.monotonic() + WAIT_SECONDS
    with pond.events.watch(OWN_QUEUE, "load/weather") as watch:
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
            threading.Event().wait(1.2)  # some tasks end while others have not begun

    frame = spark.range(0, 40_000, 1, 6).selectExpr("cast(id as string) key", "double(id) value")
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


def test_the_data_source_tells_of_the_rows_so_far(spark: SparkSession, pond: millpond.Pond) -> None:
    def slow(batches):  # type: ignore[no-untyped-def]
        import threading

        for batch in batches:
            yield batch
            threading.Event().wait(1.2)  # some tasks end while others have not begun

    frame = spark.range(0, 40_000, 1, 6).selectExpr("cast(id as string) key", "double(id) value")
    save(frame.mapInPandas(slow, frame.schema), str(pond.folder))
    found = story(pond)
    progress = [int(headers["rows"]) for kind, headers in found if kind == "progress"]
    assert progress and progress == sorted(progress) and 0 < progress[-1] <= 40_000
    assert [kind for kind, _ in found if kind != "progress"] == ["submitted", "running", "succeeded"]
    assert len({headers["job_id"] for _, headers in found}) == 1
    assert not list((pond.folder / "running").glob("*"))


def save(frame: DataFrame, url: str) -> None:
    frame.write.format("millpond").mode("append").options(pond=url, map="weather").save()


def test_a_load_into_a_node_is_reported_by_its_driver_from_the_first_to_the_last(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock
) -> None:
    frame = spark.range(0, 40_000, 1, 8).selectExpr("cast(id as string) key", "double(id) value")
    url = serve(events_reports=True).url
    with ticking(clock), millpond.open(url, events_reports=True) as remote:
        remote.create_map("weather", kind="state", value="double")

        def slow(batches):  # type: ignore[no-untyped-def]
            import threading

            for batch in batches:
                threading.Event().wait(0.7)  # the driver sees the rows of tasks that have ended
                yield batch

        result = mp.load(frame.mapInPandas(slow, frame.schema), remote, "weather")
        found = story(remote)
        assert [kind for kind, _ in found][:2] == ["submitted", "running"] and found[-1][0] == "succeeded"
        assert [kind for kind, _ in found].count("submitted") == 1, "the node does not report it again"
        assert {headers["job_id"] for _, headers in found} == {result.load}
        progress = [int(headers["rows"]) for kind, headers in found if kind == "progress"]
        assert progress and progress == sorted(progress) and 0 < progress[0] < 40_000
        assert (found[0][1]["by"], found[-1][1]["rows"]) == ("spark", "40000")


def test_the_data_source_reports_to_a_node_over_its_processes(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock
) -> None:
    url = serve(events_reports=True).url
    with ticking(clock), millpond.open(url) as remote:
        remote.create_map("weather", kind="state", value="double")
        save(spark.range(0, 100).selectExpr("cast(id as string) key", "double(id) value"), url)
        with pytest.raises(Exception, match="boom"):
            save(spark.range(0, 10).selectExpr("cast(id as string) key", "double(raise_error('boom')) value"), url)
        found = story(remote, ends=2)
    assert [kind for kind, _ in found] == ["submitted", "running", "succeeded", "submitted", "running", "failed"]
    assert found[2][1]["rows"] == "100" and found[2][1]["job_id"] == found[0][1]["job_id"] != found[3][1]["job_id"]


def test_without_the_right_to_report_the_node_does_it(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock
) -> None:
    rights = {"maps": {"read": ("weather",), "write": ("weather",)}, "all": {"admin": ("*",), "read": ("*",)}}
    tokens = [{"name": name, "sha256": hash_token(name), "rights": granted} for name, granted in rights.items()]
    url = serve(events_reports=True, server_tokens=tokens).url
    frame = spark.range(0, 100).selectExpr("cast(id as string) key", "double(id) value")
    with ticking(clock), millpond.open(url, client_token="all") as remote:
        remote.create_map("weather", kind="state", value="double")
        with millpond.open(url, client_token="maps", events_reports=True) as denied:
            result = mp.load(frame, denied, "weather")
        found = story(remote)
    assert [kind for kind, _ in found] == ["submitted", "succeeded"]
    assert {headers["job_id"] for _, headers in found} == {result.load}


DRIVER = """
import sys, threading
import millpond
from millpond import spark as mp

def slow(batches):
    for batch in batches:
        yield batch
        threading.Event().wait()

session = mp.start("local[1]", app="killed", memory="1g")
frame = session.range(0, 40_000, 1, 1).selectExpr("cast(id as string) key", "double(id) value")
mp.load(frame.mapInPandas(slow, frame.schema), millpond.open(sys.argv[1], events_reports=True), "weather")
"""


@pytest.mark.full
def test_a_driver_that_is_killed_leaves_a_story_with_an_end(serve: Callable[..., Served], clock: ManualClock) -> None:
    node = serve(events_reports=True, limits={"client_silent_ms": 172_800_000}, nodes_intervals={"events": "100d"})
    node.pond.create_map("weather", kind="state", value="double")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, node.url], start_new_session=True)
    try:
        with node.pond.events.watch(OWN_QUEUE, "load/weather") as watch:
            until(lambda: "running" in [event.kind for event in watch.next_batch(SystemClock().monotonic() + 1)])
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    for ended in (0, 1, 0):
        clock.advance(86_400_000)
        run = node.post("/v1/jobs/events/run?wait=30").json()["last"]
        assert run["error"] is None and run["numbers"]["lost"] == ended
    found = story(node.pond)
    assert [kind for kind, _ in found] == ["submitted", "running", "failed"] and found[-1][1]["error"] == "lost"
    assert node.pond.map("weather").info()["rows"] == 0
