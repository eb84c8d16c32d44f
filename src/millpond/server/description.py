"""The description of a node's routes in OpenAPI 3.1: each route, its right, its parameters, body and answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args

import msgspec
from starlette.responses import Response

from millpond.server.dialect import OWN, Dialect
from millpond.server.dispatch import Route
from millpond.server.parameters import Field, names_in

__all__ = ("described", "in_openapi")

_JSON = "application/json"
Schemas = Callable[[Any], dict[str, Any]]


def described(routes: Iterable[Route], dialect: Dialect = OWN) -> dict[str, Any]:
    """The document of all routes of a dialect that are shown."""
    shown = [route for route in routes if route.dialect is dialect and not route.facts.hidden]
    types = [dialect.error, *(type_ for route in shown for type_ in _types(route))]
    forms, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(map(id, types), forms, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        operation = _operation(route, lambda type_: dict(schemas[id(type_)]))
        paths.setdefault(in_openapi(route.path), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": dialect.title, "version": version("millpond"), "description": dialect.about},
        "tags": [{"name": name, "description": words} for name, words in dialect.tags.items()],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": dialect.security},
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
    """True for a type that becomes JSON: none of a response, of nothing, or of a description that is one already."""
    parts = get_args(type_) if isinstance(type_, UnionType) else (type_,)
    responses = any(isinstance(part, type) and issubclass(part, Response) for part in parts)
    return not responses and not isinstance(type_, dict) and type_ not in (NoneType, NoReturn)


def _operation(route: Route, schema: Schemas) -> dict[str, Any]:
    needs, taken = route.needs, route.taken
    path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names_in(route.path)
    ]
    right = "Needs no right." if needs.right is None else f"Needs the right `{needs.right}` on {needs.on.value}."
    said = " ".join((route.handler.__doc__ or "").split())
    operation: dict[str, Any] = {
        "tags": list(route.facts.tags), "summary": _summary(route), "description": f"{said}\n\n{right}".strip(),
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [
            *path, *_fields(taken.query, "query", schema), *_fields(taken.headers, "header", schema),
            *route.facts.parameters,
        ],
        "responses": {
            **_answers(route, schema), **dict.fromkeys(("4XX", "5XX"), _json("an error", schema(route.dialect.error))),
        },
    }  # fmt: skip
    if needs.right is not None:
        operation["security"] = [{way: []} for way in route.dialect.security]
    if taken.body is not None:
        content = {_JSON: {"schema": schema(taken.body.type)}}
        operation["requestBody"] = {"required": taken.body.default is msgspec.NODEFAULT, "content": content}
    elif route.facts.body is not None:
        operation["requestBody"] = {"required": True, "content": route.facts.body}
    elif needs.body_bytes_max:  # clients send one, which is not looked at
        operation["requestBody"] = {"content": {_JSON: {"schema": {"type": "object"}}}}
    return operation


def _summary(route: Route) -> str:
    return route.facts.summary or route.handler.__name__.replace("_", " ").strip().capitalize()


def _fields(fields: Iterable[Field], location: str, schema: Schemas) -> list[dict[str, Any]]:
    described_fields = []
    for field in fields:
        shown, required = schema(field.type), field.default is msgspec.NODEFAULT
        default = {} if required or field.default is None else {"default": field.default}
        described_fields.append({
            "name": field.name.replace("_", "-") if location == "header" else field.name, "in": location,
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
