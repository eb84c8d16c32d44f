"""The routes of operations that are served by their declaration, see `kernel/operations.py`.

A handler takes what the method takes, under the names of the request, and answers what the method of a map, or of the
streams, in the node's pond answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.events.operations import EventsOperations
from millpond.json_forms import plain
from millpond.kernel.operations import Operation, operations_of
from millpond.maps.alerts.operations import AlertOperations
from millpond.maps.map import Map
from millpond.maps.protocols import MapOperations
from millpond.nodes.node import Node
from millpond.server.access import note_change
from millpond.server.dialect import OWN, Dialect
from millpond.server.dispatch import Routes
from millpond.server.map_refs import Branch, Ref, map_of
from millpond.server.parameters import names_in
from millpond.server.routes.table import ORDER_BYTES_MAX, SCAN_BYTES, On, RouteNeeds, Work, read
from millpond.server.wire import RequestBody

__all__ = ("routes", "serve")

Owner = Callable[[Request], Any]
"""The thing in a pond that has the method, by a request of it."""
_NOWHERE: Mapping[str, Any] = {}


def routes(_node: Node) -> Routes:
    """The routes of one node."""
    router, at = Routes(), {"branch": Branch, "ref": Ref}
    serve(router, MapOperations, _map, partial(_needs, On.MAP), at, tag="maps")
    owners: tuple[tuple[type, str, On, Owner], ...] = (
        (AlertOperations, "alerts", On.MAP, lambda request: _map(request).alerts),
        (EventsOperations, "events", On.STREAM, lambda request: _node_of(request).events),
    )
    for interface, tag, on, owner in owners:
        serve(router, interface, owner, partial(_needs, on), tag=tag)
    return router


def serve(
    router: Routes, interface: type, owner: Owner, needs: Callable[[Operation, int], RouteNeeds],
    at: Mapping[str, Any] = _NOWHERE, **facts: Any,
) -> None:  # fmt: skip
    """Declare the routes of the operations of an interface that name a right. Their `needs` are those of an operation
    and of the largest body; `at` are more parameters of the query, by which the owner is found.
    """
    for operation in operations_of(interface):
        if operation.right:
            bytes_max = 0 if operation.method in ("GET", "DELETE") else ORDER_BYTES_MAX
            summary = operation.summary.split("\n")[0].rstrip(".")
            declare = router.add(
                operation.method, operation.path, needs(operation, bytes_max), summary=summary,
                status=200 if router.dialect is OWN or operation.result is not type(None) else 204, **facts,
            )  # fmt: skip
            declare(_handler(operation, owner, router.dialect, at))


def _node_of(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def _map(request: Request) -> Map:
    at = request.query_params
    return map_of(request, request.path_params["name"], at.get("branch"), at.get("ref"))


def _needs(on: On, operation: Operation, body_bytes_max: int) -> RouteNeeds:
    if on is On.STREAM and "queue" not in inspect.signature(operation.function).parameters:
        on = On.POND
    if operation.right != "read":
        return RouteNeeds(operation.right, on, Work.ADMINISTRATION, body_bytes_max, audited=True)
    return read(on, body_bytes_max, memory_bytes=SCAN_BYTES if operation.large else 0, when_ready=True)


def _handler(operation: Operation, owner: Owner, dialect: Dialect, at: Mapping[str, Any]) -> Callable[..., Any]:
    in_path, changes = names_in(operation.path), operation.right != "read" and dialect is OWN
    in_query: list[inspect.Parameter] = []
    body: list[inspect.Parameter] = []
    sent = {parameter.name: operation.sent.get(parameter.name, parameter.name) for parameter in operation.parameters}
    for parameter in operation.parameters:
        if sent[parameter.name] not in in_path:
            whole = operation.method in ("GET", "DELETE") or parameter.name in operation.query
            (in_query if whole else body).append(parameter)

    def handler(request: Request, **received: Any) -> Any:
        if changes:
            _node_of(request).need_primary()
        received |= msgspec.structs.asdict(received.pop("body")) if body else {}
        arguments = {name: received[other] for name, other in sent.items()}
        result = plain(getattr(owner(request), operation.name)(**arguments))
        answer = {operation.answer: result} if operation.answer else result
        if changes:
            changed = {**arguments, **(answer or {})}
            note_change(request, **{sent.get(name, name): value for name, value in changed.items()})
        return answer

    taken: dict[str, Any] = {"request": Request, **dict.fromkeys(in_path, str), **at}
    taken |= {sent[parameter.name]: _described(operation, parameter) for parameter in in_query}
    if body:
        fields = [(sent[field.name], _described(operation, field), _default(operation, field)) for field in body]
        form = RequestBody if dialect is OWN else msgspec.Struct
        taken["body"] = msgspec.defstruct(f"{_title(operation)}Request", fields, bases=(form,), kw_only=True)
    defaults = dict.fromkeys(at) | {sent[parameter.name]: parameter.default for parameter in in_query}
    handler.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, inspect.Parameter.empty))
        for name in taken
    ])  # fmt: skip
    handler.__annotations__ = {**taken, "return": _answer(operation) if operation.answer else operation.result}
    handler.__doc__ = operation.summary
    return handler


def _described(operation: Operation, parameter: inspect.Parameter) -> Any:
    """The type of a parameter, with the words about it."""
    kind: Any = parameter.annotation
    return Annotated[kind, Meta(description=operation.words.get(parameter.name, ""))]


def _default(operation: Operation, parameter: inspect.Parameter) -> Any:
    needed = parameter.default is inspect.Parameter.empty or parameter.name in operation.needed
    return msgspec.NODEFAULT if needed else parameter.default


def _answer(operation: Operation) -> type[msgspec.Struct]:
    """The type of an answer that is an object around the result."""
    return msgspec.defstruct(f"{_title(operation)}Response", [(operation.answer, operation.result)])


def _title(operation: Operation) -> str:
    return operation.name.title().replace("_", "")
