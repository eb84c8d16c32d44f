"""Armada's operator for Airflow, as it is installed, in an environment of its own: it lives on `api.Jobs`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from millpond.clock import SystemClock
from millpond.server.armada.wire import armada_pb2 as pb
from tests.armada.conftest import ROOT, ArmadaServer, event, serving

pytestmark = pytest.mark.full
DAGS = Path(__file__).parent / "dags"
SECONDS = 300


@pytest.fixture(scope="session")
def airflow() -> Path:
    """The folder of the programs of the environment with Airflow."""
    with FileLock(str(ROOT / ".venv" / "airflow.lock")):
        subprocess.run([ROOT / "tools" / "setup", "airflow"], check=True)
    return ROOT / ".venv" / "airflow" / "bin"


@pytest.fixture
def home(tmp_path: Path, airflow: Path) -> dict[str, str]:
    """The variables of an Airflow whose database is new."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS), "ARMADA_PORT": "1",
    }  # fmt: skip
    for words in (("db", "migrate"), ("dags", "reserialize")):
        subprocess.run([airflow / "airflow", *words], env=environment, check=True, capture_output=True)
    return environment


@pytest.mark.parametrize(("kinds", "state"), [(("running", "succeeded"), "success"), (("running", "failed"), "failed")])
def test_a_task_follows_its_job(
    tmp_path: Path, airflow: Path, home: dict[str, str], kinds: tuple[str, ...], state: str
) -> None:
    with serving(tmp_path / "pond") as server:
        server.call("api.QueueService/CreateQueue", pb.Queue(name="airflow", priority_factor=1), pb.Queue)
        command, environment = (
            [airflow / "airflow", "dags", "test", "nightly"],
            home | {"ARMADA_PORT": str(server.grpc_port)},
        )
        with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as program:
            for job_set, job_id in submitted(server, program):
                for kind in kinds:
                    payload = b'{"clusterId": "here", "reason": "no disk"}'
                    server.append("airflow", job_set, event(kind, job_id, payload))
            printed, _ = program.communicate(timeout=SECONDS)
    assert f"state={state}" in printed.replace(" ", ""), printed
    assert ("no disk" in printed) == (state == "failed")


def submitted(server: ArmadaServer, program: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
    """The job set and the id of the job that the program submits; nothing when it ends before."""
    clock = SystemClock()
    due = clock.monotonic() + SECONDS
    while program.poll() is None and clock.monotonic() < due:
        streams = list(server.pond.events.streams("airflow"))
        for stream in streams:
            for one in server.pond.events.read(*stream):
                if one.kind == "queued":
                    yield stream.job_set, one.headers["job_id"]
                    return
        server.pond.events.store.follow(dict.fromkeys(streams, 0), clock.monotonic() + 0.5)
