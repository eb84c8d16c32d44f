"""The life of a token: it expires, is rotated, is limited, and what it changes is written down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.clock import ManualClock
from millpond.errors import Denied, NotFound
from millpond.events.event import NewEvent
from millpond.events.names import StreamName
from millpond.nodes.audit import AuditLog
from millpond.nodes.rate_limits import RateLimits
from millpond.nodes.tokens import TokenFile, Tokens, hash_token
from tests.nodes.conftest import Answer, Served

DAY = 86_400_000
READ = {"read": ["*"]}


def shown(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# -- expiry and rotation ------------------------------------------------------------------------------


def test_a_token_expires_and_is_rotated(tmp_path: Path) -> None:
    clock = ManualClock()
    file = TokenFile(tmp_path)
    tokens = Tokens(file, (), clock, required=True)

    def valid(*secrets: str) -> list[bool]:
        found = []
        for secret in secrets:
            try:
                found.append(tokens.caller(secret).name == "loader")
            except Denied:
                found.append(False)
        return found

    file.add("loader", "one", READ, expires_ms=10 * DAY)
    assert valid("one", "two", "three") == [True, False, False]
    file.rotate("loader", "two", earlier_until_ms=2 * DAY)
    assert valid("one", "two", "three") == [True, True, False], "both, while clients are changed"
    clock.advance(2 * DAY - 1)
    assert valid("one", "two") == [True, True]
    clock.advance(1)
    assert valid("one", "two") == [False, True]
    with pytest.raises(Denied) as expired:
        tokens.caller("one")
    assert expired.value.kind == "token_expired"
    file.rotate("loader", "three", earlier_until_ms=20 * DAY)
    assert valid("one", "two", "three") == [False, True, True]
    clock.advance(8 * DAY)
    assert valid("one", "two", "three") == [False, False, False], "an earlier secret lives no longer than its token"
    file.rotate("loader", "four", earlier_until_ms=clock.now_ms(), expires_ms=30 * DAY)
    assert valid("one", "two", "three", "four") == [False, False, False, True]
    assert [token.rights for token in file.read()] == [{"read": ("*",)}]
    with pytest.raises(NotFound):
        file.rotate("nobody", "x", earlier_until_ms=0)
    file.revoke("loader")
    assert valid("three", "four") == [False, False]


def test_an_expired_token_is_one_that_nobody_shows(node: Served) -> None:
    TokenFile(node.pond.folder).add("old", "secret", READ, expires_ms=1)
    answer = node.get("/v1/maps", headers=shown("secret"))
    assert (answer.status, answer.json()["kind"]) == (401, "token_expired")
    TokenFile(node.pond.folder).rotate("old", "new", earlier_until_ms=1 << 60, expires_ms=1 << 60)
    assert node.get("/v1/maps", headers=shown("new")).status == 200, "a running node reads the file again"
    assert node.get("/v1/maps", headers=shown("secret")).status == 200
    assert 'millpond_requests_refused_total{kind="token_expired",surface="http"} 1.0' in metrics(node, "new")


def metrics(node: Served, secret: str) -> str:
    return node.get("/metrics", headers=shown(secret)).body.decode()


# -- rates --------------------------------------------------------------------------------------------


@given(
    per_second=st.integers(1, 5), burst=st.integers(1, 5),
    calls=st.lists(st.tuples(st.integers(0, 700), st.sampled_from("ab")), max_size=60),
)  # fmt: skip
def test_no_span_of_time_has_more_requests_than_the_limit(
    per_second: int, burst: int, calls: list[tuple[int, str]]
) -> None:
    clock = ManualClock()
    limits = RateLimits(per_second, burst, clock)
    taken: dict[str, list[float]] = {"a": [], "b": []}
    for pause, name in calls:
        clock.advance(pause)
        seconds = limits.take(name)
        if seconds:
            assert 0 < seconds <= 1 / per_second
        else:
            taken[name].append(clock.monotonic())
    for times in taken.values():
        for first, start in enumerate(times):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + (times[last] - start) * per_second + 1e-6


def test_a_request_is_let_through_after_the_seconds_that_were_named() -> None:
    clock = ManualClock()
    limits = RateLimits(2, 1, clock)
    assert limits.take("a") == 0
    assert limits.take("a") == 0.5
    assert limits.take("b") == 0
    clock.advance(500)
    assert limits.take("a") == 0
    assert RateLimits(0, 1, clock).take("a") == 0


TOKENS = [
    {"name": name, "sha256": hash_token(name), "rights": {"admin": ["*"]}} for name in ("greedy", "modest")
]  # fmt: skip


@pytest.mark.settings(server_tokens=TOKENS, server_token_requests_per_second=1)
def test_a_greedy_token_waits_and_others_do_not(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])

    def get(who: str) -> Answer:
        return node.get("/v1/maps/m/get?key=a", headers=shown(who))

    answers = [get("greedy") for _ in range(12)]
    refused = [answer for answer in answers if answer.status == 429]
    assert {answer.status for answer in answers[:3]} == {200}
    assert refused, "twelve do not fit into three, and one a second"
    assert {(answer.json()["kind"], answer.headers["Retry-After"]) for answer in refused} == {("rate_limited", "1")}
    assert get("modest").status == 200
    assert node.get("/v1/jobs", headers=shown("greedy")).status == 200, "administration has no limit"
    assert 'millpond_requests_refused_total{kind="rate_limited",surface="http"}' in metrics(node, "greedy")

    def patient() -> object:
        with millpond.open(node.url, client_token="greedy", clock=node.clock) as pond:
            return pond.map("m").get("a")

    assert node.while_time_passes(patient) == 1, "clients wait as long as the node says"


@pytest.mark.settings(server_token_requests_per_second=1)
def test_tokens_that_change_hold_at_once_and_their_limits_survive(node: Served) -> None:
    """Without a restart: the next request is decided by the new tokens, and by what the name has left."""
    file = TokenFile(node.pond.folder)
    node.pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])

    def get(secret: str) -> int:
        return node.get("/v1/maps/m/get?key=a", headers=shown(secret)).status

    now = node.clock.now_ms()
    file.add("greedy", "one", READ)
    file.add("modest", "other", READ)
    assert [get("one") for _ in range(4)] == [200, 200, 200, 429]
    file.rotate("greedy", "two", earlier_until_ms=now + DAY)
    assert [get("one"), get("two"), get("other")] == [429, 429, 200], "another secret is no other token"
    node.clock.advance(1000)
    assert get("two") == 200
    file.rotate("greedy", "three", earlier_until_ms=now)
    assert [get("one"), get("two"), get("three")] == [401, 401, 429]
    file.revoke("greedy")
    assert [get("three"), get("other")] == [401, 200]
    file.add("greedy", "four", READ)
    assert get("four") == 429, "not even one that is revoked and added anew"


# -- the audit log ------------------------------------------------------------------------------------


def lines(folder: Path) -> list[dict[str, object]]:
    files = sorted(folder.glob("audit.jsonl*"), key=lambda file: file.name, reverse=True)
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_every_change_is_a_line_with_the_name_of_its_token(serve: Callable[..., Served]) -> None:
    rights = {"boss": {"admin": ["*"]}, "reader": READ}
    node = serve(
        server_tokens=[{"name": who, "sha256": hash_token(f"{who}-secret"), "rights": rights[who]} for who in rights]
    )
    made = {"name": "m", "kind": "state", "value": "long"}
    assert node.post("/v1/maps", made, headers=shown("reader-secret")).status == 403
    assert node.post("/v1/maps", made).status == 401
    assert node.post("/v1/maps", made, headers=shown("boss-secret")).status == 200
    with millpond.open(node.url, client_token="boss-secret", client_synchronise=True) as pond:
        result = pond.map("m").load([{"key": "private", "value": 7}])
        assert pond.map("m").get("private") == 7
    assert node.delete("/v1/maps/m%0A%7B%7D", headers=shown("boss-secret")).status == 404
    found = lines(node.pond.folder)
    assert [(line["token"], line["method"], line["path"], line["status"]) for line in found] == [
        ("reader", "POST", "/v1/maps", 403), (None, "POST", "/v1/maps", 401), ("boss", "POST", "/v1/maps", 200),
        ("boss", "PUT", f"/v1/loads/{result.load}", 200), ("boss", "DELETE", "/v1/maps/m\n{}", 404),
    ]  # fmt: skip
    assert found[2]["map"] == "m"
    assert (found[3]["load"], found[3]["rows"]) == (result.load, {"m": 1})
    text = (node.pond.folder / "audit.jsonl").read_text()
    assert "secret" not in text
    assert "private" not in text


def test_the_audit_log_is_bounded(tmp_path: Path) -> None:
    clock = ManualClock()
    log = AuditLog(tmp_path, clock, bytes_max=1024, files=2)
    assert list(tmp_path.iterdir()) == [], "no file before the first line"
    for number in range(200):
        log.write("boss", "POST", f"/v1/maps/{number}", 200)
    log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 1024 for file in files)
    assert lines(tmp_path)[-1]["path"] == "/v1/maps/199"
    numbers = [int(str(line["path"]).rpartition("/")[2]) for line in lines(tmp_path)]
    assert numbers == [*range(numbers[0], 200)], "none is lost between two files"


def test_an_audit_log_behind_a_link_has_its_older_files_there(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (folder := tmp_path / "pond").mkdir()
    (folder / "audit.jsonl").symlink_to(elsewhere / "audit.log")
    log = AuditLog(folder, ManualClock(), bytes_max=1024, files=2)
    for number in range(200):
        log.write("boss", "POST", f"/v1/maps/{number}", 200)
    log.close()
    assert [file.name for file in folder.iterdir()] == ["audit.jsonl"]
    assert sorted(file.name for file in elsewhere.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert lines(folder)[-1]["path"] == "/v1/maps/199"


def test_an_audit_log_that_is_no_file_has_no_older_files(tmp_path: Path) -> None:
    pipe = tmp_path / "audit.jsonl"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AuditLog(tmp_path, ManualClock(), bytes_max=1024)
    for number in range(50):
        log.write("boss", "POST", f"/v1/maps/{number}", 200)
    log.close()
    assert list(tmp_path.iterdir()) == [pipe]
    assert os.read(reading, 1 << 16).count(b"\n") == 50
    os.close(reading)


def test_a_log_that_cannot_be_written_fails_nothing(node: Served) -> None:
    (node.pond.folder / "audit.jsonl").mkdir()
    assert node.post("/v1/maps", {"name": "m", "kind": "state", "value": "long"}).status == 200


def test_commands_that_change_tokens_are_in_the_audit_log(tmp_path: Path) -> None:
    folder, runner = str(tmp_path / "pond"), CliRunner()
    for command in (["add", "loader", "--write", "*"], ["rotate", "loader"], ["revoke", "loader"]):
        done = runner.invoke(app, ["token", *command, "--data", folder])
        assert done.exit_code == 0, done.output
    assert runner.invoke(app, ["token", "revoke", "loader", "--data", folder]).exit_code != 0
    text = (tmp_path / "pond" / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["path"], line["name"]) for line in lines] == [
        ("command", f"token {word}", "loader") for word in ("add", "rotate", "revoke")
    ]
    assert "secret" not in text
    assert "sha256" not in text


# -- answers that last --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/events?queue=etl&job_set=a&after=newest&follow=true"),
        ("GET", "/console/events/live?queue=etl&job_set=a"),
        ("POST", "/v1/job-set/etl/a"),
    ],
)
def test_a_watch_ends_with_its_token(node: Served, method: str, path: str) -> None:
    file, here = TokenFile(node.pond.folder), "/v1/events?queue=etl&job_set=a"
    file.add("watcher", "w", {"read": ["stream:etl/*"]})
    file.add("writer", "x", {"write": ["stream:etl/*"]})
    assert node.request("POST", here, body=b'{"kind": "old"}\n', headers=shown("x")).status == 200
    headers = {**shown("w"), "Content-Type": "application/json", "Millpond-Watch": "all"}
    body = b'{"watch": true}' if method == "POST" else None
    watch = node.pool.request(method, node.url + path, body=body, headers=headers, preload_content=False)
    assert watch.status == 200 and watch.readline()
    file.revoke("watcher")
    assert node.request("POST", here, body=b'{"kind": "secret"}\n', headers=shown("x")).status == 200
    came = b""
    with pytest.raises(urllib3.exceptions.HTTPError):
        while line := watch.readline():
            came += line
        raise urllib3.exceptions.ProtocolError  # a reader may not be told that the end is none
    assert b"secret" not in came


def test_a_list_of_streams_names_none_of_others(node: Served) -> None:
    file = TokenFile(node.pond.folder)
    file.add("reader", "r", {"read": ["stream:m/ours*"]})
    ours, theirs = [StreamName("m", f"ours{number}") for number in range(3)], ["a", "m", "z"]
    for stream in (*ours, *(StreamName(queue, "theirs") for queue in theirs), StreamName("m", "oursz")):
        node.pond.events.append(*stream, [NewEvent(0, b"", "new", {})])
    after: dict[str, str] | None = {}
    listed: list[str] = []
    while after is not None:
        query = urlencode({"limit": 2, **{f"after_{name}": text for name, text in after.items()}})
        answer = node.get(f"/v1/events/streams?{query}", headers=shown("r"))
        assert b"theirs" not in answer.body
        listed += [stream["job_set"] for stream in answer.json()["streams"]]
        after = answer.json()["next"]
    assert sorted(listed) == ["ours0", "ours1", "ours2", "oursz"]
