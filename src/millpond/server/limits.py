"""Bodies of requests in memory: how large one may be on each route, and the room that each request takes.

    request ─▶ route ─▶ right of the caller ─▶ room for the work ─▶ announced size ─▶ room for the body ─▶ read

Each route states its limit in `routes/table.py`. Parts go to the disk as they come, and have limits of their
own.

Invariants:
* no route holds more bytes of a body than its limit, nor more than the whole budget;
* all of them lie within the budget of `memory.py`;
* no body is read of a caller who lacks the right that the route needs;
* a sender that falls silent for `read_timeout` is taken for gone, so that its room comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.errors import Invalid, MillpondError
from millpond.server.access import BEARER, admit, share_in
from millpond.server.memory import MemoryBudget, put_room, room_of
from millpond.server.presence import presence_in
from millpond.server.routes.table import WORKS, On, RouteNeeds, Work, needs_of
from millpond.server.same_map import check_incarnation
from millpond.server.wire import ErrorResponse, answer_failure
from millpond.shown import shown

if TYPE_CHECKING:
    from millpond.nodes.drain import Drain
    from millpond.nodes.node import Node

__all__ = ("GuardedRoute", "PlainRoute", "admitted", "count_work", "parameter_unknown", "plainly")

_OF_BODIES = (b"content-length", b"transfer-encoding")
"""The headers of requests with a body: HTTP knows no other way to announce one."""

_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class GuardedRoute(APIRoute):
    """A route that checks what it needs before it reads a body, and reads no more of one than it may."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        [self.method] = options["methods"]
        self.needs: RouteNeeds = needs_of(self.method, path)
        dependencies = [Depends(check_incarnation), *(options.get("dependencies") or ())]
        if self.needs.right is not None:
            dependencies.append(Depends(BEARER))  # for OpenAPI
        options |= {"dependencies": dependencies, "responses": _ERRORS | (options.get("responses") or {})}
        super().__init__(path, endpoint, **options)
        described = (options.get("openapi_extra") or {}).get("parameters", ())
        self.parameters = {field.alias for field in self.dependant.query_params}
        self.parameters |= {parameter["name"] for parameter in described if parameter["in"] == "query"}
        # A parameter that is described as `header.NAME` stands for any name behind the dot.
        self._open = tuple(name.removesuffix("NAME") for name in self.parameters if name.endswith(".NAME"))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whose room is given back when its last byte is sent."""
        memory: MemoryBudget = scope["app"].state.memory
        with memory.room() as room:
            put_room(scope, room)
            await super().handle(scope, receive, send)

    def get_route_handler(self) -> Handler:
        """The handler, which is given a request whose body is counted as it comes."""
        handler = super().get_route_handler()
        needs = self.needs

        async def guarded(request: Request) -> Response:
            counted = await admitted(request, needs, admit)
            self._check_parameters(request)
            return await _ours(handler, counted)

        return guarded

    def _check_parameters(self, request: Request) -> None:
        """Insist that the query has no parameter that the route would pass over.

        Monitors add parameters of their own to pages that everybody may see, and Armada's clients to its route.
        """
        if not request.scope["query_string"] or not self.path.startswith("/v1/") or self.needs.on is On.JOB_SET:
            return
        for name in request.query_params:
            if name not in self.parameters and not name.startswith(self._open):
                raise parameter_unknown(name, self.parameters)


class PlainRoute(GuardedRoute):
    """A route whose endpoint reads its request itself: FastAPI describes it, and has no part in answering.

    Of a small load, to find the route, to work out parameters, and to answer by declared types takes half as long as to
    enter it.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whose room is given back when its last byte is sent."""
        if scope["method"] != self.method:
            await super().handle(scope, receive, send)  # the error names the methods that the path takes
            return
        memory: MemoryBudget = scope["app"].state.memory
        with memory.room() as room:
            put_room(scope, room)
            response = await self._response(Request(scope, receive))
            await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        try:
            counted = await admitted(request, self.needs, admit)
            self._check_parameters(request)
            response: Response = await self.endpoint(counted)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        except Exception as error:
            return answer_failure(request, error)
        return response


def plainly(app: FastAPI) -> ASGIApp:
    """The application, whose plain routes are found before any other."""
    routes = [route for route in app.state.routes if isinstance(route, PlainRoute)]

    def found(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            for route in routes:
                if route.method == scope["method"] and (match := route.path_regex.match(scope["path"])):
                    scope.update(app=app, route=route, path_params=match.groupdict())
                    return route.handle(scope, receive, send)
        return app(scope, receive, send)

    return found


async def admitted(request: Request, needs: RouteNeeds, decide: Callable[[Request, RouteNeeds], None]) -> Request:
    """The request once it may be worked on; its body, which is not read yet, is counted as it comes.

    Raises: what `decide` raises; as `Node.need_ready`, `Room.queue` and `Room.need`; `Invalid` for its size.
    """
    decide(request, needs)
    if needs.when_ready or needs.work is Work.UPLOAD:
        count_work(request)
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
        await presence_in(request.scope).during(room.queue(needs.memory_bytes))
    room.need(announced)

    def check(size: int) -> None:
        _check_size(size, bytes_max, needs.hint)
        room.need(size)

    return Request(request.scope, _counted(request, check))


def parameter_unknown(name: str, known: Iterable[str]) -> Invalid:
    """The error for a parameter of a query that a route does not know."""
    return Invalid(
        "the route does not know this parameter", kind="parameter_unknown", parameter=shown(name),
        known=", ".join(sorted(known)) or "none", hint="see /docs, and name those that are known",
    )  # fmt: skip


def _brings_body(request: Request) -> bool:
    """True when a body comes with the request, or may come."""
    return any(name in _OF_BODIES for name, _ in request.scope["headers"])


def count_work(request: Request) -> None:
    """Count the request as work, which a node that is drained finishes; `metrics.py` counts its end."""
    drain: Drain = request.app.state.node.drain
    drain.begin_request()
    request.scope[WORKS] = drain.end_request


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
