"""Pipelines without a server on a pond in a bucket: nothing is on the machine but copies, and a kill loses no step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("littlehorse")
pytest.importorskip("rocksdict")

from littlehorse.model import LHStatus, WfRun
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import SystemClock
from millpond.errors import Conflict
from millpond.pipelines.engine import open_engine, reading_pond
from tests.workflows.test_client import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = [pytest.mark.usefixtures("process"), pytest.mark.sample(1, of="file")]

_NUMBERS = count(1)
FLOW = """
from millpond.pipelines import notify, pipeline, shell

@pipeline
def flow(day: str, file: str):
    text = "echo begun >> $FILE; while [ -e $FILE.wait ]; do sleep 0.1; done"
    waited = shell(["sh", "-c", text], env={"FILE": file})
    notify("stream:etl/after", name="told", day=day, output=waited.output)
"""


@pytest.fixture
def url(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (s3_server.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    return f"{s3_server.make_bucket(f'flows-{os.getpid()}-{next(_NUMBERS)}')}/pond"


def run(url: str, *words: str) -> Any:
    outcome = CliRunner().invoke(app, ["pipeline", "run", "flow.py", *words, "--pond", url, "--json"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_a_run_goes_on_where_it_was_killed_and_its_rows_lie_in_the_bucket(url: str, tmp_path: Path) -> None:
    file, words = tmp_path / "begun", ("day=monday", f"file={tmp_path / 'begun'}")
    waits = tmp_path / "begun.wait"
    waits.touch()
    first = subprocess.Popen(
        [sys.executable, "-m", "millpond", "pipeline", "run", "flow.py", *words, "--pond", url], cwd=tmp_path
    )
    wait_for(file.exists)
    with millpond.open(url) as pond, pytest.raises(Conflict) as busy:
        open_engine(pond, SystemClock(), lambda _: None)
    assert busy.value.kind == "pipelines_busy"
    first.kill()
    first.wait()
    waits.unlink()
    ended = run(url, *words)
    assert ended["status"] == "COMPLETED"
    assert file.read_text().count("begun") == 2, "the attempt that was cut off is made again"
    assert run(url, *words) == ended, "a run that has ended is not made again"
    for noun in ("workflow", "task", "schedule", "user-task", "external-event", "bulk-job"):
        listed = CliRunner().invoke(app, [noun, "list", "--pond", url, "--json"])
        assert listed.exit_code == 0 and listed.stdout, listed.stderr
    shown = CliRunner().invoke(app, ["run", "show", ended["run"], "--pond", url, "--tenant", "default"])
    assert shown.stdout.startswith(ended["run"]) and "COMPLETED" in shown.stdout, shown.stderr
    with millpond.open(url, cache=tmp_path / "elsewhere") as pond:
        assert [event.payload and event.headers["job_id"] for event in pond.events.read("etl", "after")]
        with reading_pond(pond, SystemClock(), "default") as read:
            found = read(lambda rows: rows.get(WfRun, (ended["run"],)))
        assert found is not None
        assert found.status == LHStatus.COMPLETED
        assert pond.verify().ok
