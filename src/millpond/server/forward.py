"""Requests that a reading process hands on to the process that writes, and their answers on the way back.

    client ─▶ reader ─▶ a connection of its own for each request, over a socket of the machine ─▶ the writing process
                     ◀─ its head, and its body piece by piece, as fast as the client takes them

Invariants:
* a request is sent once: what became of one whose answer was lost is not known here, and is told as that;
* of a request and of its answer, no more than a piece each is held;
* the writing process learns the address and the scheme of the client, whatever the client says in the same header;
* an answer that ends early ends the client's connection;
* an answer that comes before the body is sent is read: the connection is a bare socket, for the streams of asyncio drop
  what has come when they cannot write any more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.client.connections import answer_lost
from millpond.errors import Unavailable
from millpond.server.wire import error_answer

__all__ = ("Forward", "from_readers")

PIECE_BYTES = 64 << 10
_SENDER = b"x-millpond-sender"
_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", _SENDER))
"""Headers about one connection, or that a client has no say in."""
_QUESTIONS = ("GET", "HEAD")


class Forward:
    """An application whose answers are those of the process that writes."""

    def __init__(self, path: str, url: str) -> None:
        """`path`: of its socket. `url`: of the node, for errors."""
        self._path, self._url = path, url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        with line:
            try:
                await asyncio.get_running_loop().sock_connect(line, self._path)
            except OSError:
                await error_answer(self._stopping())(scope, receive, send)
                return
            answer = _Answer(scope["method"] == "HEAD")
            body = asyncio.create_task(_send_request(scope, receive, line, answer))
            try:
                await _pass_back(line, answer, send)
            finally:
                body.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await body
        if not answer.begun:  # one that has begun and ends here loses its connection
            question = scope["method"] in _QUESTIONS
            lost = answer_lost(self._url, "the process that writes ended", repeatable=False)
            await error_answer(self._stopping() if question else lost)(scope, receive, send)

    def _stopping(self) -> Unavailable:
        return Unavailable("the node is stopping", kind="node_stopping", node=self._url, hint="ask again")


class _Answer:
    """The state of an answer; httptools calls it as its bytes are parsed."""

    def __init__(self, bare: bool) -> None:
        """`bare`: the answer to HEAD, which announces a body and has none."""
        self._bare = bare
        self.parser = httptools.HttpResponseParser(self)
        self.messages: list[Message] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = self.complete = False
        self.body_expected = asyncio.Event()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:
            self.headers = []
            self.body_expected.set()  # 100: it wants the body
            return
        # The reader's own server says the date, and frames the body anew.
        headers = [(name, value) for name, value in self.headers if name not in _HOP and name != b"date"]
        self.messages.append({"type": "http.response.start", "status": status, "headers": headers})
        self.begun = True
        if self._bare:
            self._end()

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if self.begun and not self.complete:
            self._end()

    def _end(self) -> None:
        self.complete = True
        self.messages.append({"type": "http.response.body", "body": b""})


async def _pass_back(line: socket.socket, answer: _Answer, send: Send) -> None:
    """Send an answer on as it comes, to its end or to that of its connection."""
    loop = asyncio.get_running_loop()
    while not answer.complete:
        try:
            piece = await loop.sock_recv(line, PIECE_BYTES)
        except ConnectionError:
            return
        if not piece:
            return
        answer.parser.feed_data(piece)
        messages, answer.messages = answer.messages, []
        for message in messages:
            await send(message)


async def _send_request(scope: Scope, receive: Receive, line: socket.socket, answer: _Answer) -> None:
    """Send a request, its body as it comes; when the client goes away, the connection is cut."""
    headers, loop = dict(scope["headers"]), asyncio.get_running_loop()
    chunked = b"transfer-encoding" in headers
    with suppress(ConnectionError):
        await loop.sock_sendall(line, _head(scope, chunked))
    if headers.get(b"expect", b"").lower() == b"100-continue":
        await answer.body_expected.wait()  # the client is told to send it by the first `receive`
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            with suppress(OSError):  # it has ended
                line.shutdown(socket.SHUT_RDWR)
            return
        with suppress(ConnectionError):  # the answer says why
            for piece in _framed(message, chunked):
                await loop.sock_sendall(line, piece)


def _framed(message: Message, chunked: bool) -> Iterable[bytes]:
    body: bytes = message.get("body", b"")
    if not chunked:
        return (body,) if body else ()
    pieces = (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
    return pieces if message.get("more_body") else (*pieces, b"0\r\n\r\n")


def _head(scope: Scope, chunked: bool) -> bytes:
    host, port = scope.get("client") or ("", 0)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in scope["headers"] if name not in _HOP]
    lines += [_SENDER + f": {scope['scheme']} {port} {host}".encode(), b"connection: close"]
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join((*lines, b"", b""))


def from_readers(app: ASGIApp) -> ASGIApp:
    """The application as the process that writes serves it to readers: with the clients' addresses and schemes."""

    def unwrapped(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            headers: list[tuple[bytes, Any]] = scope["headers"]
            sender = next(value for name, value in headers if name == _SENDER)
            scheme, port, host = sender.decode("latin-1").split(" ", 2)
            scope["headers"] = [header for header in headers if header[0] != _SENDER]
            scope["scheme"], scope["client"] = scheme, (host, int(port)) if host else None
        return app(scope, receive, send)

    return unwrapped
