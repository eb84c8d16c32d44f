"""The routes of operations that are served by their declaration, see `kernel/operations.py`.

A handler takes what the method takes, under the names of the request, and answers what the method of a map, or of the
streams, in the node's pond answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.events.operations import EventsOperations
from millpond.json_forms import plain
from millpond.kernel.operations import Operation, operations_of
from millpond.maps.alerts.operations import AlertOperations
from millpond.maps.protocols import MapOperations
from millpond.nodes.node import Node
from millpond.server.access import note_change
from millpond.server.dispatch import Routes
from millpond.server.parameters import names_in
from millpond.server.routes.table import ORDER_BYTES_MAX, SCAN_BYTES, On, RouteNeeds, Work, read
from millpond.server.thread_limits import in_large_thread, in_short_thread, in_thread
from millpond.server.wire import RequestBody

__all__ = ("routes",)

Owner = Callable[[Mapping[str, str]], Any]
"""The thing in a pond that has the method, by the names of the path."""


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes()
    owners: tuple[tuple[type, str, On, Owner], ...] = (
        (MapOperations, "maps", On.MAP, lambda names: node.pond.map(names["name"])),
        (AlertOperations, "alerts", On.MAP, lambda names: node.pond.map(names["name"]).alerts),
        (EventsOperations, "events", On.STREAM, lambda _names: node.events),
    )
    for interface, tag, on, owner in owners:
        for operation in operations_of(interface):
            if operation.right:
                summary = operation.summary.split("\n")[0].rstrip(".")
                needs = _needs(operation, on)
                declare = router.add(operation.method, operation.path, needs, tag=tag, summary=summary)
                declare(_handler(node, operation, owner))
    return router


def _needs(operation: Operation, on: On) -> RouteNeeds:
    body_bytes_max = 0 if operation.method in ("GET", "DELETE") else ORDER_BYTES_MAX
    if operation.right != "read":
        return RouteNeeds(operation.right, on, Work.ADMINISTRATION, body_bytes_max, audited=True)
    return read(on, body_bytes_max, memory_bytes=SCAN_BYTES if operation.large else 0, when_ready=True)


def _handler(node: Node, operation: Operation, owner: Owner) -> Callable[..., Any]:
    in_path, reads = names_in(operation.path), operation.right == "read"
    in_query: list[inspect.Parameter] = []
    body: list[inspect.Parameter] = []
    sent = {parameter.name: operation.sent.get(parameter.name, parameter.name) for parameter in operation.parameters}
    for parameter in operation.parameters:
        if sent[parameter.name] not in in_path:
            whole = operation.method in ("GET", "DELETE") or parameter.name in operation.query
            (in_query if whole else body).append(parameter)

    async def handler(request: Request, **received: Any) -> Any:
        if not reads:
            node.need_primary()
        received |= msgspec.structs.asdict(received.pop("body")) if body else {}
        arguments = {name: received[other] for name, other in sent.items()}
        act = getattr(owner(received), operation.name)
        thread = in_thread if not reads else in_large_thread if operation.large else in_short_thread
        result = plain(await thread(request, lambda: act(**arguments)))
        answer = {operation.answer: result} if operation.answer else result
        if not reads:
            changed = {**arguments, **(answer or {})}
            note_change(request, **{sent.get(name, name): value for name, value in changed.items()})
        return answer

    taken: dict[str, Any] = {"request": Request, **dict.fromkeys(in_path, str)}
    taken |= {sent[parameter.name]: _described(operation, parameter) for parameter in in_query}
    if body:
        fields = [(sent[field.name], _described(operation, field), _default(field)) for field in body]
        taken["body"] = _struct(operation, fields)
    defaults = {sent[parameter.name]: parameter.default for parameter in in_query}
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


def _default(parameter: inspect.Parameter) -> Any:
    return msgspec.NODEFAULT if parameter.default is inspect.Parameter.empty else parameter.default


def _struct(operation: Operation, fields: list[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """The type of the body that an operation takes."""
    return msgspec.defstruct(f"{_title(operation)}Request", fields, bases=(RequestBody,), kw_only=True)


def _answer(operation: Operation) -> type[msgspec.Struct]:
    """The type of an answer that is an object around the result."""
    return msgspec.defstruct(f"{_title(operation)}Response", [(operation.answer, operation.result)])


def _title(operation: Operation) -> str:
    return operation.name.title().replace("_", "")
