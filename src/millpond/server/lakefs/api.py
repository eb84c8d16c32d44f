"""The mount of the API of versions: a request below `/api/v1` becomes a call of its handler.

    path ─▶ row ─▶ room ─▶ pair and right ─▶ body ─▶ handler ─▶ answer
      │ none                  │                 │        │
      ▼                       ▼                 ▼        ▼
     404                     401               4xx    errors as `{"message": …}`

The routes of maps are FastAPI's. These are few steps of our own, for their errors and checks have other words.

Invariants:
* every row of the table has one handler, and every handler a row: else the node does not start;
* a path is split before its escapes are read: a name may hold a slash, and is one name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.kernel.space import WouldBlock
from millpond.server.access import caller_in
from millpond.server.lakefs.access import admit_call
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.errors import ApiError, failure
from millpond.server.lakefs.routes import (
    accounts,
    branches,
    bulk,
    commits,
    diffs,
    dumps,
    imports,
    installation,
    links,
    maintenance,
    merges,
    object_writes,
    objects,
    plumbing,
    repositories,
    resets,
    settings,
    signed,
)
from millpond.server.lakefs.table import PREFIX, ROWS
from millpond.server.limits import admitted
from millpond.server.memory import MemoryBudget, put_room

if TYPE_CHECKING:
    from fastapi import FastAPI

    from millpond.server.routes.table import RouteNeeds

__all__ = ("Api", "ApiRoute", "before_routing")

_MODULES = (
    installation, accounts, repositories, branches, resets, commits, diffs, merges, settings, maintenance, dumps,
    objects, object_writes, links, imports, bulk, signed, plumbing,
)  # fmt: skip
_AT_ONCE = objects.AT_ONCE | branches.AT_ONCE | commits.AT_ONCE | repositories.AT_ONCE
"""Handlers that are quick, and are tried where the request is read; what would wait is done again in a thread."""
Handler: TypeAlias = Callable[[Call], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route of the API: its template, what it needs, its handler."""

    method: str
    path_format: str
    needs: RouteNeeds
    handler: Handler
    segments: tuple[str, ...]
    """The segments of its template below the prefix."""

    @property
    def plain(self) -> bool:
        """True when the handler runs in a thread, and its body is read before."""
        return not inspect.iscoroutinefunction(self.handler)

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """The names that a path gives; None when it is none of the template."""
        names = {}
        for wanted, found in zip(self.segments, segments, strict=True):
            if wanted[0] == "{":
                names[wanted[1:-1]] = unquote(found, errors="replace")
            elif wanted != found:
                return None
        return names if all(names.values()) else None


class Api(BaseRoute):
    """All routes below the prefix, as one route of the application."""

    def __init__(self) -> None:
        self.routes = tuple(_listed())
        self._by_shape: dict[tuple[str, int], list[ApiRoute]] = {}
        for route in self.routes:
            self._by_shape.setdefault((route.method, len(route.segments)), []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Everything below the prefix is ours, also what is no route."""
        ours = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{PREFIX}/")
        return (Match.FULL if ours else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whose room is given back when its last byte is sent."""
        request = Request(scope, receive)
        memory: MemoryBudget = request.app.state.memory
        with memory.room() as room:
            put_room(scope, room)
            try:
                response = await self._answer(request)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody is there to read it
            except Exception as error:
                response = failure(request, error)
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route, names = self._route(request.scope)
        request.scope["route"], request.scope["path_params"] = route, names
        counted = await admitted(request, route.needs, admit_call)
        body = await counted.body() if route.plain and route.needs.body_bytes_max else b""
        call = Call(counted, route.needs, caller_in(request), body)
        if route.handler in _AT_ONCE:
            with suppress(WouldBlock):
                return _plain(route.handler, Call(counted, route.needs, caller_in(request), at_once=True))
        if route.plain:
            return await call.in_thread(_plain, route.handler, call)
        response = route.handler(call)
        assert not isinstance(response, Response)
        return await response

    def _route(self, scope: Scope) -> tuple[ApiRoute, dict[str, str]]:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        segments = raw.decode("latin-1").removeprefix(PREFIX).split("/")[1:]
        for route in self._by_shape.get((scope["method"], len(segments)), ()):
            names = route.match(segments)
            if names is not None:
                return route, names
        raise ApiError(404, "invalid API endpoint")


def before_routing(api: Api, app: FastAPI, rest: ASGIApp) -> ASGIApp:
    """The application `rest`, called for all but the API of versions, which needs no other step on its way."""

    async def quick(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(f"{PREFIX}/"):
            await rest(scope, receive, send)
            return
        scope["app"] = app
        await api.handle(scope, receive, send)

    return quick


def _plain(handler: Callable[[Call], Any], call: Call) -> Response:
    response: Response = handler(call)
    return response


def _listed() -> list[ApiRoute]:
    """All routes, each of which has its row and its handler."""
    handlers: dict[tuple[str, str], Handler] = {}
    for module in _MODULES:
        found: Mapping[tuple[str, str], Handler] = module.HANDLERS
        twice = set(found) & set(handlers)
        assert not twice, f"these routes have two handlers: {twice}"
        handlers.update(found)
    assert set(handlers) == set(ROWS), f"rows and handlers differ: {set(handlers) ^ set(ROWS)}"
    return [
        ApiRoute(method, PREFIX + path, needs, handlers[method, path], tuple(path.split("/")[1:]))
        for (method, path), needs in ROWS.items()
    ]
