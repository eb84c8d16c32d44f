"""The way of a request through a node: from its path to the handler of its route, and back.

    path ─▶ route ─▶ sender, right ─▶ room ─▶ parameters ─▶ handler, in a thread ─▶ answer
      │ none            │                │          │              │
      ▼                 ▼                ▼          ▼              ▼
   404, 405          401, 403           503        400      any error, as `wire.py` writes it

A route is declared by its handler, with what it needs (`routes/table.py`) and what it takes (`parameters.py`):

    @routes.get("/{name}", RouteNeeds("read", On.MAP, Work.SMALL), summary="One map", answer=MapResponse)
    def get_map(name: str) -> dict[str, Any]: ...

A handler that is no coroutine runs in a thread of its class of work. It returns a response, or what becomes the JSON of
`answer`. With `at_once` it is tried first where the request is read, for what takes less time than a thread costs, and
than a task (`quick.py`); there it raises `WouldBlock` instead of waiting. What differs between protocols says the
`Dialect` of the route.

Invariants:
* all else about a route is read from its declaration: its way, its description, the page of routes, audit and metrics;
* nothing of a request is read before its sender is known to have the right, its size to be within the route's limit,
  and its room to be there; the room is given back when the last byte of the answer is sent;
* a change is one line of the audit log, before it is answered, also if its sender goes away;
* a query with a parameter that the route would pass over is refused before the handler runs;
* an error before the first byte of an answer is an answer; one after it ends the connection, so that no answer that was
  cut looks whole.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Lifespan, Message, Receive, Scope, Send

from millpond.errors import MillpondError
from millpond.json_forms import to_json
from millpond.kernel.space import WouldBlock
from millpond.nodes.node import Node
from millpond.server.access import audit
from millpond.server.dialect import OWN, Dialect
from millpond.server.incarnation_guard import check_incarnation
from millpond.server.limits import admitted, parameter_unknown
from millpond.server.memory import MemoryBudget, put_rooms
from millpond.server.moments import come_up, show_moment
from millpond.server.parameters import Parameters, names_in
from millpond.server.paths import Paths
from millpond.server.routes.table import On, RouteNeeds
from millpond.server.thread_limits import in_thread_of
from millpond.tracing import TRACEPARENT, Kind, is_traced, span, traceparent_in

__all__ = ("Application", "Declaration", "Facts", "Route", "Routes", "is_at_once")

_LOG = logging.getLogger("millpond.server")
_TRIED = "millpond.tried"
"""The key of a scope for which the quick form was tried."""
_AT_ONCE = "millpond.at_once"
"""The key of a scope whose handler runs where nothing may wait."""
Handler = TypeVar("Handler", bound=Callable[..., Any])


def is_at_once(request: Request) -> bool:
    """True for a request whose handler runs where nothing may wait."""
    return _AT_ONCE in request.scope


class Declaration(Protocol):
    """Takes a handler for its route, and gives it back."""

    def __call__(self, handler: Handler, /) -> Handler: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The declaration of a route, beside its path and its handler."""

    answer: Any = None
    """The type of what the handler returns, which is made of that; None: the handler's own."""
    status: int = 200
    at_once: bool = False
    """True when the handler is tried where nothing may wait, and raises `WouldBlock` there if it would."""
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
        self, method: str, path: str, needs: RouteNeeds, handler: Callable[..., Any], facts: Facts,
        dialect: Dialect = OWN,
    ) -> None:  # fmt: skip
        self.method, self.path = method, path
        self.needs, self.handler, self.facts, self.dialect = needs, handler, facts, dialect
        self.names = names_in(path)
        self.taken = Parameters(handler, path, dialect)
        self.answer = self.taken.answer if facts.answer is None else facts.answer
        self.refuse: Callable[[], object] | None = None
        """Raises for a route of what this node does not have, see `refused.py`."""
        self._waits = not inspect.iscoroutinefunction(handler)
        self.parameters = {parameter["name"] for parameter in facts.parameters if parameter["in"] == "query"}
        self.parameters |= {field.name for field in self.taken.query}
        # A parameter that is described as `header.NAME` stands for any name behind the dot.
        self._open = tuple(name.removesuffix("NAME") for name in self.parameters if name.endswith(".NAME"))

    async def respond(self, request: Request) -> Response:
        """The answer to a request.

        Raises: as `admitted`, `check_incarnation` and `Parameters.of`; what the handler raises.
        """
        counted = await admitted(request, self.needs, self.dialect.admit)
        if self.refuse is not None:
            self.refuse()
        await come_up(request)
        if _TRIED not in request.scope and self._waits and (quick := self._tried(counted)) is not None:
            return quick
        self._check_query(request)
        await check_incarnation(request)
        arguments = await self.taken.of(counted)
        act = partial(self.handler, **arguments)
        return self._response(await (in_thread_of(request, self.needs, act) if self._waits else act()))

    def at_once(self, request: Request) -> Response | None:
        """The answer to a request without a body, if its handler waits for nothing; None for any other."""
        node: Node = request.app.state.node
        if self.refuse is not None or (self.needs.when_ready and not node.answers):
            return None
        try:
            self.dialect.admit(request, self.needs)
            return self._tried(request)
        except Exception as error:
            return self.dialect.failed(request, error)

    def _tried(self, request: Request) -> Response | None:
        """The answer of the handler where nothing may wait, if it has one.

        Raises: what the handler raises, but where the query is checked before it: then the checks find what is wrong.
        """
        if not self.facts.at_once:
            return None
        request.scope[_AT_ONCE] = True
        try:
            answer = self.handler(**self.taken.of_head(request))
            return self._response(answer if self._waits else _without_waiting(answer))
        except WouldBlock:
            return None
        except Exception:
            if self.dialect.strict(request):
                return None
            raise
        finally:
            del request.scope[_AT_ONCE]

    def _response(self, answer: Any) -> Response:
        if isinstance(answer, Response):
            return answer
        if answer is None and self.facts.status == 204:
            return Response(status_code=204)
        if self.facts.answer is not None and not isinstance(answer, msgspec.Struct):
            answer = msgspec.convert(answer, self.answer, from_attributes=True)
        return Response(to_json(answer), self.facts.status, self.dialect.headers)

    def _check_query(self, request: Request) -> None:
        """Insist that the query has no parameter that the route would pass over; Armada's clients add some to its."""
        if not request.scope["query_string"] or self.needs.on is On.JOB_SET or not self.dialect.strict(request):
            return
        for name in request.query_params:
            if name not in self.parameters and not name.startswith(self._open):
                raise parameter_unknown(name, self.parameters)


class Routes:
    """The routes of a module, as it declares them: below a prefix, under a tag, in a dialect."""

    def __init__(self, prefix: str = "", tag: str = "", dialect: Dialect = OWN) -> None:
        self.prefix, self._tag, self.dialect = prefix, tag, dialect
        self.routes: list[Route] = []
        methods = "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"
        declared = (partial(self.add, method) for method in methods)
        self.get, self.head, self.post, self.put, self.patch, self.delete = declared

    def add(self, method: str, path: str, needs: RouteNeeds, *, tag: str = "", **facts: Any) -> Declaration:
        """Declare a route by its handler; `facts` are those of `Facts`."""

        def declared(handler: Handler) -> Handler:
            described = Facts(tags=(tag or self._tag,), **facts)
            self.routes.append(Route(method, self.prefix + path, needs, handler, described, self.dialect))
            return handler

        return declared


class Application:
    """The routes of a node, in all dialects, as an application of ASGI."""

    def __init__(self, lifespan: Lifespan[Application]) -> None:
        self.state = SimpleNamespace(failed=None)
        self._lifespan = Router(lifespan=lifespan).lifespan
        self._paths: Paths[Route] = Paths()
        self._dialects: Mapping[str, Dialect] = {}
        self._for_browsers = OWN

    def serve(
        self, routes: Iterable[Route], dialects: Mapping[str, Dialect] | None = None, for_browsers: Dialect = OWN
    ) -> None:
        """Serve these routes; a path that none has is answered in the dialect whose pattern its beginning matches, and
        where none does, in a dialect `for_browsers` if the sender takes HTML."""
        self.state.routes, self._dialects, self._for_browsers = tuple(routes), dialects or {}, for_browsers
        for route in self.state.routes:
            self._paths.at(route.path)[route.method] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, partial(self._send_of_lifespan, send))
            return
        request = Request(scope, receive)
        memory: MemoryBudget = self.state.memory
        processes: MemoryBudget = self.state.processes
        with memory.room() as room, processes.room() as of_process:
            put_rooms(scope, room, of_process)
            status = 499  # the sender went away
            try:
                response = await self._traced(request)
                status = response.status_code
            finally:
                audit(self.state.node, scope, status)
            show_moment(self.state.node, response)
            try:
                await response(scope, receive, send)
            except MillpondError as error:
                # Its head is sent. An answer that is not ended is cut, so that nobody takes the part for the whole.
                _LOG.error("the answer to %s %s ended early: %s", scope["method"], scope["path"], error)

    def route_of(self, scope: Scope) -> Route | None:
        """The route of a request, which is noted in its scope; None when there is none."""
        methods, names = self._find(scope)
        route = methods.get(scope["method"])
        if route is not None:
            scope["route"], scope["path_params"] = route, dict(zip(route.names, names, strict=True))
        return route

    def at_once(self, scope: Scope) -> Response | None:
        """The answer to a request without a body that waits for nothing; None for any other."""
        route = self.route_of(scope)
        if route is None or not route.facts.at_once or is_traced():
            return None
        scope["app"], scope[_TRIED] = self, True
        return route.at_once(Request(scope))

    async def _send_of_lifespan(self, send: Send, message: Message) -> None:
        """Of what kept the node from starting the log has the words: whoever waits for the begin gets the error."""
        if message["type"] == "lifespan.startup.failed" and self.state.failed is not None:
            message = {**message, "message": str(self.state.failed)}
        await send(message)

    async def _traced(self, request: Request) -> Response:
        """The answer, within the span of the request, to its first byte; of what needs no right there is none."""
        route = self.route_of(request.scope) if is_traced() else None
        if route is None or route.needs.right is None:
            return await self._answer(request)
        about = {"http.request.method": request.method, "http.route": route.path, "url.scheme": request.url.scheme}
        sent = traceparent_in(request.headers.get(TRACEPARENT))
        with span(f"{request.method} {route.path}", Kind.SERVER, sent, about) as own:
            response = await self._answer(request)
            own.note({"http.response.status_code": response.status_code})
            if response.status_code >= 500:
                own.note({"error.type": str(response.status_code)})
        return response

    async def _answer(self, request: Request) -> Response:
        route = self.route_of(request.scope)
        dialect = self._spoken(request) if route is None else route.dialect
        try:
            if route is None:
                return dialect.unrouted(request, self._find(request.scope)[0])
            return await route.respond(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        except Exception as error:
            return dialect.failed(request, error)

    def _find(self, scope: Scope) -> tuple[Mapping[str, Route], list[str]]:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        return self._paths.find(raw.decode("latin-1"))

    def _spoken(self, request: Request) -> Dialect:
        path = request.scope["path"]
        otherwise = self._for_browsers if "text/html" in request.headers.get("accept", "") else OWN
        return next((dialect for pattern, dialect in self._dialects.items() if re.match(pattern, path)), otherwise)


def _without_waiting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise AssertionError("a handler that is tried at once raises `WouldBlock` where it would wait")
