"""Pipelines that begin when a map is loaded: on a node, and in a process that follows; over kills."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from littlehorse.model import DeleteWfRunRequest, WfRunId

import millpond
from millpond.pipelines.embedded import embedded
from millpond.pipelines.programs import pipelines_of, read_program
from tests.workflows.conftest import SECONDS, WorkflowServer
from tests.workflows.test_client import wait_for
from tests.workflows.test_pipeline_functions import answers, begun, ended

FOLLOWS = """
from millpond.pipelines import arrived, loaded, notify, pipeline


@pipeline(when=loaded("weather"), missed="all")
def after_weather(at: str = arrived):
    notify("stream:etl/after", name="told", at=at)
"""


def test_a_pipeline_begins_when_a_map_is_loaded_also_while_its_node_was_down(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text(FOLLOWS)
    with millpond.open(tmp_path / "pond", create=True) as pond:
        pond.create_map("weather", kind="state", value="temp double")
        pond.map("weather").load([{"key": "a", "temp": 1.0}])
    server = WorkflowServer(tmp_path / "pond")
    server.start()
    at = ("--server", f"127.0.0.1:{server.grpc_port}")
    try:
        (deployed,) = answers("pipeline", "deploy", str(tmp_path / "after.py"), *at)
        assert deployed["when"] == "loaded:weather"
        (row,) = answers("pipeline", "list", *at)
        assert (row["pipeline"], row["when"], row["next"], row["last_run"]) == (
            "after_weather",
            "loaded:weather",
            None,
            None,
        )
        with millpond.open(f"http://127.0.0.1:{server.port}") as pond:
            first = pond.map("weather").load([{"key": "a", "temp": 2.0}]).position
        wait_for(lambda: answers("pipeline", "list", *at)[0]["last_run"] == f"after-weather-on-{first}")
        server.end(signal.SIGKILL)
        with millpond.open(tmp_path / "pond") as pond:
            later = [pond.map("weather").load([{"key": "a", "temp": temp}]).position for temp in (3.0, 4.0)]
        server.start()
        with server.stub() as stub:
            # The first one waits for a worker that there is not: those after it begin when it has ended.
            stub.DeleteWfRun(DeleteWfRunRequest(id=WfRunId(id=f"after-weather-on-{first}")), timeout=SECONDS)
        wait_for(lambda: answers("pipeline", "list", *at)[0]["last_run"] == f"after-weather-on-{later[0]}")
        answers("pipeline", "pause", "after_weather", *at)
        assert answers("pipeline", "list", *at)[0]["paused"]
    finally:
        server.end()


def test_a_process_follows_loads_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text(FOLLOWS)

    def load(temp: float) -> int:
        with millpond.open(tmp_path / "pond") as pond:
            return pond.map("weather").load([{"key": "a", "temp": temp}]).position

    with millpond.open(tmp_path / "pond", create=True) as pond:
        pond.create_map("weather", kind="state", value="temp double")
    positions = []
    for round_ in range(2):
        process, errors = begun(tmp_path, "run", "after.py", "--follow")
        with errors:
            assert any("begins when weather is loaded" in line for line in errors)
            positions.append(load(round_ + 0.5))
            for _ in range(1 + 2 * round_):  # those of the second round that came while nobody looked, too
                assert any("told: done" in line for line in errors)
            process.kill()
            process.communicate(timeout=SECONDS)
        if not round_:
            positions += [load(temp) for temp in (2.5, 3.5)]
    with millpond.open(tmp_path / "pond") as pond:
        runs = [event.headers["job_id"].split("_")[0] for event in pond.events.read("etl", "after")]
        marks = [json.loads(event.payload)["at"] for event in pond.events.read("etl", "after")]
    assert runs == [f"after-weather-on-{position}" for position in positions]
    assert marks == [str(position) for position in positions]
    code, _, said = ended(tmp_path, "run", "after.py", "--follow", "day=2026-01-01")
    assert code != 0 and "parameter=day" in said
    (tmp_path / "after.py").write_text(FOLLOWS.replace('when=loaded("weather"), ', ""))
    code, _, said = ended(tmp_path, "run", "after.py", "--follow")
    assert code != 0 and "nothing begins runs of the pipeline" in said


ALERTS = """
from millpond.pipelines import alert, alerted, arrived, notify, pipeline


@pipeline(when=alerted("sales", rule="many"))
def crossed(at: str = arrived, crossing: dict = alert):
    notify("stream:etl/crossed", name="told", at=at, crossing=crossing)
"""


def test_each_crossing_has_one_run_that_knows_it_over_kills(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text(ALERTS)

    def load(*keys: str) -> None:
        with millpond.open(tmp_path / "pond") as pond:
            pond.map("sales").load([{"key": key, "time": "2024-01-01T10:00Z"} for key in keys])

    with millpond.open(tmp_path / "pond", create=True) as pond:
        sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour")
        sales.alerts.add("orders > 1", name="many")
        sales.alerts.add("orders > 0", name="other")
    load("before", "before")
    for keys in ("aab", "bccdd"):
        process, errors = begun(tmp_path, "run", "after.py", "--follow")
        with errors:
            assert any("begins when sales/many is alerted" in line for line in errors)
            if keys == "aab":
                load(*keys)
                assert any("told: done" in line for line in errors)
            else:
                for _ in range(3):  # those that came while nobody looked
                    assert any("told: done" in line for line in errors)
            process.kill()
            process.communicate(timeout=SECONDS)
        if keys == "aab":
            load(*"bccdd")
    with millpond.open(tmp_path / "pond") as pond:
        events = list(pond.events.read("etl", "crossed"))
        ids = {event.id: event.headers["key"] for event in pond.events.read("millpond", "alerts/sales")}
    payloads = [json.loads(event.payload) for event in events]
    assert sorted(own["crossing"]["key"] for own in payloads) == ["a", "b", "c", "d"]
    assert all(ids[own["at"]] == own["crossing"]["key"] for own in payloads)
    assert [event.headers["job_id"].split("_")[0] for event in events] == [
        f"crossed-on-{own['at']}" for own in payloads
    ]
    assert [own["crossing"]["before"] for own in payloads if own["crossing"]["key"] == "b"] == [{"orders": 1}]
    assert {own["crossing"]["bucket"] for own in payloads} == {"2024-01-01T10:00:00+00:00"}


@pytest.mark.full
def test_a_node_begins_a_run_for_each_alert_that_came_while_it_was_down(tmp_path: Path) -> None:
    (tmp_path / "after.py").write_text(ALERTS.replace('"many")', '"many"), overlap=True'))
    with millpond.open(tmp_path / "pond", create=True) as pond:
        sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour")
        sales.alerts.add("orders > 1", name="many")
    server = WorkflowServer(tmp_path / "pond")
    server.start()
    at = ("--server", f"127.0.0.1:{server.grpc_port}")
    try:
        answers("pipeline", "deploy", str(tmp_path / "after.py"), *at)
        for key in "ab":
            server.end(signal.SIGKILL)
            with millpond.open(tmp_path / "pond") as pond:
                pond.map("sales").load([{"key": key, "time": "2024-01-01T10:00Z"}] * 2)
                last = list(pond.events.read("millpond", "alerts/sales"))[-1].id
            server.start()
            wait_for(lambda last=last: answers("pipeline", "list", *at)[0]["last_run"] == f"crossed-on-{last}")  # type: ignore[misc]
    finally:
        server.end()


def test_an_engine_works_for_one_run_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "after.py"
    file.write_text(FOLLOWS)
    program = read_program(file)
    place = str(tmp_path / "pond")
    with millpond.open(place, create=True) as pond, embedded(pond, place, lambda _: None) as runs:
        runs.define(pipelines_of(program)["after_weather"], program)
        for name in ("one", "two", "three"):
            runs.begin("after_weather", name, {})
            runs.work(lambda name=name: not runs.is_over(name))  # type: ignore[misc]
            assert runs.status(name) == "COMPLETED"
