"""The description of a node's routes in OpenAPI 3.1: each route, its right, its parameters, body and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response

from millpond.server.dispatch import Route
from millpond.server.parameters import Field, names_in
from millpond.server.wire import ErrorResponse

__all__ = ("described", "in_openapi")

_JSON = "application/json"
_ABOUT = (
    "State that data pipelines need: uploads, maps, snapshots, questions, maintenance.\n\n"
    "Commands, `millpond.open`, Spark and the nodes themselves use these routes. Where tokens are on, each request "
    "carries one: `Authorization: Bearer …`. Errors are JSON objects with a stable `kind`, what it is about, and the "
    "way out. Repositories of objects have [a page of their own](/docs/versions)."
)
_TAGS = {
    "maps": "What there is, and making, altering and dropping it.",
    "loads": "Sending parts, and entering them as one load.",
    "questions": "Values of keys, and rows. Arrow streams in and out.",
    "snapshots": "Frozen maps, to be fetched and asked elsewhere.",
    "parts": "Parts that wait, were merged, or were quarantined.",
    "events": "Streams of events.",
    "jobs": "What the node does by itself, and maintenance.",
    "nodes": "What nodes ask each other.",
    "health": "How the node stands.",
}
Schemas = Callable[[Any], dict[str, Any]]


def described(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of all routes that are shown."""
    shown = [route for route in routes if not route.facts.hidden]
    types = [ErrorResponse, *(type_ for route in shown for type_ in _types(route))]
    forms, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(map(id, types), forms, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        operation = _operation(route, lambda type_: dict(schemas[id(type_)]))
        paths.setdefault(in_openapi(route.path), {})[route.method.lower()] = operation
    token = {"type": "http", "scheme": "bearer", "description": "a token of this node, see `millpond token`"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millpond node", "version": version("millpond"), "description": _ABOUT},
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": token}},
    }


def in_openapi(template: str) -> str:
    """The template of a route as OpenAPI writes it.

    >>> in_openapi("/objects/{file:path}")
    '/objects/{file}'
    """
    return template.replace(":path}", "}")


def _types(route: Route) -> list[Any]:
    """The types of a route that have a schema: of its parameters, its body, its answers."""
    taken = route.taken
    types = [field.type for field in (*taken.query, *taken.headers, *([taken.body] if taken.body else ()))]
    return types + [type_ for type_ in (route.answer, *route.facts.responses.values()) if _has_schema(type_)]


def _has_schema(type_: Any) -> bool:
    return not isinstance(type_, dict) and not (isinstance(type_, type) and issubclass(type_, Response))


def _operation(route: Route, schema: Schemas) -> dict[str, Any]:
    needs, taken = route.needs, route.taken
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names_in(route.path)
    ]
    right = "Needs no token." if needs.right is None else f"Needs the right `{needs.right}` on {needs.on.value}."
    said = " ".join((route.handler.__doc__ or "").split())
    operation: dict[str, Any] = {
        "tags": list(route.facts.tags), "summary": route.facts.summary, "description": f"{said}\n\n{right}".strip(),
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [
            *path, *_fields(taken.query, "query", schema), *_fields(taken.headers, "header", schema),
            *route.facts.parameters,
        ],
        "responses": {
            **_answers(route, schema), **dict.fromkeys(("4XX", "5XX"), _json("an error", schema(ErrorResponse))),
        },
    }  # fmt: skip
    if needs.right is not None:
        operation["security"] = [{"token": []}]
    if taken.body is not None:
        content = {_JSON: {"schema": schema(taken.body.type)}}
        operation["requestBody"] = {"required": taken.body.default is msgspec.NODEFAULT, "content": content}
    elif route.facts.body is not None:
        operation["requestBody"] = {"required": True, "content": route.facts.body}
    return operation


def _fields(fields: Iterable[Field], place: str, schema: Schemas) -> list[dict[str, Any]]:
    described_fields = []
    for field in fields:
        shown, required = schema(field.type), field.default is msgspec.NODEFAULT
        default = {} if required or field.default is None else {"default": field.default}
        described_fields.append({
            "name": field.name.replace("_", "-") if place == "header" else field.name, "in": place,
            "required": required, "description": shown.pop("description", ""), "schema": shown | default,
        })  # fmt: skip
    return described_fields


def _answers(route: Route, schema: Schemas) -> dict[str, Any]:
    shown = {
        str(status): {"description": "done", **answer}
        if isinstance(answer, dict)
        else _json("otherwise", schema(answer))
        for status, answer in route.facts.responses.items()
    }
    if _has_schema(route.answer):
        shown[str(route.facts.status)] = _json("done", schema(route.answer))
    return {str(route.facts.status): {"description": "done"}, **shown}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {_JSON: {"schema": schema}}}
