"""The way of a call through a node: from the bytes of its request to the handler of its row, and back.

    row ─▶ caller, turn of the token ─▶ room ─▶ right ─▶ bytes ─▶ message ─▶ handler ─▶ bytes
      errors of any step ─▶ status, with the error's kind in the trailing metadata; a line of the audit log; metrics

A service is a table: `{"GetQueue": Row(pb.QueueName, get, method("read", On.QUEUE)), …}`. A handler takes the call and
the message, and gives one message: in a thread, or in the event loop if it is a coroutine. That of a `WATCH` yields
groups of messages as bytes, each of which is sent before the next is made; that of a `POLL` does so, and takes an
iterator of messages.

Invariants:
* nothing of a request is received before its caller is known, and parsed before there is room for it. So every method
  is one of streams to the server of gRPC: of another one it receives the message, of any caller, before it tells;
* a message that is not there at once takes the room of the largest until it is; what lasts begins with a small one.
  The library of gRPC looks at the length of a message only when it has it all (grpc/grpc#43012), so messages that come
  end when the process has grown by more than all requests may take;
* the right is that of the row. `Service.admit` asks for it before the request is parsed, where the metadata name what
  it is about; else the handler does, before anything else;
* a change is one line of the audit log, also if its caller goes away.
"""

from __future__ import annotations

import asyncio
import inspect
import mmap
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from millpond.errors import Denied, MillpondError, Unavailable
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.access import pair_in, share_of
from millpond.server.parameters import not_understood
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.rpc.status import details_of, grpc_status, trailing_metadata
from millpond.server.rpc.threads import SHARE, CallThreads
from millpond.server.shares import Shares
from millpond.server.wire import reported, stopping
from millpond.statuses import grpc_status as status_name
from millpond.statuses import http_status
from millpond.tracing import TRACEPARENT, Kind, span, traceparent_in

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.memory import MemoryBudget
    from millpond.server.metrics import Metrics
    from millpond.server.workflows.service import WorkflowService

__all__ = ("MESSAGE_BYTES_MAX", "POLLS_MAX", "Call", "Front", "Row", "Service", "form_of", "method")

MESSAGE_BYTES_MAX = 16 << 20
LASTING_BYTES_MAX = 64 << 10
"""The largest message of a call that lasts: of a watcher, or in the stream of a worker."""
_AT_ONCE_SECONDS = 0.25
_OTHERS_BYTES = 64 << 20
"""By so much more than requests may take the process may grow while a message comes."""
POLLS_MAX = 10_000
"""The streams of workers that are open at once, shared between tokens; each takes one call of the server."""
_HINT = "send the message of this method"
_TIMER_SHARE = 0.1
"""The share of `client.read_timeout` by which a client that takes nothing may be disconnected too early."""
_MESSAGE_MEMORY = 3
"""A message takes about so many times its bytes: the bytes, the message, and what is stored of it."""

S = TypeVar("S")
M = TypeVar("M")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class Row(Generic[S, M]):
    """A method: its message, its handler, and what it needs. Without a message it takes the bytes."""

    message: type[M] | None
    handler: Callable[[Call[S], M], Any]
    needs: RouteNeeds


def method(right: str | None, on: On, work: Work = Work.CALL, *, audited: bool = False) -> RouteNeeds:
    """The needs of a method."""
    bytes_max = MESSAGE_BYTES_MAX if work is Work.CALL else LASTING_BYTES_MAX
    return RouteNeeds(right, on, work, bytes_max, audited=audited)


def form_of(work: Work) -> Callable[..., grpc.RpcMethodHandler[Any, Any]]:
    """The form of the methods of a class of work, as the server of gRPC takes them."""
    return grpc.stream_unary_rpc_method_handler if work is Work.CALL else grpc.stream_stream_rpc_method_handler


async def _nothing(_call: Call[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Service(Generic[S]):
    """Methods by their names, and the object that they are about. `admit` checks the right of a call of them."""

    name: str
    surface: str
    """The name of its API in metrics."""
    about: S
    rows: Mapping[str, Row[S, Any]]
    admit: Callable[[Call[S]], Awaitable[None]] = _nothing


@dataclass(slots=True)
class Call(Generic[S]):
    """One call, as its handler sees it. What it notes stands in the line of the audit log."""

    service: S
    method: str
    right: str
    caller: Caller = ANYBODY
    metadata: dict[str, str] = field(default_factory=dict)
    tenant: str = ""
    """The tenant of the rows that it is about, where its service has tenants."""
    notes: dict[str, Any] = field(default_factory=dict)
    trailing: dict[str, str] = field(default_factory=dict)
    """Metadata that go with the answer."""

    @property
    def user(self) -> str:
        """The name of the caller, as events name it; empty where nobody has a name."""
        return "" if self.caller is ANYBODY else self.caller.name


class Front:
    """The means of all calls of a node. Used by its event loop alone."""

    def __init__(self, node: Node, memory: MemoryBudget, metrics: Metrics) -> None:
        self.node, self.metrics, self._memory = node, metrics, memory
        self.calls = Shares(node.limits.threads + node.limits.requests_queued_max)
        self.workflows: Service[WorkflowService] | None = None
        """The methods of workflows, for pages that show runs; None on a node that serves none."""
        self.threads = CallThreads(node)
        self._rooms = {Work.CALL: self.calls, Work.POLL: Shares(POLLS_MAX), Work.WATCH: Shares(sys.maxsize)}
        self._open: set[asyncio.Task[Any] | None] = set()

    def handler(self, service: Service[Any]) -> grpc.GenericRpcHandler:
        """The methods of a service, as the server of gRPC takes them."""
        methods = {name: self._method(service, name, row) for name, row in service.rows.items()}
        return grpc.method_handlers_generic_handler(service.name, methods)

    async def ended(self, seconds: float) -> None:
        """Wait until no call is open, or for so long."""
        if calls := [call for call in self._open if call is not None]:
            await asyncio.wait(calls, timeout=seconds)

    def _method(self, service: Service[S], name: str, row: Row[S, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        handler = row.handler
        waits = inspect.iscoroutinefunction(handler)
        in_thread = self.threads.ask if row.needs.right == "read" else self.threads.change

        async def unary(_requests: AsyncIterator[bytes], context: _Context, call: Call[S]) -> bytes:
            request = await self._received(call, context)
            with self._memory.room(share_of(call.caller)) as room:
                room.need(_MESSAGE_MEMORY * len(request))
                if waits:
                    return _bytes_of(await handler(call, _parsed(row, request)))
                return await in_thread(lambda: _bytes_of(handler(call, _parsed(row, request))))

        async def streaming(_requests: AsyncIterator[bytes], context: _Context, call: Call[S]) -> None:
            request = await self._received(call, context)
            await self._send_all(call, context, handler(call, _parsed(row, request)))

        async def polling(requests: AsyncIterator[bytes], context: _Context, call: Call[S]) -> None:
            await self._send_all(call, context, handler(call, self._requests(call, row, requests)))

        work = row.needs.work
        act: Callable[..., Any] = {Work.CALL: unary, Work.POLL: polling, Work.WATCH: streaming}[work]

        async def answered(requests: AsyncIterator[bytes], context: _Context) -> Any:
            return await self._through(service, name, context, partial(act, requests, context))

        return form_of(work)(answered)

    async def _through(
        self, service: Service[S], name: str, context: _Context, act: Callable[[Call[S]], Awaitable[M]]
    ) -> M:
        """The result of `act` for a call that was let in; an error ends the call with its status."""
        row, path = service.rows[name], f"/{service.name}/{name}"
        call = Call(service.about, name, row.needs.right or "")
        began = self.node.clock.monotonic()
        error: MillpondError | None = None
        status = 499  # the caller went away
        self._open.add(asyncio.current_task())  # each call has its own
        try:
            room = self._let_in(row.needs.work, call, context)
            SHARE.set(share_of(call.caller))
            try:
                with _traced(service.name, row, call):
                    await service.admit(call)
                    result = await act(call)
            finally:
                room.give(share_of(call.caller))
            if call.trailing:
                context.set_trailing_metadata(tuple(call.trailing.items()))
            status = 200
        except Exception as raised:
            error = reported(raised, self.node, self.metrics, service.surface, status_name)
            status = http_status(error)
        finally:
            self._open.discard(asyncio.current_task())
            if row.needs.audited:
                self.node.audit.write(share_of(call.caller), "GRPC", path, status, **call.notes)
        counted = "OK" if error is None else status_name(error)
        self.metrics.count(path, "GRPC", counted, self.node.clock.monotonic() - began)
        if error is not None:
            folder = self.node.pond.folder
            details = details_of(error, folder)
            await context.abort(grpc_status(error), details, trailing_metadata(error, details, folder))
        return result

    def _let_in(self, work: Work, call: Call[Any], context: _Context) -> Shares:
        """The room in which a call has a place now: its caller is known, and it counts towards the limit of the token.

        Raises: `Denied`; `Unavailable`, kinds `rate_limited` and `calls_full`, or while the node is stopping.
        """
        call.metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        call.caller = _caller_in(self.node, call.metadata.get("authorization", ""))
        if self.node.stopping:
            raise stopping()
        if call.caller is not ANYBODY:
            self.node.rate_limits.need(call.caller.name)
        room = self._rooms[work]
        if not room.take(share_of(call.caller)):
            raise Unavailable(
                f"the node works on as many {work.value} as it may", kind="calls_full", calls_max=room.total,
                hint="send it again in a moment",
            )  # fmt: skip
        return room

    async def _received(self, call: Call[Any], context: _Context) -> bytes:
        """The message of a call that has one.

        Raises:
            Unavailable: it does not come in the time of a body; or not at once, and there is no room for the largest.
            Invalid: the call ends without it.
        """
        loop, seconds, bytes_max = asyncio.get_running_loop(), self.node.limits.body_seconds, self._memory.bytes_max
        refused: list[Unavailable] = []
        late: asyncio.TimerHandle

        def hold(before: int | None = None) -> None:
            nonlocal late
            now = _process_bytes()
            if limit.when() is None:  # most messages are there at once: their calls have one timer, and not two
                limit.reschedule(loop.time() + seconds - _AT_ONCE_SECONDS)
            late = loop.call_later(_AT_ONCE_SECONDS, hold, now if before is None else before)
            try:
                room.need(min(MESSAGE_BYTES_MAX, bytes_max))
                _need_growth_within(now - (before or now), bytes_max + _OTHERS_BYTES)
            except Unavailable as error:
                refused.append(error)
                limit.reschedule(loop.time())

        try:
            with self._memory.room(share_of(call.caller)) as room:
                async with asyncio.timeout(None if seconds > _AT_ONCE_SECONDS else seconds) as limit:
                    late = loop.call_later(_AT_ONCE_SECONDS, hold)
                    try:
                        request = await context.read()
                    finally:
                        late.cancel()
        except TimeoutError:
            raise (refused or [_late(seconds)])[0] from None
        if request is grpc.aio.EOF:
            raise not_understood("message", "it is missing", _HINT)
        return cast(bytes, request)

    async def _requests(
        self, call: Call[Any], row: Row[Any, Any], requests: AsyncIterator[bytes]
    ) -> AsyncIterator[Any]:
        async for request in requests:
            self._need_caller(call)
            yield _parsed(row, request)

    async def _send_all(
        self, call: Call[Any], context: _Context, responses: AsyncGenerator[Sequence[bytes], None]
    ) -> None:
        async with aclosing(responses):
            async for group in responses:
                self._need_caller(call)
                await self._send(context, group)

    def _need_caller(self, call: Call[Any]) -> None:
        """Insist that the token of a call that lasts was not revoked, and has not expired."""
        _caller_in(self.node, call.metadata.get("authorization", ""))

    async def _send(self, context: _Context, responses: Sequence[bytes]) -> None:
        """Send messages to a client. One that takes nothing for `client.read_timeout` is disconnected; it may come
        again."""
        seconds, now = self.node.settings.client.read_timeout / 1000, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(seconds) as limit:
                began = now()
                for response in responses:
                    await context.write(response)
                    # A timer for each would cost as much as a quarter of the message.
                    if (taken := now()) - began > seconds * _TIMER_SHARE:
                        began = taken
                        limit.reschedule(taken + seconds)
        except TimeoutError:
            raise Unavailable(
                "the watcher takes nothing", kind="watcher_stalled", seconds=seconds,
                hint="watch again from the last id, and read what comes",
            ) from None  # fmt: skip


def _traced(service: str, row: Row[Any, Any], call: Call[Any]) -> AbstractContextManager[object]:
    """The span of a call that is answered once, if it has a caller that makes spans, or makes a change."""
    sent = traceparent_in(call.metadata.get(TRACEPARENT))
    if row.needs.work is not Work.CALL or not (sent or row.needs.audited):
        return nullcontext()
    about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": call.method}
    return span(f"{service}/{call.method}", Kind.SERVER, sent, about)


def _bytes_of(response: Message | bytes | None) -> bytes:
    if isinstance(response, Message):
        return response.SerializeToString()
    return response or b""


def _process_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _need_growth_within(grown: int, bytes_max: int) -> None:
    if grown > bytes_max:
        raise Unavailable(
            "messages take more memory than they may", kind="request_memory_full", bytes=grown, bytes_max=bytes_max,
            hint="send it again in a moment, or less at once",
        )  # fmt: skip


def _late(seconds: float) -> Unavailable:
    return Unavailable(
        "the message does not come", kind="message_late", seconds=seconds, hint="send it again, or less at once"
    )


def _parsed(row: Row[Any, Any], request: bytes) -> Any:
    if len(request) > (bytes_max := row.needs.body_bytes_max or 0):
        raise not_understood("message", f"of {len(request)} bytes it is too long: {bytes_max} at most", _HINT)
    if row.message is None:
        return request
    try:
        return row.message.FromString(request)
    except DecodeError as error:
        raise not_understood("message", "the bytes are no such message", _HINT) from error


def _caller_in(node: Node, authorization: str) -> Caller:
    """The caller of a call: of a bearer's token, or of a token's name and the token, as basic authentication has it.

    A token alone is a bearer's, too: the client of workflows names no scheme.
    """
    scheme, space, credentials = authorization.partition(" ")
    if not space:
        return node.tokens.caller(scheme or None)
    if scheme.lower() != "basic" or not node.tokens.required():
        return node.tokens.caller(credentials if scheme.lower() == "bearer" else None)
    name, token = pair_in(scheme, credentials) or ("", "")
    caller = node.tokens.caller(token)
    if caller.name != name:
        raise Denied("this token is not known here", kind="token_unknown", hint="the user is the name of the token")
    return caller
