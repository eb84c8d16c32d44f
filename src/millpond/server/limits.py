"""Bodies of requests in memory: how large one may be on each route, and how much all of them may take together.

    request ─▶ route ─▶ announced size ─▶ who sends it ─▶ room in the budget ─▶ read ─▶ answered ─▶ room given back

A limit belongs to the route that reads the body: `JSON_BYTES_MAX`, unless `takes_body` says otherwise. Bundles of parts
go to the disk as they come, and have limits of their own.

Invariants:
* no route holds more bytes of a body than its limit, nor more than the whole budget;
* all bodies larger than `SMALL_BYTES` that a process holds take at most `max_request_memory` together. Small ones are
  not counted: what tends a node gets through while it is busy;
* of a sender without a token that is known, no body is read where tokens are wanted;
* a sender that falls silent for `read_timeout` is taken for gone, so that its room comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.server.access import check_caller

__all__ = ("JSON_BYTES_MAX", "SMALL_BYTES", "BodyBudget", "BoundedRoute", "takes_body")

JSON_BYTES_MAX = 16 << 20
"""A load of a hundred thousand parts fits into it."""
SMALL_BYTES = 64 << 10
"""About what one connection holds in any case while it is read."""
_LIMIT = "millpond_body_limit"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class _Limit:
    """The largest body of a route; None for one that never holds a body in memory."""

    bytes_max: int | None
    hint: str


_ORDINARY = _Limit(JSON_BYTES_MAX, "send less at once")


def takes_body(bytes_max: int | None, hint: str = _ORDINARY.hint) -> Callable[[Endpoint], Endpoint]:
    """State what body the endpoint of a route takes; None: it goes to the disk as it comes, and is not limited here."""

    def marked(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _LIMIT, _Limit(bytes_max, hint))
        return endpoint

    return marked


class BodyBudget:
    """Memory for the bodies of all requests of a process. Used by its event loop alone."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.taken = bytes_max, 0

    @contextmanager
    def room(self) -> Iterator[Callable[[int], None]]:
        """Room for one body, given back at the end; call what this gives with the bytes that are needed in all.

        Raises: `Unavailable`, kind `request_memory_full`, by that call.
        """
        held = 0

        def need(total: int) -> None:
            nonlocal held
            if total <= SMALL_BYTES or total <= held:
                return
            if self.taken + total - held > self.bytes_max:
                raise Unavailable(
                    "the node holds as many bytes of requests as it may", kind="request_memory_full", bytes=total,
                    bytes_max=self.bytes_max, hint="send it again in a moment, or raise max_request_memory",
                )  # fmt: skip
            self.taken += total - held
            held = total

        try:
            yield need
        finally:
            self.taken -= held


class BoundedRoute(APIRoute):
    """A route that reads no more of a body than it may."""

    def get_route_handler(self) -> Handler:
        """The handler, which is given a request whose body is counted as it comes."""
        handler = super().get_route_handler()
        limit: _Limit = getattr(self.endpoint, _LIMIT, _ORDINARY)
        # Other bodies are read by endpoints, which decide first who may send them.
        parsed = self.body_field is not None

        async def bounded(request: Request) -> Response:
            if limit.bytes_max is None:
                return await handler(request)
            budget: BodyBudget = request.app.state.body_budget
            bytes_max = min(limit.bytes_max, budget.bytes_max)
            length = request.headers.get("content-length", "")
            announced = int(length) if length.isdecimal() else 0
            _check_size(announced, bytes_max, limit)
            if parsed:
                await check_caller(request)
            with budget.room() as need:
                need(announced)

                def check(size: int) -> None:
                    _check_size(size, bytes_max, limit)
                    need(size)

                return await _ours(handler, Request(request.scope, _counted(request, check)))

        return bounded


def _check_size(size: int, bytes_max: int, limit: _Limit) -> None:
    if size > bytes_max:
        raise Invalid(
            "the body is larger than this route takes", kind="body_too_large", bytes_max=bytes_max, hint=limit.hint
        )


def _counted(request: Request, check: Callable[[int], object]) -> Callable[[], Awaitable[Message]]:
    """The request's `receive`, which checks after each piece how many bytes have come."""
    silence = request.app.state.node.settings.read_timeout / 1000
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


async def _ours(handler: Handler, request: Request) -> Response:
    """The answer of a handler; an error of ours that stopped the body comes out as itself."""
    try:
        return await handler(request)
    except HTTPException as error:
        # FastAPI says of anything that stops a body that it could not be parsed.
        if isinstance(error.__cause__, MillpondError | ClientDisconnect):
            raise error.__cause__ from None
        raise
