"""Runs of pipelines in one process: out of time, stopped, failed; each says what it came to."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from littlehorse.model import RescueThreadRunRequest, StopWfRunRequest, WfRunId
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.errors import Conflict, Invalid
from millpond.pipelines.driver_lines import began_of
from millpond.pipelines.embedded import embedded
from millpond.pipelines.programs import pipelines_of, read_program
from tests.rings.forked import Command, run
from tests.workflows.conftest import SECONDS
from tests.workflows.test_client import wait_for

OWN = """
from millpond.pipelines import pipeline, python


def one():
    return 1


@pipeline
def own():
    python(one)
"""


@pytest.mark.usefixtures("process")
def test_a_step_that_is_out_of_time_is_tried_as_often_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from millpond.pipelines import pipeline, shell\n\n\n@pipeline\ndef own():\n"
        "    shell(['sh', '-c', 'echo so far; exec sleep 1000'], timeout=1, retries=0)\n"
    )
    program, said = read_program(tmp_path / "own.py"), list[str]()
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", said.append) as runs:
        with pytest.raises(Invalid, match=r"timeout of the step is over, and it was at work\. seconds=1\.0 "):
            runs.run(pipelines_of(program)["own"], program, {}, "r")
        assert [line.partition(":")[0] for line in said] == ["shell"]
        logs = [task.attempts[-1].log_output.str for task in runs._tasks("r")]
        assert any("so far\n" in log for log in logs), "its log is kept"


def test_a_run_that_was_stopped_goes_on_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    program = read_program(tmp_path / "own.py")
    own = pipelines_of(program)["own"]
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", str) as runs:
        runs.define(own, program)
        runs.begin("own", "r", {})
        runs._send(StopWfRunRequest(wf_run_id=WfRunId(id="r")))
        assert runs.status("r") == "HALTED"
        assert runs.run(own, program, {}, "r").values["one"] == {"value": 1}


FAILING = """
from millpond.pipelines import notify, pipeline, python, shell

def tried(place):
    with open(place, "a") as lines:
        lines.write("x")
        first = lines.tell() == 1
    raise ConnectionError("the first one") if first else ValueError("the second one")

def told():
    raise ValueError("another step")

def tell(failure):
    python(told, name="told", retries=0)

@pipeline(on_failure=tell)
def failing(place: str):
    python(tried, place, backoff=0)

@pipeline
def other():
    shell(["sh", "-c", "sleep 1.5; echo another run; exit 3"], retries=0)
"""


@pytest.mark.usefixtures("process")
def test_the_reason_of_a_run_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILING)
    program = read_program(tmp_path / "own.py")
    pipelines = pipelines_of(program)
    inputs = {"place": str(tmp_path / "tries")}
    with millpond.open(tmp_path / "pond", create=True) as pond:
        for _ in range(2):  # when it fails, and when it has failed
            with embedded(pond, "here", str) as runs:
                runs.define(pipelines["other"], program)
                runs.begin("other", "o", {})
                with pytest.raises(Invalid, match=r"run=r reason=.*tried attempt 1: .*ValueError: the second one"):
                    runs.run(pipelines["failing"], program, inputs, "r")
                with pytest.raises(Invalid, match=r"run=o reason=.*shell: .*line=another run"):
                    runs.run(pipelines["other"], program, {}, "o")


def test_a_run_that_is_stopped_meanwhile_ends_with_that(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{OWN}    python(one, name='two')\n    python(one, name='three')\n")
    program = read_program(tmp_path / "own.py")

    def stop(line: str) -> None:
        if line.startswith("one: "):
            runs._send(StopWfRunRequest(wf_run_id=WfRunId(id="r")))

    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", stop) as runs:
        with pytest.raises(Invalid, match=r"stopped, or deleted.*status=HALT"):
            runs.run(pipelines_of(program)["own"], program, {}, "r")
        assert runs.run(pipelines_of(program)["own"], program, {}, "r").status == "COMPLETED"


RESCUED = """
from millpond.pipelines import check, item, load, notify, pipeline, python

def made(folder, number):
    with open(f"{folder}/made", "a") as lines:
        lines.write(f"{number} ")
    if number == 2:
        open(f"{folder}/mended").close()
    return number

def tell(failure):
    notify("stream:etl/failed", step=failure.step)

@pipeline(on_failure=tell)
def own(folder: str):
    weather = load(f"{folder}/*.csv", map="weather", kind="state", value="temp double")
    each = python(made, folder, item, over=[1, 2, 3], retries=0)
    check("select * from {weather} where temp > 60", weather=weather, needs=each)
    notify("stream:etl/done", rows=weather.rows)
"""


def test_a_run_that_failed_goes_on_at_its_step_when_it_is_rescued(tmp_path: Path) -> None:
    """The loop is at its second item, then the check fails: nothing that was done before is done again."""
    (tmp_path / "own.py").write_text(RESCUED)
    rows = tmp_path / "rows.csv"
    rows.write_text("key,temp\nJFK,99\n")
    program, inputs = read_program(tmp_path / "own.py"), {"folder": str(tmp_path)}
    own = pipelines_of(program)["own"]
    with millpond.open(tmp_path / "pond", create=True) as pond, embedded(pond, "here", str) as runs:
        for words in (r"made.*: .*No such file", r"check.*: the check finds rows"):
            for _ in range(2):  # without a rescue it stays as it is
                with pytest.raises(Invalid, match=rf"reason={words}.*--rescue"):
                    runs.run(own, program, inputs, "r")
            with pytest.raises(Invalid, match=rf"reason={words}"):
                runs.run(own, program, inputs, "r", rescues=True)
            (tmp_path / "mended").touch()
            if "check" in words:
                rows.write_text("key,temp\nJFK,1\n")
                pond.load_files(rows, "weather")
            else:
                with pytest.raises(Invalid, match="the check finds rows"):
                    runs.run(own, program, inputs, "r", rescues=True)
        said = list[str]()
        runs._tell = said.append
        with pytest.raises(Invalid, match="the text that the run began with"):
            runs.run(own, {**program, "source": f"{program['source']}# mended"}, inputs, "r")
        assert said == ["r has the text with which it began, and the file another by now; --again takes that"]
        shows = ("run", "show", "r", "--pond", str(tmp_path / "pond"))
        assert "millpond pipeline run FILE --id r --rescue --pond" in CliRunner().invoke(app, shows).stdout
        assert runs.run(own, program, inputs, "r", rescues=True).status == "COMPLETED"
        lines = CliRunner().invoke(app, shows).stdout.splitlines()
        assert [sum(f" attempt {number} " in line for line in lines) for number in range(4)] == [9, 2, 2, 0]
        with pytest.raises(Conflict, match="not in ERROR"):
            runs._send(RescueThreadRunRequest(wf_run_id=WfRunId(id="r")))
        assert (tmp_path / "made").read_text() == "1 2 2 2 3 "
        assert len([entry for entry in pond.log.entries(0) if entry.kind == "load"]) == 2, "the pipeline loaded once"
        steps = [json.loads(event.payload)["step"] for event in pond.events.read("etl", "failed")]
        assert steps == ["made", "made", "check", "check"] and len(list(pond.events.read("etl", "done"))) == 1
        assert pond.verify(full=True).ok


HELD = """
from pathlib import Path
from threading import Event

from millpond.pipelines import pipeline, python


def held():
    Path("begun").touch()
    while not Path("go").exists():
        Event().wait(0.05)


@pipeline
def waits():
    python(held, retries=0)
"""


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_stop_waits_for_no_function(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "held.py").write_text(HELD)
    words = ["pipeline", "run", "held.py", "--pond", "pond"]
    with (tmp_path / "log").open("w") as log:
        begun = Command(words, cwd=tmp_path, stderr=log)
    wait_for((tmp_path / "begun").exists)
    begun.send_signal(number)
    begun.communicate(SECONDS)
    said = (tmp_path / "log").read_text().splitlines()
    assert (begun.returncode, said[-1]) == (130, "stopped; the same command goes on") and "stopping" in said[-2]
    (tmp_path / "go").touch()
    assert run(words, cwd=tmp_path, timeout=SECONDS).returncode == 0
    (row,) = run(["pipeline", "list", "--pond", "pond", "--json"], cwd=tmp_path).stdout.splitlines()
    assert (json.loads(row)["pipeline"], json.loads(row)["last_status"]) == ("waits", "COMPLETED")
    logs = run(["pipeline", "logs", "waits", "--pond", "pond"], cwd=tmp_path)
    assert "held attempt 0  timeout  the process that worked on it is gone" in logs.stdout, logs.stderr


COUNTED = """
from millpond.pipelines import pipeline, shell


@pipeline
def counts():
    shell(["sh", "-c", "(echo $$ >> begun; while [ ! -e go ]; do sleep 0.05; done; echo >> ended) & wait"])
"""


@pytest.mark.usefixtures("process")
def test_a_program_ends_with_its_process_that_is_killed_and_has_its_effect_once(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTED)
    words = ["pipeline", "run", "counts.py", "--pond", "pond"]
    begun = Command(words, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    begun.send_signal(signal.SIGKILL)
    begun.communicate(SECONDS)
    pid = int((tmp_path / "begun").read_text())
    wait_for(lambda: not began_of(pid))
    (tmp_path / "go").touch()
    assert run(words, cwd=tmp_path, timeout=SECONDS).returncode == 0
    assert (tmp_path / "ended").read_text() == "\n"


ENDLESS = """
import sys
import time

from pathlib import Path

from millpond.pipelines import notify, pipeline, python, sql


def counting():
    try:
        print("it counts")
        while True:
            time.sleep(0.01)
    finally:
        Path("ended").touch()


def asleep():
    time.sleep(10_000)


def leaving():
    sys.exit("no rows")


def tell(failure):
    python(Path("told").write_text, f"{failure.step}: {failure.kind}: {failure.reason}", name="told")
    notify("stream:etl/failed", why=failure)


@pipeline(on_failure=tell)
def counts():
    python(counting, retries=1, backoff=0, timeout=1)


@pipeline(on_failure=tell)
def sleeps():
    python(asleep, retries=0, timeout=1)


@pipeline(on_failure=tell)
def joins():
    sql("select count(*) as n from range(1000000000) a join range(1000000000) b on a.range % 7 < b.range % 5",
        retries=0, timeout=1)


@pipeline(on_failure=tell)
def leaves():
    python(leaving)


@pipeline(on_failure=tell)
def grows():
    for number in range(3):
        python(str.rjust, "x", 600_000, name=f"grown{number}")
"""
TIMED_OUT = r"timeout: the timeout of the step is over, and it was at work\. seconds=1\.0 \(.*timeout at the step\)"
"""By the worker, whose report has the log; the engine waits a while for that."""


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("which", "words"), [
    ("counts", f"counting: {TIMED_OUT}"),
    ("sleeps", f"asleep: {TIMED_OUT}"),
    ("joins", f"sql: {TIMED_OUT}"),
    ("grows", "grown1: .*the task run would have .* bytes with this result, more than"),
    ("leaves", "leaving: pipeline-function: a function of the pipeline failed.*SystemExit: no rows"),
])  # fmt: skip
def test_a_step_that_fails_past_its_timeout_or_with_its_result_says_so_and_holds_up_nothing(
    tmp_path: Path, which: str, words: str
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    done = run(["pipeline", "run", "endless.py", "--pipeline", which, "--pond", "pond"], cwd=tmp_path, timeout=SECONDS)
    assert done.returncode != 0 and re.search(f"the run failed .*reason={words.partition(':')[0]}[^:]*: ", done.stderr)
    assert re.match(words, (tmp_path / "told").read_text())
    assert (tmp_path / "ended").exists() == (which == "counts"), "it is interrupted where Python looks"
    logs = CliRunner().invoke(app, ["pipeline", "logs", which, "--pond", str(tmp_path / "pond")]).stdout
    assert logs.count("it counts") == (2 if which == "counts" else 0), "the log of each attempt is kept"
    with millpond.open(tmp_path / "pond") as pond:
        [event] = pond.events.read("etl", "failed")
    why = json.loads(event.payload)["why"]
    assert f"{why['step']}: {why['kind']}: {why['reason']}" == (tmp_path / "told").read_text()


def test_a_plan_that_is_shown_is_held_against_a_pond(tmp_path: Path) -> None:
    millpond.open(tmp_path / "pond", create=True).close()
    file = tmp_path / "own.py"
    file.write_text(
        "from millpond.pipelines import load, pipeline\n\n@pipeline\ndef own():\n    load('a', map='wether')\n"
    )
    show = ["pipeline", "show", str(file)]
    assert CliRunner().invoke(app, show).exit_code == 0
    shown = CliRunner().invoke(app, [*show, "--pond", str(tmp_path / "pond")])
    assert shown.exit_code == 3 and "no such map" in shown.output and "own.py:5" in shown.output
