"""Deletion of events, and the ages of queues and job sets, on a node: routes, rights, audit, watchers, the job."""

from __future__ import annotations

import json
from typing import Any

import pytest

import millpond
from millpond.errors import Denied, Invalid, NotFound
from millpond.events.event import NewEvent
from millpond.events.interface import EventsLike
from millpond.events.protocol import NoteKind
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import Served
from tests.nodes.test_event_metrics import LAG, shown
from tests.nodes.test_events import DAY, _lines, path

TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": rights}
    for name, rights in {
        "etl": {"admin": ["stream:etl/*"]}, "nightly": {"admin": ["stream:etl/nightly"]},
        "writer": {"write": ["stream:etl/*"]}, "maps": {"admin": ["etl*"]},
    }.items()
]  # fmt: skip
RULES = "/v1/events/settings"


def fill(events: EventsLike, now_ms: int) -> None:
    for job in "aba":
        events.append("etl", "nightly", [NewEvent(now_ms, job.encode(), "running", {"job_id": job})])


def test_deletion_is_the_same_in_a_folder_and_on_a_node(node: Served) -> None:
    with millpond.open(node.url) as remote:
        for events in (node.pond.events, remote.events):
            fill(events, node.clock.now)
            assert events.delete("etl", "nightly", job="b") == 1
            assert [event.payload for event in events.read("etl", "nightly")] == [b"a", b"a"]
            for job, kind in (("b", "job_not_found"), (None, "stream_not_found")):
                with pytest.raises(NotFound) as caught:
                    events.delete("etl", "nightly" if job else "none", job=job)
                assert caught.value.kind == kind
            assert events.delete("etl", "nightly") == 2 and list(events.read("etl", "nightly")) == []
    audited = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    deleted = [(line.get("job"), line.get("events")) for line in audited if line["method"] == "DELETE"]
    assert deleted[0] == ("b", 1) and deleted[-1] == (None, 2)


def test_ages_are_the_same_in_a_folder_and_on_a_node(node: Served) -> None:
    with millpond.open(node.url) as remote:
        for events in (node.pond.events, remote.events):
            settings = events.settings
            rule = settings.set("etl", retention="90d")
            settings.set("etl", "nightly", compress_after="off")
            assert settings.get("etl") == rule and len(settings.rules()) == 2
            held = settings.holding("etl", "nightly")
            assert (held.compress_after_ms, held.retention_ms) == (0, 90 * DAY)
            with pytest.raises(Invalid):
                settings.set("etl", compress_after="3d", retention="2d")
            settings.remove("etl", "nightly")
            settings.remove("etl")
            with pytest.raises(NotFound):
                settings.remove("etl")


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"queue": "q", "retention": -5}, "duration"), ({"queue": "q", "retention": 0}, "event_age_zero"),
        ({"queue": "q"}, "event_ages_none"), ({"queue": "q" * 300, "retention": "1d"}, "stream_name"),
        ({"queue": "q", "compress_after": "9d", "retention": "2d"}, "event_ages_order"),
        ({"queue": "q", "job_set": "nightly-*", "retention": "off"}, "event_ages_pattern"),
        ({"queue": "q*", "retention": "off"}, "event_ages_pattern"),
    ],
)  # fmt: skip
def test_ages_that_are_not_meant_are_refused(node: Served, rule: dict[str, Any], kind: str) -> None:
    answer = node.put(RULES, rule)
    assert (answer.status, answer.json()["kind"]) == (400, kind)


@pytest.mark.settings(server_tokens=TOKENS)
def test_deletion_and_ages_need_admin_on_the_job_set_or_the_queue(node: Served) -> None:
    def status(token: str, method: str, where: str, body: Any = None) -> int:
        return node.request(method, where, body=body, headers={"Authorization": f"Bearer {token}"}).status

    fill(node.pond.events, node.clock.now)
    tokens = ("maps", "writer", "nightly", "etl")
    assert [status(token, "DELETE", path(job="b")) for token in tokens] == [403, 403, 200, 404]
    assert [status(token, "PUT", RULES, {"queue": "etl", "retention": "9d"}) for token in tokens] == [
        403,
        403,
        403,
        200,
    ]
    one = {"queue": "etl", "job_set": "nightly", "retention": "9d"}
    assert [status(token, "PUT", RULES, one) for token in tokens] == [403, 403, 200, 200]
    assert [status(token, "GET", RULES) for token in tokens] == [403, 200, 200, 200]
    assert [status(token, "DELETE", f"{RULES}?queue=etl") for token in tokens] == [403, 403, 403, 204]
    with millpond.open(node.url, client_token="writer") as remote, pytest.raises(Denied):
        remote.events.delete("etl", "nightly")
    audited = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    assert any(line["path"] == RULES and line.get("retention") == "9d" and line["token"] == "etl" for line in audited)


def test_followers_of_a_deleted_job_set_get_a_gap_each_time(node: Served) -> None:
    body = {"streams": [{"queue": "etl", "job_set": "nightly"}], "follow": True}
    fill(node.pond.events, node.clock.now)
    one = node.pool.request("GET", node.url + path(follow="true"), preload_content=False)
    many = node.pool.request("POST", f"{node.url}/v1/events/watch", json=body, preload_content=False)
    for answer in (one, many):
        found = _lines(answer)
        for _ in range(2):
            while "caught_up" not in (line := next(found)) and "alive" not in line:
                pass
            node.pond.events.delete("etl", "nightly")
            while "gap" not in (line := next(found)):
                assert "error" not in line
            fill(node.pond.events, node.clock.now)
            events = (line["payload"] for line in found if "payload" in line)
            assert [next(events) for _ in range(3)] == ["a", "b", "a"]
        answer.close()


def test_clients_of_armada_get_no_event_that_was_deleted(node: Served) -> None:
    where, body = "/v1/job-set/etl/nightly", {"errorIfMissing": False}
    fill(node.pond.events, node.clock.now)
    assert node.post(where, body).body.count(b'"result"') == 3
    node.pond.events.delete("etl", "nightly", job="b")
    assert node.post(where, body).body.count(b'"result"') == 2
    node.pond.events.delete("etl", "nightly")
    assert node.post(where, body).body.count(b'"result"') == 0


@pytest.mark.settings(nodes_intervals={"events": "100d"})
def test_a_deletion_that_cannot_be_ended_is_one_fault_of_a_run(node: Served) -> None:
    node.pond.events.store.notes.put(NoteKind.ERASURE, "damaged", b"{}")
    run = node.post("/v1/jobs/events/run?wait=30").json()["last"]
    assert (run["numbers"]["failed"], run["error"].count("the deletion of a job")) == (1, 1)


@pytest.mark.settings(events_retention="off", nodes_intervals={"events": "100d"})
def test_the_job_and_its_lag_take_the_ages_of_rules(node: Served) -> None:
    node.pond.events.settings.set("etl", compress_after="off")
    node.pond.events.settings.set("etl", "nightly", retention="2d", compress_after="1d")
    for job_set in ("nightly", "hourly"):
        node.pond.events.append("etl", job_set, [b"x"])
    node.post("/v1/jobs/events/run?wait=30")
    assert (shown(node, LAG, work="compress"), shown(node, LAG, work="expire")) == (0, 0)
    node.clock.advance(4 * DAY)  # and the job does not run
    behind = node.clock.now % DAY / 1000
    assert shown(node, LAG, work="compress") == 2 * 86_400 + behind
    assert shown(node, LAG, work="expire") == 86_400 + behind
    node.post("/v1/jobs/events/run?wait=30")
    node.clock.advance(2 * DAY)  # the clock was doubted
    node.post("/v1/jobs/events/run?wait=30")
    counts = {index.stream.job_set: index.count for index in node.pond.events.indexes("etl")}
    assert counts == {"nightly": 0, "hourly": 1}
    assert (shown(node, LAG, work="compress"), shown(node, LAG, work="expire")) == (0, 0)
