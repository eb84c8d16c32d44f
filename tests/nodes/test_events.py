"""Streams of events over HTTP: append, read, follow, rights, limits, the job; and from Python on a node."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

import millpond
import millpond.server.routes.events as routes_of_events
from millpond.errors import Denied, Invalid, Unavailable
from millpond.events.event import NewEvent
from millpond.events.interface import EventsLike
from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import BEGIN, Served

pytestmark = pytest.mark.sample(4, of="file")

DAY = 86_400_000


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def path(queue: str = "etl", job_set: str = "nightly", **more: Any) -> str:
    return "/v1/events?" + urlencode({"queue": queue, "job_set": job_set, **more})


def parsed(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def test_events_are_appended_and_read_as_lines(node: Served) -> None:
    sent = lines(
        {"time": "2026-01-01T00:00:00Z", "kind": "submitted", "payload": "é", "headers": {"job_id": "7"}},
        {"time": BEGIN, "payload_base64": base64.b64encode(b"\xff\x00").decode()}, {},
    )  # fmt: skip
    done = node.post(path(), sent).json()
    assert (done["count"], done["repeated"]) == (3, 0)
    answer = node.get(path())
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    events = parsed(answer.body)
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert (events[0]["id"], events[-1]["id"]) == (done["first_id"], done["last_id"])
    assert events[0] == {
        "id": done["first_id"], "time_ms": BEGIN, "kind": "submitted", "payload": "é", "headers": {"job_id": "7"},
    }  # fmt: skip
    assert events[1]["payload_base64"] == "/wA=" and events[2]["payload"] == "" and events[2]["time_ms"] == BEGIN
    assert parsed(node.get(path(after=events[1]["id"])).body) == events[2:]
    (segment,) = node.get(path().replace("/v1/events", "/v1/events/index")).json()["segments"]
    assert [(segment["state"], day["day"], day["count"]) for day in segment["days"]] == [("open", "2026-01-01", 3)]


def test_history_that_is_older_than_the_retention_is_counted(node: Served) -> None:
    sent = lines({"time": BEGIN - 30 * DAY}, {"time": BEGIN - 2 * DAY}, {})
    done = node.post(path(), sent).json()
    assert (done["count"], done["past_retention"]) == (3, 1)
    assert node.post(path(), sent).json()["past_retention"] == 0, "late events are of the newest day"
    with millpond.open(node.url) as remote:
        assert remote.events.append("etl", "old", [NewEvent(BEGIN - 30 * DAY, b"")] * 2).past_retention == 2


def test_what_is_delivered_again_is_stored_once(node: Served) -> None:
    sent = lines({"payload": "a", "position": 1}, {"payload": "b", "position": 2})
    assert node.post(path(source="kafka:0"), sent).json()["count"] == 2
    again = node.post(path(source="kafka:0"), sent).json()
    assert (again["count"], again["repeated"], again["first_id"]) == (0, 2, "")


@pytest.mark.parametrize(
    ("where", "body", "kind"),
    [
        (path(), b"{]", "event_line"), (path(), lines({"payload": 5}), "event_line"),
        (path(), lines({"other": 5}), "event_line"), (path(), lines({"time": "yesterday"}), "event_line"),
        (path(), lines({"payload_base64": "!"}), "event_line"), (path(), b"\xff\xfe", "event_line"),
        (path(), lines({"position": 1}), "event_source"), (path(source="x"), lines({}), "event_source"),
        (path(job_set="x" * 1024), lines({}), "stream_name"), (path(), lines({"kind": "k" * 300}), "event_invalid"),
        (path(), lines({"time": 1_577_923_201}), "event_line"),
    ],
    ids=["json", "payload", "field", "time", "base64", "utf-8", "no source", "no position", "name", "kind", "seconds"],
)  # fmt: skip
def test_what_is_not_understood_is_refused(node: Served, where: str, body: bytes, kind: str) -> None:
    answer = node.post(where, body)
    assert (answer.status, answer.json()["kind"]) == (400, kind)
    assert node.get("/v1/events/streams").json() == {"streams": [], "next": None}


def test_reading_refuses_what_it_does_not_understand(node: Served) -> None:
    assert node.get(path(after="foo")).json()["kind"] == "event_id"
    assert node.get("/v1/events?queue=a").status in (400, 422)
    assert node.get("/v1/events/index?queue=a&job_set=b").json()["kind"] == "stream_not_found"


def test_a_follower_gets_what_was_there_a_mark_and_what_comes(node: Served) -> None:
    node.pond.events.append("etl", "nightly", [b"one"])
    got = node.pool.request("GET", node.url + path(follow="true"), preload_content=False)
    stream = _lines(got)
    assert next(stream)["payload"] == "one"
    mark = next(stream)
    assert mark == {"caught_up": node.pond.events.watch("etl", "nightly", mark["caught_up"]).after}
    node.pond.events.append("etl", "nightly", [b"two"])
    assert next(stream)["payload"] == "two"
    got.close()
    node.until(lambda: node.pond.events.watchers.count <= 1)


def test_a_follower_is_told_why_it_is_cut_off(node: Served) -> None:
    got = node.pool.request("GET", node.url + path(follow="true"), preload_content=False)
    stream = _lines(got)
    assert "caught_up" in next(stream)
    node.node.stop()
    assert next(stream)["error"]["kind"] == "events_closed"


def _lines(answer: Any) -> Iterator[dict[str, Any]]:
    rest = b""
    while data := answer.read1():
        *whole, rest = (rest + data).split(b"\n")
        yield from map(json.loads, whole)


TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": rights}
    for name, rights in {
        "writer": {"write": ["stream:etl/*"]}, "watcher": {"read": ["stream:etl/nightly"]}, "maps": {"admin": ["etl*"]},
        "all": {"admin": ["*"]},
    }.items()
]  # fmt: skip


@pytest.mark.settings(server_tokens=TOKENS)
def test_rights_are_by_queue_and_job_set(node: Served) -> None:
    def status(token: str, method: str, job_set: str, queue: str = "etl") -> int:
        body = lines({"payload": "x"}) if method == "POST" else None
        headers = {"Authorization": f"Bearer {token}"}
        return node.request(method, path(queue, job_set), body=body, headers=headers).status

    for job_set in ("nightly", "hourly"):
        assert [status(token, "POST", job_set) for token in ("writer", "watcher", "maps", "all")] == [
            200,
            403,
            403,
            200,
        ]
    assert [status(token, "GET", "nightly") for token in ("writer", "watcher", "maps", "all")] == [200, 200, 403, 200]
    assert [status(token, "GET", "hourly") for token in ("writer", "watcher", "maps", "all")] == [200, 403, 403, 200]
    assert status("writer", "POST", "x", queue="etl/sub") == status("writer", "GET", "x", queue="etl2") == 403
    listed = {
        token: node.get("/v1/events/streams", headers={"Authorization": f"Bearer {token}"}).json()["streams"]
        for token in ("writer", "watcher", "all")
    }
    assert {token: len(streams) for token, streams in listed.items()} == {"writer": 2, "watcher": 1, "all": 2}
    assert node.get("/v1/events/streams", headers={"Authorization": "Bearer maps"}).status == 403
    assert node.get("/v1/maps", headers={"Authorization": "Bearer writer"}).status == 403
    assert node.get(path()).status in (401, 403)
    audited = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    assert any(line.get("queue") == "etl" and line.get("events") == 1 for line in audited)


@pytest.mark.settings(limits={"watchers_max": 1})
def test_too_many_watchers_are_refused_and_those_who_read_take_no_place(node: Served) -> None:
    node.post(path(), lines({"payload": "a"}))
    several = {"streams": [{"queue": "etl", "job_set": str(number)} for number in range(3)], "follow": False}
    with node.pond.events.watch("a", "b"):
        for answer in (
            node.get(path(follow="true")), node.post("/v1/events/watch", several | {"follow": True}),
        ):  # fmt: skip
            assert (answer.status, answer.json()["kind"]) == (503, "watchers_full")
        assert b'"payload":"a"' in node.get(path()).body.replace(b" ", b"")
        assert node.post("/v1/events/watch", several).status == 200
        assert node.pond.events.watchers.count == 1
    assert node.pond.events.watchers.count == 0


def test_a_node_shows_how_far_ids_are_ahead_of_the_clock(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = node.node.clock.now_ms
    node.post("/v1/events?queue=q&job_set=j", b"{}")
    assert b"\nmillpond_events_ahead_seconds 0.0\n" in node.get("/metrics").body
    monkeypatch.setattr(type(node.node.clock), "now_ms", lambda _: now_ms() - 3_600_000)
    node.post("/v1/events?queue=q&job_set=j", b"{}")
    found = re.search(rb"^millpond_events_ahead_seconds (\S+)", node.get("/metrics").body, re.MULTILINE)
    assert found and 3_500 < float(found[1]) < 3_700


@pytest.mark.settings(events_retention="3d", nodes_intervals={"events": "100d"})
def test_the_job_compresses_and_drops_old_days(node: Served) -> None:
    node.pond.events.settings.set("etl", compress_after="1d")
    for _ in range(5):
        node.pond.events.append("etl", "nightly", [b"x" * 300])
        node.clock.now += DAY
    run = node.post("/v1/jobs/events/run?wait=30").json()["last"]
    assert run["error"] is None and run["numbers"] == {"days": 4, "events": 2, "lost": 0, "failed": 0}
    index = node.pond.events.index("etl", "nightly")
    assert index is not None
    assert [state.value for _, state in index.days()] == ["compressed", "compressed", "open"]


@pytest.mark.settings(events_retention="3d", nodes_intervals={"events": "100d"})
def test_a_clock_that_jumps_ahead_drops_nothing_before_it_has_stood_for_a_day(node: Served) -> None:
    node.pond.events.settings.set("etl", compress_after="1d")

    def run() -> tuple[int, str]:
        last = node.post("/v1/jobs/events/run?wait=30").json()["last"]
        assert last["error"] is None
        return last["numbers"]["events"], last["summary"]

    for _ in range(3):
        node.pond.events.append("etl", "nightly", [b"x" * 300])
        node.clock.advance(DAY)
    assert run() == (0, "compressed 2 days")
    for jump in (2 * DAY, -2 * DAY, -2 * DAY, 2 * DAY):
        node.clock.now += jump
        assert run()[0] == 0
    node.clock.now -= 400 * DAY  # days of the present are none of the future, and stay
    assert "the clock is 9600.0 hours behind" in run()[1]
    node.clock.now += 400 * DAY
    assert run()[0] == 0
    assert len(list(node.pond.events.read("etl", "nightly"))) == 3
    node.clock.now += 2 * DAY
    events, summary = run()
    assert events == 0 and "kept what is old: the clock is 48.0 hours ahead" in summary
    node.clock.advance(DAY)  # so long it stood: it is right
    assert run()[0] == 3


@pytest.mark.settings(events_retention="3d", nodes_intervals={"events": "100d"})
def test_a_request_drops_what_is_old_whatever_the_job_thinks_of_the_clock(node: Served) -> None:
    node.pond.events.append("etl", "nightly", [b"x"])
    node.post("/v1/jobs/events/run?wait=30")
    node.clock.now += 5 * DAY
    assert node.post("/v1/jobs/events/run?wait=30").json()["last"]["numbers"]["events"] == 0
    assert node.post("/v1/events/expire", {"after_ms": 3 * DAY}).json()["events"] == 1


def test_the_same_from_python_in_a_folder_and_on_a_node(node: Served) -> None:
    with millpond.open(node.url) as remote:
        for events in (node.pond.events, remote.events):
            story(events, str(type(events).__name__))


def story(events: EventsLike, queue: str) -> None:
    """Append, read, watch, resume."""
    new = [NewEvent(BEGIN, b"\xff", "running", {"job_id": "1"}), NewEvent(1_577_923_201, b"two")]  # as seconds, 2020
    done = events.append(queue, "a/b %", new, source="log", positions=[1, 2])
    assert (done.count, events.append(queue, "a/b %", new, source="log", positions=[1, 2]).count) == (2, 0)
    read = list(events.read(queue, "a/b %"))
    assert [(event.time_ms, event.payload, event.kind, dict(event.headers)) for event in read] == [
        (BEGIN, b"\xff", "running", {"job_id": "1"}), (1_577_923_201, b"two", "", {}),
    ]  # fmt: skip
    with events.watch(queue, "a/b %", read[0].id) as watch:
        stream = iter(watch)
        assert next(stream) == read[1]
        events.append(queue, "a/b %", [b"three"])
        assert next(stream).payload == b"three"
        assert not watch.gap
    with pytest.raises(Invalid):
        events.watch(queue, "a/b %", "foo")
    with pytest.raises(Invalid):
        events.append(queue, "x" * 2000, [b""])
    assert list(events.read("no", "stream")) == []


@pytest.mark.settings(server_tokens=TOKENS)
def test_an_appender_sends_what_a_node_takes_and_one_that_is_refused_keeps_no_other_back(node: Served) -> None:
    with millpond.open(node.url, client_token="writer") as remote:
        with remote.events.appender("1h") as appender:
            for number in range(6):
                appender.append("etl", "large", b"%d" % number + b"\xff" * 3_000_000)
        assert [event.payload[:1] for event in remote.events.read("etl", "large")] == [b"%d" % n for n in range(6)]
        appender = remote.events.appender("1h")
        for queue in ("etl", "others", "etl", "more"):
            appender.append(queue, queue, b"row")
        appender.append("etl", "last", b"row")
        with pytest.raises(Denied):
            appender.close()
        assert [len(list(remote.events.read("etl", job_set))) for job_set in ("etl", "last")] == [2, 1]


def test_maintenance_and_indexes_are_the_same_in_a_folder_and_on_a_node(node: Served) -> None:
    with millpond.open(node.url) as remote:
        for events in (node.pond.events, remote.events):
            queue = str(type(events).__name__)
            for _ in range(4):
                events.append(queue, "nightly", [b"x" * 3000])
                events.append(queue, "é/ %", [b"y"])
                node.clock.now += DAY
            report = events.compress("1d")
            assert report.days >= 6 and report.bytes_after < report.bytes_before and report.failed == 0
            assert (events.compress("1d").days, events.expire("2d").events >= 4) == (0, True)
            index = events.index(queue, "nightly")
            assert index is not None and index.stored_bytes < 3000 + 300
            assert [state.value for _, state in index.days()] == ["compressed", "open"]
        assert list(remote.events.indexes()) == list(node.pond.events.indexes())
        assert list(remote.events.streams("Events")) == list(node.pond.events.streams("Events"))
        assert len(list(remote.events.streams())) == 4
        assert remote.events.index("no", "stream") is None


@pytest.mark.settings(server_tokens=TOKENS)
def test_maintenance_needs_the_right_on_everything(node: Served) -> None:
    for work in ("compress", "expire"):
        for token, status in {"writer": 403, "maps": 403, "all": 200}.items():
            headers = {"Authorization": f"Bearer {token}"}
            assert node.post(f"/v1/events/{work}", {"after_ms": DAY}, headers=headers).status == status
    node.pond.events.append("etl", "hourly", [b""])
    with millpond.open(node.url, client_token="watcher") as remote:
        assert list(remote.events.indexes()) == []


def test_several_streams_are_watched_as_one_in_a_folder_and_on_a_node(node: Served) -> None:
    with millpond.open(node.url) as remote:
        for events in (node.pond.events, remote.events):
            queue = str(type(events).__name__)
            for job_set in ("one", "other/é"):
                events.append(queue, job_set, [job_set.encode()])
                node.clock.now += 1
            with events.watch_many([(queue, "one"), (queue, "other/é"), (queue, "later")]) as watch:
                found: list[tuple[str, bytes]] = []
                while not watch.caught_up:
                    found += [(stream.job_set, event.payload) for stream, event in watch.next_batch(None)]
                assert found == [("one", b"one"), ("other/é", "other/é".encode())]
                events.append(queue, "later", [b"new"])
                assert next(iter(watch)).event.payload == b"new"
                places = watch.after
                assert not watch.gaps
            events.append(queue, "one", [b"more"])
            with events.watch_many(dict(places)) as watch:
                assert next(iter(watch)).event.payload == b"more"
            with pytest.raises(Invalid):
                events.watch_many([])


def test_a_reader_is_told_soon_that_new_events_were_all(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_of_events, "ALIVE_SECONDS", 3600.0)
    with millpond.open(node.url) as remote:
        remote.events.append("q", "j", [b"old"])
        with remote.events.watch("q", "j") as one, remote.events.watch_many([("q", "j")]) as many:
            for watch in (one, many):
                while not watch.caught_up:
                    watch.next_batch(None)
            remote.events.append("q", "j", [b"new"])
            assert [event.payload for event in one.next_batch(None)] == [b"new"]
            assert [found.event.payload for found in many.next_batch(None)] == [b"new"]
            assert (one.next_batch(None), many.next_batch(None)) == ([], [])


@pytest.mark.settings(server_tokens=TOKENS)
def test_a_watch_of_several_streams_needs_the_right_on_each(node: Served) -> None:
    one, other = {"queue": "etl", "job_set": "nightly"}, {"queue": "etl", "job_set": "hourly"}

    def status(*streams: dict[str, str]) -> int:
        headers = {"Authorization": "Bearer watcher"}
        return node.post("/v1/events/watch", {"streams": list(streams), "follow": False}, headers=headers).status

    assert [status(one), status(one, other), status(one, one), status()] == [200, 403, 400, 400]


@pytest.mark.settings(server_tokens=TOKENS)
def test_a_remote_watch_without_the_right_is_denied(node: Served) -> None:
    with millpond.open(node.url, client_token="watcher") as remote, pytest.raises(Denied):
        remote.events.watch("etl", "hourly").next_batch(None)


def test_a_remote_watch_goes_on_on_a_node_that_was_restarted(serve: Callable[..., Served]) -> None:
    first = serve()
    port = first.url.rpartition(":")[2]
    with millpond.open(first.url, client_attempts=1) as remote:
        remote.events.append("q", "j", [b"one"])
        watch = remote.events.watch("q", "j")
        assert next(iter(watch)).payload == b"one"
        first.close()
        seen: list[bytes] = []
        with pytest.raises(Unavailable):
            while True:
                seen += [event.payload for event in watch.next_batch(None)]
        second = serve(server_data=str(first.pond.folder), server_port=int(port))
        second.pond.events.append("q", "j", [b"two"])
        while not seen:
            seen += [event.payload for event in watch.next_batch(None)]
        assert seen == [b"two"]
        watch.close()
