"""The provider for Airflow, in an Airflow of an environment of its own, beside a node and its worker of pipelines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from filelock import FileLock
from littlehorse.model import SearchWfRunRequest

import millpond
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for
from tests.workflows.test_pipeline_functions import answers

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
DAGS = Path(__file__).with_name("dags")
AIRFLOW_SECONDS = 300
NIGHTLY = """
import time
from datetime import date
from pathlib import Path

from millpond.pipelines import pipeline, python


def held(day):
    with open("begun", "a") as lines:
        lines.write(f"{day}\\n")
    while not Path("go").exists():
        time.sleep(0.1)
    return {"day": day}


@pipeline
def nightly(day: date):
    python(held, day)
"""


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs of the environment with Airflow."""
    with FileLock(str(ROOT / ".venv" / "airflow-provider.lock")):
        subprocess.run([ROOT / "tools" / "setup", "airflow-provider"], check=True)
    return ROOT / ".venv" / "airflow-provider" / "bin"


class Site:
    """A node with a pipeline and its worker, and an Airflow whose database is new."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs, self.server = folder, programs, WorkflowServer(folder / "pond")
        self.database = folder / "airflow" / "airflow.db"

    def start(self) -> None:
        (self.folder / "nightly.py").write_text(NIGHTLY)
        with millpond.open(self.folder / "pond", create=True) as pond:
            pond.create_map("weather", kind="state", value="temp double")
        self.server.start()
        at = f"127.0.0.1:{self.server.grpc_port}"
        answers("pipeline", "deploy", str(self.folder / "nightly.py"), "--server", at)
        self.worker = subprocess.Popen(
            [sys.executable, "-m", "millpond", "worker", "millpond.pipelines", "--pond", self.url, "--server", at],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
        )  # fmt: skip
        self.airflow("db", "migrate")

    def end(self) -> None:
        (self.folder / "go").touch()
        self.worker.kill()
        self.worker.wait()
        self.server.end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def environment(self) -> dict[str, str]:
        """The variables of Airflow; the package is seen as it would be installed."""
        about = self.folder / "site" / "millpond-0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: millpond\nVersion: 0\n")
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        [(name, provider)] = declared["apache_airflow_provider"].items()
        (about / "entry_points.txt").write_text(f"[apache_airflow_provider]\n{name} = {provider}\n")
        connection = {"conn_type": "millpond", "host": "127.0.0.1", "port": self.server.port}
        return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MILLPOND"))} | {
            "AIRFLOW_HOME": str(self.folder / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS), "PYTHONPATH": f"{about.parent}:{ROOT / 'src'}",
            "AIRFLOW_CONN_MILLPOND_DEFAULT": json.dumps(connection), "NODE": f"127.0.0.1:{self.server.port}",
        }  # fmt: skip

    def airflow(self, *words: str) -> str:
        """The output of a command of Airflow."""
        command = [self.programs / "airflow", *words]
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=AIRFLOW_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *words: str, **more: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
        """A command of Airflow that runs, and the lines that it prints."""
        with subprocess.Popen(
            [self.programs / "airflow", *words], env=self.environment() | more, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as program:  # fmt: skip
            assert program.stdout is not None
            try:
                yield program, program.stdout
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of Airflow's database."""
        connection = sqlite3.connect(self.database, timeout=SECONDS)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def runs(self) -> list[str]:
        with self.server.stub() as stub:
            found = stub.SearchWfRun(SearchWfRunRequest(wf_spec_name="nightly"), timeout=SECONDS)
        return [run.id for run in found.results]

    def load(self, temp: float) -> int:
        with millpond.open(self.url) as pond:
            return pond.map("weather").load([{"key": "JFK", "temp": temp}]).position


@pytest.fixture
def site(tmp_path: Path, programs: Path) -> Iterator[Site]:
    made = Site(tmp_path, programs)
    try:
        made.start()
        yield made
    finally:
        made.end()


def until(lines: IO[str], words: str, read: list[str]) -> None:
    """Read until a line has some words, or to the end."""
    for line in lines:
        read.append(line)
        if words in line:
            return
    raise AssertionError("".join(read))


def test_a_dag_waits_for_a_load_and_runs_a_pipeline(site: Site) -> None:
    (site.folder / "go").touch()
    read: list[str] = []
    with site.running("dags", "test", "nightly", "2026-01-02") as (program, lines):
        until(lines, "[DAG TEST] running trigger", read)
        position = site.load(1.0)
        read += lines
        assert program.wait(AIRFLOW_SECONDS) == 0, "".join(read)
    [run] = site.runs()
    assert (site.folder / "begun").read_text() == "2026-01-02\n"
    values = dict(site.rows("select task_id, value from xcom where key = 'return_value'"))
    assert {task: json.loads(value) for task, value in values.items()} == {
        "arrived": str(position), "run": run, "ended": run
    }  # fmt: skip
    [(uri, extra)] = site.rows("select uri, asset_event.extra from asset_event join asset on asset.id = asset_id")
    assert uri == f"millpond://127.0.0.1:{site.server.port}/delays" and json.loads(extra) == {"run": run}


@pytest.mark.parametrize("stops", [False, True])
def test_a_retry_finds_the_run_of_the_try_before_it(site: Site, *, stops: bool) -> None:
    """Also one that was stopped with its task: it is resumed, and its step begins anew where it had ended."""
    read: list[str] = []
    with site.running("dags", "test", "retried", STOPS=str(int(stops))) as (program, lines):
        until(lines, "-1 of nightly: RUNNING", read)
        wait_for((site.folder / "begun").exists)
        until(lines, f"-1 of nightly: {'HALT' if stops else 'RUNNING'}", read)  # halting, or halted by now
        (site.folder / "go").touch()
        read += lines
        assert program.wait(AIRFLOW_SECONDS) == 0, "".join(read)
    [run] = site.runs()
    assert run.endswith("-1")
    assert (site.folder / "begun").read_text() in {"2026-02-02\n" * count for count in (1, 1 + stops)}
    assert site.rows("select state, try_number from task_instance where dag_id = 'retried'") == [("success", 2)]


def test_a_wrong_parameter_fails_the_task_by_name(site: Site) -> None:
    with site.running("dags", "test", "refused") as (program, lines):
        said = lines.read()
        assert program.wait(AIRFLOW_SECONDS) != 0
    assert "parameter=day" in said and site.runs() == []


def test_airflow_knows_the_provider_and_its_connection_answers(site: Site) -> None:
    assert "millpond" in site.airflow("providers", "list", "--output", "plain")
    assert "millpond" in site.airflow("providers", "hooks", "--output", "plain")


def test_loads_by_anybody_update_an_asset_also_those_while_no_triggerer_ran(site: Site) -> None:
    site.airflow("dags", "reserialize")

    def marks() -> list[str]:
        extras = site.rows("select extra from asset_event order by id")
        return [json.loads(extra)["payload"]["mark"] for (extra,) in extras]

    positions: list[str] = []
    said: list[str] = []
    for number in range(2):
        with site.running("triggerer", "--skip-serve-logs") as (_program, lines):
            until(lines, "waits for what comes to weather", said)
            wait_for(lambda: marks() == positions)
            positions.append(str(site.load(2.0 + number)))
            wait_for(lambda: marks() == positions)
        positions.append(str(site.load(2.5 + number)))
    assert site.rows("select target_dag_id from asset_dag_run_queue") == [("after",)]


def test_the_folder_of_dags_holds_nothing_else() -> None:
    shutil.rmtree(DAGS / "__pycache__", ignore_errors=True)
    assert [file.name for file in DAGS.iterdir()] == ["millpond_dags.py"]
