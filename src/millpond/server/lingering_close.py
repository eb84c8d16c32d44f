"""Bodies that are not read: a request that is answered before its large body has come loses its connection.

    head ─▶ refused ─▶ response with `Connection: close` ─▶ the node sends no more
         ─▶ at most `LINGER_BYTES_MAX` are taken from the socket and thrown away, for at most `LINGER_SECONDS` ─▶ closed

To close at once would lose the response: the kernel answers bytes that nobody reads with a reset, at which a sender
that still sends throws away what it has received. To read the rest, as HTTP servers do to use the connection again,
would let a request that is refused take as much of the node as one that is not.

Invariants:
* after a response, a node reads at most `LINGER_BYTES_MAX` of the request's body, for at most `LINGER_SECONDS`;
* a connection goes on when the body had come by then, and when the request said that it is no longer than that.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = (
    "LINGER_BYTES_MAX",
    "LINGER_SECONDS",
    "Linger",
    "LingeringTransport",
    "announce_close",
    "expect_body",
)

LINGER_BYTES_MAX = 1 << 20
LINGER_SECONDS = 2.0
_UNREAD = "millpond.unread"


class _Cycle(Protocol):
    """The names of a request of uvicorn that are used here."""

    more_body: bool
    transport: Any


class Linger:
    """A connection that sends nothing more, and takes a little more, before it is closed."""

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport, self._left = transport, LINGER_BYTES_MAX
        self._timer: TimerHandle = loop.call_later(LINGER_SECONDS, transport.abort)
        if transport.can_write_eof():  # not over TLS
            transport.write_eof()

    def take(self, data: bytes) -> None:
        """Throw away what came."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def end(self) -> None:
        """The connection is closed."""
        self._timer.cancel()


class LingeringTransport:
    """The transport of a request with a body: when the response closes it, the connection lingers."""

    def __init__(self, connection: Any, cycle: _Cycle) -> None:
        self._connection, self._cycle = connection, cycle
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        """Close it, at once when the body has come and nothing that is no request came after it."""
        if self._cycle.more_body or self._connection.garbled:
            self._connection.linger()
        else:
            self._connection.transport.close()


def expect_body(connection: Any, scope: Any, cycle: _Cycle) -> int | None:
    """The length of the body that a head states, None for one that comes in chunks; the response closes the
    connection of a request whose large body has not come by then.
    """
    length = _body_length(scope["headers"])
    if length is None or length > LINGER_BYTES_MAX:
        cycle.transport = LingeringTransport(connection, cycle)
        scope[_UNREAD] = cycle
    return length


def _body_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The length of the body that a head states, 0 for no body; None for one that comes in chunks."""
    stated = dict(headers)
    return None if b"transfer-encoding" in stated else int(stated.get(b"content-length", 0))


def announce_close(app: ASGIApp) -> ASGIApp:
    """The application, whose responses to requests that have not come whole say `Connection: close`."""

    def announced(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        cycle: _Cycle | None = scope.get(_UNREAD)
        if cycle is None:
            return app(scope, receive, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and cycle.more_body:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        return app(scope, receive, sending)

    return announced
