"""Bodies of requests in memory: how large one may be on each route, and how much all of them may take together.

    request ─▶ route ─▶ right of the caller ─▶ announced size ─▶ room in the budget ─▶ read ─▶ room given back

Each route states its limit in `route_table.py`. Bundles of parts go to the disk as they come, and have limits of their
own.

Invariants:
* no route holds more bytes of a body than its limit, nor more than the whole budget;
* all bodies larger than `SMALL_BYTES` that a process holds take at most `max_request_memory` together. Small ones are
  not counted: what tends a node gets through while it is busy;
* no body is read of a caller who lacks the right that the route needs;
* a sender that falls silent for `read_timeout` is taken for gone, so that its room comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.server.access import BEARER, admit
from millpond.server.route_table import WORKS, RouteNeeds, Work, needs_of

__all__ = ("SMALL_BYTES", "BodyBudget", "GuardedRoute", "count_work")

SMALL_BYTES = 64 << 10
"""About what one connection holds in any case while it is read."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


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


class GuardedRoute(APIRoute):
    """A route that checks what it needs before it reads a body, and reads no more of one than it may."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        [self.method] = options["methods"]
        self.needs: RouteNeeds = needs_of(self.method, path)
        if self.needs.right is not None:
            options["dependencies"] = [*(options.get("dependencies") or ()), Depends(BEARER)]  # for OpenAPI
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Handler:
        """The handler, which is given a request whose body is counted as it comes."""
        handler = super().get_route_handler()
        needs = self.needs

        async def guarded(request: Request) -> Response:
            admit(request, needs)
            if needs.when_ready or needs.work is Work.UPLOAD:
                count_work(request)
            if needs.when_ready and not request.app.state.node.answers:
                await run_sync(request.app.state.node.need_ready)
            if needs.body_bytes_max is None:
                return await handler(request)
            budget: BodyBudget = request.app.state.body_budget
            bytes_max = min(needs.body_bytes_max, budget.bytes_max)
            length = request.headers.get("content-length", "")
            announced = int(length) if length.isdecimal() else 0
            _check_size(announced, bytes_max, needs.hint)
            with budget.room() as need:
                need(announced)

                def check(size: int) -> None:
                    _check_size(size, bytes_max, needs.hint)
                    need(size)

                return await _ours(handler, Request(request.scope, _counted(request, check)))

        return guarded


def count_work(request: Request) -> None:
    """Count the request as work, which a node that is drained finishes; `metrics.py` counts its end."""
    request.app.state.node.drain.begin_request()
    request.scope[WORKS] = request.app.state.node.drain.end_request


def _check_size(size: int, bytes_max: int, hint: str) -> None:
    if size > bytes_max:
        raise Invalid("the body is larger than this route takes", kind="body_too_large", bytes_max=bytes_max, hint=hint)


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
