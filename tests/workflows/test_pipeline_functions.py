"""Pipelines as functions of steps: checked when declared, run in one process, resumed after kills, deployed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any, cast
from xml.etree import ElementTree

import pytest
from littlehorse.model import LHStatus, WfRunId
from littlehorse.workflow import Workflow
from pyarrow import parquet
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.cli.workflows.server import connected
from millpond.errors import Invalid, MillpondError
from millpond.pipelines import check, item, load, notify, pipeline, python, retain, shell, spark, sql
from millpond.pipelines.plan import drawn, drawn_svg, shown_plan
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pipelines.values import filled, template_of
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
        lines.write(f"{day}\\n")
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
    seen: list[str] = []
    for _ in range(12):
        process, errors = begun(folder, "day=2026-01-01")
        with errors:
            line = next((line for line in errors if ": done" in line or ": skipped" in line), "")
            process.kill()
            process.communicate(timeout=SECONDS)
        if not line:
            break
        seen.append(line.partition(":")[0].split(" attempt ")[0])
    code, output, said = ended(folder, "day=2026-01-01")
    assert code == 0 and "COMPLETED" in output, said
    assert {"load", "check", "sql", "counted", "never", "shell"} <= set(seen)
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


# -- declared -----------------------------------------------------------------------------------------


def declared(body: Any) -> Any:
    return pipeline(body, name="declared")


async def awaited() -> None:
    sql("select 1")


def of_many(*days: str) -> None:
    sql("select 1")


def of_no_number(most: int = cast("int", "much")) -> None:
    python(template_of, most)


def later(value: Any) -> None:
    sql("select {a} as a", a=value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: None, "no steps"),
        (lambda: sql("select a form b"), "not understood"),
        (lambda: sql("drop table a"), "one SELECT"),
        (lambda: sql("select * from {b}"), "input=b"),
        (lambda: sql("select 1", a=1), "input=a"),
        (lambda: sql(f"select {item}"), "stands in SQL"),
        (lambda: sql("select * from t where day = '{day}'", day=1), "in quotes.*input=day.*without quotes"),
        (lambda: check("select 'it''s {a}' as b", a=1), "in quotes.*input=a"),
        (lambda: sql("select e'\\'{a}' as b", a=1), "in quotes.*input=a "),
        (lambda: sql("select $x${a}$x$ as b", a=1), "in quotes.*input=a.*"),
        (lambda: sql('select "{a}" from b', a=1), "in quotes.*input=a."),
        (lambda: sql("select '\\'{a}'", a=1, engine="spark"), "in quotes.*input=a.."),
        (lambda: (sql("select 1", name="a"), sql("select 2", name="a")), "step=a"),
        (lambda: sql("select 1", name="run"), "step=run"),
        (lambda: sql("select 1", retry=3), "input=retry"),
        (lambda: load("a.csv", map="m", retry=3), "option=retry"),
        (lambda: shell("rm -rf $x"), "list of words"),
        (lambda: notify("ftp://a"), "place=ftp"),
        (lambda: python(3), "calls a function"),
        (lambda: load("a", map="a", kind="stat"), "kind is not known.*value=stat"),
        (lambda: load("a", map="a", kind="state", value="temp dubble"), "value type is not known"),
        (lambda: python(template_of), "does not take what its step gives it.*missing a required argument"),
        (lambda: spark(template_of, 2), "step=spark function=template_of"),
        (lambda: retain("m", timeout=0), "timeout"),
        (lambda: check("select 1") and None, "not there yet"),
        (lambda: shell(["a", object()]), "type=object"),
        (lambda: sql("select {a} as a", a=template_of), "type=function"),
        (lambda: python(template_of, item), "an item is there"),
        (lambda: python(template_of, item, over=[1], when=item > 0), "when is looked at once"),
        (lambda: python(template_of, needs=["a"]), "not the output of a step"),
        (lambda: python(template_of, retries=1.5), "retries are 0 or more"),
        (lambda: notify("stream:a/b", text=f"a{sql('select 1')}".upper()), "changed as text"),
        (lambda: notify("stream:a/b", text=sql("select 1").row), r"value=sql\.row fields=path, rows"),
        (lambda: notify("stream:a/b", text={"$text": 1}), r"name=\$text"),
        (lambda: sql("select {name} as a", name="b"), "name of an option.*input=name"),
        (lambda: notify("stream:abc"), "place=stream:abc"),
        (lambda: python(template_of, over="abc"), "over is a list"),
        (lambda: python(template_of, timeout="5m"), "timeout are numbers"),
        (lambda: python(template_of, retries=True), "retries, backoff"),
        (awaited, "def without async"),
        (of_many, r"parameter=\*days"),
        (of_no_number, "parameter=most type=int value=much"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(body: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        declared(body)


def test_quotes_end() -> None:
    declared(lambda: sql("select '{', {a}, '}', \"b c\", 1 -- it's\n, {a} /* don't */, {a}, $${$$", a=1))
    declared(lambda: sql("select {at} as at, * from {order} limit {end}", at=1, order=2, end=3))
    declared(lambda: sql("select '\\'', {a}, '' || {a} || '{3}'", a=1, engine="spark"))


def test_a_step_takes_values_of_steps_before_it_alone() -> None:
    retained: list[Any] = []

    def body() -> None:
        if not retained:
            retained.append(sql("select 1 as a", name="first"))
        later(retained[0])

    declared(body)
    with pytest.raises(Invalid, match="takes=first"):
        declared(body)
    with pytest.raises(Invalid, match="function of a pipeline"):
        sql("select 1")
    with pytest.raises(MillpondError, match="not a cron expression"):
        pipeline(lambda: sql("select 1"), name="never", schedule="0 0 30 2 *")
    with pytest.raises(Invalid, match="no such time zone"):
        pipeline(lambda: sql("select 1"), name="mars", schedule="0 3 * * *", time_zone="Mars")
    with pytest.raises(Invalid, match=r"no such option\. option=shedule"):
        pipeline(lambda: sql("select 1"), name="own", shedule="0 3 * * *")
    with pytest.raises(Invalid, match="five fields alone"):
        pipeline(lambda: sql("select 1"), name="off", schedule="PAUSED=true 0 3 * * *")


def test_a_pipeline_within_another_joins_its_plan_and_is_drawn() -> None:
    inner = pipeline(lambda n=1: sql("select {n} as a", n=n, name="rows"), name="inner")

    def outer() -> None:
        rows = inner(2)
        sql("select * from {rows}", rows=rows, when=rows.rows > 0, name="last")

    def after(token: str = "hunter22") -> None:
        first = sql("select 1")
        python(template_of, token, needs=first, name="last")

    assert declared(after).plan.steps[1].needs == ("sql",) and "hunter22" not in next(drawn(declared(after).plan))
    assert "hunter22" not in str(shown_plan(declared(after).plan)) and "hunter22" in str(declared(after).plan)
    plan = declared(outer).plan
    assert [(step.name, step.takes()) for step in plan.steps] == [("inner_rows", ()), ("last", ("inner_rows",))]
    assert [line.strip() for line in drawn(plan)][-1] == "└─ last  [sql, if]  ◀ inner_rows"
    assert len(ElementTree.fromstring(drawn_svg(plan)).findall("{http://www.w3.org/2000/svg}rect")) == 2


def test_a_file_that_does_not_import_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("a = 1\nb = nothing\n")
    with pytest.raises(Invalid, match=r"line=2 reason=NameError"):
        pipelines_of(read_program(file))
    file.write_text("a = 1\n")
    with pytest.raises(Invalid, match="no pipeline"):
        pipelines_of(read_program(file))


def test_values_stand_in_templates_as_what_they_are() -> None:
    values = {"step": {"rows": 3, "path": "a b"}, "day": "2026-01-01", "off": {"$skipped": True}}
    assert filled({"$value": ["step", "rows"]}, values) == 3
    for text, said in ((f"{item!r}", "4"), (f"{[item]}", "[4]"), (f"{item > 3}", "True"), (f"{item:>3}", "  4")):
        assert filled(template_of(text), {"item": 4}) == said
    for template in (template_of(f"{item:%Y}"), template_of(f"{item:d}"), template_of(item > 3)):
        with pytest.raises(Invalid, match=r"no such format|no order"):
            filled(template, {"item": "tomorrow"})
    assert filled(template_of([f"{item}"]), {"item": 4}) == ["4"]
    assert filled({"$text": ["x", {"$value": ["day"], "format": "%d"}]}, values) == "x01"
    for path in (["off", "rows"], ["off"]):
        with pytest.raises(Invalid, match="step=off"):
            filled({"$value": path}, values)
    with pytest.raises(Invalid, match=r"value=step\.size"):
        filled({"$value": ["step", "size"]}, values)
