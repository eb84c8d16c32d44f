"""Bodies of requests in memory: how large one may be on each route, and the room that each request takes.

    request ─▶ route ─▶ right of the caller ─▶ room for the work ─▶ announced size ─▶ room for the body ─▶ read

Each route states its limit where it is declared. Parts go to the disk as they come, and have limits of their own.

Invariants:
* no route holds more bytes of a body than its limit, nor more than the whole budget;
* all of them lie within the budget of `memory.py`;
* no body is read of a caller who lacks the right that the route needs;
* a sender that falls silent for `client.read_timeout` is taken for gone, so that its room comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.server.access import share_in
from millpond.server.memory import process_room_of, room_of
from millpond.server.presence import presence_in
from millpond.server.routes.table import WORKS, RouteNeeds, Work

if TYPE_CHECKING:
    from millpond.nodes.drain import Drain
    from millpond.nodes.node import Node

__all__ = ("admitted", "parameter_unknown")

_OF_BODIES = (b"content-length", b"transfer-encoding")
"""The headers of requests with a body: HTTP knows no other way to announce one."""


async def admitted(request: Request, needs: RouteNeeds, decide: Callable[[Request, RouteNeeds], None]) -> Request:
    """The request once it may be worked on; its body, which is not read yet, is counted as it comes.

    Raises: what `decide` raises; as `Node.need_ready`, `Room.queue` and `Room.need`; `Invalid` for its size.
    """
    decide(request, needs)
    if needs.when_ready or needs.work is Work.UPLOAD:
        _count_work(request)
    if needs.when_ready:
        node: Node = request.app.state.node
        if not node.answers:
            await run_sync(node.need_ready)
    if needs.body_bytes_max is None or (not needs.memory_bytes and not _brings_body(request)):
        return request
    room = room_of(request)
    room.name = share_in(request)
    bytes_max = min(needs.body_bytes_max, room.budget.bytes_max)
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else 0
    _check_size(announced, bytes_max, needs.hint)
    if needs.memory_bytes:
        taken = process_room_of(request) if needs.confined else room
        taken.name = room.name
        await presence_in(request.scope).during(taken.queue(needs.memory_bytes))
    room.need(announced)

    def check(size: int) -> None:
        _check_size(size, bytes_max, needs.hint)
        room.need(size)

    return Request(request.scope, _counted(request, check))


def parameter_unknown(name: str, names: Iterable[str]) -> Invalid:
    """The error for a parameter of a query that a route does not know."""
    return Invalid(
        "the route does not know this parameter", kind="parameter_unknown", parameter=shown(name),
        known=", ".join(sorted(names)) or "none", hint="see /docs, and name those that are known",
    )  # fmt: skip


def _brings_body(request: Request) -> bool:
    """True when a body comes with the request, or may come."""
    return any(name in _OF_BODIES for name, _ in request.scope["headers"])


def _count_work(request: Request) -> None:
    """Count the request as work, which a node that is drained finishes; `metrics.py` counts its end."""
    drain: Drain = request.app.state.node.drain
    drain.begin_request()
    request.scope[WORKS] = drain.end_request


def _check_size(size: int, bytes_max: int, hint: str) -> None:
    if size > bytes_max:
        raise Invalid("the body is larger than this route takes", kind="body_too_large", bytes_max=bytes_max, hint=hint)


def _counted(request: Request, check: Callable[[int], object]) -> Callable[[], Awaitable[Message]]:
    """The request's `receive`, which checks after each piece how many bytes have come."""
    silence = request.app.state.node.settings.client.read_timeout / 1000
    size, more = 0, True

    async def counted() -> Message:
        nonlocal size, more
        if not more:
            return await request.receive()  # it waits for the sender to go away, which may take long
        try:
            async with asyncio.timeout(silence):
                message = await request.receive()
        except TimeoutError:
            raise ClientDisconnect from None
        size += len(message.get("body", b""))
        more = bool(message.get("more_body", False))
        check(size)
        return message

    return counted
