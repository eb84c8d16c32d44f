"""Connections of a node: the number of them, the size of a request's head, and the time that a client may waste.

    accepted ─▶ counted, of all and of its address ─▶ head within its bytes and its time ─▶ request ─▶ idle ─▶ head …

uvicorn parses HTTP with httptools, which has no limits: a header that never ends is copied again with each packet, and
a head that is half sent is waited for without end. `LimitedConnection` is uvicorn's own protocol with these limits.

Invariants:
* a process holds at most `connections_max` connections, and at most `per_address_max` of one address; one more is
  answered 503 (429 for an address) with `Retry-After`, and closed, before anything of it is read;
* the parser is given at most `head_bytes_max` bytes in a row of which nothing becomes a request or a piece of a body:
  so a head that does not end, or the trailer of a body in chunks, costs no more than that;
* a head is whole within `head_seconds` of its first byte, the first one of the connection's beginning;
* a body is whole within `body_seconds`, and a second more for every `BODY_BYTES_PER_SECOND_MIN` of it, but for the time
  in which the node does not read;
* a connection that carries no request is closed after `idle_seconds`, by uvicorn;
* a client that takes nothing of its response for `stalled_seconds` is disconnected; while others wait for memory, for
  `STALLED_SECONDS_BUSY`;
* a body that has not come when its request is answered may come for a moment more: see `lingering_close.py`;
* a request that waits for nothing is answered where its head is read: `quick.py`; of those that one read brings, the
  first alone, so that nobody else waits for long;
* bytes that are no request, such as those by which a body is longer than its length, are not read, and cost no request
  before them its answer;
* at most `PIPELINED_MAX` requests of a connection wait for the one that is answered, and those of one read.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Message, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from millpond.client.wire_errors import to_wire
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.json_forms import to_json
from millpond.maps.shard.open_shards import connections_of_files, raise_file_limit
from millpond.nodes.limits import NodeLimits
from millpond.server.lingering_close import LINGER_SECONDS, Linger, LingeringTransport, expect_body
from millpond.server.presence import Presence, put_presence
from millpond.server.transfers import is_long
from millpond.settings import Settings

__all__ = ("PIPELINED_MAX", "ConnectionLimits", "Connections", "LimitedConnection")

PIPELINED_MAX = 64
STALLED_SECONDS_BUSY = 5.0
BODY_BYTES_PER_SECOND_MIN = 16 << 10
RETRY_SECONDS = 1
GATHERED_BYTES = 256 << 10
GATHERING_SECONDS = 0.01

Refused = Callable[[str], None]
AtOnce = Callable[[Scope], Response | None]
"""The answer to a request that waits for nothing; None for any other."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a node's connections."""

    connections_max: int
    per_address_max: int
    head_bytes_max: int
    head_seconds: float
    body_seconds: float
    idle_seconds: float
    stalled_seconds: float

    @classmethod
    def of(cls, settings: Settings, limits: NodeLimits) -> ConnectionLimits:
        """Those that the settings name, within the open files that the process may have."""
        connections = settings.server.max_request_memory // limits.connection_bytes
        connections = min(connections, connections_of_files(raise_file_limit()))
        return cls(
            connections, max(1, connections // 2), limits.head_bytes_max, limits.head_seconds, limits.body_seconds,
            limits.idle_seconds, settings.client.read_timeout / 1000,
        )  # fmt: skip

    def shared(self, processes: int) -> ConnectionLimits:
        """The part of one of several processes, which clients reach by chance."""
        connections, per_address = -(-self.connections_max // processes), -(-self.per_address_max // processes)
        return replace(self, connections_max=connections, per_address_max=per_address)

    def of_readers(self, processes: int) -> ConnectionLimits:
        """The limits of what so many reading processes hand on: each request has a connection, and no address."""
        connections = self.connections_max + processes
        return replace(self, connections_max=connections, per_address_max=connections)


class Connections:
    """The connections of one node, counted; what uvicorn makes a protocol with. Used by its event loop alone."""

    def __init__(self, limits: ConnectionLimits, refused: Refused) -> None:
        self.limits, self.refused = limits, refused
        self.at_once: AtOnce = lambda _scope: None
        self.busy: Callable[[], bool] = bool  # True while others wait for what a response holds
        self.total = 0
        self._by_address: Counter[str] = Counter()

    def __call__(self, **options: Any) -> LimitedConnection:
        """The protocol of one connection."""
        return LimitedConnection(self, **options)

    def enter(self, address: str) -> MillpondError | None:
        """Count a connection; the error for one that is too many, which is not counted.

        >>> one = Connections(ConnectionLimits(2, 1, 1, 1, 1, 1, 1), print)
        >>> one.enter("a"), one.enter("b"), one.enter("c").kind, one.leave("b"), one.enter("a").kind
        (None, None, 'connections_full', None, 'address_connections_full')
        """
        if self.total >= self.limits.connections_max:
            return Unavailable(
                "the node holds as many connections as it may", kind="connections_full",
                connections_max=self.limits.connections_max,
                hint="connect again in a moment, or raise server.max_request_memory",
            )  # fmt: skip
        if self._by_address[address] >= self.limits.per_address_max:
            return Unavailable(
                "the node holds as many connections of this address as it may", kind="address_connections_full",
                address=address, connections_max=self.limits.per_address_max,
                hint="share connections, or raise server.max_request_memory",
            )  # fmt: skip
        self.total += 1
        self._by_address[address] += 1
        return None

    def leave(self, address: str) -> None:
        """Count a connection no more."""
        self.total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class LimitedConnection(HttpToolsProtocol):
    """One connection, within its limits."""

    scope: Any  # as ASGI has it, where uvicorn has a type of its own

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._counted, self._limits = connections, connections.limits
        self.timeout_keep_alive = cast(Any, connections.limits.idle_seconds)  # uvicorn's setting is whole seconds
        self._address: str | None = None
        self._unused = 0  # bytes given to the parser since anything came of them
        self._in_head = True
        self._fresh = False  # while the first request of a read is parsed
        self._begun = False  # also by bytes that came with the end of the request before
        self._head_timer: TimerHandle | None = None
        self._body_timer: TimerHandle | None = None
        self._body_bytes = self._body_left = 0
        self._write_timer: TimerHandle | None = None
        self._rest_timer: TimerHandle | None = None
        self._gather_timer: TimerHandle | None = None
        self._linger: Linger | None = None
        self.garbled = False
        """True when something came that is no request: nothing more is parsed."""
        self._presence = Presence()

    # -- the connection begins and ends ---------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Any, transport))
        address = self.client[0] if self.client else ""
        error = self._counted.enter(address)
        if error is not None:
            self.connections.discard(self)
            self._refuse(error, 503 if error.kind == "connections_full" else 429)
            return
        self._address = address
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_body()
        self._end_stall()
        self._end_rest()
        self._presence.leave()
        if self._linger is not None:
            self._linger.end()
        if self._address is not None:
            self._counted.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def _refuse(self, error: MillpondError, status: int) -> None:
        """Answer what has no request yet, and close."""
        self._counted.refused(error.kind)
        body = to_json(to_wire(error))
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nretry-after: %d\r\nconnection: close\r\n\r\n"
            % (len(body), RETRY_SECONDS)
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    # -- heads ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what came, in pieces after each of which the limits hold."""
        if self._linger is not None:
            self._linger.take(data)
            return
        rest, self._fresh = memoryview(data), True  # its pieces are no copies
        while rest and not self.garbled and not self.transport.is_closing():
            # What is left of a body of a stated length is no head: it is not cut, because each piece of it is copied.
            room = max(self._limits.head_bytes_max - self._unused, self._body_left)
            if room <= 0:
                self._refuse_head()
                return
            piece, rest = rest[:room], rest[room:]
            self._unused += len(piece)
            super().data_received(cast(bytes, piece))
            if len(self.pipeline) > PIPELINED_MAX:
                self._counted.refused("pipeline_long")
                self.transport.abort()
        self._fresh = False
        if self.garbled and self._linger is None:
            self.flow.pause_reading()
            return
        begun = self._in_head and (self._begun or self._unused)
        if begun and self._head_timer is None and not self.transport.is_closing():
            self._begin_head()
        if not self._in_head and self._body_timer is None and not self.transport.is_closing():
            self._begin_body()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request; a request before them that is whole is answered in their place."""
        before: Any = self.cycle  # None before the first request
        if before is None or before.more_body:
            super().send_400_response(msg)
            return
        self._end_head()
        self.garbled = True
        if before.response_complete:
            self.transport.write(STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.linger()
            return
        before.keep_alive = False
        before.transport = LingeringTransport(self, before)

    def _refuse_head(self) -> None:
        error = Invalid(
            "the head of the request is larger than the node takes", kind="header_too_large",
            bytes_max=self._limits.head_bytes_max,
            hint="send a long key as the body of POST",
        )  # fmt: skip
        before: Any = self.cycle  # None before the first request
        if self._in_head and (before is None or before.response_complete):
            self._refuse(error, 431)
            return
        self._counted.refused(error.kind)
        self.transport.abort()  # an answer would come in the midst of another one

    def _begin_head(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        self._counted.refused("header_late")
        self.transport.abort()

    def _begin_body(self) -> None:
        """The body has all its time from now on."""
        self._body_bytes = 0
        self._body_timer = self.loop.call_later(self._limits.body_seconds, self._check_body, self._limits.body_seconds)

    def _check_body(self, seconds: float) -> None:
        """See if the bytes that came are worth more than so many seconds, which have passed."""
        left = self._limits.body_seconds + self._body_bytes / BODY_BYTES_PER_SECOND_MIN - seconds
        if self.flow.read_paused:
            self._begin_body()
        elif left > 0:
            self._body_timer = self.loop.call_later(left, self._check_body, seconds + left)
        else:
            self._counted.refused("body_late")
            self.transport.abort()

    def _end_body(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def on_message_begin(self) -> None:
        """The first byte of a request came."""
        self._begun = True
        self._unset_keepalive_if_required()  # it may have begun with the rest of the body before
        super().on_message_begin()
        put_presence(self.scope, self._presence)

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        self._unused, self._in_head, self._begun = 0, False, False
        self._end_head()
        super().on_headers_complete()
        length = expect_body(self, self.scope, self.cycle)
        self._body_left = length or 0
        if length != 0:
            _keep_what_came(self.cycle)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Answer a request, here if that waits for nothing, else in a task. The access log is written by tasks."""
        fresh, self._fresh = self._fresh, False
        quick = fresh and not self.flow.write_paused and not self.config.access_log
        response = self._counted.at_once(cycle.scope) if quick else None
        if response is None:
            super()._start_asgi_task(cycle, app)
            return
        cycle.more_body, cycle.response_started, cycle.response_complete = False, True, True
        self.server_state.total_requests += 1
        head = [STATUS_LINE[response.status_code]]
        for name, value in (*self.server_state.default_headers, *response.raw_headers):
            head += name, b": ", value, b"\r\n"
        head += b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", bytes(response.body)
        self.transport.write(b"".join(head))
        if not cycle.keep_alive:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """A piece of a body came."""
        self._unused = 0
        self._body_bytes += len(body)
        self._body_left -= len(body)
        if is_long(self.scope) and not self.cycle.response_complete:
            self._gather(body)
        else:
            super().on_body(body)

    def _gather(self, body: bytes) -> None:
        """Wake the reader of a long body for a large piece alone, or after a moment: each time costs much more than it
        takes to copy what a socket gives at once.
        """
        cycle: Any = self.cycle
        cycle.body = cycle.body + body if cycle.body else body  # mostly, it is passed on as it came
        if len(cycle.body) >= GATHERED_BYTES:
            self.flow.pause_reading()
            cycle.message_event.set()
        elif self._gather_timer is None:
            self._gather_timer = self.loop.call_later(GATHERING_SECONDS, self._hand_on)

    def _hand_on(self) -> None:
        self._gather_timer = None
        cycle: Any = self.cycle
        if cycle.body:
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The request is whole; what comes next is another head."""
        self._unused, self._in_head, self._body_left = 0, True, 0
        self._end_body()
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._end_rest()
            self.timeout_keep_alive_task = self.loop.call_later(
                self._limits.idle_seconds, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """A response is written; when others wait for their turn, nothing more is read."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.pipeline:
            self.flow.pause_reading()
        if self.cycle.response_complete and not self._in_head and self._linger is None:
            self._rest_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    # -- bodies that are not read ---------------------------------------------------------------------

    def linger(self) -> None:
        """Send nothing more, take a little of what still comes, and close."""
        if self._linger is None and not self.transport.is_closing():
            self._counted.refused("body_unread")
            self._linger = Linger(self.transport, self.loop)
            self.flow.resume_reading()

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    # -- clients that do not read ---------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client is slower than the node: from now on, it has to take something."""
        super().pause_writing()
        self._expect_taken(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has taken what was there."""
        self._end_stall()
        super().resume_writing()

    def _expect_taken(self, left: int, seconds: float = 0.0) -> None:
        """Look in a moment if anything was taken since so many bytes were left, which is so many seconds ago."""
        self._end_stall()
        pause = min(self._limits.stalled_seconds - seconds, STALLED_SECONDS_BUSY)
        self._write_timer = self.loop.call_later(pause, self._check_taken, left, seconds + pause)

    def _check_taken(self, left: int, seconds: float) -> None:
        self._write_timer = None
        now = self.transport.get_write_buffer_size()
        if now < left:
            self._expect_taken(now)
            return
        if seconds < self._limits.stalled_seconds and not self._counted.busy():
            self._expect_taken(left, seconds)
            return
        self._counted.refused("reader_stalled")
        self.transport.abort()

    def _end_stall(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _keep_what_came(cycle: Any) -> None:
    """Let a request read the bytes that came before its connection was lost; uvicorn throws them away."""
    receive = cycle.receive

    async def received() -> Message:
        message: Message = await receive()
        if message["type"] == "http.disconnect" and cycle.body and cycle.more_body and not cycle.response_complete:
            body, cycle.body = bytes(cycle.body), b""
            return {"type": "http.request", "body": body, "more_body": True}
        return message

    cycle.receive = received
