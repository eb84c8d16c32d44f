"""Cached values are answered without a task, and just as the application answers them in one."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millpond.nodes.tokens import hash_token
from tests.nodes.conftest import Served
from tests.rings.sampling import examples

BURST = 3
TOKENS: list[dict[str, Any]] = [
    {"name": name, "sha256": hash_token(name), "rights": rights}
    for name, rights in (("all", {"admin": ["*"]}), ("some", {"read": ["m*"]}), ("other", {"read": ["people"]}))
]
METHODS = st.sampled_from(["GET"] * 8 + ["HEAD", "POST", "DELETE"])
FLIGHTS = "/api/v1/repositories/flights"
PATHS = st.sampled_from(
    ["/v1/maps/m/get"] * 6 + ["/v1/maps/M/get", "/v1/maps/people/get", "/v1/maps/none/get", "/v1/maps/m%2Fx/get",
     "/v1/maps/none", "/healthz", "/nothing"]
    + [f"{FLIGHTS}/refs/main/objects{end}" for end in ("", "", "/stat", "/stat", "/stat", "/ls", "/none")]
    + [f"{FLIGHTS}/refs/none/objects/stat", f"{FLIGHTS}/metadata", f"{FLIGHTS}%2Fx", f"{FLIGHTS}/branches/main",
       "/api/v1/none", "/api/v1", "/api/v2/config"]
)  # fmt: skip
QUERIES = st.lists(
    st.sampled_from(
        [
            "key=a",
            "key=a",
            "key=a",
            "key=b",
            "key_hex=61",
            "key_hex=zz",
            "key=%ff",
            "key=",
            "at=5",
            "at=never",
            "x=1",
            "path=a",
            "path=a",
            "path=b",
            "path=%ff",
            "path=",
            "presign=true",
            "presign=maybe",
        ]
    ),
    max_size=2,
).map("&".join)
HEADERS = st.lists(
    st.sampled_from([
        ("Origin", "http://evil.example"), ("Origin", "null"), ("Content-Length", "0"),
        ("Connection", "close"), ("Millpond-Incarnation", "0" * 32),
        ("X-Forwarded-For", "10.0.0.1"), ("X-Forwarded-Proto", "https"), ("Accept-Encoding", "gzip"),
        ("Range", "bytes=0-0"), ("Accept", "application/vnd.millpond+json"),
    ]), max_size=2, unique_by=lambda header: header[0],
)  # fmt: skip
SECRETS = st.sampled_from(["all"] * 4 + ["some", "some", "other", "none", ""])
HOSTS = st.sampled_from(["127.0.0.1", "127.0.0.1", "127.0.0.1", "evil.example", ""])


@contextmanager
def tasks_alone(node: Served, *, alone: bool) -> Iterator[list[Any]]:
    """Have the node answer all requests in tasks, or as it does; the answers without a task."""
    connections, found = node.service.connections, []
    quick = connections.at_once

    def at_once(scope: Any) -> Any:
        response = None if alone else quick(scope)
        if response is not None:
            found.append(response)
        return response

    connections.at_once = at_once
    try:
        yield found
    finally:
        connections.at_once = quick


def sent(node: Served, request: bytes, answers: int = 1) -> bytes:
    """The answers to what is sent over a new connection, but for their date and what threads do meanwhile."""
    url = urlsplit(node.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        connection.sendall(request)
        received = b""
        while received.count(b"HTTP/1.1 ") < answers or not whole(received, head=request.startswith(b"HEAD")):
            piece = connection.recv(1 << 16)
            if not piece:
                break
            received += piece
    if b'"workers":[' in received:
        received = re.sub(rb'"workers":\[.*?\]|content-length: \d+', b"", received)
    return re.sub(rb"date: [^\r]*\r\n", b"date: now\r\n", received)


def whole(received: bytes, *, head: bool) -> bool:
    """True when the last answer has its body."""
    start, found, body = received.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", start)
    return bool(found) and (head or length is None or len(body) >= int(length[1]))


def counts(node: Served) -> dict[tuple[str, ...], float]:
    """The counters of requests, by their names and labels."""
    metrics = node.service.metrics
    return {
        (sample.name, *sample.labels.values()): sample.value
        for counter in (metrics.requests, metrics.refused, metrics.seconds, metrics.running)
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_count", "_running"))
    }


def observed(node: Served, request: bytes, turns: int) -> tuple[Any, ...]:
    """The answer, the lines of the audit log, what was counted, and what is left of each token's turns."""
    limits = node.node.rate_limits
    limits._buckets.clear()
    for token in TOKENS:
        for _ in range(turns):
            limits.take(token["name"])
    audit = node.pond.folder / "audit.jsonl"
    lines, before = audit.read_bytes() if audit.exists() else b"", counts(node)
    answer = sent(node, request)
    while counts(node)[("millpond_requests_running",)]:  # it is counted after its last byte
        threading.Event().wait(0.001)
    after = counts(node)
    counted = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    more = (audit.read_bytes() if audit.exists() else b"").removeprefix(lines).splitlines()
    audited = [{**json.loads(line), "at": None} for line in more]
    return answer, audited, counted, {name: bucket.left for name, bucket in limits._buckets.items()}


def with_maps(node: Served) -> Served:
    for name in ("m", "people"):
        loaded = node.pond.create_map(name, kind="state", value="long").load([{"key": "a", "value": 1}])
        node.pond.log.wait_applied(loaded.position, timeout=30)
        node.get(f"/v1/maps/{name}/get?key=a", headers={"Authorization": "Bearer all"})
    node.pond.repositories.create("flights").branch("main").put("a", b"1")
    return node


@pytest.mark.parametrize("guarded", [False, True], ids=["open", "guarded"])
def test_both_ways_are_one_to_the_client_the_audit_and_the_counters(
    serve: Callable[..., Served], guarded: bool
) -> None:
    limits = {"server_token_requests_per_second": BURST // 3}
    node = with_maps(serve(server_tokens=TOKENS, **limits) if guarded else serve())
    quick = set[str]()
    cached = ("GET", "/v1/maps/m/get", "key=a", [], "all", "127.0.0.1", "1.1", 0)
    entry = ("GET", f"{FLIGHTS}/refs/main/objects/stat", "path=a", *cached[3:])

    @settings(max_examples=examples(20, 80), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @example(*cached)
    @example(*entry)
    @given(METHODS, PATHS, QUERIES, HEADERS, SECRETS, HOSTS, st.sampled_from(["1.1", "1.0"]), st.integers(0, BURST))
    def check(
        method: str, path: str, query: str, headers: list[tuple[str, str]], secret: str, host: str, version: str,
        turns: int,
    ) -> None:  # fmt: skip
        lines = [f"{method} {path}{'?' + query if query else ''} HTTP/{version}", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Authorization: Bearer {secret}"] if secret else []
        request = "\r\n".join((*lines, "", "")).encode()
        node.clock.advance(2_000)  # a map whose answers were dear is asked in a thread for a while
        with tasks_alone(node, alone=True):
            expected = observed(node, request, turns)
        with tasks_alone(node, alone=False) as found:
            assert observed(node, request, turns) == expected
        quick.update(path for _ in found)
        assert expected[0].startswith(b"HTTP/1.1 ")

    check()
    assert {cached[1], entry[1]} <= quick, "these are answered without a task"


def test_requests_of_one_read_are_answered_in_their_order(node: Served) -> None:
    with_maps(node)
    keys = ["a", "b", "a", "b", "b", "a"]
    requests = b"".join(f"GET /v1/maps/m/get?key={key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for key in keys)
    with tasks_alone(node, alone=False) as found:
        answers = sent(node, requests, len(keys))
    assert re.findall(rb'"found":(\w+)', answers) == [b"true" if key == "a" else b"false" for key in keys]
    assert len(found) == 1, "one request does not keep others waiting; many would"


@pytest.mark.settings(limits={"idle_seconds": 1.0})
def test_a_connection_that_is_used_stays_open_and_one_that_is_idle_does_not(node: Served) -> None:
    with_maps(node)
    url = urlsplit(node.url)
    with (
        tasks_alone(node, alone=False) as found,
        socket.create_connection((url.hostname, url.port), timeout=30) as connection,
    ):
        for _ in range(8):
            connection.sendall(b"GET /v1/maps/m/get?key=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = b""
            while not received.endswith(b"}"):
                piece = connection.recv(1 << 16)
                assert piece, "it was closed while it was used"
                received += piece
            threading.Event().wait(0.25)
        assert connection.recv(1) == b"", "nobody uses it"
    assert len(found) == 8


@pytest.mark.settings(server_log_level="debug")
def test_a_node_that_logs_requests_logs_cached_ones(node: Served, caplog: pytest.LogCaptureFixture) -> None:
    with_maps(node)
    with caplog.at_level("INFO", logger="uvicorn.access"):
        assert node.get("/v1/maps/m/get?key=a").json()["value"] == 1
    assert any("/v1/maps/m/get?key=a" in record.getMessage() for record in caplog.records)
