"""Large bodies of requests that are refused: the response comes at once, and the rest is not read."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable

import pytest

from millpond.server.lingering_close import LINGER_BYTES_MAX
from tests.nodes.conftest import Served
from tests.nodes.test_connections import HEAD, KIB, pour, raw, refused, status

LARGE = 700 << 20
BUFFERS = 32 << 20
"""More than the buffers of both ends of a loopback connection take."""
POST = b"POST /v1/maps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ANNOUNCED = b"Content-Length: %d\r\n\r\n" % LARGE
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def sent_and_answered(line: socket.socket, head: bytes, piece: bytes) -> tuple[int, bytes]:
    """The bytes of a large body that the node took, and its answer, read while the body is sent."""
    line.sendall(head)
    got = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := line.recv(1 << 16):
                got.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    sent = pour(line, piece, LARGE)
    reader.join()
    return sent, bytes(got)


@pytest.mark.parametrize(
    ("settings", "head", "piece", "code"),
    [
        ({"server_access": "tokens"}, POST + ANNOUNCED, b"x" * (1 << 20), 401),
        ({"server_access": "tokens"}, POST + CHUNKED, b"100000\r\n" + b"x" * (1 << 20) + b"\r\n", 401),
        ({}, POST + ANNOUNCED, b"x" * (1 << 20), 413),
        ({}, POST + CHUNKED, b"100000\r\n" + b"x" * (1 << 20) + b"\r\n", 413),
        ({}, POST.replace(b"/v1/maps", b"/nowhere") + ANNOUNCED, b"x" * (1 << 20), 404),
        ({}, POST.replace(b"POST", b"PATCH") + ANNOUNCED, b"x" * (1 << 20), 405),
    ],
    ids=["token", "token, in chunks", "limit", "limit, in chunks", "route", "method"],
)
def test_the_rest_of_a_refused_body_is_not_read(
    serve: Callable[..., Served], settings: dict[str, str], head: bytes, piece: bytes, code: int
) -> None:
    node = serve(**settings)
    with raw(node) as line:
        sent, answer = sent_and_answered(line, head, piece)
    assert sent < BUFFERS
    first, _, body = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % code) and b"connection: close" in first.lower()
    assert json.loads(body)["message"], "the sender reads why"
    assert refused(node, "body_unread") == 1
    node.until(lambda: node.service.connections.total == 0)
    assert node.get("/healthz").status == 200


def test_who_reads_the_answer_before_it_sends_the_body_reads_it(node: Served) -> None:
    with raw(node) as line:
        line.sendall(POST + b"Expect: 100-continue\r\n" + ANNOUNCED)
        assert line.makefile("rb").read().startswith(b"HTTP/1.1 413 "), "it ends by itself"
    node.until(lambda: node.service.connections.total == 0)


@pytest.mark.settings(server_access="tokens")
def test_a_connection_goes_on_when_a_small_body_came_late(node: Served) -> None:
    body = b"x" * 200 * KIB
    with raw(node) as line, line.makefile("rb") as answers:
        for _ in range(3):
            line.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            assert answers.readline().split()[1] == b"401"
            headers = http.client.parse_headers(answers)
            assert headers["connection"] is None
            answers.read(int(headers["content-length"]))
            line.sendall(body)
        line.sendall(HEAD + b"\r\n")
        assert answers.readline().split()[1] == b"200"
    assert refused(node, "body_unread") == 0


@pytest.mark.parametrize("more", [5, 600 * KIB], ids=["a little", "much"])
def test_a_body_longer_than_its_length_is_answered(node: Served, more: int) -> None:
    """A client that counts the characters of a text, and sends its bytes, reads that the request was done."""
    order = json.dumps({"name": "longer", "kind": "state", "value": "long"}).encode()
    head = POST + b"Content-Length: %d\r\n\r\n" % len(order)
    with raw(node) as line:
        line.sendall(head + order + b"\xff" * more)
        answer = line.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1 and b"connection: close" in answer
    assert node.pond.map("longer").name == "longer"
    with raw(node) as line, line.makefile("rb") as answers:
        line.sendall(HEAD + b"\r\n")
        assert answers.readline().split()[1] == b"200"
        line.sendall(b"\xff" * more)  # it comes when the answer was sent
        assert b"HTTP/1.1 400 " in answers.read()
    with raw(node) as line:
        line.sendall(b"\xff" * 5)
        assert status(line) == 400
    node.until(lambda: node.service.connections.total == 0)


@pytest.mark.settings(server_access="tokens", limits={"idle_seconds": 0.2})
@pytest.mark.parametrize("late", [b"x", b"x" * 10], ids=["a part", "all"])
def test_a_rest_that_does_not_come_holds_no_connection(node: Served, late: bytes) -> None:
    with raw(node) as line:
        line.sendall(POST + b"Content-Length: 10\r\n\r\n")
        assert status(line) == 401
        line.sendall(late)
        with contextlib.suppress(OSError):
            while line.recv(1 << 16):
                pass  # until it is closed
    node.until(lambda: node.service.connections.total == 0)


def test_the_limit_is_what_is_read(node: Served) -> None:
    """A sender that sends no more than the node lingers for is not disconnected before it has read."""
    with raw(node) as line:
        line.sendall(POST + ANNOUNCED)
        line.sendall(b"x" * (LINGER_BYTES_MAX // 2))
        line.shutdown(socket.SHUT_WR)
        assert line.makefile("rb").read().startswith(b"HTTP/1.1 413 ")
