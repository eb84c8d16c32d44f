"""A server with prepared acts: answers, refuses, hangs up, stays silent. For tests of clients."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Act = Callable[["ActedRequest"], None]


class ActedRequest(BaseHTTPRequestHandler):
    """One request, handled by the acts of its server in turn; the last act stays."""

    protocol_version = "HTTP/1.1"
    server: Stage

    def _act(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.reads else b""
        with self.server.lock:
            self.server.requests.append((self.command, self.path, dict(self.headers), body))
            acts = self.server.acts
            act = acts.pop(0) if len(acts) > 1 else acts[0]
        act(self)

    reads = True
    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _act  # noqa: N815 - as http.server calls them

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, payload: object = None, headers: dict[str, str] | None = None) -> None:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with suppress(OSError):
            self.connection.close()


class Stage(ThreadingHTTPServer):
    """A server on a free loopback port, and its recorded requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *acts: Act) -> None:
        super().__init__(("127.0.0.1", 0), ActedRequest)
        self.acts, self.lock = list(acts), threading.Lock()
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A connection that was cut on purpose is no news."""

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self


def say(status: int = 200, payload: object = None, **headers: str) -> Act:
    return lambda request: request.answer(
        status, payload, {name.replace("_", "-"): value for name, value in headers.items()}
    )


def refuse(status: int, error: str, kind: str, **values: Any) -> Act:
    body = {"error": error, "kind": kind, "message": f"no: {kind}", "hint": "do better", "values": values}
    return say(status, body)


def cut() -> Act:
    return lambda request: request.hang_up()


def half(body: bytes) -> Act:
    """Promise more than comes."""

    def act(request: ActedRequest) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(2 * len(body)))
        request.end_headers()
        request.wfile.write(body)
        request.wfile.flush()
        request.close_connection = True

    return act


def half_of_headers() -> Act:
    """End the connection within the headers."""

    def act(request: ActedRequest) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nserver: millp")
        request.wfile.flush()
        request.close_connection = True

    return act


def silence() -> Act:
    def act(request: ActedRequest) -> None:
        request.server.over.wait(30)
        request.hang_up()

    return act


def free_port() -> int:
    """A port that nobody listens on, for now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
