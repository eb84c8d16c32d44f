"""The mount of the API of versions: a request below `/api/v1` becomes a call of its handler.

    path ─▶ row ─▶ room ─▶ pair and right ─▶ body ─▶ handler ─▶ answer
      │ none                  │                 │        │
      ▼                       ▼                 ▼        ▼
   501, 404                  401               4xx    errors as `{"message": …}`

The way of a request is that of `server/dispatch.py`; errors and checks have other words.

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

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from millpond.kernel.space import WouldBlock
from millpond.server.access import caller_in
from millpond.server.dispatch import answering
from millpond.server.lakefs.absent import not_offered
from millpond.server.lakefs.access import admit_call
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.errors import failure
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
from millpond.server.lakefs.streaming import whole_body
from millpond.server.lakefs.table import PREFIX, ROWS
from millpond.server.limits import admitted

if TYPE_CHECKING:
    from millpond.server.routes.table import RouteNeeds

__all__ = ("Api", "ApiRoute")

_MODULES = (
    installation, accounts, repositories, branches, resets, commits, diffs, merges, settings, maintenance, dumps,
    objects, object_writes, links, imports, bulk, signed, plumbing,
)  # fmt: skip
_AT_ONCE = objects.OF_ENTRY | branches.AT_ONCE | commits.AT_ONCE | repositories.AT_ONCE
"""Handlers that are quick, and are tried where the request is read; what would wait is done again in a thread."""
Handler: TypeAlias = Callable[[Call], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route of the API: its template, what it needs, its handler."""

    method: str
    path_format: str
    needs: RouteNeeds
    handler: Handler
    plain: bool
    """True when the handler runs in a thread, and its body is read before."""
    at_once: bool
    """True when the handler is tried where the request is read."""
    words: tuple[tuple[int, str], ...]
    """The segments of its template below the prefix that a path must have, by their places."""
    names: tuple[tuple[int, str], ...]
    """The segments that a path may choose."""

    @classmethod
    def of(cls, method: str, path: str, needs: RouteNeeds, handler: Handler) -> ApiRoute:
        """The route of a row of the table."""
        segments = list(enumerate(path.split("/")[1:]))
        return cls(
            method, PREFIX + path, needs, handler, not inspect.iscoroutinefunction(handler), handler in _AT_ONCE,
            tuple((at, segment) for at, segment in segments if segment[0] != "{"),
            tuple((at, segment[1:-1]) for at, segment in segments if segment[0] == "{"),
        )  # fmt: skip

    @property
    def length(self) -> int:
        """The number of its segments."""
        return len(self.words) + len(self.names)

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """The names that a path of that length gives; None when it is none of the template."""
        for at, word in self.words:
            if segments[at] != word:
                return None
        names = {name: unquote(segments[at], errors="replace") for at, name in self.names}
        return names if all(names.values()) else None


class Api:
    """All routes below the prefix, and what is none of them."""

    def __init__(self) -> None:
        self.routes = tuple(_listed())
        self._by_shape: dict[tuple[str, int], list[ApiRoute]] = {}
        for route in self.routes:
            self._by_shape.setdefault((route.method, route.length), []).append(route)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whose room is given back when its last byte is sent."""
        await answering(scope, receive, send, self._answer, failure)

    async def _answer(self, request: Request) -> Response:
        if not f"{request.scope['path']}/".startswith(f"{PREFIX}/"):
            return _elsewhere()
        if (route := self.find(request.scope)) is None:
            raise not_offered(request.method, _segments(request.scope))
        needs = route.needs
        counted = await admitted(request, needs, admit_call)
        caller = caller_in(request)
        entry = None
        if route.at_once:
            call = Call(counted, needs, caller, at_once=True)
            try:
                return _plain(route.handler, call)
            except WouldBlock:
                pass
            if route.handler in objects.OF_ENTRY:
                with suppress(WouldBlock):
                    entry = await call.looked_up()
                    return _plain(route.handler, Call(counted, needs, caller, at_once=True, entry=entry))
            # in a thread, then
        body = await whole_body(counted) if route.plain and needs.body_bytes_max else b""
        call = Call(counted, needs, caller, body, entry=entry)
        if route.plain:
            return await call.in_thread(_plain, route.handler, call)
        response = route.handler(call)
        assert not isinstance(response, Response)
        return await response

    def find(self, scope: Scope) -> ApiRoute | None:
        """The route of a request, which is noted in its scope; None when there is none."""
        segments = _segments(scope)
        for route in self._by_shape.get((scope["method"], len(segments)), ()):
            names = route.match(segments)
            if names is not None:
                scope["route"], scope["path_params"] = route, names
                return route
        return None


def _elsewhere() -> Response:
    """The answer to a client whose address is wrong. It is no JSON: that is how `lakectl doctor` knows it."""
    return PlainTextResponse(f"there is no API here: the address of a client ends with {PREFIX}\n", 404)


def _segments(scope: Scope) -> list[str]:
    """The parts of a path below the prefix, their escapes not read."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").removeprefix(PREFIX).split("/")[1:]


def _plain(handler: Callable[[Call], Any], call: Call) -> Response:
    response: Response = handler(call)
    return response


def _listed() -> list[ApiRoute]:
    """All routes, each of which has its row and its handler."""
    handlers: dict[tuple[str, str], Handler] = {}
    for module in _MODULES:
        of_module: Mapping[tuple[str, str], Handler] = module.HANDLERS
        twice = set(of_module) & set(handlers)
        assert not twice, f"these routes have two handlers: {twice}"
        handlers.update(of_module)
    assert set(handlers) == set(ROWS), f"rows and handlers differ: {set(handlers) ^ set(ROWS)}"
    return [ApiRoute.of(method, path, row.needs, handlers[method, path]) for (method, path), row in ROWS.items()]
