"""Pipelines that load on a branch: checked there, merged once, left alone when a check fails; killed at each step."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from littlehorse.model import LHStatus, WfRunId

import millpond
from millpond.cli.workflows.pipelines import _check_pond
from millpond.client.wire_errors import NODE_KEY
from millpond.errors import Invalid, MillpondError
from millpond.pipelines import branch, check, load, merge, pipeline, publish, sql
from millpond.pipelines.branches import exceeded, has_branches, load_on, merge_branch, whole_branch
from millpond.pipelines.pond_check import check_pond
from millpond.pipelines.programs import pipelines_of, read_program
from millpond.pipelines.reads import head_of
from millpond.pipelines.tickets import earlier_load
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import cluster as cluster
from tests.nodes.conftest import cluster_of as cluster_of
from tests.nodes.conftest import serve as serve
from tests.rings.forked import Command, run, run_python
from tests.rings.sampling import drawn
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.nodes.conftest import ClusterHere, Served

NIGHTLY = """
from millpond.pipelines import branch, check, enrich, load, notify, pipeline, publish, python, sql


def meddled(branch):
    import millpond
    millpond.open("pond").branch(branch).map("weather").load([{"key": "EWR", "temp": 1.0}])


@pipeline
def nightly(file: str, map: str = "weather", meddle: bool = False):
    weather = load(file, map=map, kind="state", value="temp double", branch="nightly")
    check(weather, "select * from weather where temp > 60", finds_nothing=True)
    check(weather, rows_min=1, rows_max=100, changes_max=10, name="few")
    warm = sql("select count(*) as warm from {weather}", weather=weather)
    python(meddled, "nightly", when=meddle == True)
    weather.merge(into="main")
    notify("stream:etl/nightly", rows=weather.rows)


@pipeline
def published(file: str):
    done = publish(
        load(file, map="weather", kind="state", value="temp double"),
        checks=["select * from weather where temp > 60", check(rows_min=2, name="enough")],
    )
    sql("select key from {weather}", weather=done)
    notify("stream:etl/nightly", rows=done.rows)


@pipeline
def begun(file: str, anew: bool = False):
    fix = branch("nightly")
    load(file, map="weather", branch=fix)
    fix.merge()
"""
RUN = """
import sys
from millpond.cli.main import main
from millpond.testing import faults
armed = faults.arm()
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(NIGHTLY)
    for name, temp in (("good", 39.0), ("hot", 99.0), ("better", 40.0)):
        (tmp_path / f"{name}.csv").write_text(f"key,temp\nJFK,{temp}\nLGA,0.5\n")
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="state", value="temp double", store="layers")
        pond.create_map("sharded", kind="state", value="temp double", store="shard")
        pond.map("weather").load([{"key": "JFK", "temp": 1.0}])
    return tmp_path


def ran(folder: Path, name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-c", RUN, "pipeline", "run", "nightly.py", "--pipeline", name, *words, "--pond", "pond",
        cwd=folder, timeout=SECONDS, MILLPOND_PIPELINE_FILES=str(folder / "files"), **variables,
    )  # fmt: skip


def temps(pond: Any) -> list[float | None]:
    return [None if row is None else row["temp"] for row in pond.map("weather").lookup(["JFK", "LGA"]).to_pylist()]


def merges(pond: Any) -> int:
    return sum(commit.message.startswith("Merge") for commit in pond.refs.log("main", first_parent=True))


def test_a_branch_is_loaded_checked_and_merged_and_left_when_a_check_fails(folder: Path) -> None:
    done = ran(folder, "nightly", "file=hot.csv")
    assert done.returncode != 0
    assert 'check: the check finds rows: {"key":"JFK","temp":99.0}; the branch nightly stays' in done.stderr
    assert "attempt" not in done.stderr, "it is not tried again"
    with millpond.open(folder / "pond") as pond:
        assert (temps(pond), temps(pond.branch("nightly"))) == ([1.0, None], [99.0, 0.5])
    done = ran(folder, "begun", "file=good.csv")
    assert done.returncode != 0 and "the branch nightly has changes that were not merged" in done.stderr, done.stderr
    done = ran(folder, "nightly", "file=good.csv", "map=sharded")
    assert done.returncode != 0 and "a map with branches is in layers" in done.stderr, done.stderr
    # What is loaded over it mends it: all that is on the branch is checked.
    done = ran(folder, "nightly", "file=good.csv")
    assert done.returncode == 0, done.stderr
    with millpond.open(folder / "pond") as pond:
        assert (temps(pond), merges(pond)) == ([39.0, 0.5], 1)
        pond.map("weather").load([{"key": "JFK", "temp": 2.0}])
    done = ran(folder, "nightly", "file=good.csv", "--id", "conflict", "meddle=true")
    assert done.returncode != 0 and "changed after the last step of this run on it" in done.stderr, done.stderr
    with millpond.open(folder / "pond") as pond:
        pond.map("weather").load([{"key": "JFK", "temp": 3.0}])
    done = ran(folder, "nightly", "file=better.csv", "--id", "conflict-2")
    assert done.returncode != 0 and "both nightly and main changed maps/weather/JFK" in done.stderr, done.stderr
    with millpond.open(folder / "pond") as pond:
        assert (temps(pond), temps(pond.branch("nightly")), merges(pond)) == ([3.0, 0.5], [40.0, 0.5], 1)


def kill_at_moments(folder: Path, name: str, number: int) -> None:
    """Kill a run at sampled moments of its steps; by the same command it ends as one that was not killed."""
    whole = folder / "whole"
    whole.mkdir()
    for file in folder.glob("*.*"):
        (whole / file.name).write_bytes(file.read_bytes())
    done = ran(whole, name, "file=good.csv", **{STEPS_LOG: str(folder / "log")})
    assert done.returncode == 0, done.stderr
    moments = occurrences(folder / "log")
    first = next(at for at, moment in enumerate(moments) if moment.startswith("refs."))
    for place, moment in drawn(list(enumerate(moments[max(0, first - 10) :])), number, name=f"pipeline {name}"):
        own = folder / str(place)
        own.mkdir()
        for file in folder.glob("*.*"):
            (own / file.name).write_bytes(file.read_bytes())
        killed = ran(own, name, "file=good.csv", **{KILL_AT: moment})
        assert killed.returncode in (-signal.SIGKILL, 0), (moment, killed.stderr)
        again = ran(own, name, "file=good.csv")
        assert again.returncode == 0, (moment, again.stderr)
        assert_published_once(own, moment)


def assert_published_once(folder: Path, moment: str = "", loads: int = 1) -> None:
    with millpond.open(folder / "pond") as pond:
        assert temps(pond) == [39.0, 0.5], moment
        assert merges(pond) == 1, (moment, [commit.message for commit in pond.refs.log("main")])
        (event,) = pond.events.read("etl", "nightly")
        assert json.loads(event.payload) == {"rows": 2}, moment
        entries = [entry for entry in pond.log.entries(0) if entry.kind == "load" and entry.body.get("branch")]
        assert len(entries) == loads, moment
        assert pond.verify(full=True).ok, moment


def test_a_run_that_is_killed_at_any_moment_merges_once(folder: Path) -> None:
    kill_at_moments(folder, "nightly", 1)


def test_a_published_load_is_killed_at_any_moment(folder: Path) -> None:
    kill_at_moments(folder, "published", 1)


def test_what_is_published_is_checked_first_and_its_branch_goes(folder: Path) -> None:
    done = ran(folder, "published", "file=hot.csv")
    assert done.returncode != 0 and "publish_check: the check finds rows" in done.stderr, done.stderr
    assert "publish_check: publish_check" not in done.stderr, "its name comes once"
    with millpond.open(folder / "pond") as pond:
        assert temps(pond) == [1.0, None]
        [left] = [own.name for own in pond.refs.states.repository.branches().results if own.name != "main"]
        assert temps(pond.branch(left)) == [99.0, 0.5]
        pond.refs.delete_branch(left)
    done = ran(folder, "published", "file=good.csv")
    assert done.returncode == 0, done.stderr
    assert_published_once(folder, loads=2)
    with millpond.open(folder / "pond") as pond:
        assert [own.name for own in pond.refs.states.repository.branches().results] == ["main"]


@pytest.mark.parametrize("into", ["main", "release"])
def test_what_cannot_be_merged_is_refused_and_its_branch_stays(folder: Path, into: str) -> None:
    with millpond.open(folder / "pond") as pond:
        for name in ("own", "release"):
            pond.refs.create_branch(name)
        pond.branch("own").load_files(folder / "good.csv", "weather", load_id="load")
        head = head_of(pond.refs, "own").id
        pond.repositories.get("pond").branch(into).put("staged.txt", b"somebody's")
        with pytest.raises(Invalid, match=r"uncommitted|staged") as refused:
            merge_branch(pond, "own", head, into, strategy="", keep=False)
        assert refused.value.kind == "branch_dirty" and head_of(pond.refs, "own").id == head
        if into == "main":
            with pytest.raises(Invalid):
                whole_branch(pond, "own", merged=True)
        pond.refs.reset(into)
        for _ in range(2):  # also when the first one was cut off before it was told
            done = merge_branch(pond, "own", head, into, strategy="", keep=False)
        assert done["commit"] == head_of(pond.refs, into).id and temps(pond.at(into)) == [39.0, 0.5]


# -- on a node ----------------------------------------------------------------------------------------


SHARDED = """
from millpond.pipelines import load, pipeline


@pipeline
def sharded():
    load("good.csv", map="sharded", branch="nightly").merge()
"""


class Node:
    """A node over a folder, and a worker of it that has its URL."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, WorkflowServer(folder / "pond")
        self.server.start()
        self.url, self.at = f"http://127.0.0.1:{self.server.port}", ["--server", f"127.0.0.1:{self.server.grpc_port}"]
        self.log = folder / "worker.log"
        with self.log.open("w") as output:
            self.worker = Command(["worker", "millpond.pipelines", "--pond", self.url, *self.at], cwd=folder,
                                  stderr=output, env=self.server.environment())  # fmt: skip
        wait_for(lambda: "working on" in self.log.read_text())

    def command(self, *words: str, code: int = 0) -> str:
        done = run([*words, *self.at], cwd=self.folder, timeout=SECONDS)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def ended(self, name: str, run: str, **inputs: str) -> str:
        """The status of a run, and its last failure."""
        self.command("run", "start", name, "--id", run, *(f"--input={key}={text}" for key, text in inputs.items()))
        with self.server.stub() as stub:
            own = WfRunId(id=run)
            wait_for(lambda: stub.GetWfRun(own, timeout=SECONDS).status != LHStatus.RUNNING)
            row = stub.GetWfRun(own, timeout=SECONDS)
            return f"{LHStatus.Name(row.status)} {row.thread_runs[0].error_message}"

    def end(self) -> None:
        self.worker.kill()
        self.worker.communicate(timeout=SECONDS)
        self.server.end()


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    begun = Node(folder)
    yield begun
    begun.end()


def test_pipelines_with_branches_are_deployed_to_a_node(node: Node, folder: Path) -> None:
    for name in ("nightly", "published", "begun"):
        node.command("pipeline", "deploy", "nightly.py", "--pipeline", name, "--pond", node.url)
    with millpond.open(node.url) as pond:
        assert "the branch nightly stays" in node.ended("nightly", "hot", file="hot.csv") and temps(pond) == [1.0, None]
        assert temps(pond.branch("nightly")) == [99.0, 0.5]
        assert "changes that were not merged" in node.ended("begun", "begun", file="good.csv")
        assert node.ended("nightly", "good", file="good.csv").startswith("COMPLETED") and temps(pond) == [39.0, 0.5]
        assert merges(pond) == 1 and len(list(pond.events.read("etl", "nightly"))) == 1
        assert "stays: millpond diff" in node.ended("published", "hot-2", file="hot.csv")
        assert temps(pond.branch("hot-2-publish")) == [99.0, 0.5]
        pond.map("weather").load([{"key": "JFK", "temp": 3.0}])
        pond.branch("nightly").map("weather").load([{"key": "JFK", "temp": 4.0}])
        words = "both nightly and main changed maps/weather/JFK"
        assert words in node.ended("nightly", "conflict", file="better.csv") and temps(pond) == [3.0, 0.5]


def test_a_backfill_on_a_node_is_on_its_branch_until_all_is_done(node: Node, folder: Path) -> None:
    node.command("pipeline", "deploy", "nightly.py", "--pipeline", "published", "--pond", node.url)
    words = ("pipeline", "backfill", "published", "--parameter", "file", "--from", "2026-01-01", "--to", "2026-01-02")
    assert "name the node: --pond" in node.command(*words, "--branch", "fix", code=5)
    for day, temp in ((1, 10), (2, 99)):
        (folder / f"2026-01-0{day}").mkdir()
        (folder / f"2026-01-0{day}" / "a.csv").write_text(f"key,temp\nJFK,{temp}\nLGA,0.5\n")
    on_branch = (*words, "--branch", "fix", "--pond", node.url)
    assert "1 done, 1 failed" in node.command(*on_branch, code=1)
    with millpond.open(node.url) as pond:
        assert (temps(pond), temps(pond.branch("fix"))) == ([1.0, None], [10.0, 0.5])
        (folder / "2026-01-02" / "a.csv").write_text("key,temp\nJFK,20\nLGA,0.5\n")
        assert "merged fix into main" in node.command(*on_branch, "--failed")
        assert temps(pond) == [20.0, 0.5]


def test_a_pond_that_cannot_have_the_branches_of_a_pipeline_is_refused_when_it_is_deployed(
    node: Node, folder: Path
) -> None:
    (folder / "sharded.py").write_text(SHARDED)
    for words in ((), ("--pond", node.url)):  # without a pond it is that of the server
        refused = node.command("pipeline", "deploy", "sharded.py", *words, code=5)
        assert "(map=sharded, step=load, line=sharded.py:7)" in refused and "--store layers" in refused


@pytest.mark.parametrize(
    ("metadata", "words"),
    [({}, "was not held against the maps of a pond"), ({NODE_KEY: "http://127.0.0.1:1"}, "were not looked at: ")],
)
def test_a_deploy_to_a_server_without_a_pond_that_can_be_reached_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, str], words: str
) -> None:
    def call(_method: str, _request: object, trailing: Callable[[object], object]) -> None:
        trailing(metadata)

    _check_pond(pipelines_of(read_program(folder / "nightly.py"))["nightly"].plan, None, call)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("on_node", [False, True])
def test_an_attempt_takes_what_an_earlier_one_loaded_on_a_branch_or_voids_its_ticket(
    serve: Callable[..., Served], folder: Path, on_node: bool
) -> None:
    with ExitStack() as held:
        where = folder / "pond"
        if on_node:
            where = held.enter_context(closing(serve(server_data=str(where)))).url
        pond: Any = held.enter_context(millpond.open(where))
        inputs = {"files": str(folder / "good.csv"), "map": "weather", "kind": "", "value": "", "max_rejects": 0}
        done = load_on(pond, "fix", "key", inputs)
        assert done["rows"] == 2 and done["commit"] == head_of(pond.refs, "fix").id
        assert earlier_load(pond, "key", 1) == {name: done[name] for name in done if name != "map"}
        assert load_on(pond, "fix", "key", inputs)["commit"] == done["commit"], "the same attempt again"
        assert earlier_load(pond, "other", 2) is None
        for ticket in ("other", "other.1"):
            with suppress(MillpondError):
                load_on(pond, "fix", ticket, {**inputs, "files": str(folder / "hot.csv")})
        assert head_of(pond.refs, "fix").id == done["commit"] and temps(pond.branch("fix")) == [39.0, 0.5]


def test_nodes_that_replicate_have_no_branches_for_a_pipeline(cluster: ClusterHere) -> None:
    plan = pipeline(lambda: load("a.csv", map="a", branch="b"), name="declared").plan
    assert has_branches(plan) and not has_branches(pipeline(lambda: load("a.csv", map="a"), name="declared").plan)
    with millpond.open(cluster[0].url) as pond, pytest.raises(Invalid, match="a node that is alone") as refused:
        check_pond(pond, plan)
    assert refused.value.kind == "refs_place"


# -- declared -----------------------------------------------------------------------------------------


def test_a_share_of_changes_is_of_what_main_has_and_the_first_load_passes(tmp_path: Path) -> None:
    rows = [{"key": f"key {number}", "temp": 1.0} for number in range(100)]

    def words(pond: Any, branch: str, most: float) -> list[str]:
        return exceeded(pond, [{"map": "weather", "ref": head_of(pond.refs, branch).id}], {"changes_max": most})

    with millpond.open(tmp_path / "pond") as pond:
        pond.refs.create_branch("new")
        pond.branch("new").create_map("weather", kind="state", value="temp double").load(rows)
        assert words(pond, "new", 0.1) == [], "main has no such map"
        assert words(pond, "new", 99) == ["more than 99 rows change"]
        pond.create_map("weather", kind="state", value="temp double", store="layers")
        pond.refs.create_branch("first")
        pond.branch("first").map("weather").load(rows)
        assert words(pond, "first", 0.1) == [], "on main it is empty"
        pond.map("weather").load(rows)
        pond.refs.create_branch("fix")
        pond.branch("fix").map("weather").load([{"key": f"new {number}", "temp": 2.0} for number in range(29)])
        assert words(pond, "fix", 0.29) == []
        assert words(pond, "fix", 0.28) == ["more than 0.28 of the 100 rows of main change"]


def planned(body: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    plan = pipeline(body, name="declared").plan
    return [(step.name, step.kind, step.takes()) for step in plan.steps]


def test_publish_puts_its_branch_before_its_loads_and_lets_checks_read_them() -> None:
    def body() -> None:
        sql("select 1 as a")
        publish(
            load("a.csv", map="a"), load("b.csv", map="b"),
            checks=[check("select * from a where value is null"), "select * from b where value is null"],
        )  # fmt: skip

    assert planned(body) == [
        ("sql", "sql", ()),
        ("publish_branch", "branch", ("run",)),
        ("load", "load", ("publish_branch",)),
        ("load2", "load", ("publish_branch",)),
        ("check", "check", ("load", "load2")),
        ("publish_check2", "check", ("load", "load2")),
        ("publish", "merge", ("load", "load2", "publish_branch", "check", "publish_check2")),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: publish(), "publish takes loads"),
        (lambda: publish(sql("select 1")), "that name no branch"),
        (lambda: publish(load("a", map="a", branch="b")), "no branch"),
        (lambda: publish(load("a", map="a"), checks=[sql("select 1")]), "publish takes checks"),
        (lambda: publish(load("a", map="a"), checks=["select a form b"]), "not understood"),
        (lambda: check(load("a", map="a")), "a check has a query"),
        (lambda: check(), "a query, or limits"),
        (lambda: merge("fix", anew=True), "option=anew"),
    ],
)
def test_groups_that_cannot_work_are_refused_when_they_are_declared(body: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        planned(body)


def test_a_branch_is_a_value_that_loads_and_merges_take() -> None:
    def body() -> None:
        fix = branch("fix", from_="v1", anew=True)
        load("a.csv", map="a", branch=fix)
        fix.merge(into="main", strategy="source-wins")

    assert [(name, takes) for name, _, takes in planned(body)] == [
        ("branch", ()), ("load", ("branch",)), ("merge", ("branch", "load")),
    ]  # fmt: skip
