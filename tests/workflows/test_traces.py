"""Traces of OpenTelemetry: from a command, or a request, by way of a run and its tasks, to the commit of a load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from littlehorse.model import LHStatus, RunWfRequest, WfRunId

import millpond
from tests.rings.forked import Command, run
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.spans import Collector, Seen, spans_of, within
from tests.workflows.test_client import wait_for

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"
PIPELINE = """
from millpond.pipelines import load, pipeline, python, shell


def fails(secret: str) -> int:
    raise ValueError(secret)


@pipeline
def nightly(password: str = "s3cret"):
    weather = load("a.csv", map="weather", branch="nightly")
    shell(["sh", "-c", "echo $TRACEPARENT > seen.txt"])
    weather.merge(into="main")
    python(fails, password, retries=0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="state", value="temp double", store="layers")
    (tmp_path / "a.csv").write_text("key,temp\nJFK,39.0\n")
    (tmp_path / "nightly.py").write_text(PIPELINE)
    return tmp_path


def traced(folder: Path, *words: str, status: int = 0, target: str = "spans.jsonl", caller: str = "") -> None:
    """Run a command that makes spans, to its end."""
    environment = {**os.environ, "MILLPOND_TRACING_TARGET": target, "TRACEPARENT": caller}
    done = run(words, cwd=folder, env=environment, timeout=2 * SECONDS)
    assert done.returncode == status, done.stderr


def named(spans: list[Seen], name: str) -> Seen:
    [own] = [span for span in spans if span.name == name]
    return own


def test_a_command_is_a_span_and_its_load_and_commit_are_within(folder: Path) -> None:
    traced(folder, "load", "weather", "a.csv", "--pond", "pond", caller=CALLER)
    spans = spans_of(folder / "spans.jsonl")
    commit = named(spans, "commit")
    assert within(spans, commit) == ["millpond load", "load", "commit"]
    assert {span.trace for span in spans} == {TRACE} and named(spans, "millpond load").parent == CALLER[36:52]
    assert named(spans, "load").facts["millpond.rows"] == "1"
    assert all(span.times[0] <= span.times[1] for span in spans)


def test_a_pipeline_without_a_server_is_one_trace_without_its_secrets(folder: Path) -> None:
    traced(folder, "pipeline", "run", "nightly.py", "--pond", "pond", status=5)
    file = folder / "spans.jsonl"
    spans = spans_of(file)
    commits = [within(spans, span) for span in spans if span.facts.get("millpond.branch") in ("nightly", "main")]
    outer = ["millpond pipeline", "run"]
    assert [*outer, "load", "commit"] in commits and [*outer, "merge", "commit"] in commits
    shell, run = named(spans, "shell"), named(spans, "run")
    assert (folder / "seen.txt").read_text() == f"00-{shell.trace}-{shell.id}-03\n"
    assert run.error and named(spans, "fails").error and run.facts["millpond.workflow"] == "nightly"
    assert "s3cret" not in file.read_text()


def test_a_run_on_a_node_is_in_the_trace_of_the_request_that_started_it(folder: Path) -> None:
    server = WorkflowServer(folder / "pond")
    server.settings = {"MILLPOND_TRACING_TARGET": str(folder / "spans.jsonl")}
    server.start()
    url = f"http://127.0.0.1:{server.port}"
    try:
        traced(folder, "pipeline", "deploy", "nightly.py", "--pond", url)
        environment = server.environment() | server.settings
        worker = Command(["worker", "millpond.pipelines", "--pond", url], cwd=folder, env=environment)
        try:
            with server.stub() as stub:
                metadata, once = (("traceparent", CALLER),), WfRunId(id="once")
                stub.RunWf(RunWfRequest(wf_spec_name="nightly", id="once"), timeout=SECONDS, metadata=metadata)
                wait_for(lambda: stub.GetWfRun(once, timeout=SECONDS).status != LHStatus.RUNNING)
        finally:
            worker.terminate()
            worker.communicate(timeout=SECONDS)
        request = urllib.request.Request(f"{url}/v1/maps", headers={"traceparent": CALLER})
        assert "weather" in urllib.request.urlopen(request, timeout=SECONDS).read().decode()
    finally:
        server.end()
    spans = [span for span in spans_of(folder / "spans.jsonl") if span.trace == TRACE]
    outer = ["littlehorse.LittleHorse/RunWf", "run"]
    chains = [within(spans, span) for span in spans]
    [load] = [chain for chain in chains if chain[:3] == [*outer, "load"] and chain[-1] == "commit"]
    assert load[-3:-1] == ["PUT", "PUT /v1/loads/{load_id}"]
    assert [*outer, "shell"] in chains and ["GET /v1/maps"] in chains
    assert named(spans, outer[0]).parent == CALLER[36:52]


def test_a_collector_gets_the_spans_and_one_that_answers_nobody_holds_up_no_command(folder: Path) -> None:
    with closing(Collector()) as collector:
        traced(folder, "load", "weather", "a.csv", "--pond", "pond", target=collector.url)
        assert collector.names[-3:] == ["commit", "load", "millpond load"]
        assert collector.services == {"millpond"} and collector.paths == {"/v1/traces"}
    held = Event()
    with closing(Collector(held)) as collector:
        traced(folder, "load", "weather", "a.csv", "--pond", "pond", target=collector.url)  # it ends: it is not held
        held.set()


def test_a_target_that_is_none_is_refused(folder: Path) -> None:
    traced(folder, "maps", "--pond", "pond", status=5, target="kafka://broker/topic")


def test_an_application_with_a_provider_of_its_own_gets_the_spans(folder: Path) -> None:
    code = """
import json, millpond
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
seen, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(seen))
trace.set_tracer_provider(provider)
with trace.get_tracer("app").start_as_current_span("app") as outer, millpond.open("pond") as pond:
    pond.map("weather").load([{"key": "a", "temp": 1.0}])
    pond.map("weather").lookup(["a"])
    own = outer.get_span_context()
spans = seen.get_finished_spans()
print(json.dumps([(s.name, s.context.trace_id == own.trace_id) for s in spans]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    spans = dict(json.loads(done.stdout.splitlines()[-1]))
    assert {"load", "commit", "lookup", "app"} <= set(spans) and all(spans.values())


def test_without_a_target_nothing_of_it_is_imported(folder: Path) -> None:
    code = """
import sys, millpond
with millpond.open("pond") as pond:
    pond.map("weather").load([{"key": "a", "temp": 1.0}])
    pond.map("weather").lookup(["a"])
print(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
