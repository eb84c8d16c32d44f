"""`POST /v1/loads` without a detour: a load of a few parts is entered before anything is routed.

Of a small load, finding the route, validating its body and its answer, and handing it from layer to layer takes as much
of the processor as entering it. So an order that is short and well formed, by a caller who may write, is read and
entered here, in one turn of one thread. Everything else goes on to the route of that path, with the body that was read.

Invariant: what is answered here is answered by the route in the same words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.errors import MillpondError
from millpond.json_forms import plain, to_json
from millpond.server.access import admit, caller_in, note_change
from millpond.server.limits import count_work
from millpond.server.memory import SMALL_BYTES
from millpond.server.routes.table import needs_of
from millpond.server.wire import answer_failure

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller
    from millpond.server.dispatch import Application

__all__ = ("body_of", "heard_again", "taking_small_loads")

_PATH = "/v1/loads"
_NEEDS = needs_of("POST", _PATH)
_ROUTE = SimpleNamespace(path_format=_PATH, needs=_NEEDS)  # what metrics and the audit log know the route by
_UNSAID = ("empty",)
"""Facts of a load that a node does not know."""


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body, as `routes/uploads.py` describes it."""

    load_id: str
    parts: list[str]
    source: str = ""
    rejected: int = 0
    stream: tuple[str, int] | None = None
    epoch: int = 0


_ORDER = msgspec.json.Decoder(_Order)


def taking_small_loads(app: Application, node: Node) -> ASGIApp:
    """The application, called for all but small loads."""
    silence = node.settings.read_timeout / 1000

    def small(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (taking if _is_small(scope) else app)(scope, receive, send)

    async def taking(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        request = Request(scope)
        try:
            admit(request, _NEEDS)
        except MillpondError:
            await app(scope, receive, send)  # the route finds it again, and reports it
            return
        messages = await body_of(receive, silence)
        order = _order(messages)
        if order is None:
            await app(scope, heard_again(messages, receive), send)
            return
        scope["route"] = _ROUTE
        count_work(request)
        response = await _response(request, node, order)
        await response(scope, receive, send)

    return small


def _is_small(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["path"] != _PATH or scope["method"] != "POST" or scope["query_string"]:
        return False
    headers = dict(scope["headers"])
    length: bytes = headers.get(b"content-length", b"")
    return length.isdigit() and int(length) <= SMALL_BYTES and headers.get(b"content-type") == b"application/json"


async def body_of(receive: Receive, silence: float) -> list[Message]:
    """The messages of the socket, to the end of the body; less of a sender who is gone or silent."""
    messages: list[Message] = []
    try:
        async with asyncio.timeout(silence):
            while not messages or messages[-1].get("more_body", False):
                messages.append(await receive())
    except TimeoutError:
        messages.append({"type": "http.disconnect"})
    return messages


def heard_again(messages: list[Message], receive: Receive) -> Receive:
    """The messages that were received, once more, and those after them."""
    left = iter(messages)

    async def received() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return received


def _order(messages: list[Message]) -> _Order | None:
    """The order, when it is well formed."""
    try:
        order = _ORDER.decode(b"".join(message["body"] for message in messages))
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return order if order.parts and order.rejected >= 0 and order.epoch >= 0 else None


async def _response(request: Request, node: Node, order: _Order) -> Response:
    try:
        result = await anyio.to_thread.run_sync(_enter, node, order, caller_in(request))
    except Exception as error:
        return answer_failure(request, error)
    note_change(request, load=result["load"], position=result["position"], rows=result["maps"])
    return Response(to_json(result), media_type="application/json")


def _enter(node: Node, order: _Order, caller: Caller) -> dict[str, Any]:
    with node.appending(order.epoch):
        result = node.load_commit.enter(
            order.load_id, order.parts, source=order.source, rejected=order.rejected, stream=order.stream,
            may=lambda name: caller.may("write", name),
        )  # fmt: skip
    found = {name: value for name, value in plain(result).items() if name not in _UNSAID}
    return found | {"chain": node.load_commit.chain_at(result.position)}
