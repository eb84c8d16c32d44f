"""Connections that waste a node's time or memory: endless heads, half-sent ones, too many, and readers that stall."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from millpond.server.connections import PIPELINED_MAX
from millpond.server.memory import SMALL_BYTES
from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(3, of="file")

KIB = 1 << 10
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextmanager
def raw(node: Served, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    place = urlsplit(node.url)
    assert place.hostname is not None and place.port is not None
    with closing(socket.create_connection((place.hostname, place.port), 30, (address, 0))) as made:
        yield made


def status(line: socket.socket) -> int:
    """The status of the next answer; 0 when the connection was closed without one."""
    with contextlib.suppress(OSError):
        first = line.makefile("rb").readline()
        return int(first.split()[1]) if first else 0
    return 0


def pour(line: socket.socket, piece: bytes, bytes_max: int) -> int:
    """Send a piece again and again until the node closes the connection; the bytes that it took."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < bytes_max:
            line.sendall(piece)
            sent += len(piece)
    return sent


def refused(node: Served, kind: str) -> float:
    return node.service.metrics.refused.labels("connection", kind)._value.get()  # type: ignore[no-any-return]


# -- heads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began", "piece"),
    [
        (HEAD + b"X-Endless: ", b"a" * 64 * KIB),
        (HEAD, b"X-Many: a\r\n" * 1000),
        (b"GET /healthz?", b"a" * 64 * KIB),
        (HEAD + b"X", b"n" * 64 * KIB),
    ],
    ids=["value", "headers", "address", "name"],
)
def test_a_head_that_never_ends_is_refused(node: Served, began: bytes, piece: bytes) -> None:
    with raw(node) as line:
        line.sendall(began)
        assert pour(line, piece, 64 << 20) < 64 << 20
        node.until(lambda: refused(node, "header_too_large") == 1)
    assert node.get("/healthz").status == 200


def test_a_trailer_that_never_ends_is_refused(node: Served) -> None:
    chunked = b"POST /v1/maps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with raw(node) as line:
        line.sendall(chunked + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Endless: ")
        assert pour(line, b"a" * 64 * KIB, 64 << 20) < 64 << 20
        node.until(lambda: refused(node, "header_too_large") == 1)


def test_the_answer_to_a_large_head_says_the_way_out(node: Served) -> None:
    with raw(node) as line:
        line.sendall(HEAD + b"X-Large: " + b"a" * 70 * KIB)
        got = line.makefile("rb").read()
    head, _, body = got.partition(b"\r\n\r\n")
    error = json.loads(body)
    assert head.startswith(b"HTTP/1.1 431 ") and error["kind"] == "header_too_large"
    assert error["values"]["bytes_max"] == 64 * KIB and "POST" in error["hint"]


def test_a_head_within_the_limit_is_read_byte_by_byte_and_bodies_are_not_heads(node: Served) -> None:
    node.pond.create_map("m", kind="state", value="long")
    with raw(node) as line:
        for byte in HEAD + b"X-Large: " + b"a" * 200 + b"\r\n\r\n":
            line.send(bytes((byte,)))
        assert status(line) == 200
    body = json.dumps({"where": [["key", "=", "k" * 300 * KIB]]}).encode()
    assert node.post("/v1/maps/m/scan", json.loads(body)).status == 200


@pytest.mark.settings(limits={"head_seconds": 0.2})
@pytest.mark.parametrize(
    "sent", [b"", HEAD, b"\r\n\r\n", HEAD + b"\r\n" + HEAD], ids=["none", "half", "blank", "second"]
)
def test_a_head_that_is_half_sent_is_given_up(node: Served, sent: bytes) -> None:
    with raw(node) as line:
        line.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while line.recv(1 << 16):
                pass  # until it is closed
    node.until(lambda: refused(node, "header_late") == 1)
    node.until(lambda: node.service.connections.total == 0)


@pytest.mark.settings(limits={"body_seconds": 0.2})
@pytest.mark.parametrize("path", ["/v1/maps", f"/v1/parts/{'0' * 32}/upload", "/api/v1/repositories"])
def test_a_body_that_trickles_is_given_up(node: Served, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    with raw(node) as line, contextlib.suppress(OSError):
        line.settimeout(0.02)
        line.sendall(head.encode())
        while True:
            line.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                if not line.recv(1 << 16):
                    break
    node.until(lambda: refused(node, "body_late") + refused(node, "body_unread") == 1)
    node.until(lambda: node.service.connections.total == 0)


@pytest.mark.settings(limits={"head_seconds": 0.2, "idle_seconds": 0.2})
def test_an_idle_connection_is_closed_and_a_busy_one_is_not(node: Served) -> None:
    with raw(node) as line:
        line.sendall(HEAD + b"\r\n")
        assert status(line) == 200
        while line.recv(1 << 16):
            pass
    assert refused(node, "header_late") == 0
    with raw(node) as line:  # its request takes longer than both
        line.sendall(b"GET /v1/log?wait=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert node.while_time_passes(lambda: status(line)) == 200


# -- how many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "addresses", "code", "kind"),
    [
        (8, ("127.0.0.1", "127.0.0.2"), 503, "connections_full"),
        (16, ("127.0.0.1",), 429, "address_connections_full"),
    ],
)
def test_connections_beyond_the_limit_are_sent_away(
    serve: Callable[..., Served], most: int, addresses: tuple[str, ...], code: int, kind: str
) -> None:
    node = serve(server_max_request_memory="1GiB", limits={"connection_bytes": (1 << 30) // most})
    with ExitStack() as lines:
        held = [lines.enter_context(raw(node, address)) for address in addresses * (8 // len(addresses))]
        node.until(lambda: node.service.connections.total == 8)
        with raw(node) as line:
            got = line.makefile("rb").read()
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % code) and b"\r\nretry-after: 1" in head
        assert json.loads(body)["kind"] == kind
        held[0].sendall(HEAD + b"\r\n")
        assert status(held[0]) == 200, "those that are open go on"
    node.until(lambda: node.service.connections.total == 0)
    assert node.get("/healthz").status == 200


def test_a_connection_does_not_queue_requests_without_end(node: Served) -> None:
    with raw(node) as line:
        line.sendall(b"GET /v1/log?wait=5 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        pour(line, (HEAD + b"\r\n") * (2 * PIPELINED_MAX), 64 << 20)
        node.until(lambda: refused(node, "pipeline_long") >= 1)


def test_a_few_requests_in_a_row_are_all_answered(node: Served) -> None:
    with raw(node) as line:
        line.sendall((HEAD + b"\r\n") * 20 + HEAD + b"Connection: close\r\n\r\n")
        assert line.makefile("rb").read().count(b"HTTP/1.1 200") == 21


# -- readers ------------------------------------------------------------------------------------------


@pytest.mark.settings(client_read_timeout="300ms")
def test_a_client_that_takes_nothing_is_disconnected(node: Served) -> None:
    pond_map = node.pond.create_map("m", kind="state", value="string")
    pond_map.load(pa.table({"key": [f"k{n}" for n in range(40_000)], "value": ["v" * 500] * 40_000}))
    node.pond.merge()
    with raw(node) as line:
        line.sendall(
            b"POST /v1/maps/m/scan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        node.until(lambda: refused(node, "reader_stalled") == 1)
        node.until(lambda: node.service.connections.total == 0)


@pytest.mark.settings(server_max_request_memory="4MiB")
def test_many_slow_readers_of_objects_hold_little_each(node: Served) -> None:
    branch = node.pond.repositories.create("flights").branch("main")
    branch.put("large", bytes(16 * KIB * KIB))
    signed = node.get("/api/v1/repositories/flights/refs/main/objects/stat?path=large&presign=true")
    path = signed.json()["physical_address"].removeprefix(node.url)

    def held() -> list[int]:
        lines = list(node.service._server.server_state.connections)
        return sorted(line.transport.get_write_buffer_size() for line in lines if line.flow.write_paused)

    with ExitStack() as open_lines:
        for _ in range(8):
            line = open_lines.enter_context(raw(node))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: {urlsplit(node.url).netloc}\r\n\r\n".encode())
        node.until(lambda: len(held()) == 8)
        assert held()[6] <= 2 * SMALL_BYTES and node.service.memory.taken <= KIB * KIB
        assert len(node.get(path).body) == 16 * KIB * KIB
    node.until(lambda: node.service.memory.taken == 0)
