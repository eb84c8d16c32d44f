"""Workers of pipelines that are killed at any moment of a step: one Spark application, and one load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from littlehorse.model import LHStatus, StopWfRunRequest, WfRunId
from littlehorse.workflow import WorkflowThread

from millpond.clock import SystemClock
from millpond.pipelines import Pipeline, Target
from millpond.pipelines.clusters import ClusterDriver, State
from tests import yarn_server
from tests.spark.connect_server import connect_server
from tests.spark.test_cluster import LOOPBACK, SPARK, cluster, environment
from tests.workflows.conftest import SECONDS
from tests.workflows.test_client import wait_for
from tests.workflows.test_driver import HOLDING
from tests.workflows.test_pipelines import SLOW, STATIONS, Site
from tests.yarn_server import Yarn

pytestmark = [pytest.mark.usefixtures("spark_process"), pytest.mark.full]

SEED = 28
MOMENTS, CLUSTER_MOMENTS, CLUSTER_SECONDS = 20, 6, 300
LATEST_SECONDS = 12.0
CLUSTER_LATEST_SECONDS = 45.0
"""A driver of a cluster is submitted and comes up first."""


def logging_applications(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> Path:
    """The folder in which each Spark application that is submitted has a file; `more` settings of Spark, with `_`."""
    logs = folder / "applications"
    logs.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{logs}"}
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    (folder / "conf").mkdir()
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "conf" / "spark-defaults.conf").write_text(lines)
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder / "conf"))
    return logs


@contextmanager
def site(folder: Path, master: str = "local[2]", *more: str) -> Iterator[Site]:
    made = Site(folder, master, *more)
    try:
        made.start()
        yield made
    finally:
        made.end()


def kill_at(own: Site, run: str, seconds: float, applications: Path, submitted: int = 1) -> None:
    """Kill the worker some seconds after a step began: its driver is new, as each run ends the one before it."""
    clock, before = SystemClock(), len(list(applications.iterdir()))
    rows = own.rows(STATIONS, SLOW)
    own.begin(run, lambda wf: Pipeline(wf).load(run, rows, Target(kind="state", value="long")) and None)
    clock.wait(Event(), clock.monotonic() + seconds)
    own.kill_worker()
    own.begin_worker()
    if "spark://" in own.master or own.more:  # its executors have to start, too
        wait_for(lambda: any(own.loads(run)), seconds=CLUSTER_SECONDS)
    assert own.wait_ended(run).status == LHStatus.COMPLETED, own.log.read_text()
    applied = len(list(applications.iterdir())) - before
    entered = [rows for rows in own.loads(run) if rows]  # a ticket that is void is a load of no row
    assert (entered, applied) == ([12], submitted), f"seconds={seconds}"
    own.kill_worker()
    for driver in own.drivers(run):
        wait_for(lambda driver=driver: not Path(f"/proc/{driver['pid']}/cwd").exists())
    own.begin_worker()


def test_one_application_and_one_load_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, applications = np.random.default_rng(SEED), logging_applications(tmp_path, monkeypatch)
    with site(tmp_path) as own:
        for number in range(MOMENTS):
            kill_at(own, f"r{number}", rng.uniform(0, LATEST_SECONDS), applications)


@pytest.mark.timeout(1_800)
def test_one_application_and_one_load_on_a_standalone_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kill at a moment of a step whose executors are other processes than its driver."""
    rng = np.random.default_rng(SEED + 1)
    more = {"spark_executor_memory": "512m", "spark_driver_host": LOOPBACK, "spark_cores_max": "2"}
    applications = logging_applications(tmp_path, monkeypatch, **more)
    monkeypatch.setenv("PYTHONPATH", environment(tmp_path)["PYTHONPATH"])
    with cluster(tmp_path) as master, site(tmp_path, master) as own:
        for number in range(CLUSTER_MOMENTS):
            kill_at(own, f"r{number}", rng.uniform(0, LATEST_SECONDS), applications)
        assert len(list(tmp_path.glob("work*/app-*"))) == 2 * CLUSTER_MOMENTS


@pytest.mark.timeout(1_800)
def test_one_load_over_spark_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's application outlives workers and drivers; each load is entered once in it."""
    rng, applications = np.random.default_rng(SEED + 2), logging_applications(tmp_path, monkeypatch)
    with connect_server(tmp_path) as master, site(tmp_path, master) as own:
        for number in range(CLUSTER_MOMENTS):
            kill_at(own, f"r{number}", rng.uniform(0, LATEST_SECONDS), applications, submitted=0)
        assert len(list(applications.iterdir())) == 1


@contextmanager
def yarn_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Path, Yarn]]:
    """A site whose drivers are in a cluster, the folder with a file for each application, and the cluster."""
    sources = environment(folder)["PYTHONPATH"]
    more = {"spark_driver_memory": "512m", "spark_executor_memory": "512m", "spark_executor_instances": "1",
            "spark_yarn_appMasterEnv_PYTHONPATH": sources, "spark_executorEnv_PYTHONPATH": sources,
            "spark_yarn_stagingDir": f"file://{folder}/staging"}  # fmt: skip
    applications = logging_applications(folder, monkeypatch, **more)
    words = "--deploy-mode", "cluster", "--shared", str(folder / "shared")
    with yarn_server.running(folder / "yarn") as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.settings))
        monkeypatch.setenv("PYSPARK_PYTHON", str(Path(sys.prefix) / "bin" / "python"))
        with site(folder, "yarn", *words) as own:
            yield own, applications, yarn


@pytest.mark.timeout(1_800)
def test_one_application_and_one_load_with_drivers_in_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(SEED + 3)
    with yarn_site(tmp_path, monkeypatch) as (own, applications, yarn):
        for number in range(CLUSTER_MOMENTS):
            kill_at(own, f"r{number}", rng.uniform(0, CLUSTER_LATEST_SECONDS), applications)
        wait_for(lambda: set(yarn.applications().values()) == {"FINISHED"}, seconds=SECONDS)
        assert len(yarn.applications()) == CLUSTER_MOMENTS
        wait_for(lambda: not list((tmp_path / "shared").iterdir()), seconds=SECONDS)


@pytest.mark.timeout(1_800)
def test_drivers_in_a_cluster_that_are_stopped_or_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loading(run: str, sql: str) -> Callable[[WorkflowThread], None]:
        rows = own.rows(STATIONS, sql)
        return lambda wf: Pipeline(wf).load(run, rows, Target(kind="state", value="long")) and None

    def submitted(number: int) -> str:
        wait_for(lambda: len(yarn.applications()) == number, seconds=CLUSTER_SECONDS)
        return max(yarn.applications())

    with yarn_site(tmp_path, monkeypatch) as (own, _, yarn):
        own.begin("early", loading("early", SLOW))
        first = submitted(1)  # it waits for its turn, or comes up
        with own.server.stub() as stub:
            stub.StopWfRun(StopWfRunRequest(wf_run_id=WfRunId(id="early")), timeout=SECONDS)
        wait_for(lambda: yarn.applications()[first] in ("KILLED", "FAILED", "FINISHED"), seconds=SECONDS)
        own.begin("lost", loading("lost", SLOW))
        second = submitted(2)
        wait_for(lambda: own.progress("lost").get("tasks"), seconds=CLUSTER_SECONDS)
        monkeypatch.setenv("SPARK_HOME", str(SPARK))
        ClusterDriver("yarn", second).kill()
        assert ClusterDriver("yarn", second).state() is State.ENDED
        assert ClusterDriver("yarn", "application_1_0001").state() is State.ENDED
        wait_for(lambda: any(own.loads("lost")), seconds=CLUSTER_SECONDS)
        assert own.wait_ended("lost").status == LHStatus.COMPLETED, own.log.read_text()
        assert ([rows for rows in own.loads("lost") if rows], any(own.loads("early"))) == ([12], False)
        assert len(yarn.applications()) == 3


def test_a_run_without_a_server_finds_its_driver_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    applications = logging_applications(tmp_path, monkeypatch)
    (tmp_path / "waits.py").write_text(HOLDING)
    words = [sys.executable, "-m", "millpond", "pipeline", "run", "waits.py", f"folder={tmp_path}", "--pond", "pond",
             "--master", "local[1]"]  # fmt: skip
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        first = subprocess.Popen(words, cwd=tmp_path, stdout=output, stderr=output, env=os.environ)
    wait_for((tmp_path / "begun").exists)
    first.kill()
    first.wait()
    (tmp_path / "go").touch()
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert again.returncode == 0, again.stderr
    assert len((tmp_path / "begun").read_text().splitlines()) == len(list(applications.iterdir())) == 1
