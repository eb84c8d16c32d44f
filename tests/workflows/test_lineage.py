"""Run events of OpenLineage: of loads and of steps of pipelines; to a file, and to an address; off by default."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.lineage.columns import columns_of
from millpond.lineage.targets import Lineage, wait_sent
from millpond.pipelines.attempt_logs import AttemptLog, collecting
from millpond.pipelines.step_lineage import StepLineage
from millpond.settings.load import in_words
from tests.rings.forked import Command, run
from tests.workflows.conftest import SECONDS
from tests.workflows.heard import Heard
from tests.workflows.run_events import columns_in, events_of
from tests.workflows.test_client import wait_for

NIGHTLY = """
from millpond.pipelines import check, load, notify, pipeline, python, publish, shell, sql


@pipeline
def nightly(file: str, most: float = 60.0):
    weather = publish(load(file, map="weather"), checks=[check(rows_min=1, name="some")])
    warm = sql("select w.key, temp * 2 as twice, {most} as most, count(*) from {weather} w group by all",
               weather=weather, most=most, name="warm")
    shell(["false"], when=warm.rows > 100, name="never")
    check("select * from {warm} where twice > {most}", warm=warm, most=most, name="cool", retries=0)
"""


def loaded(pond: millpond.Pond, temp: object) -> None:
    pond.map("weather").load([{"key": "JFK", "temp": temp}])


@pytest.fixture
def pond_folder(tmp_path: Path) -> Path:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("weather", kind="state", value="temp double", store="layers")
    return tmp_path


def test_a_load_is_a_run_and_without_a_target_nothing_is_done(
    pond_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = pond_folder / "pond"
    with millpond.open(place) as pond:
        loaded(pond, 1.0)
    target = pond_folder / "events" / "lineage.jsonl"
    assert not target.exists()
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", str(target))
    with millpond.open(place) as pond:
        loaded(pond, 39.0)
        with pytest.raises(Invalid):
            loaded(pond, "warm")
    start, complete, _, fail = events_of(target)
    assert complete["job"] == {"namespace": f"millpond://{place}", "name": "load/weather", "facets": {}}
    [output] = complete["outputs"]
    assert [own["name"] for own in output["facets"]["schema"]["fields"]] == ["key", "temp"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert "warm" in fail["run"]["facets"]["errorMessage"]["message"] and start["eventTime"] <= complete["eventTime"]


def test_an_address_gets_events_and_one_that_is_gone_costs_a_warning(
    pond_folder: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for url, posts in ((f"{heard.url}/201", 2), (f"{heard.url}/503", 3), ("http://ann:s3cret@127.0.0.1:1", 3)):
        monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", url)
        with caplog.at_level(logging.WARNING), millpond.open(pond_folder / "pond") as pond:
            loaded(pond, 1.0)
            assert pond.map("weather").get("JFK") == {"temp": 1.0}
        wait_sent()
        assert len(heard.posts) == posts
    assert [body["eventType"] for _, _, body in heard.posts] == ["START", "COMPLETE", "START"]
    assert sum("run events are dropped" in record.message for record in caplog.records) == 2
    assert "ann" not in caplog.text and "s3cret" not in caplog.text
    assert in_words("lineage.target", "http://ann:s3cret@h/a") == "http://***@h/a"


def test_a_load_waits_for_no_address_and_all_events_come(
    pond_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(held := Event())
    with closing(heard), caplog.at_level(logging.WARNING):
        monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", f"{heard.url}/201")
        with millpond.open(pond_folder / "pond") as pond:
            loaded(pond, 1.0)
            loaded(pond, 2.0)
        assert len(heard.posts) <= 1  # the first one is not answered yet
        held.set()
        wait_sent(SECONDS)
    assert [body["eventType"] for _, _, body in heard.posts] == 2 * ["START", "COMPLETE"] and not caplog.records


def test_more_events_than_may_wait_are_dropped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, process: None
) -> None:
    monkeypatch.setattr("millpond.lineage.targets.WAITING_MAX", 10)
    heard = Heard(held := Event())
    with closing(heard), caplog.at_level(logging.WARNING):
        lineage = Lineage(f"{heard.url}/200", "millpond://pond", SystemClock())
        for _ in range(100):
            lineage.send({"run": {"runId": "a"}})
        held.set()
        wait_sent(SECONDS)
    [record] = caplog.records
    assert "10 events wait" in record.message and len(heard.posts) in (10, 11)


def test_steps_of_a_pipeline_are_runs_with_columns_refs_and_commits(pond_folder: Path) -> None:
    (pond_folder / "nightly.py").write_text(NIGHTLY)
    (pond_folder / "a.csv").write_text("key,temp\nJFK,39.0\n")
    target = pond_folder / "lineage.jsonl"
    environment = {**os.environ, "MILLPOND_LINEAGE_TARGET": str(target)}
    words = [sys.executable, "-m", "millpond", "pipeline", "run", "nightly.py", "file=a.csv", "--pond", "pond"]
    done = subprocess.run(
        words, cwd=pond_folder, env=environment, capture_output=True, timeout=3 * SECONDS, check=False
    )
    assert b"cool: failed" in done.stderr
    events = events_of(target)
    ends = {event["job"]["name"]: event for event in events if event["eventType"] != "START"}
    assert "nightly.never" not in {event["job"]["name"] for event in events}
    load, warm, cool = (ends[f"nightly.{name}"] for name in ("load", "warm", "cool"))
    [table], [output] = load["inputs"], load["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(pond_folder / "a.csv"))
    assert output["name"] == "weather" and output["facets"]["millpond"]["ref"].endswith("publish")
    assert output["facets"]["millpond"]["commit"] and output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    [merged] = ends["nightly.publish"]["outputs"]
    assert merged["facets"]["millpond"]["ref"] == "main" and merged["facets"]["millpond"]["commit"]
    assert [own["name"] for own in warm["inputs"]] == ["weather"]
    assert columns_in(warm["outputs"]) == {"key": {"key"}, "twice": {"temp"}}
    assert "from weather w" in warm["job"]["facets"]["sql"]["query"]
    assert cool["eventType"] == "FAIL" and "finds rows" in cool["run"]["facets"]["errorMessage"]["message"]
    parents = {event["run"]["facets"]["parent"]["run"]["runId"] for name, event in ends.items() if "nightly." in name}
    assert len(parents) == 1


HELD = """
from pathlib import Path
from threading import Event

from millpond.pipelines import pipeline, python


def held():
    while not Path("go").exists():
        Event().wait(0.05)


@pipeline
def waits():
    python(held, retries=0)
"""


def kinds_of(target: Path, job: str) -> list[str]:
    """The kinds of a job's events so far."""
    lines = target.read_text().splitlines() if target.exists() else []
    return [event["eventType"] for event in map(json.loads, lines) if event["job"]["name"] == job]


@pytest.mark.parametrize("is_on_node", [False, True], ids=["here", "a node"])
def test_the_run_of_an_attempt_whose_worker_is_killed_ends_when_the_next_one_begins(
    tmp_path: Path, request: pytest.FixtureRequest, is_on_node: bool
) -> None:
    (tmp_path / "waits.py").write_text(HELD)
    target = tmp_path / "lineage.jsonl"
    environment = {**os.environ, "MILLPOND_LINEAGE_TARGET": str(target)}
    words = ["pipeline", "run", "waits.py", "--pond", "here"]
    if is_on_node:
        url = f"http://127.0.0.1:{request.getfixturevalue('workflow_server').port}"
        for word in ("deploy waits.py --pond", "run start waits --id r --server"):
            group = ["pipeline"] * word.startswith("deploy")
            assert run([*group, *word.split(), url], cwd=tmp_path, timeout=SECONDS).returncode == 0
        words = ["worker", "millpond.pipelines", "--pond", url]
    first = Command(words, cwd=tmp_path, env=environment)
    wait_for(lambda: kinds_of(target, "waits.held") == ["START"])
    first.send_signal(signal.SIGKILL)
    first.communicate(SECONDS)
    second = Command(words, cwd=tmp_path, env=environment)
    wait_for(lambda: sorted(kinds_of(target, "waits.held")) == ["ABORT", "START", "START"])
    (tmp_path / "go").touch()
    wait_for(lambda: "COMPLETE" in kinds_of(target, "waits.held"))
    second.send_signal(signal.SIGTERM)
    second.communicate(SECONDS)
    assert kinds_of(target, "waits.held") == ["START", "ABORT", "START", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events_of(target)}) == 2


def test_an_enrichment_of_files_has_columns_of_each_and_of_the_map(
    pond_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = pond_folder / "lineage.jsonl"
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", str(target))
    parquet.write_table(pa.table({"origin": ["JFK"], "weather": [1.0]}), pond_folder / "out.parquet")
    files = ["flights-1.csv", "s3://raw/flights-2.csv"]
    inputs = {"rows": files, "map": "weather", "key": "origin", "at": "", "into": "", "format": "csv"}
    step = StepLineage({"pipeline": "nightly", "name": "enrich", "kind": "enrich", "inputs": inputs}, {})
    with millpond.open(pond_folder / "pond") as pond:
        step.send(pond, "key", "run", "START")
        step.send(pond, "key", "run", "COMPLETE", {"path": str(pond_folder / "out.parquet"), "rows": 1})
    [_, end] = events_of(target)
    assert columns_in(end["outputs"]) == {"origin": {"origin"}, "weather": {"temp"}}
    [output] = end["outputs"]
    origins = output["facets"]["columnLineage"]["fields"]["origin"]["inputFields"]
    assert [(own["namespace"], Path(own["name"]).name) for own in origins] == [
        ("file", "flights-1.csv"), ("s3://raw", "flights-2.csv")
    ]  # fmt: skip


@pytest.mark.parametrize("at", [[], ["--branch", "fix"]], ids=["main", "branch"])
def test_an_enrichment_by_the_command_line_is_a_run(
    pond_folder: Path, monkeypatch: pytest.MonkeyPatch, at: list[str]
) -> None:
    target, place = pond_folder / "lineage.jsonl", str(pond_folder / "pond")
    with millpond.open(place) as pond:
        pond.map("weather").load([{"key": "JFK", "temp": 39.0}])
        pond.refs.create_branch("fix")
        head = next(pond.refs.log("fix")).id
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", str(target))
    (pond_folder / "flights.csv").write_text("origin\nJFK\nLGA\n")
    words = ["enrich", str(pond_folder / "flights.csv"), "--with", "weather on origin", "--pond", place, *at, "--out"]
    assert CliRunner().invoke(app, [*words, str(pond_folder / "out.parquet")]).exit_code == 0
    start, end = events_of(target)
    assert (start["eventType"], end["eventType"], end["job"]["name"]) == ("START", "COMPLETE", "enrich/weather")
    assert [Path(own["name"]).name for own in start["inputs"]] == ["flights.csv", "weather"]
    about = end["inputs"][1]["facets"]["millpond"]
    assert (about["ref"], about["commit"]) == (at[-1] if at else "main", head)
    [output] = end["outputs"]
    assert (output["name"], output["outputFacets"]["outputStatistics"]["rowCount"]) == (
        str(pond_folder / "out.parquet"), 2,
    )  # fmt: skip
    assert columns_in([output]) == {"origin": {"origin"}, "weather": {"temp"}}
    (pond_folder / "flights.csv").write_text("destination\nJFK\n")
    assert CliRunner().invoke(app, [*words, str(pond_folder / "other.parquet")]).exit_code == 5
    assert "origin" in events_of(target)[-1]["run"]["facets"]["errorMessage"]["message"]


def test_events_of_a_topic_come_in_the_order_of_their_run(
    pond_folder: Path, kafka_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    topic = f"lineage-{SystemClock().random_id()}"
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", f"kafka://{kafka_server}/{topic}")
    with caplog.at_level(logging.WARNING), millpond.open(pond_folder / "pond") as pond:
        loaded(pond, 1.0)
        with pytest.raises(Invalid):
            loaded(pond, "warm")
        wait_sent(SECONDS)
    assert not caplog.records
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_server, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    with closing(consumer):
        consumer.subscribe([topic])
        events = [json.loads(message.value()) for message in consumer.consume(4, SECONDS)]
    kinds: dict[str, list[str]] = {}
    for event in events:
        kinds.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert sorted(kinds.values()) == [["START", "COMPLETE"], ["START", "FAIL"]]


def test_brokers_that_are_gone_hold_up_no_load(
    pond_folder: Path, process: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("confluent_kafka")
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", "kafka://127.0.0.1:1/lineage")
    with caplog.at_level(logging.WARNING), millpond.open(pond_folder / "pond") as pond:
        loaded(pond, 1.0)
        wait_sent(0.1)
    [record] = caplog.records
    assert "2 events wait" in record.message and "kafka://127.0.0.1:1/lineage" in record.message


@pytest.mark.parametrize("target", ["ftp://a/b", "kafka://a:9092", "kafka://ann:s3cret@a:9092/b", "http://"])
def test_a_target_that_is_none_is_refused(target: str, monkeypatch: pytest.MonkeyPatch, pond_folder: Path) -> None:
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", target)
    with (
        millpond.open(pond_folder / "pond") as pond,
        pytest.raises(Invalid, match="kafka://host:9092/topic") as refused,
    ):
        loaded(pond, 1.0)
    assert "s3cret" not in str(refused.value)


def test_items_of_a_loop_have_inputs_columns_and_no_secrets(
    pond_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = pond_folder / "lineage.jsonl"
    monkeypatch.setenv("MILLPOND_LINEAGE_TARGET", str(target))
    parquet.write_table(pa.table({"key": ["JFK"], "twice": [1.0]}), pond_folder / "a.parquet")
    query = {"query": "select key, temp * 2 as twice from {w} where key = {i}", "engine": "local",
             "inputs": {"w": {"map": "weather"}, "i": {"$value": ["item"]}}}  # fmt: skip
    loop = {"pipeline": "nightly", "name": "loop", "kind": "sql", "inputs": query, "over": {"$value": ["all"]}}
    files = {"files": {"$text": ["raw/", {"$value": ["api_token"]}, ".csv"]}, "map": "weather"}
    values = {"all": ["JFK", "LGA"], "api_token": "hunter2222", "off": {"$skipped": True}}
    load = {"pipeline": "nightly", "name": "load", "kind": "load", "inputs": files, "when": {"$value": ["off", "rows"]}}
    with millpond.open(pond_folder / "pond") as pond, collecting(AttemptLog(values=values)):
        items = [{"path": str(pond_folder / "a.parquet"), "rows": 1}, {"path": str(pond_folder / "b"), "rows": 2}]
        StepLineage(loop, values).send(pond, "loop", "run", "COMPLETE", {"items": items, "count": 2})
        StepLineage(load, values).send(pond, "load", "run", "FAIL", error="the step was skipped")
    [end, refused] = [json.loads(line) for line in target.read_text().splitlines()]
    assert [own["name"] for own in end["inputs"]] == ["weather"]
    assert columns_in(end["outputs"][:1]) == {"key": {"key"}, "twice": {"temp"}}
    assert [own["outputFacets"]["outputStatistics"]["rowCount"] for own in end["outputs"]] == [1, 2]
    assert refused["inputs"][0]["name"].endswith("raw/***.csv") and not caplog.records


TABLES = {"weather": ["key", "temp", "moment"], "hot": ["key", "temp", "w"]}


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select * from weather join hot using (key)",
         ["key: weather.key", "temp: weather.temp", "moment: weather.moment", "temp: hot.temp", "w: hot.w"]),
        ("with c as (select key, temp as t from weather) select max(t) + 1 as m, c.key from c group by all",
         ["m: weather.temp", "key: weather.key"]),
        ("select key from weather union all select w from hot", ["key: hot.w weather.key"]),
        ("select * exclude (temp) from (select *, temp * 2 as d from weather) q",
         ["key: weather.key", "moment: weather.moment", "d: weather.temp"]),
        ("select (select max(moment) from weather) as z, $day as d from hot", ["z: weather.moment", "d: "]),
        ("select H.temp as t, case when b.temp > 3 then 1 end as x from hot h, weather b",
         ["t: hot.temp", "x: weather.temp"]),
        ("select a form b", []),
        ("select * from nowhere", []),
    ],
)  # fmt: skip
def test_columns_of_queries_come_from_columns_of_tables(query: str, columns: list[str]) -> None:
    assert columns == [
        f"{name}: {' '.join(sorted(map('.'.join, origins)))}" for name, origins in columns_of(query, TABLES)
    ]
