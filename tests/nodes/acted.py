"""A server that does as it is told: answers, refuses, hangs up, stays silent. For tests of who asks."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Act = Callable[["Asked"], None]


class Asked(BaseHTTPRequestHandler):
    """One request, handled by the acts of its server in turn; the last act stays."""

    protocol_version = "HTTP/1.1"
    server: Stage

    def _act(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.reads else b""
        with self.server.lock:
            self.server.asked.append((self.command, self.path, dict(self.headers), body))
            acts = self.server.acts
            act = acts.pop(0) if len(acts) > 1 else acts[0]
        act(self)

    reads = True
    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _act  # noqa: N815 - as http.server calls them

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, told: object = None, headers: dict[str, str] | None = None) -> None:
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
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
    """A server on a free loopback port, and what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *acts: Act) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.acts, self.lock = list(acts), threading.Lock()
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A line that was cut on purpose is no news."""

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def __enter__(self) -> Self:
        return self


def say(status: int = 200, told: object = None, **headers: str) -> Act:
    return lambda asked: asked.answer(status, told, {name.replace("_", "-"): told for name, told in headers.items()})


def refuse(status: int, error: str, kind: str, **values: Any) -> Act:
    told = {"error": error, "kind": kind, "message": f"no: {kind}", "hint": "do better", "values": values}
    return say(status, told)


def cut() -> Act:
    return lambda asked: asked.hang_up()


def half(body: bytes) -> Act:
    """Promise more than comes."""

    def act(asked: Asked) -> None:
        asked.send_response(200)
        asked.send_header("Content-Length", str(2 * len(body)))
        asked.end_headers()
        asked.wfile.write(body)
        asked.wfile.flush()
        asked.close_connection = True

    return act


def silence() -> Act:
    def act(asked: Asked) -> None:
        asked.server.over.wait(30)
        asked.hang_up()

    return act


def free_port() -> int:
    """A port that nobody listens on, for now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
