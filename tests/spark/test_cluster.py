"""A real cluster: a standalone master with two workers on this machine, and `spark-submit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import millpond

if TYPE_CHECKING:
    from collections.abc import Iterator


SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"


def environment(scratch: Path) -> dict[str, str]:
    """The environment of every process of the cluster: this Python, these sources, little memory."""
    sources = str(Path(millpond.__file__).parents[1])
    return os.environ | {
        "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": sources,
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": LOOPBACK, "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_NO_DAEMONIZE": "1",
    }  # fmt: skip


@contextmanager
def daemon(scratch: Path, ready: str, *command: str, home: Path | None = None) -> Iterator[str]:
    """A process of the cluster for as long as this lasts; what its log says when it is ready.

    `home`: where it and its executors keep temporary files, and copies of what lies in a bucket.
    """
    own = environment(scratch)
    if home is not None:
        home.mkdir()
        own |= {"XDG_CACHE_HOME": str(home), "TMPDIR": str(home), "SPARK_LOCAL_DIRS": str(home / "local")}
    process = subprocess.Popen(
        [str(SPARK / "bin" / "spark-class"), *command], env=own, cwd=scratch, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    reading: threading.Thread | None = None
    try:
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(ready, line):
                break
        else:
            raise AssertionError(f"{command[0]} did not start:\n{''.join(said[-30:])}")
        # Somebody must go on reading, or the process stops at a full pipe.
        reading = threading.Thread(target=process.stdout.read, daemon=True)
        reading.start()
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=60)
        if reading is not None:
            reading.join()
        process.stdout.close()


@contextmanager
def cluster(scratch: Path, *, apart: bool = False) -> Iterator[str]:
    """The URL of a master with two workers; `apart`: they share no folder for temporary files."""
    package = "org.apache.spark.deploy"
    with ExitStack() as running:
        url = running.enter_context(
            daemon(
                scratch, r"spark://127\.0\.0\.1:\d+", f"{package}.master.Master", "--host", LOOPBACK, "--port", "0",
                "--webui-port", "0",
            )
        )  # fmt: skip
        for number in range(2):
            running.enter_context(
                daemon(
                    scratch, "Successfully registered with master", f"{package}.worker.Worker", "--host", LOOPBACK,
                    "--cores", "1", "--memory", "600m", "--webui-port", "0",
                    "--work-dir", str(scratch / f"work{number}"), url,
                    home=scratch / f"home{number}" if apart else None,
                )
            )  # fmt: skip
        yield url


SETTINGS = {
    "spark.cores.max": "2", "spark.executor.memory": "512m", "spark.driver.host": LOOPBACK, "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # No task starts before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}  # fmt: skip


def submit(scratch: Path, url: str, *arguments: str) -> None:
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(SPARK / "bin" / "spark-submit"), "--master", url, "--driver-memory", "512m", *settings, *arguments],
        env=environment(scratch), cwd=scratch, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


@pytest.mark.full
def test_a_submitted_application_loads_and_enriches(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("numbers", kind="temporal_state", value="long")
    answer = tmp_path / "answer.json"
    with cluster(tmp_path) as url:
        submit(tmp_path, url, str(Path(__file__).with_name("cluster_job.py")), str(tmp_path / "pond"), str(answer))
    assert answer.with_suffix(".failed").exists()
    report = json.loads(answer.read_text())
    assert (report["executors"], report["rows"]) == (2, 20_000)
    wrong = [row for row in report["answers"] if not row[2] == row[3] == expected(row[0], row[1])]
    assert (wrong, len(report["answers"])) == ([], 5_000)
    with millpond.open(tmp_path / "pond") as pond:
        assert pond.map("numbers").get("k7", at="2013-01-01T12:00Z") == 19_007
        assert list((pond.folder / "writer").iterdir()) == []


def expected(key: str, at: float) -> int | None:
    """Key `k<n>` has the value v at v milliseconds after the start, for each v that is n modulo 1000."""
    number, passed = int(key[1:]), round(at * 1000) - 1_357_000_000_000
    if number >= 1_000 or passed < number:
        return None
    return number + (min(passed, 19_999) - number) // 1_000 * 1_000
