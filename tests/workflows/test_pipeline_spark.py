"""Steps of Spark and notifications of pipelines that are functions: in one process, and on a node, in one session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from littlehorse.model import LHStatus, RunWfRequest, WfRunId
from pyarrow import parquet

import millpond
from tests.rings.forked import run
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.heard import Heard
from tests.workflows.run_events import columns_in, events_of
from tests.workflows.test_client import wait_for

pytestmark = pytest.mark.usefixtures("spark_process")

NIGHTLY = """
from millpond.pipelines import check, enrich, load, notify, pipeline, python, spark, sql


def counted(session, table, times):
    frame = session.read.parquet("file://" + table["path"])
    maps = session.read.format("millpond").options(map="weather").load()
    return {"rows": frame.count() * times, "map": maps.count(), "app": session.sparkContext.applicationId}


def application(session):
    return session.sparkContext.applicationId


def loading(session, api_token):
    from millpond import spark

    print("said by a function:", api_token)
    session._jvm.System.err.println("said by the JVM: " + api_token)
    frame = session.range(1).selectExpr("'LHR' as key", "11.0D as temp")
    loaded = spark.load(frame, map="weather").rows
    try:
        failing = session.range(1).selectExpr("'LHR' as key", f"cast(raise_error('{api_token}') as double) as temp")
        spark.load(failing, map="weather")
    except Exception as error:
        return {"loaded": loaded, "refused": api_token in str(error)}


def broken(session, frame):
    if frame == "nowhere":
        return session.range(3).selectExpr("nowhere + 1").count()
    return session.range(3) if frame == "true" else int("three")


@pipeline
def nightly(url: str, most: float = 60.0, api_token: str = "hunter2222"):
    weather = load("weather.csv", map="weather", kind="state", value="temp double")
    hot = sql("select key, temp, {most} as most from {weather} where temp >= {most}", weather=weather, most=most,
              engine="spark", name="hot")
    joined = sql("select max(hot.temp) as t from {hot} join {weather} using (key)", hot=hot, weather=weather,
                 engine="spark", name="joined")
    check("select * from {hot} where temp > {most}", hot=hot, most=1000, engine="spark")
    answer = spark(counted, hot, 2)
    app = spark(application, needs=[answer])
    enriched = enrich(hot, map="weather", key="key", into="now")
    more = spark(loading, api_token, needs=[enriched])
    notify(f"{url}/done", rows=answer.rows, map=answer.map, same=app.value, app=answer.app, path=joined.path,
           text=f"{joined.rows} of {answer.rows}", found=enriched.found, loaded=more.loaded, refused=more.refused)


@pipeline
def failing(frame: str = "false"):
    before = spark(application, name="before")
    spark(broken, frame, retries=3, needs=[before])


@pipeline
def posted(url: str):
    notify(url, retries=1, backoff=0.1, rows=3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nightly.py").write_text(NIGHTLY)
    (tmp_path / "weather.csv").write_text("key,temp\nJFK,39.0\nLGA,70.5\nEWR,80\n")
    return tmp_path


def ran(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MILLPOND_PIPELINE_FILES": str(folder / "files"),
                   "MILLPOND_LINEAGE_TARGET": str(folder / "lineage.jsonl")}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "millpond", "pipeline", "run", "nightly.py", "--pipeline", name, *words, "--pond",
         "pond", "--master", "local[1]"],
        cwd=folder, capture_output=True, text=True, env=environment, timeout=2 * SECONDS, check=False,
    )  # fmt: skip


def assert_posted(heard: Heard) -> None:
    path, key, body = heard.posts[-1]
    assert all(own == (path, key, body) for own in heard.posts), "a worker that was held up is taken for gone"
    assert path == "/200/done" and key
    assert body.pop("same") == body.pop("app"), "one session for all steps"
    assert parquet.read_table(body.pop("path")).to_pylist() == [{"t": 80.0}]
    more = {"loaded": 1, "refused": True}
    assert body == {"rows": 4, "map": 3, "text": "1 of 4", "found": {"now": 2}, **more}


@pytest.mark.sample(1, of="steps of Spark and a post")
def test_steps_of_spark_and_a_post_in_one_process(folder: Path, heard: Heard) -> None:
    done = ran(folder, "nightly", f"url={heard.url}/200")
    assert done.returncode == 0, done.stderr
    assert_posted(heard)
    said = re.findall(r"^(\w+): done, ([\d.]+) s(?:, (\d+) rows)?$", done.stderr, re.MULTILINE)
    seconds = {step: number for step, number, _ in said}
    assert {step: rows for step, _, rows in said if step in ("load", "hot", "application")} == {
        "load": "3", "hot": "2", "application": "",
    }  # fmt: skip
    assert float(seconds["application"]) < float(seconds["hot"]) / 4, "the session is kept"
    outputs = {event["job"]["name"]: event["outputs"] for event in events_of(folder / "lineage.jsonl")}
    assert columns_in(outputs["nightly.enrich"]) == {
        "key": {"key"},
        "temp": {"temp"},
        "most": {"most"},
        "now": {"temp"},
    }
    assert columns_in(outputs["nightly.joined"]) == {"t": {"temp"}}
    events = events_of(folder / "lineage.jsonl")
    within = [event for event in events if event["run"]["facets"]["parent"]["job"]["name"] == "nightly.loading"]
    [step] = {event["run"]["runId"] for event in events if event["job"]["name"] == "nightly.loading"}
    assert [event["eventType"] for event in within] == ["START", "COMPLETE", "START", "FAIL"]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in within} == {step}
    for who in ("a function", "the JVM"):
        assert f"said by {who}: ***" in done.stderr
    assert "hunter2222" not in done.stderr + (folder / "lineage.jsonl").read_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("false", r"a function of the pipeline failed\. .*ValueError: invalid literal.* line=\w+\.py:\d+"),
        ("true", r"the result of a function is no JSON\. .*type=DataFrame"),
        ("nowhere", r"Spark does not understand the question\. .*`nowhere` cannot be resolved"),
    ],
)
def test_a_function_that_fails_says_why_and_is_not_called_again(folder: Path, frame: str, words: str) -> None:
    done = ran(folder, "failing", f"frame={frame}")
    assert done.returncode != 0 and "before: done" in done.stderr
    assert re.search(rf"broken: failed: [\w-]+ {words}", done.stderr), done.stderr
    assert "attempt" not in done.stderr, "it is not tried again"
    assert "stacktrace" not in done.stderr, "PySpark's own log of it has Java's"


def test_a_post_that_fails_is_sent_again_under_its_key_where_that_helps(folder: Path, heard: Heard) -> None:
    for url, words, posts in [
        (f"{heard.url}/503", "status=503", 2), (f"{heard.url}/404", "status=404", 1),
        ("http://127.0.0.1:1/", "nobody answers", 0), ("ftp://a", "not a place to notify", 0),
    ]:  # fmt: skip
        heard.posts.clear()
        command = ["pipeline", "run", "nightly.py", "--pipeline", "posted", f"url={url}", "--pond", "pond"]
        files = {"MILLPOND_PIPELINE_FILES": str(folder / "files")}
        done = run(command, cwd=folder, env=os.environ | files, timeout=2 * SECONDS)
        assert done.returncode != 0 and words in done.stderr, done.stderr
        assert len(heard.posts) == posts and len({key for _, key, _ in heard.posts}) == min(posts, 1)
        assert ("attempt 1" in done.stderr) == (url not in (f"{heard.url}/404", "ftp://a"))


@pytest.mark.sample(1, of="steps of Spark and a post")
def test_steps_of_spark_and_a_post_on_a_node(folder: Path, heard: Heard) -> None:
    server = WorkflowServer(folder / "pond")
    server.start()
    words = [sys.executable, "-m", "millpond"]
    at = ["--server", f"127.0.0.1:{server.grpc_port}"]
    log = folder / "worker.log"
    environment = server.environment() | {"MILLPOND_PIPELINE_FILES": str(folder / "files")}
    try:
        with log.open("w") as output:
            worker = subprocess.Popen(
                [*words, "worker", "millpond.pipelines", "--pond", f"http://127.0.0.1:{server.port}", "--master",
                 "local[1]", *at],
                cwd=folder, stdout=output, stderr=output, env=environment,
            )  # fmt: skip
        deploy = [*words, "pipeline", "deploy", "nightly.py", "--pipeline", "nightly", *at]
        subprocess.run(deploy, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
        wait_for(lambda: "working on" in log.read_text())
        with server.stub() as stub:
            request = RunWfRequest(wf_spec_name="nightly", id="n-1")
            request.variables["parameters"].json_obj = json.dumps({"url": f"{heard.url}/200"})
            stub.RunWf(request, timeout=SECONDS)
            run = WfRunId(id="n-1")
            # A JVM and seven steps of Spark: beside other tests they took a minute, and once more than `SECONDS`.
            wait_for(lambda: stub.GetWfRun(run, timeout=SECONDS).status != LHStatus.RUNNING, 4 * SECONDS)
            assert stub.GetWfRun(run, timeout=SECONDS).status == LHStatus.COMPLETED, log.read_text()
        assert_posted(heard)
        with millpond.open(f"http://127.0.0.1:{server.port}") as pond:
            assert pond.map("weather").get("EWR") == {"temp": 80.0}
    finally:
        worker.kill()
        worker.wait()
        server.end()
