"""Pipelines as functions of steps: checked when declared, run in one process, resumed after kills, deployed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import IO, Any

import pytest
from littlehorse.model import LHStatus, WfRunId
from littlehorse.workflow import Workflow
from pyarrow import parquet
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.cli.workflows.server import connected
from tests.rings.forked import Command, run
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for

NIGHTLY = """
import sys
from datetime import date

from millpond.pipelines import check, item, load, notify, pipeline, python, shell, spark, sql


def counted(rows, day):
    print("counted", rows, "with password=hunter22")
    print("x" * 100, file=sys.stderr)
    with open("counted.txt", "a") as lines:
        lines.write(f"{day:%Y-%m-%d}\\n")
    return {"twice": 2 * rows, "day": day}


def tell(failure):
    notify("stream:etl/failed", name="told", step=failure.step)


@pipeline(on_failure=tell)
def nightly(day: date, most: float = 60.0, heights: bool = False):
    weather = load(f"raw/{day:%Y}/*.csv", map="weather", kind="state", value="temp double")
    check("select * from {weather} where temp > {most}", weather=weather, most=most, retries=0)
    warm = sql("select key, temp, {day} as day from {weather} where temp >= 1", weather=weather, day=day)
    answer = python(counted, warm.rows, day)
    shell(["false"], name="never", when=warm.rows > 100)
    shell(["sh", "-c", 'echo "$item of $day" >> items.txt'], over=["a", "b'"], env={"item": item, "day": day})
    notify("stream:etl/nightly", rows=warm.rows, answer=answer, text=f"{answer.twice} on {day:%d.%m.}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(NIGHTLY)
    (tmp_path / "raw" / "2026").mkdir(parents=True)
    (tmp_path / "raw" / "2026" / "a.csv").write_text("key,temp\nJFK,39.0\nLGA,0.5\n")
    return tmp_path


def begun(folder: Path, *words: str) -> tuple[Command, IO[str]]:
    """A run or a backfill in a process, and what it says."""
    words = words if words[:1] in (BACKFILL[:1], ("run",)) else ("run", "nightly.py", *words)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as errors:
        command = Command(
            ["pipeline", *words, "--pond", "pond"], cwd=folder, stderr=errors,
            env={**os.environ, "MILLPOND_PIPELINE_FILES": str(folder / "files")},
        )  # fmt: skip
    return command, os.fdopen(reading)


def ended(folder: Path, *words: str) -> tuple[int, str, str]:
    command, errors = begun(folder, *words)
    with errors:
        said = errors.read()
    output, _ = command.communicate(timeout=SECONDS)
    assert command.returncode is not None
    return command.returncode, output, said


def assert_done_once(folder: Path) -> None:
    with millpond.open(folder / "pond") as pond:
        assert pond.map("weather").get("JFK") == {"temp": 39.0}
        assert sum(entry.kind == "load" and bool(entry.body["rows"]) for entry in pond.log.entries(0)) == 1
        (event,) = pond.events.read("etl", "nightly")
    assert json.loads(event.payload) == {
        "rows": 1, "answer": {"twice": 2, "day": "2026-01-01"}, "text": "2 on 01.01.",
    }  # fmt: skip
    (table,) = (folder / "files").glob("*/*.parquet")
    assert [str(row["day"]) for row in parquet.read_table(table).to_pylist()] == ["2026-01-01"]


def test_a_pipeline_runs_without_a_server_and_is_not_run_again(folder: Path) -> None:
    code, output, errors = ended(folder, "day=2026-01-01")
    assert code == 0, errors
    assert "COMPLETED" in output and "never: skipped" in errors
    assert (folder / "items.txt").read_text() == "a of 2026-01-01\nb' of 2026-01-01\n"
    assert_done_once(folder)
    run = output.split()[0]
    (log,) = answers("run", "logs", run, "counted", "--pond", str(folder / "pond"))
    assert log["status"] == "success" and "counted 1 with password=***" in log["log"] and "x" * 100 in log["log"]
    shown = CliRunner().invoke(app, ["run", "logs", run, "warm", "--pond", str(folder / "pond")])
    assert shown.exit_code != 0 and "counted" in shown.output
    code, again, errors = ended(folder, "day=2026-01-01")
    assert (code, again) == (0, output) and "has ended" in errors and ": done" not in errors
    code, _, errors = ended(folder, "day=2026-01-01", "most=10")
    assert code != 0 and 'check: the check finds rows: {"key":"JFK","temp":39.0}' in errors
    with millpond.open(folder / "pond") as pond:
        (failed,) = pond.events.read("etl", "failed")
    assert json.loads(failed.payload) == {"step": "check"}
    code, _, errors = ended(folder, "day=tomorrow")
    assert code != 0 and "parameter=day, type=date, value=tomorrow); such as day=2026-01-31" in errors
    assert "parameters:" not in errors  # no run began, and no step of it
    code, _, errors = ended(folder, "dya=2026-01-01")
    assert code != 0 and "its parameters: day, most, heights" in errors
    assert ended(folder, "day=2026-01-01", "--again")[1].split()[0] == f"{run}-2"  # as a backfill counts runs


def test_what_a_step_says_steers_no_terminal(folder: Path) -> None:
    said = "from millpond.pipelines import pipeline, python\n\ndef say():\n    raise ValueError('\\x1b[2J\\x9b31m')\n\n"
    (folder / "nightly.py").write_text(f"{said}@pipeline\ndef nightly():\n    python(say, retries=0)\n")
    code, _, errors = ended(folder)
    assert code != 0 and "reason=ValueError: \\x1b[2J\\x9b31m" in errors
    assert not {"\x1b", "\x9b"} & set(errors)


def test_what_a_run_has_come_to_is_said_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from millpond.pipelines import pipeline, sql\n\n\n@pipeline\ndef own(tokens: list, n: int = 1):\n"
        "    sql('select {tokens} as tokens', tokens=tokens, name='rows')\n"
    )
    words = ["pipeline", "run", str(tmp_path / "own.py"), 'tokens=["hunter22"]', "--pond", str(tmp_path / "pond")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MILLPOND_PIPELINE_FILES", str(tmp_path / "files"))
        result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0 and "hunter22" not in result.output
    values = json.loads(result.stdout)["values"]
    assert (values["tokens"], values["n"], values["rows"]["rows"]) == (["*****"], 1, 1)


@pytest.mark.sample(1, of="pipelines that are killed")
def test_a_run_that_is_killed_after_each_step_goes_on_by_the_same_command(folder: Path) -> None:
    kills = 0
    for _ in range(12):
        process, errors = begun(folder, "day=2026-01-01")
        with errors:
            line = next((line for line in errors if ": done" in line or ": skipped" in line), "")
            process.kill()  # a step or two later, where the line is read late
            process.communicate(timeout=SECONDS)
        if not line:
            break
        kills += 1
    code, output, said = ended(folder, "day=2026-01-01")
    assert code == 0 and "COMPLETED" in output, said
    assert kills > 2
    assert_done_once(folder)


DAILY = """
from datetime import date

from millpond.pipelines import check, notify, pipeline, sql


@pipeline
def daily_rows(day: date):
    rows = sql("select {day} as day", day=day)
    check("select * from {rows} where day(day::date) = 3", rows=rows)
    notify("stream:etl/daily", day=day)
"""
BACKFILL = ("backfill", "daily.py", "--from", "2026-01-01", "--to", "2026-01-03", "--parallel", "2", "--json")


@pytest.mark.sample(1, of="pipelines that are killed")
def test_a_backfill_that_is_killed_goes_on_by_the_same_command(folder: Path) -> None:
    (folder / "daily.py").write_text(DAILY)
    for steps in (1, 2):
        process, errors = begun(folder, *BACKFILL)
        with errors:
            for line in errors:
                steps -= " done, " in line
                if not steps:
                    break
            process.kill()
            process.communicate(timeout=SECONDS)
    for _ in range(2):
        code, output, said = ended(folder, *BACKFILL)
        report = json.loads(output)
        assert code == 1, said
        assert sorted(report["done"]) == ["2026-01-01", "2026-01-02"] and not report["left"], said
        assert list(report["failed"]) == ["2026-01-03"]
    with millpond.open(folder / "pond") as pond:
        events = [json.loads(event.payload)["day"] for event in pond.events.read("etl", "daily")]
    assert sorted(events) == sorted(report["done"])


LOADS = """
from datetime import date

from millpond.pipelines import check, load, pipeline, publish


@pipeline
def loads(day: date):
    publish(load(f"raw/{day}.csv", map="weather", kind="state", value="temp double"),
            checks=["select * from weather where temp > 60"])
    load(f"raw/{day}.csv", map="other", kind="state", value="temp double")
    check("other", "select * from other where temp > 60")
"""


@pytest.mark.sample(1, of="pipelines that are killed")
def test_a_backfill_on_a_branch_is_merged_when_all_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "loads.py").write_text(LOADS)
    for day, temp in ((1, 39), (2, 99)):
        (folder / "raw" / f"2026-01-0{day}.csv").write_text(f"key,temp\nk{day},{temp}\n")

    monkeypatch.chdir(folder)
    words = [
        "pipeline",
        "backfill",
        "loads.py",
        "--from",
        "2026-01-01",
        "--to",
        "2026-01-02",
        "--branch",
        "old",
        "--json",
    ]

    def report(status: int, *more: str) -> Any:
        result = CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == status, result.output
        return json.loads(result.stdout)

    def keys(ref: str) -> list[list[str]]:
        with millpond.open(folder / "pond") as pond:
            at = pond.at(ref)
            return [sorted(at.map(name).scan().read_all()["key"].to_pylist()) for name in ("weather", "other")]

    first = report(1)
    assert list(first["failed"]) == ["2026-01-02"] and first["merged"] == ""
    assert keys("old") == [["k1"], ["k1"]]
    with millpond.open(folder / "pond") as pond:
        assert not pond.maps()
    (folder / "raw" / "2026-01-02.csv").write_text("key,temp\nk2,40\n")
    assert report(0, "--failed", "--leave")["merged"] == ""
    assert report(0)["merged"] and keys("main") == [["k1", "k2"], ["k1", "k2"]]
    assert report(0)["merged"] == "before"


LOAD_NIGHTLY = NIGHTLY.replace("def nightly(day: date,", "def load_nightly(day: date = '2026-01-01',")


def test_a_pipeline_is_deployed_to_a_node(folder: Path) -> None:
    (folder / "nightly.py").write_text(LOAD_NIGHTLY)
    server = WorkflowServer(folder / "pond")
    server.start()
    at = ["--server", url := f"http://127.0.0.1:{server.port}"]
    log = folder / "worker.log"
    try:
        with log.open("w") as output:
            worker = Command(
                ["worker", "millpond.pipelines", "--pond", url], cwd=folder, stderr=output, env=server.environment()
            )  # fmt: skip
        deployed = run(["pipeline", "deploy", "nightly.py", "--pond", url, "--json"], cwd=folder, timeout=SECONDS)
        assert json.loads(deployed.stdout) == {
            "pipeline": "load_nightly", "version": "0.0", "schedule": "", "when": "", "time_zone": "",
            "paused": False, "open_runs": 0,
        }  # fmt: skip
        wait_for(lambda: "working on" in log.read_text())
        with server.stub() as stub:
            answers("run", "start", "load_nightly", "--id", "n-1", "--input", "day=2026-01-01", *at)
            done = WfRunId(id="n-1")
            wait_for(lambda: stub.GetWfRun(done, timeout=SECONDS).status != LHStatus.RUNNING)
            assert stub.GetWfRun(done, timeout=SECONDS).status == LHStatus.COMPLETED, log.read_text()
        assert re.search(r"n-1 sql attempt 0: done after [0-9.]+ s, 1 rows\n", log.read_text())
        assert [row["id"]["id"] for row in answers("runs", "--pond", url)] == ["n-1"]
        with millpond.open(url) as pond:
            assert len(list(pond.events.read("etl", "nightly"))) == 1
        assert_operated(folder, f"127.0.0.1:{server.grpc_port}")
    finally:
        worker.kill()
        worker.communicate(timeout=SECONDS)
        server.end()


def answers(*words: str) -> list[Any]:
    """The lines of a command with `--json`."""
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_operated(folder: Path, server: str) -> None:
    """Its schedule is listed, switched off and on, and a deploy keeps it off."""
    at = ("--server", server)
    logs = {row["step"]: row["log"] for row in answers("pipeline", "logs", "load_nightly", *at)}
    assert "counted 1 with password=***" in logs["counted"]
    assert answers("run", "logs", "n-1", "counted", *at)[0]["log"] == logs["counted"]
    tree = CliRunner().invoke(app, ["run", "show", "n-1", *at]).output
    assert "counted  COMPLETED" in tree and "step-TASK" not in tree and "letters more: --json has them" in tree
    (row,) = answers("pipeline", "list", *at)
    assert (row["pipeline"], row["last_run"], row["last_status"], row["open_runs"], row["next"]) == (
        "load_nightly", "n-1", "COMPLETED", 0, None,
    )  # fmt: skip
    for words in (["day=notadate"], ["most=a"], ["dya=2026-01-01"], ["heights=3"]):
        refused = CliRunner().invoke(app, ["run", "start", "load_nightly", "--input", *words, *at])
        assert refused.exit_code != 0 and f"parameter={words[0].partition('=')[0]}" in refused.output, refused.output
    taken = folder / "taken.py"
    taken.write_text(LOAD_NIGHTLY.replace("def load_nightly", "def taken_name"))
    with connected(server, "default") as call:
        call("PutWfSpec", Workflow("taken-name", lambda thread: thread.declare_str("a")).compile())
    refused = CliRunner().invoke(app, ["pipeline", "deploy", str(taken), *at])
    assert refused.exit_code != 0 and "workflow=taken-name" in refused.output
    refused = CliRunner().invoke(app, ["pipeline", "pause", "load_nightly", *at])
    assert refused.exit_code != 0 and "has no schedule" in refused.output
    refused = CliRunner().invoke(app, ["pipeline", "pause", "weekly", *at])
    assert refused.exit_code != 0 and "there are: load_nightly" in refused.output
    file = folder / "nightly.py"
    schedule = 'schedule="0 3 1 1 *", time_zone="Europe/Paris"'
    file.write_text(LOAD_NIGHTLY.replace("on_failure=tell", f"on_failure=tell, {schedule}"))
    answers("pipeline", "deploy", str(file), *at)
    (row,) = answers("pipeline", "list", *at)
    assert (row["version"], row["schedule"], row["time_zone"]) == ("0.1", "0 3 1 1 *", "Europe/Paris")
    assert row["next"].endswith("-01-01T03:00:00+01:00") and not row["paused"]
    answers("pipeline", "pause", "load_nightly", *at)
    assert answers("pipeline", "deploy", str(file), *at)[0]["paused"]
    (row,) = answers("pipeline", "list", *at)
    assert row["paused"] and row["next"] is None
    answers("pipeline", "resume", "load_nightly", *at)
    (row,) = answers("pipeline", "list", *at)
    assert row["next"].endswith("-01-01T03:00:00+01:00") and not row["paused"]
    file.write_text(LOAD_NIGHTLY)
    answers("pipeline", "deploy", str(file), *at)
    assert answers("pipeline", "list", *at)[0]["schedule"] == ""
    days = ("--from", "2026-02-01", "--to", "2026-02-02", "--parallel", "2")
    (report,) = answers("pipeline", "backfill", "load_nightly", *days, *at)
    assert list(report["done"]) == ["2026-02-01", "2026-02-02"] and not report["failed"] and not report["left"]
    assert answers("pipeline", "backfill", "load_nightly", *days, *at) == [report]
    refused = CliRunner().invoke(app, ["pipeline", "backfill", "load_nightly", *days, "--parameter", "dya", *at])
    assert refused.exit_code != 0 and "day, most, heights" in refused.output
