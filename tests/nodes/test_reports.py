"""The story that a node tells of its own work: loads that are committed, merges, jobs; and who may write in it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from urllib.parse import urlencode

import pytest

import millpond
from millpond.errors import Denied
from millpond.events.names import OWN_QUEUE
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import Served

DAY = 86_400_000
pytestmark = pytest.mark.settings(events_reports=True)


def found(node: Served, job_set: str, last: str = "succeeded") -> list[dict[str, Any]]:
    """The events of a job set, once the last of them is there."""
    path = "/v1/events?" + urlencode({"queue": OWN_QUEUE, "job_set": job_set})

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in node.get(path).body.splitlines()]

    node.until(lambda: any(event["kind"] == last for event in lines()))
    return lines()


def test_a_load_into_a_node_is_told_by_it(node: Served) -> None:
    with millpond.open(node.url) as pond:
        made = node.while_time_passes(lambda: pond.create_map("weather", kind="state", value="long"))
        result = node.while_time_passes(lambda: made.load([{"key": "a", "value": 1}, {"key": "b", "value": 2}]))
    load = found(node, "load/weather")
    assert [event["kind"] for event in load] == ["submitted", "succeeded"]
    assert load[1]["headers"]["job_id"] == load[1]["headers"]["load"] == result.load
    assert load[1]["headers"]["rows"] == "2"
    assert found(node, "merge/weather")[-1]["headers"]["rows"] == "2"


@pytest.mark.settings(
    events_reports=True,
    server_tokens=(
        {"name": "maps", "sha256": hash_token("maps"), "rights": {"read": ("weather",), "write": ("weather",)}},
    ),
)
def test_a_right_on_a_map_is_none_on_its_story(node: Served) -> None:
    with millpond.open(node.url, client_token="maps") as pond:
        for job_set in ("load/weather", "weather"):
            with pytest.raises(Denied):
                pond.events.append(OWN_QUEUE, job_set, [b"x"])
            with pytest.raises(Denied):
                list(pond.events.read(OWN_QUEUE, job_set))


_LOADS = """
import sys, threading
import millpond

pond = millpond.open(sys.argv[1], events_reports=True)
with pond, pond.reports.job("load/weather", "job-7", by="spark") as job:
    job.running()
    print("running", flush=True)
    threading.Event().wait()
"""


@pytest.mark.settings(events_reports=True, limits={"client_silent_ms": 172_800_000}, nodes_intervals={"events": "100d"})
def test_a_client_that_is_killed_leaves_a_story_with_an_end(node: Served) -> None:
    child = subprocess.Popen([sys.executable, "-c", _LOADS, node.url], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"running\n"
        found(node, "load/weather", "running")
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    for ended in (0, 1, 0):
        node.clock.now += DAY
        run = node.post("/v1/jobs/events/run?wait=30").json()["last"]
        assert run["error"] is None and run["numbers"]["lost"] == ended
    story = found(node, "load/weather", "failed")
    assert [event["kind"] for event in story] == ["submitted", "running", "failed"]
    assert story[2]["headers"]["job_id"] == "job-7" and story[2]["headers"]["error"] == "lost"
