"""The driver of Spark: a process that may be lost, and jobs of one key that are one job."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from millpond.clock import SystemClock
from millpond.errors import Closed, Invalid, NotFound, Unavailable
from millpond.pipelines.attempt_logs import AttemptLog, collecting
from millpond.pipelines.driver import CANCELLED_MAX, SparkDriver
from millpond.pipelines.driver_lines import began_of
from millpond.pipelines.driver_process import _classify_error
from tests.harness.proof.killer import children
from tests.spark.connect_server import connect_server
from tests.workflows.test_client import wait_for

pytestmark = pytest.mark.usefixtures("spark_process")


ORPHAN_SECONDS = 4
SLOW = "select sum(id % 7) as a from range(100000000000000)"


@pytest.fixture(scope="module")
def driver() -> Iterator[SparkDriver]:
    made = SparkDriver("local[1]")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MILLPOND_DRIVER_SECONDS", str(ORPHAN_SECONDS))
        yield made
    made.close()


def process_of(driver: SparkDriver) -> int | None:
    line = driver._line
    return None if line is None else line.process.pid


def counting(sql: str) -> dict[str, Any]:
    return {"pond": "nowhere", "map": "none", "rows": {"sql": sql}, "rules": {"rows_min": 1}}


def reading(sql: str) -> dict[str, Any]:
    """A check that needs the column `a` of each row."""
    return counting(sql) | {"rules": {"columns": {"a": {"null_share_max": 1.0}}}}


def passed(driver: SparkDriver, key: str) -> bool:
    try:
        return bool(driver.run(key, "check", counting("select 1 as a"))["passed"])
    finally:
        driver.forget(key)


def test_errors_of_jobs_are_those_of_millpond_and_leave_the_driver(driver: SparkDriver) -> None:
    assert passed(driver, "first")
    process = process_of(driver)
    with pytest.raises(Invalid, match="nowhere_at_all"):
        driver.run("second", "check", counting("select * from nowhere_at_all"))
    with pytest.raises(Invalid, match="rows_mim"):
        driver.run("third", "check", counting("select 1") | {"rules": {"rows_mim": 1}})
    assert passed(driver, "fourth")
    assert process_of(driver) == process


SAYING = """
from millpond.pipelines import pipeline, spark


def said(session):
    print("said by the driver")
    return session.range(3).count()


@pipeline
def speaks():
    spark(said)
"""


def test_what_the_driver_writes_is_in_the_log_of_its_attempt_alone(driver: SparkDriver) -> None:
    log, other = AttemptLog(), AttemptLog()
    arguments = {"pond": "nowhere", "program": {"file": "speaks.py", "source": SAYING}, "pipeline": "speaks",
                 "step": "said", "arguments": []}  # fmt: skip
    with collecting(log):
        assert driver.run("saying", "function", arguments) == {"value": 3}
    with collecting(other):
        assert passed(driver, "silent")
    assert "said by the driver\n" in log.text() and "said" not in other.text()


HOLDING = """
from pathlib import Path
from threading import Event

from millpond.pipelines import pipeline, spark


def holding(session, folder):
    folder = Path(folder)
    with (folder / "begun").open("a") as begun:
        begun.write(session.sparkContext.applicationId + "\\n")
    while not (folder / "go").exists():
        Event().wait(0.05)
    return session.range(7).count()


@pipeline
def waits(folder: str):
    spark(holding, folder)
"""


def holding(folder: Path) -> dict[str, Any]:
    return {"pond": "nowhere", "program": {"file": "waits.py", "source": HOLDING}, "pipeline": "waits",
            "step": "holding", "arguments": [str(folder)]}  # fmt: skip


def gone(driver: SparkDriver) -> subprocess.Popen[bytes]:
    """The driver's process, which has no worker any more: as if that had been killed."""
    line = driver._line
    assert line is not None and line.process.popen is not None
    process, line.process.popen, line.process.began = line.process.popen, None, ""
    line.connection.shutdown(socket.SHUT_RDWR)
    return process


@pytest.mark.sample(1)
@pytest.mark.parametrize("worker", ["slow", "gone"])
def test_a_job_is_taken_over_by_another_worker(driver: SparkDriver, tmp_path: Path, worker: str) -> None:
    assert passed(driver, "before it is taken")
    place, key = driver.location(), f"taken from a {worker} one"
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(driver.run, key, "function", holding(tmp_path))
        wait_for((tmp_path / "begun").exists)
        process = gone(driver) if worker == "gone" else None
        other = SparkDriver.again(place, "local[1]")
        assert other is not None and process_of(other) == place["pid"] and place["application"]
        second = threads.submit(other.run, key, "function", holding(tmp_path), again=True)
        assert getattr(first.exception(30), "kind", None) == ("driver_lost" if worker == "gone" else "driver_taken")
        if worker == "slow":
            assert not driver.cancel(key), "it is another one's job now"
        (tmp_path / "go").touch()
        assert second.result(30) == {"value": 7}
        assert other.run(key, "function", holding(tmp_path)) == {"value": 7}, "kept until it is to be forgotten"
    other.forget(key)
    assert len((tmp_path / "begun").read_text().splitlines()) == 1
    process = process or gone(driver)
    driver._end(kills=False)
    driver._line, other._line = other._line, None  # the tests after this one need no other JVM
    assert driver._line is not None
    driver._line.process.popen = process
    assert passed(driver, "after it was taken") and process_of(driver) == place["pid"]


def test_a_job_that_the_driver_has_no_more_is_not_begun_again(driver: SparkDriver) -> None:
    assert passed(driver, "over")
    for key in ("over", "never"):
        with pytest.raises(NotFound, match="no such job"):
            driver.run(key, "check", counting("select 1 as a"), again=True)
    assert passed(driver, "over")


def test_a_driver_that_a_checkpoint_names_is_the_same_process_on_this_machine(driver: SparkDriver) -> None:
    assert passed(driver, "named")
    place = driver.location()
    for changed in ({"host": "elsewhere"}, {"began": "1"}, {"folder": "nothing"}, {"folder": "../x"}, {"pid": 1}):
        assert SparkDriver.again({**place, **changed}, "local[1]") is None


def test_a_driver_without_a_worker_ends_after_a_time(driver: SparkDriver, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(driver.run, "orphan", "function", holding(tmp_path))
        wait_for((tmp_path / "begun").exists)
        place, clock = driver.location(), SystemClock()
        began, process = clock.monotonic(), gone(driver)
        assert isinstance(lost.exception(30), Unavailable)
    wait_for(lambda: began_of(place["pid"]) != place["began"])
    assert SparkDriver.again(place, "local[1]") is None
    assert clock.monotonic() - began >= ORPHAN_SECONDS
    assert process.wait(30) == 0


def enriching(out: str, view: dict[str, Any], sql: str = "select * from rows") -> dict[str, Any]:
    rows = {"sql": sql, "views": {"rows": view}}
    return {"pond": "nowhere", "lookups": [{"map": "m", "key": "id"}], "rows": rows, "out": out, "attempt": 0}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("job", "arguments", "kind", "words"),
    [
        ("check", reading("select raise_error('the day is wrong') as a from range(3)"), "spark_mistake", "the day is"),
        ("check", reading("select 1 / (id - id) as a from range(3)"), "spark_mistake", "zero"),
        ("enrich", enriching("/proc/nothing", {"sql": "select 1 as id"}), "pipeline_place", "/proc/nothing"),
        ("enrich", enriching("out", {"files": ["/nowhere.xyz"], "format": "xyz"}), "spark_mistake", "xyz"),
        ("enrich", enriching("out", {"files": ["/nowhere.csv"], "format": "csv"}), "spark_refused", "/nowhere.csv"),
    ],
)
def test_mistakes_are_not_tried_again(
    driver: SparkDriver, job: str, arguments: dict[str, Any], kind: str, words: str
) -> None:
    assert passed(driver, "before a mistake")
    process = process_of(driver)
    with pytest.raises(Invalid) as caught:
        driver.run(f"mistake {words}", job, arguments | {"key": "mistake"})
    assert caught.value.kind in (kind, "spark_mistake") and words in str(caught.value)
    assert not re.search(r"\bo\d+\.", str(caught.value)) and "Exception" not in str(caught.value)
    assert passed(driver, "after a mistake") and process_of(driver) == process


@pytest.mark.sample(1)
@pytest.mark.parametrize("interruptible", [True, False])
def test_a_job_that_is_cancelled_ends_within_seconds(driver: SparkDriver, interruptible: bool) -> None:
    # A job of Spark is interrupted; what the driver itself does, such as planning, ends with its process.
    assert_stopped(driver, SLOW if interruptible else "select reflect('java.lang.Thread', 'sleep', 60000L) as a")


@pytest.mark.full
def test_a_job_on_a_server_of_spark_connect_is_stopped_there(tmp_path: Path) -> None:
    with connect_server(tmp_path) as master, closing(SparkDriver(master)) as own:
        assert_stopped(own, SLOW)
        assert passed(own, "the server is free")  # a job that went on would have both of its cores
        assert own.location()["application"].startswith("local-")


def assert_stopped(driver: SparkDriver, query: str) -> None:
    """Cancel a query that would not end, after a second."""
    assert passed(driver, "before it is cancelled")
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(driver.run, "cancelled", "check", reading(query))
        wait_for(lambda: driver.busy)
        clock = SystemClock()
        clock.wait(Event(), clock.monotonic() + 1)
        began = clock.monotonic()
        driver.cancel("cancelled")
        assert clock.monotonic() - began <= 5
        assert getattr(job.exception(1), "kind", None) == "step_stopped"
    assert passed(driver, "after it was cancelled")
    driver.cancel("nobody")


@pytest.mark.sample(1)
@pytest.mark.parametrize("java", [False, True])
def test_attempts_at_one_key_are_one_job_and_a_lost_driver_fails_them(
    driver: SparkDriver, tmp_path: Path, java: bool
) -> None:
    assert passed(driver, "before")
    slow = counting("select reflect('java.lang.Thread', 'sleep', 60000L) as a")
    process = process_of(driver)
    assert process is not None
    with ThreadPoolExecutor(2) as threads:
        attempts = [threads.submit(driver.run, "one", "check", slow) for _ in range(2)]
        wait_for(lambda: driver.busy)
        for pid in children(process) if java else [process]:
            os.kill(pid, signal.SIGKILL)
        errors = [attempt.exception(60) for attempt in attempts]
    assert all(isinstance(error, Unavailable) for error in errors), errors
    assert passed(driver, "after"), tmp_path


def test_keys_of_attempts_that_are_over_are_forgotten() -> None:
    own = SparkDriver("local[1]")
    for number in range(CANCELLED_MAX + 5):
        own.cancel(f"key-{number}")
    assert len(own._cancelled) == CANCELLED_MAX
    with pytest.raises(Closed):
        own.run(f"key-{CANCELLED_MAX + 4}", "check", counting("select 1"))
    assert len(own._cancelled) == CANCELLED_MAX - 1 and process_of(own) is None


def test_a_driver_ends_with_its_worker(driver: SparkDriver) -> None:
    assert passed(driver, "there")
    process = process_of(driver)
    assert process is not None
    java = children(process)
    driver.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [process, *java]))


def test_what_python_raises_in_the_code_of_spark_is_tried_again() -> None:
    from pyspark.serializers import NoOpSerializer
    from pyspark.util import _load_from_socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = bound.getsockname()[1]
        # The JVM is gone, and PySpark's clean-up closes what was never opened.
        with pytest.raises(UnboundLocalError) as caught, _load_from_socket((nobody, "secret"), NoOpSerializer()):
            pass
    understood, usable = _classify_error(caught.value)
    assert isinstance(understood, Unavailable) and not usable
    assert not isinstance(_classify_error(ValueError("ours"))[0], Unavailable)
