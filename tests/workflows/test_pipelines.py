"""Pipelines by the command `millpond worker millpond.pipelines`: each step once, failures by name, a story for each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from littlehorse.model import (
    CheckpointId,
    DeleteWfRunRequest,
    LHStatus,
    ListTaskRunsRequest,
    ResumeWfRunRequest,
    RunWfRequest,
    StopWfRunRequest,
    WfRunId,
)
from littlehorse.workflow import Workflow, WorkflowThread
from pyarrow import parquet
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import SystemClock
from millpond.errors import Invalid, NotFound
from millpond.pipelines import ColumnRule, Drift, KeyRule, Pipeline, Question, Rows, Rules, Target, View
from millpond.pipelines.driver_lines import began_of
from tests.docs.snippets import snippets
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for

pytestmark = pytest.mark.usefixtures("spark_process")

STOP_SECONDS = 5.0
STATIONS = "code,name,height\nJFK,Kennedy,13\nLGA,La Guardia,22\nEWR,Newark,18\n"


class Site:
    """A server, a worker of pipelines, and a folder with files."""

    def __init__(self, folder: Path, master: str = "local[2]", *more: str) -> None:
        """A site; `more` words of its worker's command."""
        self.folder, self.server, self.master, self.more = folder, WorkflowServer(folder / "pond"), master, more
        self.worker: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def log(self) -> Path:
        return self.folder / "worker.log"

    def start(self) -> None:
        self.server.start()
        self.begin_worker()

    def begin_worker(self) -> None:
        with self.log.open("w") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "millpond", "worker", "millpond.pipelines", "--pond", self.url, "--master",
                 self.master, "--server", f"127.0.0.1:{self.server.grpc_port}", *self.more],
                stdout=log, stderr=log, env=self.server.environment(), cwd=self.folder,
            )  # fmt: skip
        wait_for(lambda: "working on" in self.log.read_text())

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()

    def end(self) -> None:
        self.kill_worker()
        self.server.end()

    def rows(self, text: str, sql: str) -> Rows:
        """The rows of a query over a file of stations."""
        file = self.folder / f"stations-{len(list(self.folder.glob('stations-*')))}.csv"
        file.write_text(text)
        view = View(files=[str(file)], format="csv", schema="code string, name string, height int",
                    options={"header": "true"})  # fmt: skip
        return Rows(sql=sql, views={"stations": view})

    def run(self, name: str, body: Callable[[WorkflowThread], None]) -> Any:
        """The run of a workflow when it has ended."""
        with self.server.stub() as stub:
            stub.PutWfSpec(Workflow(name, body).compile(), timeout=SECONDS)
            stub.RunWf(RunWfRequest(wf_spec_name=name, id=name), timeout=SECONDS)
        return self.wait_ended(name)

    def begin(self, name: str, body: Callable[[WorkflowThread], None]) -> None:
        """Begin the run of a workflow; it returns when the first attempt at a step has begun."""
        with self.server.stub() as stub:
            stub.PutWfSpec(Workflow(name, body).compile(), timeout=SECONDS)
            stub.RunWf(RunWfRequest(wf_spec_name=name, id=name), timeout=SECONDS)
        with millpond.open(self.url) as pond:
            wait_for(lambda: any(pond.events.read("default", name)))

    def task(self, run: str) -> Any:
        """The newest task run of a run."""
        with self.server.stub() as stub:
            request = ListTaskRunsRequest(wf_run_id=WfRunId(id=run))
            return list(stub.ListTaskRuns(request, timeout=SECONDS).results)[-1]

    def progress(self, run: str) -> dict[str, Any]:
        """The progress of the newest attempt of a run."""
        shown = self.task(run).attempts[-1].log_output
        return json.loads(shown.json_obj) if shown.WhichOneof("value") == "json_obj" else {}

    def drivers(self, run: str) -> list[dict[str, Any]]:
        """The drivers that the checkpoints of a run's newest step name."""
        task = self.task(run)
        with self.server.stub() as stub:
            values = [
                stub.GetCheckpoint(CheckpointId(task_run=task.id, checkpoint_number=number), timeout=SECONDS).value
                for number in range(task.total_checkpoints)
            ]
        rows = [json.loads(value.json_obj) for value in values if value.HasField("json_obj")]
        return [row["$driver"] for row in rows if "$driver" in row]

    def loads(self, run: str) -> list[int]:
        """The rows of each load that a run entered; of a void ticket none."""
        with millpond.open(self.url) as pond:
            entries = [entry.body for entry in pond.log.entries(0) if entry.kind == "load"]
        return [sum(body["rows"].values()) for body in entries if body["load"].startswith(f"{run}_")]

    def wait_ended(self, run: str) -> Any:
        """A run when it has ended."""
        ended = (LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION)
        with self.server.stub() as stub:
            wait_for(lambda: stub.GetWfRun(WfRunId(id=run), timeout=SECONDS).status in ended)
            return stub.GetWfRun(WfRunId(id=run), timeout=SECONDS)

    def outputs(self, run: str) -> list[Any]:
        """The output of each task of a run, in order; of a failure its name and text."""
        with self.server.stub() as stub:
            found = stub.ListTaskRuns(ListTaskRunsRequest(wf_run_id=WfRunId(id=run)), timeout=SECONDS).results
        return [
            json.loads(task.attempts[-1].output.json_obj) if task.attempts[-1].WhichOneof("result") == "output"
            else (task.attempts[-1].exception.name, task.attempts[-1].exception.message)
            for task in found
        ]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.start()
        yield made
    finally:
        made.end()


ENDLESS = "select cast(a as string) as key, a as value from (select sum(id % 7) as a from range(100000000000000))"
SLEEPS = "coalesce(reflect('java.lang.Thread', 'sleep', 1500L + id), 'x')"
"""Long beside the three seconds after which progress is seen at the latest: one of a driver, two of a beat."""
SLOW = f"select cast(id as string) as key, length({SLEEPS}) as value from range(0, 12, 1, 12)"
AS_LONG_AS_HIGH = f"select code as key, length({SLEEPS.replace('1500L + id', '1000L * height')}) as value from stations"
AS_STATE = "select code as key, name, height from stations"


def test_every_step_is_done_and_tells_its_story(site: Site) -> None:
    rows = site.rows(STATIONS, AS_STATE)
    flights = site.rows(STATIONS, "select code as origin, height from stations union all select 'XYZ', 0")

    def nightly(wf: WorkflowThread) -> None:
        pipeline = Pipeline(wf)
        pipeline.load("stations", rows, Target(kind="state", value="name string, height long"))
        pipeline.check("stations", Rules(rows_min=3, columns={"height": ColumnRule(min=10, max=30)}))
        pipeline.check("stations", Rules(keys=KeyRule(column="origin", found_share_min=0.7)), rows=flights)
        pipeline.enrich(flights, [Question(map="stations", key="origin")], str(site.folder / "out"))
        pipeline.condense("stations", "2020-01-01T00:00Z")
        pipeline.retain("stations", "2020-01-01T00:00Z")
        pipeline.notify("etl", "nightly", "ready", {"map": "stations"})

    run = site.run("nightly", nightly)
    assert run.status == LHStatus.COMPLETED, site.log.read_text()
    load, whole, keys, enriched, *_ = site.outputs("nightly")
    assert (load["rows"], load["rejected"]) == (3, 0)
    assert (whole["passed"], whole["rows"]) == (True, 3)
    assert keys["findings"] == [{"rule": "keys.found_share_min", "found": 0.75, "limit": 0.7, "passed": True}]
    assert (enriched["rows"], enriched["found"]) == (4, {"stations": 3})
    assert [path.name for path in (site.folder / "out").iterdir()] == [Path(enriched["path"]).name]
    with millpond.open(site.url) as pond:
        assert pond.map("stations").get("LGA") == {"name": "La Guardia", "height": 22}
        assert [entry.body["load"] for entry in pond.log.entries(0) if entry.kind == "load"] == [load["load"]]
        story = [(event.kind, event.headers["step"]) for event in pond.events.read("default", "nightly")]
        (notice,) = pond.events.read("etl", "nightly")
    steps = ["load", "check", "check", "enrich", "condense", "retain", "notify"]
    assert story == [(kind, step) for step in steps for kind in ("running", "succeeded")]
    assert (notice.kind, json.loads(notice.payload)) == ("ready", {"map": "stations"})


def test_the_guide_does_what_it_says(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [snippet for snippet in snippets("docs/pipelines.md") if snippet.heading == "A pipeline"]
    (python,) = [snippet.text for snippet in blocks if snippet.language == "python"]
    (shell,) = [snippet.text for snippet in blocks if snippet.language == "sh"]
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("LHC_API_HOST", "127.0.0.1")
    monkeypatch.setenv("LHC_API_PORT", str(site.server.grpc_port))
    exec(compile(python, "docs/pipelines.md", "exec"), {})
    start, show, watch = [line.partition("#")[0].split()[1:] for line in shell.strip().splitlines()]
    monkeypatch.setenv("MILLPOND_WORKFLOWS", f"127.0.0.1:{site.server.grpc_port}")
    monkeypatch.setenv("MILLPOND_POND", site.url)
    assert typed(*start) == "started nightly-1\n"
    assert site.wait_ended("nightly-1").status == LHStatus.COMPLETED, site.log.read_text()
    assert "notify" in typed(*show)
    assert "succeeded" in typed(*watch, "--json")
    (path,) = (site.folder / "out").glob("nightly-1_*")
    found = parquet.read_table(path).sort_by("flight").column("weather").to_pylist()
    assert found == [{"temp": 39.0}, None]
    with millpond.open(site.url) as pond:
        assert [event.kind for event in pond.events.read("etl", "nightly")][-1] == "ready"


def test_a_failing_check_is_an_exception_that_a_handler_catches(site: Site) -> None:
    rows = site.rows(STATIONS, "select code as key, name, height * 10 as height from stations")
    rules = Rules(columns={"height": ColumnRule(max=100)}, drift=Drift(rows_change_max=0.5, mean_change_max=0.5))

    def guarded(wf: WorkflowThread) -> None:
        pipeline = Pipeline(wf)
        pipeline.load("guarded", site.rows(STATIONS, AS_STATE), {"kind": "state", "value": "name string, height long"})
        checked = pipeline.check("guarded", rules, rows=rows)

        def tell(handler: WorkflowThread) -> None:
            report = handler.declare_json_obj("INPUT")
            Pipeline(handler).notify("etl", "guarded", "check-failed", report)
            handler.fail("rows-refused", "the rows are not what they were")

        wf.handle_exception(checked, tell, "check-failed")
        pipeline.load("guarded", rows)

    run = site.run("guarded", guarded)
    assert run.status == LHStatus.EXCEPTION
    assert site.outputs("guarded")[1] == (
        "check-failed",
        (
            "guarded: 2 of 3 rules do not hold: height.max: found 220, limit 100; "
            "drift.height.mean_change_max: found 9, limit 0.5"
        ),
    )
    with millpond.open(site.url) as pond:
        assert pond.map("guarded").get("JFK") == {"name": "Kennedy", "height": 13}
        (notice,) = pond.events.read("etl", "guarded")
        failed = [event for event in pond.events.read("default", "guarded") if event.kind == "failed"]
    assert [finding["passed"] for finding in json.loads(notice.payload)["findings"]] == [False, True, False]
    assert [(event.headers["error"], event.headers["retryable"]) for event in failed] == [("check_failed", "false")]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "sql", "failure", "words"),
    [
        ("no-view", "select * from nothing", "spark-refused", "nothing"),
        ("no-column", "select code from stations", "column-missing", "key"),
    ],
)
def test_input_that_cannot_work_is_an_exception_with_its_kind(
    site: Site, name: str, sql: str, failure: str, words: str
) -> None:
    run = site.run(
        name, lambda wf: Pipeline(wf).load("x", site.rows(STATIONS, sql), Target(kind="state", value="long"))
    )
    assert run.status == LHStatus.EXCEPTION
    ((found, text),) = site.outputs(name)
    assert (found, words in text, "Traceback" in text) == (failure, True, False)


def test_a_load_that_fails_leaves_no_map_and_one_into_another_map_is_refused(site: Site) -> None:
    wrong = site.rows(
        STATIONS, "select code as key, cast(raise_error('the day is wrong') as string) as value from stations"
    )

    def failing(wf: WorkflowThread) -> None:
        Pipeline(wf).load("left", wrong, Target(kind="state", value="string"))

    assert site.run("failing", failing).status == LHStatus.EXCEPTION
    ((failure, text),) = site.outputs("failing")
    assert failure == "spark-mistake" and "the day is wrong" in text
    with millpond.open(site.url) as pond:
        with pytest.raises(NotFound):
            pond.map("left")
        pond.create_map("heights", kind="state", value="long")
    rows = site.rows(STATIONS, "select code as key, name as value from stations")
    run = site.run("other", lambda wf: Pipeline(wf).load("heights", rows, Target(kind="state", value="string")))
    assert run.status == LHStatus.EXCEPTION
    ((failure, text),) = site.outputs("other")
    assert failure == "pipeline-target" and "value=long target=string" in text


@pytest.mark.sample(1)
@pytest.mark.parametrize("ended", ["deleted", "stopped"])
def test_nothing_of_a_run_that_is_stopped_enters_a_map(site: Site, ended: str) -> None:
    def body(wf: WorkflowThread) -> None:
        Pipeline(wf).load(ended, site.rows(STATIONS, ENDLESS), Target(kind="state", value="long"))

    run, words = WfRunId(id=ended), {"deleted": "cancelled", "stopped": "handed back"}[ended]
    site.begin(ended, body)  # what is stopped before its job is handed to Spark needs no void load
    with site.server.stub() as stub:
        if ended == "deleted":
            stub.DeleteWfRun(DeleteWfRunRequest(id=run), timeout=SECONDS)
        else:
            stub.StopWfRun(StopWfRunRequest(wf_run_id=run), timeout=SECONDS)
        wait_for(lambda: f"{ended} load attempt 0: {words}" in site.log.read_text())
        if ended == "stopped":
            wait_for(lambda: stub.GetWfRun(run, timeout=SECONDS).status == LHStatus.HALTED)
    wait_for(lambda: site.loads(ended) == [0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["begun", "working"])
def test_a_driver_goes_on_when_its_worker_is_killed(site: Site, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_WORKFLOWS", f"127.0.0.1:{site.server.grpc_port}")
    run, rows = f"killed-{moment}", site.rows(STATIONS, SLOW)
    site.begin(run, lambda wf: Pipeline(wf).load("killed", rows, Target(kind="state", value="long")) and None)
    if moment == "working":
        wait_for(lambda: site.progress(run).get("tasks_done", 0) >= 1)
        assert re.search(r"attempt 0 running  stage \d+ \(.+\), \d+/12 tasks, [\d,]+ rows, ", typed("run", "show", run))
    site.kill_worker()
    site.begin_worker()
    assert site.wait_ended(run).status == LHStatus.COMPLETED, site.log.read_text()
    assert len(site.task(run).attempts) <= 2
    # A driver that had not got its job yet ends with the worker, and the ticket of its attempt is void.
    entered = [rows for rows in site.loads(run) if rows]
    assert (entered, len(site.drivers(run))) == ([12], 1), "one load, of one driver"


def test_values_of_the_run_inside_an_input_are_refused() -> None:
    def inside(wf: WorkflowThread) -> None:
        pipeline = Pipeline(wf)
        loaded = pipeline.condense("weather")
        pipeline.notify("etl", "nightly", "ready", {"report": [loaded]})

    with pytest.raises(Invalid, match=r"field=report\[0\]"):
        Workflow("inside", inside).compile()

    def whole(wf: WorkflowThread) -> None:
        pipeline = Pipeline(wf)
        pipeline.notify("etl", "nightly", "ready", pipeline.condense("weather"))

    (argument,) = (
        Workflow("whole", whole).compile().thread_specs["entrypoint"].nodes["2-notify-TASK"].task.variables[3:]
    )
    assert argument.HasField("node_output")


def test_descriptions_are_checked_when_they_are_declared() -> None:
    def body(inputs: dict[str, Any]) -> Callable[[WorkflowThread], None]:
        return lambda wf: Pipeline(wf).check("weather", **inputs) and None

    for inputs, words in (
        ({"rules": {"rows_mim": 3}}, "rows_mim"), ({"rules": {}}, "rows_min"),
        ({"rules": {"rows_min": 3}, "rows": {"sql": "select 1", "views": {"a": {}}}}, "view=a"),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=words):
            Workflow("declared", body(inputs)).compile()


@pytest.mark.sample(1, of="steps of Spark that are stopped")
def test_a_run_that_is_resumed_begins_its_step_anew(site: Site) -> None:
    run, rows = "resumed", site.rows(STATIONS, AS_LONG_AS_HIGH)
    site.begin(run, lambda wf: Pipeline(wf).load(run, rows, Target(kind="state", value="long")) and None)
    wait_for(lambda: bool(site.progress(run)))
    name = WfRunId(id=run)
    with site.server.stub() as stub:
        stub.StopWfRun(StopWfRunRequest(wf_run_id=name), timeout=SECONDS)
        wait_for(lambda: stub.GetWfRun(name, timeout=SECONDS).status == LHStatus.HALTED)
        Path(rows.views["stations"].files[0]).write_text(re.sub(r"\d+$", "0", STATIONS, flags=re.MULTILINE))
        stub.ResumeWfRun(ResumeWfRunRequest(wf_run_id=name), timeout=SECONDS)
    assert site.wait_ended(run).status == LHStatus.COMPLETED, site.log.read_text()
    assert sorted(site.loads(run)) == [0, 3], "the ticket of the first attempt is void"


@pytest.mark.sample(1, of="steps of Spark that are stopped")
def test_a_run_that_is_stopped_ends_a_driver_whose_worker_is_gone(site: Site) -> None:
    run, rows = "orphan", site.rows(STATIONS, ENDLESS)
    site.begin(run, lambda wf: Pipeline(wf).load(run, rows, Target(kind="state", value="long")) and None)
    wait_for(lambda: bool(site.progress(run)))
    (driver,) = site.drivers(run)
    site.kill_worker()
    with site.server.stub() as stub:
        stub.StopWfRun(StopWfRunRequest(wf_run_id=WfRunId(id=run)), timeout=SECONDS)
    clock = SystemClock()
    began = clock.monotonic()
    wait_for(lambda: began_of(driver["pid"]) != driver["began"])
    assert clock.monotonic() - began <= STOP_SECONDS
    assert site.loads(run) == [0], "its ticket is void"


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="millpond")
    assert done.exit_code == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
