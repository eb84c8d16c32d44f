"""The way of a request through a node: from its path to the handler of its route, and back.

    path ─▶ route ─▶ sender, right ─▶ room ─▶ parameters ─▶ handler, in a thread ─▶ answer
      │ none            │                │          │              │
      ▼                 ▼                ▼          ▼              ▼
   404, 405          401, 403           503        400      any error, as `wire.py` writes it

A route is declared by its handler, with what it needs (`routes/table.py`) and what it takes (`parameters.py`):

    @routes.get("/{name}", RouteNeeds("read", On.MAP, Work.SMALL), summary="One map", answer=MapResponse)
    def get_map(name: str) -> dict[str, Any]: ...

A handler that is no coroutine runs in a thread. It returns a response, or what becomes the JSON of `answer`. With
`at_once`, a quick form of it is tried first, where the request is read: for what takes less time than a thread costs,
and than a task (`quick.py`).

Invariants:
* all else about a route is read from its declaration: its way, its description, the page of routes, audit and metrics;
* nothing of a request is read before its sender is known to have the right, its size to be within the route's limit,
  and its room to be there; the room is given back when the last byte of the answer is sent;
* a query with a parameter that the route would pass over is refused before the handler runs;
* an error before the first byte of an answer is an answer; one after it ends the connection, so that no answer that was
  cut looks whole.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router, compile_path
from starlette.types import Lifespan, Receive, Scope, Send

from millpond.errors import Invalid, NotFound
from millpond.json_forms import to_json
from millpond.server.access import admit
from millpond.server.incarnation_guard import check_incarnation
from millpond.server.limits import admitted, parameter_unknown
from millpond.server.memory import MemoryBudget, put_room
from millpond.server.parameters import Parameters
from millpond.server.routes.table import On, RouteNeeds
from millpond.server.thread_limits import in_short_thread
from millpond.server.wire import answer_failure, error_answer

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.lakefs.api import Api

__all__ = ("Application", "Declaration", "Facts", "Route", "Routes", "answering")

_TRIED = "millpond.tried"
"""The key of a scope for which the quick form was tried."""
Handler = TypeVar("Handler", bound=Callable[..., Any])
AtOnce: TypeAlias = Callable[[Request], Response | None]
"""A quick form of a handler, tried where the request is read; None, or any error: the handler answers, in a thread."""
Answering: TypeAlias = Callable[[Request], Awaitable[Response]]


class Declaration(Protocol):
    """Takes a handler for its route, and gives it back."""

    def __call__(self, handler: Handler, /) -> Handler: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The declaration of a route, beside its path and its handler."""

    answer: Any = None
    """The type of what the handler returns, which is made of that; None: the handler's own."""
    status: int = 200
    at_once: AtOnce | None = None
    summary: str = ""
    tags: tuple[str, ...] = ()
    responses: Mapping[str, Any] = field(default_factory=dict)
    """Descriptions of its answers by their statuses."""
    body: Mapping[str, Any] | None = None
    """Schemas of a body that the handler reads itself, by their media types."""
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of parameters that the handler reads itself."""
    hidden: bool = False
    """True when `/docs` leaves it out."""


class Route:
    """A route: its template, what it needs and takes, its handler, and the words about it."""

    def __init__(
        self, method: str, path: str, needs: RouteNeeds, handler: Callable[..., Any], facts: Facts
    ) -> None:  # fmt: skip
        self.method, self.path, self.path_format = method, path, path
        self.needs, self.handler, self.facts = needs, handler, facts
        self.taken = Parameters(handler, path)
        self.answer = self.taken.answer if facts.answer is None else facts.answer
        self._waits = not inspect.iscoroutinefunction(handler)
        self.parameters = {parameter["name"] for parameter in facts.parameters if parameter["in"] == "query"}
        self.parameters |= {field.name for field in self.taken.query}
        # A parameter that is described as `header.NAME` stands for any name behind the dot.
        self._open = tuple(name.removesuffix("NAME") for name in self.parameters if name.endswith(".NAME"))

    async def respond(self, request: Request) -> Response:
        """The answer to a request.

        Raises: as `admitted`, `check_incarnation` and `Parameters.of`; what the handler raises.
        """
        counted = await admitted(request, self.needs, admit)
        if _TRIED not in request.scope and (quick := self.at_once(request)) is not None:
            return quick
        self._check_query(request)
        await check_incarnation(request)
        arguments = await self.taken.of(counted)
        act = partial(self.handler, **arguments)
        answer = await self._threaded(request, act)
        if isinstance(answer, Response):
            return answer
        if self.facts.answer is not None:
            answer = msgspec.convert(answer, self.answer, from_attributes=True)
        return Response(to_json(answer), self.facts.status, media_type="application/json")

    def at_once(self, request: Request) -> Response | None:
        """The answer to a request without a body, by the quick form; None for any other, and for every error."""
        node: Node = request.app.state.node
        if self.facts.at_once is None or (self.needs.when_ready and not node.answers):
            return None
        try:
            admit(request, self.needs)
            return self.facts.at_once(request)
        except Exception:  # the handler finds it again
            return None

    async def _threaded(self, request: Request, act: Callable[[], Any]) -> Any:
        """The answer of the handler; one that waits has a thread, of those that tokens share if its route needs one."""
        if not self._waits:
            return await act()
        return await (run_sync(act) if self.needs.right is None else in_short_thread(request, act))

    def _check_query(self, request: Request) -> None:
        """Insist that the query has no parameter that the route would pass over.

        Monitors add parameters of their own to pages that everybody may see, and Armada's clients to its route.
        """
        if not request.scope["query_string"] or not self.path.startswith("/v1/") or self.needs.on is On.JOB_SET:
            return
        for name in request.query_params:
            if name not in self.parameters and not name.startswith(self._open):
                raise parameter_unknown(name, self.parameters)


class Routes:
    """The routes of a module, as it declares them: below a prefix, under a tag."""

    def __init__(self, prefix: str = "", tag: str = "") -> None:
        self._prefix, self._tag = prefix, tag
        self.routes: list[Route] = []
        methods = "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"
        declared = (partial(self.add, method) for method in methods)
        self.get, self.head, self.post, self.put, self.patch, self.delete = declared

    def add(self, method: str, path: str, needs: RouteNeeds, *, tag: str = "", **facts: Any) -> Declaration:
        """Declare a route by its handler; `facts` are those of `Facts`."""

        def declared(handler: Handler) -> Handler:
            described = Facts(tags=(tag or self._tag,), **facts)
            self.routes.append(Route(method, self._prefix + path, needs, handler, described))
            return handler

        return declared


class Application:
    """The routes of a node, and its API of versions, as an application of ASGI."""

    def __init__(self, lifespan: Lifespan[Application]) -> None:
        self.state = SimpleNamespace()
        self._lifespan = Router(lifespan=lifespan).lifespan
        self._plain: dict[str, dict[str, Route]] = {}
        self._shaped: dict[str, list[tuple[re.Pattern[str], dict[str, Route]]]] = {}

    def serve(self, routes: Iterable[Route], versions: Api | None) -> None:
        """Serve these routes."""
        self.state.routes, self.state.versions_api = tuple(routes), versions
        by_path: dict[str, dict[str, Route]] = {}
        for route in self.state.routes:
            by_path.setdefault(route.path, {})[route.method] = route
        for path, methods in by_path.items():
            if "{" in path:
                self._shaped.setdefault(_beginning(path), []).append((compile_path(path)[0], methods))
            else:
                self._plain[path] = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["path"].startswith("/api/"):
            await self.state.versions_api.handle(scope, receive, send)
        else:
            await answering(scope, receive, send, self._answer, answer_failure)

    def knows(self, scope: Scope) -> bool:
        """True when a route takes this request."""
        return scope["method"] in self._find(scope["path"])[0]

    def at_once(self, scope: Scope) -> Response | None:
        """The answer to a request without a body that waits for nothing; None for any other, and for every error."""
        methods, names = self._find(scope["path"])
        route = methods.get(scope["method"])
        if route is None or route.facts.at_once is None:
            return None
        scope["app"], scope["route"], scope["path_params"], scope[_TRIED] = self, route, names, True
        return route.at_once(Request(scope))

    async def _answer(self, request: Request) -> Response:
        methods, names = self._find(request.scope["path"])
        route = methods.get(request.method)
        if route is None:
            return _unrouted(request, methods)
        request.scope["route"], request.scope["path_params"] = route, names
        return await route.respond(request)

    def _find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]]:
        """The routes of a path by their methods, and the names that it gives; none for a path that no route has."""
        if path in self._plain:
            return self._plain[path], {}
        for pattern, methods in self._shaped.get(_beginning(path), ()):
            if match := pattern.match(path):
                return methods, match.groupdict()
        return {}, {}


def _beginning(path: str) -> str:
    """The first two segments of a path, which each template has."""
    return "/".join(path.split("/", 3)[:3])


def _unrouted(request: Request, methods: Mapping[str, Route]) -> Response:
    path, hint = request.url.path, "see /docs"
    if not methods:
        return error_answer(NotFound("there is no such route", kind="route_not_found", path=path, hint=hint))
    answer = error_answer(
        Invalid(
            "the route does not know this method",
            kind="method_not_allowed",
            path=path,
            method=request.method,
            hint=hint,
        )
    )
    answer.headers["Allow"] = ", ".join(sorted(methods))
    return answer


async def answering(
    scope: Scope, receive: Receive, send: Send, answer: Answering, failed: Callable[[Request, Exception], Response]
) -> None:
    """Answer a request, whose room is given back when its last byte is sent."""
    request = Request(scope, receive)
    memory: MemoryBudget = scope["app"].state.memory
    with memory.room() as room:
        put_room(scope, room)
        try:
            response = await answer(request)
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody is there to read it
        except Exception as error:
            response = failed(request, error)
        await response(scope, receive, send)
