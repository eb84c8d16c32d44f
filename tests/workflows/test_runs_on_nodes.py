"""Pipelines that this process carries out on a node: the node's runs, and nobody else's steps; killed at each step."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from littlehorse.model import PutTaskDefRequest, RunWfRequest, SearchTaskDefRequest, StopWfRunRequest, WfRunId

import millpond
from millpond.cli.workflows.on_node import on_node
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.testing.faults import KILL_AT, KILL_FILE, STEPS_LOG, occurrences
from tests.rings.forked import Command, run
from tests.rings.sampling import drawn
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for
from tests.workflows.test_pipeline_branches import NIGHTLY, RUN, merges, temps

HERE = """
import os
from pathlib import Path
from threading import Event

from millpond.pipelines import pipeline, python, shell


def held(folder):
    Path(folder, "begun").write_text(str(os.getpid()))
    while not Path(folder, "go").exists():
        Event().wait(0.05)
    return 1


def worked():
    print("with password=hunter2222")
    return os.getpid()


@pipeline(schedule="0 3 1 1 *")
def waits(folder: str = "."):
    value = python(held, folder, retries=0)
    shell(["echo", "VERSION"], needs=value)


@pipeline
def works(fails: bool = False):
    python(worked)
    shell(["sh", "-c", "echo it is refused; exit 3"], when=fails == True, retries=0)
"""


class Site:
    """A node, and pipelines that are run on it from a folder beside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, WorkflowServer(folder / "pond")
        self.server.run_by = ("python", "-m", "tests.harness.served")
        (folder / "here.py").write_text(HERE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def words(self, *words: str) -> list[str]:
        return ["pipeline", "run", *words, "--pond", self.url]

    def began(self, log: IO[str], *words: str, **variables: str) -> Command:
        """A command that runs a pipeline, and may be killed at its steps."""
        environment = self.server.environment() | {"MILLPOND_PIPELINE_FILES": str(self.folder / "files")} | variables
        return Command(["python", "-c", RUN, *self.words(*words)], cwd=self.folder, stderr=log, env=environment)

    def ran(self, *words: str, code: int = 0) -> str:
        done = run(words, cwd=self.folder, timeout=SECONDS)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr


def ended(command: Command) -> tuple[int | None, str]:
    """The exit code of a command, and what it printed."""
    said, _ = command.communicate(SECONDS)
    return command.returncode, said


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.server.start()
    yield made
    made.server.end(signal.SIGKILL)


def test_a_run_on_a_node_has_its_steps_carried_out_here_alone(site: Site) -> None:
    at = ("--server", site.url)
    log = site.folder / "worker.log"
    with log.open("w") as output:
        worker = Command(["worker", "millpond.pipelines", "--pond", site.url], cwd=site.folder, stderr=output,
                         env=site.server.environment())  # fmt: skip
    wait_for(lambda: "working on" in log.read_text())
    site.ran("pipeline", "deploy", "here.py", "--pipeline", "waits", "--pond", site.url)
    (site.folder / "here.py").write_text(HERE.replace("VERSION", "another text"))
    held = f"folder={site.folder}"
    with (site.folder / "log").open("w") as output:
        begun = site.began(output, "here.py", "--pipeline", "waits", held)
        wait_for((site.folder / "begun").exists)
        assert (site.folder / "begun").read_text() == str(begun.pid)
        site.ran("run", "start", "waits", "--id", "deployed", "--input", held, *at)
        wait_for(lambda: (site.folder / "begun").read_text() == str(worker.pid))
        (site.folder / "go").touch()
        code, said = ended(begun)
    assert code == 0 and said.startswith("waits-")
    said = site.ran("pipeline", "run", "here.py", "--pipeline", "waits", held, "--pond", site.url)
    assert "has ended; --again starts another run" in said
    assert "another text" in site.ran("run", "logs", said.split()[0], "shell", *at)
    (row,) = site.ran("pipeline", "list", "--pond", site.url, "--json").splitlines()
    assert "paused waits" in site.ran("pipeline", "pause", "waits", "--pond", site.url)
    assert "resumed waits; its next run" in site.ran("pipeline", "resume", "waits", "--pond", site.url)
    assert "only a node begins runs" in site.ran("pipeline", "pause", "waits", "--pond", "pond", code=5)
    assert "echo attempt" not in site.ran("pipeline", "logs", "waits", "--pond", site.url)
    days = ("--from", "2026-01-01", "--to", "2026-01-01", "--parameter", "dya")
    assert "folder" in site.ran("pipeline", "backfill", "waits", *days, "--pond", site.url, code=5)
    assert (json.loads(row)["version"], json.loads(row)["schedule"]) == ("0.0", "0 3 1 1 *")
    assert "another text" not in site.ran("run", "logs", "deployed", *at)
    assert "step-of-" not in site.ran("task", "list", *at)
    worker.kill()
    worker.communicate(timeout=SECONDS)


def test_a_run_on_a_node_says_how_it_ended_as_one_without(site: Site) -> None:
    words = site.words("here.py", "--pipeline", "works")
    done = json.loads(site.ran(*words, "--json").splitlines()[0])
    assert done["status"] == "COMPLETED" and isinstance(done["values"]["worked"]["value"], int)
    said = site.ran("run", "logs", done["run"], "--pond", site.url)
    assert "password=***" in said and "hunter" not in said
    refused = site.ran(*words, "fails=true", code=5)
    assert "the run failed (run=works-" in refused and "reason=shell: a program failed" in refused
    assert "line=it is refused" in refused and "--rescue" in refused
    assert "Traceback" not in refused
    again = site.ran(*words, "fails=true", "--rescue", code=5)
    assert "worked attempt" not in again and "shell attempt 1" in again, "what was done stays done"
    assert "pipeline run FILE --id works-" in site.ran("run", "show", again.split()[0], "--pond", site.url)
    for wrong, sentence in (("day=1", "no such parameter"), ("fails=maybe", "of another type")):
        assert sentence in site.ran(*words, wrong, code=5)
    assert "it is the node that follows" in site.ran(*words, "--follow", code=5)


def test_a_run_on_a_node_that_its_pond_would_make_fail_does_not_begin(site: Site) -> None:
    (site.folder / "own.py").write_text(
        "from millpond.pipelines import pipeline, retain\n\n\n@pipeline\ndef own(name: str):\n    retain(name)\n"
    )
    with millpond.open(site.url) as pond:
        pond.create_map("weather", kind="state", value="double", retain="30d")
    assert "COMPLETED" in site.ran(*site.words("own.py", "name=weather"))
    said = site.ran(*site.words("own.py", "name=wether"), code=3)
    assert "map=wether, step=retain, line=own.py:6" in said and "run show" not in said


def test_a_run_on_a_node_goes_on_by_the_same_command(site: Site) -> None:
    """Told to stop, it hands its step back, which costs no retry; and stopped by hand."""
    words = ("here.py", "--pipeline", "waits", f"folder={site.folder}", "--id", "w-1")
    for number in (signal.SIGTERM, signal.SIGINT):
        with (site.folder / "log").open("w") as output:
            begun = site.began(output, *words)
            wait_for((site.folder / "begun").exists)
            begun.send_signal(number)
            assert ended(begun)[0] == 130, "though a function of a step goes on"
        assert "the same command goes on" in (site.folder / "log").read_text()
        (site.folder / "begun").unlink()
    with site.server.stub() as stub:
        stub.StopWfRun(StopWfRunRequest(wf_run_id=WfRunId(id="w-1")), timeout=SECONDS)
    (site.folder / "go").touch()
    assert "w-1  COMPLETED" in site.ran(*site.words(*words))


DAYS = """
import os
from datetime import date
from pathlib import Path
from threading import Event

from millpond.pipelines import load, pipeline, python


def held(day):
    while not Path("go").exists() and str(day) == "2026-01-02":
        Event().wait(0.05)
    return os.getpid()


@pipeline
def days(day: date):
    python(held, day, retries=0)
    load(f"{day}.csv", map="weather")
"""


def test_a_backfill_of_a_file_on_a_node_goes_on_and_is_merged_when_all_is_done(site: Site) -> None:
    (site.folder / "days.py").write_text(DAYS)
    for day, temp in ((1, 10), (2, 20)):
        (site.folder / f"2026-01-0{day}.csv").write_text(f"key,temp\nk{day},{temp}\n")
    words = ("backfill", "days.py", "--from", "2026-01-01", "--to", "2026-01-03", "--branch", "old", "--parallel", "2")
    command = ("pipeline", *words, "--pond", site.url, "--json")
    with millpond.open(site.url) as pond:
        pond.create_map("weather", kind="state", value="temp double", store="layers")
    with (site.folder / "log").open("w") as output:
        begun = Command(["python", "-c", RUN, *command], cwd=site.folder, stderr=output, env=site.server.environment())
        wait_for(lambda: " failed, " in (site.folder / "log").read_text())  # the third has no file, the second is held
        wait_for(lambda: site.ran("task", "list", "--server", site.url).count("step-of-") == 1)
        begun.kill()
        begun.communicate(timeout=SECONDS)
    (site.folder / "go").touch()
    said = site.ran(*command, code=1)
    report = json.loads(said.splitlines()[0])
    assert (sorted(report["done"]), sorted(report["failed"]), report["left"], report["merged"]) == (
        ["2026-01-01", "2026-01-02"], ["2026-01-03"], [], "",
    ), (said, (site.folder / "log").read_text())  # fmt: skip
    assert "step-of-" not in site.ran("task", "list", "--server", site.url)
    (site.folder / "2026-01-03.csv").write_text("key,temp\nk3,30\n")
    with millpond.open(site.url) as pond:
        assert pond.map("weather").lookup(["k1", "k2"]).to_pylist() == [None, None]
        assert json.loads(site.ran(*command, "--failed").splitlines()[0])["merged"]
        assert [row["temp"] for row in pond.map("weather").lookup(["k1", "k2", "k3"]).to_pylist()] == [10, 20, 30]
    for wrong, sentence in ((("--parameter", "dya"), "no such parameter"), (("--server", site.url), "--pond http://")):
        assert sentence in site.ran(*command, *wrong, code=5)


def test_a_task_that_a_killed_process_left_goes_with_the_next_that_starts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a run that has ended, and of one that is gone; not of one that is open, or may be about to begin."""
    program = read_program(site.folder / "here.py")
    works = pipelines_of(program)["works"]
    names = [f"step-of-{run}" for run in ("ended", "gone", "open")]
    site.ran(*site.words("here.py", "--pipeline", "works", "--id", "ended"))
    site.ran("pipeline", "deploy", "here.py", "--pipeline", "waits", "--server", site.url)
    for name in ("LHC_API_HOST", "LHC_API_PORT", "LHC_TENANT_ID", "MILLPOND_POND"):
        monkeypatch.setenv(name, "")  # the client of the node sets them
    with site.server.stub() as stub, on_node(site.url, str) as runs:
        stub.RunWf(RunWfRequest(wf_spec_name="waits", id="open"), timeout=SECONDS)
        for name in names:
            stub.PutTaskDef(PutTaskDefRequest(name=name), timeout=SECONDS)
        runs.define(works, program)
        left = stub.SearchTaskDef(SearchTaskDefRequest(prefix="step-of-"), timeout=SECONDS)
        assert sorted(own.name for own in left.results) == names
        monkeypatch.setattr("millpond.cli.workflows.on_node.STAYED_SECONDS", -60.0)  # as if it were later
        runs.define(works, program)
        left = stub.SearchTaskDef(SearchTaskDefRequest(prefix="step-of-"), timeout=SECONDS)
        assert [own.name for own in left.results] == ["step-of-open"]


# -- killed -------------------------------------------------------------------------------------------


@pytest.fixture
def branches(tmp_path: Path) -> Iterator[Site]:
    """A node of which steps are known, with a map for branches."""
    (tmp_path / "nightly.py").write_text(NIGHTLY)
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="state", value="temp double", store="layers")
        pond.map("weather").load([{"key": "JFK", "temp": 1.0}])
    made = Site(tmp_path)
    made.server.settings |= {STEPS_LOG: str(tmp_path / "steps"), KILL_FILE: str(tmp_path / "kill")}
    made.server.start()
    yield made
    made.server.end(signal.SIGKILL)


def published(site: Site, number: int, **variables: str) -> Command:
    """A run of the pipeline with branches, its `number`th."""
    (site.folder / f"{number}.csv").write_text(f"key,temp\nJFK,{number / 8}\nLGA,0.5\n")
    with (site.folder / f"log-{number}").open("a") as log:
        words = ("nightly.py", "--pipeline", "nightly", f"file={number}.csv", "--id", f"n-{number}")
        return site.began(log, *words, **variables)


def assert_published_once(site: Site, number: int, moment: str) -> None:
    """One load, one merge and one event of each of so many runs; and the rows of the last."""
    with millpond.open(site.url) as pond:
        said = (moment, (site.folder / f"log-{number}").read_text())
        assert temps(pond) == [number / 8, 0.5], said
        assert merges(pond) == number + 1, said
        assert len(list(pond.events.read("etl", "nightly"))) == number + 1, said
        loads = [commit for commit in pond.refs.log("nightly") if commit.message.startswith("Load")]
        assert len(loads) == number + 2, (said, [commit.message for commit in loads])


@pytest.mark.timeout(7_200)
def test_what_is_killed_at_any_moment_is_published_once(branches: Site) -> None:
    """Kills of the process that carries out the run, at its own steps and at those of the node; and of the node."""
    own, steps = branches.folder / "own", branches.folder / "steps"
    assert ended(published(branches, 0, **{STEPS_LOG: str(own)}))[0] == 0
    moments = {"process": occurrences(own), "worker": (of_node := occurrences(steps)), "node": of_node}
    assert_published_once(branches, 0, "whole")
    every = [(who, moment) for who, all_ in moments.items() for moment in all_]
    cases = drawn(every, 2, name="kills of a run on a node")
    cases.append(("node", "workflows.batch_committed:7"))  # a task was handed out, and came to nobody
    for number, (who, moment) in enumerate(cases, 1):
        killed_at(branches, number, who, moment)
        assert_published_once(branches, number, f"{who} {moment}")
    branches.server.end()
    with millpond.open(branches.folder / "pond") as pond:
        assert pond.verify(full=True).ok


def killed_at(site: Site, number: int, who: str, moment: str) -> None:
    """Run the pipeline, with a kill at a moment, and by the same command to its end."""
    said = site.folder / f"log-{number}"
    begun = published(site, number, **({KILL_AT: moment} if who == "process" else {}))
    if who != "process":
        (site.folder / "text").write_text(moment + f" {begun.pid}" * (who == "worker"))
        (site.folder / "text").rename(site.folder / "kill")
    node = site.server.process
    assert node is not None
    wait_for(lambda: begun.poll() is not None or node.poll() is not None)
    (site.folder / "kill").unlink(missing_ok=True)
    if who != "process":  # the node has read the file
        site.server.end()
        site.server.start()
    code, _ = ended(begun)
    assert "our mistake" not in said.read_text() and "Traceback" not in said.read_text(), (who, moment)
    if code:
        assert ended(published(site, number))[0] == 0, (who, moment, said.read_text())
