"""One call: its caller, its right, its room, its work in a thread, its status, its line of the audit log.

    bytes ─▶ caller ─▶ turn of the token ─▶ room ─▶ message ─▶ handler, which checks the right ─▶ bytes
      errors of any step ─▶ status, with the error's kind in the trailing metadata

Rights are checked by the handlers, for only the message names the queue. Nothing is done before.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc
from anyio.to_thread import run_sync
from google.protobuf.message import DecodeError, Message

from millpond.errors import Closed, Denied, Invalid, MillpondError, Unavailable
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.access import share_of
from millpond.server.armada.status import details_of, grpc_status, trailing_metadata
from millpond.server.wire import understood
from millpond.statuses import http_status, is_refusal

if TYPE_CHECKING:
    from millpond.events.events import Events
    from millpond.events.jobs.active import ActiveJobs
    from millpond.events.jobs.queues import Queues
    from millpond.events.jobs.submissions import Submissions
    from millpond.nodes.node import Node
    from millpond.server.armada.watching import Watching
    from millpond.server.memory import MemoryBudget
    from millpond.server.metrics import Metrics
    from millpond.server.shares import Shares

__all__ = (
    "SURFACE", "Call", "Context", "Means", "Method", "abort", "admit", "answering", "caller_in_metadata", "count",
    "known", "parsed", "streaming", "unary",
)  # fmt: skip

SURFACE = "armada"
"""The name of this API in metrics."""
_TIMER_SHARE = 0.1
"""The share of `read_timeout` by which a client that takes nothing may be disconnected too early."""
_MESSAGE_MEMORY = 3
"""A message takes about so many times its bytes: the bytes, the message, and what is stored of it."""

M = TypeVar("M", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(slots=True)
class Means:
    """The means of the services of a node."""

    node: Node
    events: Events
    queues: Queues
    submissions: Submissions
    active: ActiveJobs
    watching: Watching
    memory: MemoryBudget
    metrics: Metrics
    calls: Shares

    @contextmanager
    def working(self, name: str | None) -> Iterator[None]:
        """Count a call that is worked on, of the token of this name.

        Raises:
            Unavailable: there are as many as there may be.
        """
        with self.calls.holding(name) as held:
            if not held:
                raise Unavailable(
                    "the node works on as many calls as it may", kind="calls_full", calls_max=self.calls.total,
                    hint="send it again in a moment",
                )  # fmt: skip
            yield

    def need_queue(self, name: str) -> None:
        """Insist that a queue is there: created, or with a stream.

        Raises:
            NotFound: it is not.
        """
        if not self.events.store.streams(name, limit=1):
            self.queues.get(name)


@dataclass(slots=True)
class Call:
    """One call, as its handler sees it. What it notes stands in the line of the audit log."""

    means: Means
    path: str
    caller: Caller = ANYBODY
    metadata: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def user(self) -> str:
        """The name of the caller, as events name it; empty where nobody has a name."""
        return "" if self.caller is ANYBODY else self.caller.name


Handler: TypeAlias = Callable[[Call, M], Message]
StreamHandler: TypeAlias = Callable[[Call, M], AsyncGenerator[Sequence[bytes], None]]


def caller_in_metadata(node: Node, authorization: str) -> Caller:
    """The caller of a call: of a bearer's token, or of a token's name and the token, as basic authentication has it.

    A token alone is a bearer's, too: the client of workflows names no scheme.

    Raises: `Denied`; as `Tokens.caller`.
    """
    scheme, space, credentials = authorization.partition(" ")
    if not space:
        return node.tokens.caller(scheme or None)
    if scheme.lower() != "basic" or not node.tokens.wanted():
        return node.tokens.caller(credentials if scheme.lower() == "bearer" else None)
    try:
        name, _, token = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        name, token = "", ""
    caller = node.tokens.caller(token)
    if caller.name != name:
        raise Denied("this token is not known here", kind="token_unknown", hint="the user is the name of the token")
    return caller


def unary(means: Means, path: str, message: type[M], handler: Handler[M], *, audited: bool) -> Method:
    """A method with one request and one response, whose handler runs in a thread."""

    async def act(call: Call, request: bytes) -> bytes:
        return await run_sync(lambda: handler(call, parsed(message, request)).SerializeToString())

    return answering(means, path, act, audited=audited)


def answering(
    means: Means, path: str, act: Callable[[Call, bytes], Awaitable[bytes]], *, audited: bool
) -> Method:  # fmt: skip
    """A method with one request and one response; `act` runs in the event loop."""

    async def behaviour(request: bytes, context: Context) -> bytes:
        call = Call(means, path)
        began = means.node.clock.monotonic()
        error: MillpondError | None = None
        status = 499  # the caller went away
        try:
            admit(call, context)
            name = share_of(call.caller)
            with means.working(name), means.memory.room(name) as room:
                room.need(_MESSAGE_MEMORY * len(request))
                response = await act(call, request)
            status = 200
        except Exception as raised:
            error = known(means, raised)
            status = http_status(error)
        finally:
            if audited:
                means.node.audit.write(share_of(call.caller), "GRPC", path, status, **call.notes)
        count(call, began, error)
        if error is not None:
            await abort(call, context, error)
        return response

    return grpc.unary_unary_rpc_method_handler(behaviour)


def streaming(means: Means, path: str, message: type[M], handler: StreamHandler[M]) -> Method:
    """A method with one request and many responses, which come in groups; each group is sent before the next is made.

    A client that takes nothing for `read_timeout` is disconnected; it may come again with its last id.
    """

    async def behaviour(request: bytes, context: Context) -> None:
        call = Call(means, path)
        began = means.node.clock.monotonic()
        error: MillpondError | None = None
        try:
            admit(call, context)
            async with aclosing(handler(call, parsed(message, request))) as responses:
                async for group in responses:
                    await _send(means, context, group)
        except Exception as raised:
            error = known(means, raised)
        count(call, began, error)
        if error is not None:
            await abort(call, context, error)

    return grpc.unary_stream_rpc_method_handler(behaviour)


async def _send(means: Means, context: Context, responses: Sequence[bytes]) -> None:
    seconds, now = means.node.settings.read_timeout / 1000, asyncio.get_running_loop().time
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


def admit(call: Call, context: Context) -> None:
    """Find out who calls, and count the call towards the limit of the token.

    Raises: `Denied`; `Unavailable`, kind `rate_limited`, or while the node is stopping.
    """
    node = call.means.node
    call.metadata = {
        key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
    }  # fmt: skip
    call.caller = caller_in_metadata(node, call.metadata.get("authorization", ""))
    if node.stopping:
        raise Unavailable("the node is stopping", kind="node_stopping", hint="send it again in a moment")
    if call.caller is ANYBODY:
        return
    seconds = node.rate_limits.take(call.caller.name)
    if seconds > 0:
        raise Unavailable(
            "the token sends more requests than it may", kind="rate_limited", token=call.caller.name,
            per_second=node.rate_limits.per_second, retry_after=math.ceil(seconds),
            hint="wait a moment, or raise token_requests_per_second",
        )  # fmt: skip


def parsed(message: type[M], request: bytes) -> M:
    """The message of some bytes.

    Raises: `Invalid`.
    """
    try:
        return message.FromString(request)
    except DecodeError as error:
        raise Invalid(
            "the request is not understood", kind="request_invalid", reason="the bytes are no such message",
            hint="send the message of this method",
        ) from error  # fmt: skip


def known(means: Means, raised: Exception) -> MillpondError:
    """The error of ours that an exception is."""
    error = understood(raised)
    if isinstance(error, Closed) and means.node.stopping:
        return Unavailable("the node is stopping", kind="node_stopping", hint="send it again in a moment")
    return error


def count(call: Call, began: float, error: MillpondError | None) -> None:
    """Count a call that has ended in the metrics."""
    means = call.means
    status = "OK" if error is None else grpc_status(error).name
    means.metrics.count_call(call.path, status, means.node.clock.monotonic() - began)
    if error is not None and (status == "RESOURCE_EXHAUSTED" or is_refusal(error)):
        means.metrics.count_refused(SURFACE if call.path.startswith("/api.") else "workflows", error.kind)


async def abort(call: Call, context: Context, error: MillpondError) -> None:
    """End a call with an error."""
    details = details_of(error, call.means.node.pond.folder)
    await context.abort(grpc_status(error), details, trailing_metadata(error, details))
