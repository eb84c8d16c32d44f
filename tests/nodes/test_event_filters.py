"""Filters, starts and limits of those who read events of a node: over HTTP and from Python."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millpond
import millpond.server.routes.events as routes_of_events
from millpond.errors import Invalid
from millpond.events import watchers
from millpond.events.event import EventBatch, NewEvent
from millpond.events.filters import FILTER_VALUES_MAX
from millpond.events.names import StreamName
from millpond.nodes.tokens import hash_token
from tests.harness.contracts.stream_filters import APPENDS, EXAMPLES, FILTERS, Filters, check_readers, picked
from tests.harness.contracts.stream_site import everything
from tests.nodes.conftest import BEGIN, Served

_numbers = itertools.count()
NIGHTLY = StreamName("etl", "nightly")


def path(stream: StreamName = NIGHTLY, **more: Any) -> str:
    return "/v1/events?" + urlencode({**stream._asdict(), **more}, doseq=True)


def lines_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def followed(node: Served, where: str, **headers: str) -> Iterator[dict[str, Any]]:
    """The lines of a follower, as long as somebody takes them."""
    answer = node.pool.request("GET", node.url + where, preload_content=False, headers=headers)
    assert answer.status == 200, answer.data
    rest = b""
    try:
        while data := answer.read1():
            *whole, rest = (rest + data).split(b"\n")
            yield from map(json.loads, whole)
    finally:
        answer.close()


@settings(max_examples=EXAMPLES // 2, suppress_health_check=[*HealthCheck], deadline=None)
@given(appends=APPENDS, filters=FILTERS, start=st.integers(0, 40), fetch=st.sampled_from([1, 1 << 19]))
def test_a_node_filters_as_the_model_picks(
    node: Served, appends: list[list[NewEvent]], filters: Filters, start: int, fetch: int
) -> None:
    stream = StreamName("filtered", f"{next(_numbers)}")
    for some in appends:
        node.pond.events.store.append([EventBatch(stream, some)])
    there = everything(node.pond.events.store, stream)
    start = min(start, len(there))
    with millpond.open(node.url) as remote, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchers, "FETCH_BYTES", fetch)
        check_readers(remote.events, stream, there, filters, start)
    sent = lines_of(node.get(path(stream, after=there[start - 1].id if start else "", **filters)).body)
    assert [line["id"] for line in sent if "id" in line] == [event.id for event in picked(there[start:], filters)]
    assert {*itertools.chain(*sent)} <= {"id", "time_ms", "kind", "payload", "headers", "alive"}


def test_filters_that_are_not_understood_are_refused(node: Served) -> None:
    for more, kind in (
        ({"kinds": "failed"}, "parameter_unknown"), ({"header": "team=etl"}, "parameter_unknown"),
        ({"kind": [str(number) for number in range(FILTER_VALUES_MAX + 1)]}, "event_filter"),
        ({"header.team": "x" * 9_000}, "event_filter"),
    ):  # fmt: skip
        answer = node.get(path(**more))
        assert (answer.status, answer.json()["kind"]) == (400, kind), more
    assert node.post(path(kind="failed"), b"{}").json()["kind"] == "parameter_unknown", "an append takes no filter"
    wanted = {"streams": [NIGHTLY._asdict()], "filters": {"sort": ["failed"]}}
    assert node.post("/v1/events/watch", wanted).json()["kind"] == "event_filter"
    with millpond.open(node.url) as remote:
        for events in (remote.events, node.pond.events):
            for filters in (
                {"sort": "x"},
                {"kind": []},
                {"job": 7},
                {"job": [7]},
                {"job": "\ud800"},
                {7: "a"},
                ["kind"],
            ):
                with pytest.raises(Invalid) as caught:
                    events.watch(*NIGHTLY, filters=filters)  # type: ignore[arg-type]
                assert caught.value.kind == "event_filter" and "header.NAME" in str(caught.value.hint)


def test_a_filter_that_matches_nothing_tells_its_place_meanwhile(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_of_events, "ALIVE_SECONDS", 1e-6)
    monkeypatch.setattr(watchers, "FETCH_BYTES", 1)
    for _ in range(5):
        node.pond.events.append(*NIGHTLY, [NewEvent(BEGIN, b"x" * 70_000, "running")])
    ids = [event.id for event in node.pond.events.read(*NIGHTLY)]
    lines = followed(node, path(follow="true", kind="failed"))
    places: list[dict[str, Any]] = []
    while "caught_up" not in (line := next(lines)):
        places.append(line)
    assert places and all(place["alive"] in ids for place in places) and line == {"caught_up": ids[-1]}
    lines.close()
    assert lines_of(node.get(path(kind="failed")).body) == [{"alive": id_} for id_ in [*ids, ids[-1]]]
    monkeypatch.setattr(routes_of_events, "ALIVE_SECONDS", 3600.0)
    lines = followed(node, path(follow="true", kind="failed", after="newest"))
    assert next(lines) == {"caught_up": ids[-1]}
    node.pond.events.append(*NIGHTLY, [NewEvent(BEGIN, b"", "running")])
    node.pond.events.append(*NIGHTLY, [NewEvent(BEGIN, b"", "failed")])
    assert next(lines)["kind"] == "failed", "what does not match is not sent, nor told"
    lines.close()


TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": {"read": ["stream:etl"]}} for name in ("one", "other")
]  # fmt: skip


@pytest.mark.settings(limits={"watchers_max": 8}, server_tokens=[*TOKENS, {"name": "all", "sha256": hash_token("all"),
                      "rights": {"admin": ["*"]}}])  # fmt: skip
def test_followers_share_the_limit_between_tokens_and_are_counted(node: Served) -> None:
    def watchers_shown() -> dict[str, float]:
        page = node.get("/metrics", headers={"Authorization": "Bearer all"}).body.decode()
        return {
            name: float(text)
            for name, text in re.findall(r'^millpond_watchers\{protocol="(\w+)"\} (\S+)', page, re.MULTILINE)
        }

    def refused(token: str) -> str:
        answer = node.get(path(follow="true"), headers={"Authorization": f"Bearer {token}"})
        assert answer.status == 503
        return str(answer.json()["kind"])

    def begun(token: str) -> Iterator[dict[str, Any]]:
        lines = followed(node, path(follow="true"), Authorization=f"Bearer {token}")
        assert "caught_up" in next(lines)
        return lines

    first = [begun("one") for _ in range(6)]
    assert refused("one") == "watchers_full" and watchers_shown() == {"http": 6, "grpc": 0}
    three = {"streams": [{"queue": "etl", "job_set": str(number)} for number in range(3)], "follow": True}
    many = node.post("/v1/events/watch", three, headers={"Authorization": "Bearer other"})
    assert (many.status, many.json()["kind"]) == (503, "watchers_full"), "a watch of three streams counts as three"
    others = [begun("other")]
    assert watchers_shown() == {"http": 7, "grpc": 0}
    for lines in (*first, *others):
        lines.close()
    node.until(lambda: watchers_shown() == {"http": 0, "grpc": 0})
    assert node.pond.events.watchers.count == 0


def test_events_of_a_job_set_begin_at_a_time_or_at_the_newest(node: Served) -> None:
    for number in range(3):
        node.pond.events.append(*NIGHTLY, [NewEvent(BEGIN, b"", "running", {"job_id": str(number)})])
        node.clock.now += 60_000

    def jobs(place: str) -> list[str]:
        node.post("/v1/queue", {"name": "etl"})
        body = node.post("/v1/job-set/etl/nightly", {"fromMessageId": place}).body
        return [next(iter(line["result"]["message"].values()))["jobId"] for line in lines_of(body)]

    moment = lines_of(node.get(path()).body)[1]
    assert (jobs(""), jobs(moment["id"]), jobs("newest")) == (["0", "1", "2"], ["2"], [])
    begin = node.clock.now - 2 * 60_000
    stamp = lines_of(node.get(path(after=_stamp(begin))).body)
    assert jobs(_stamp(begin)) == [line["headers"]["job_id"] for line in stamp] == ["1", "2"]
    assert node.post("/v1/job-set/etl/nightly", {"fromMessageId": "soon"}).json()["kind"] == "event_id"


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()
