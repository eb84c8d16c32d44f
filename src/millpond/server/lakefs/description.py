"""The description of the API of versions, in OpenAPI: each route, its right, its parameters, body and answer."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args, get_origin

from millpond.server.lakefs.bodies import body_type
from millpond.server.lakefs.operations import parameters, split_answer
from millpond.server.lakefs.routes.bulk import LINES
from millpond.server.lakefs.routes.objects import ARROW
from millpond.server.lakefs.schemas import ANSWERS, reference_to, schema_of
from millpond.server.lakefs.table import PREFIX, ROWS
from millpond.server.routes.table import RouteNeeds

if TYPE_CHECKING:
    from millpond.server.lakefs.api import Api, ApiRoute

__all__ = ("described",)

_NAMES = re.compile(r"\{(\w+)\}")
_ODD = re.compile(r"\W+")
_BYTES = ("application/octet-stream",)
_STREAMED = {"bulk": (ARROW, *LINES), "dumps": ("application/x-ndjson",)}
"""The media types of bodies that are streamed, by the module of their handler."""
_ABOUT = (
    "Repositories of objects: branches, staging, commits, merges. The clients of lakeFS use these routes as they are, "
    "and `millpond.open` those besides. Where tokens are on, each request carries an access key and its secret, or a "
    "token with `admin` on everything. [The routes of maps and nodes](/docs)."
)
_ERROR = {
    "description": "an error",
    "content": {"application/json": {"schema": reference_to("Error")}},
}  # fmt: skip


def described(api: Api) -> dict[str, Any]:
    """All routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in api.routes:
        paths.setdefault(route.path_format, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.0.3",
        "info": {"title": "Millpond node: versions", "version": version("millpond"), "description": _ABOUT},
        "tags": [{"name": name} for name in dict.fromkeys(map(_room, api.routes))],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": ANSWERS | _bodies(api),
            "securitySchemes": {
                "pair": {"type": "http", "scheme": "basic"}, "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }  # fmt: skip


def _room(route: ApiRoute) -> str:
    return route.handler.__module__.rpartition(".")[2].replace("_", " ")


def _schema_name(type_: Any) -> str:
    """The name of the schema of a body: that of its class, which is another one than that of any answer."""
    return f"{type_.__module__.rpartition('.')[2].title().replace('_', '')}{type_.__name__.lstrip('_')}"


def _bodies(api: Api) -> dict[str, Any]:
    """The schemas of all bodies, by their names."""
    types = (_item_type(body_type(route.handler)) for route in api.routes)
    return {_schema_name(type_): schema_of(type_) for type_ in types if type_ is not None}


def _item_type(type_: Any) -> Any:
    return get_args(type_)[0] if get_origin(type_) is list else type_


def _operation(route: ApiRoute) -> dict[str, Any]:
    name = route.handler.__name__.lstrip("_")
    path = route.path_format.removeprefix(PREFIX)
    _, query, answer = ROWS[route.method, path]
    operation: dict[str, Any] = {
        "tags": [_room(route)], "operationId": _ODD.sub("_", f"{route.method.lower()}{path}").strip("_"),
        "summary": name.replace("_", " ").capitalize(), "description": _description(route),
        "parameters": [
            *(
                {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for parameter in _NAMES.findall(path)
            ),
            *parameters(query),
        ],
        "responses": {**_answer(answer, part=route.method == "HEAD"), "4XX": _ERROR, "5XX": _ERROR},
    }  # fmt: skip
    if route.needs.right is not None:
        operation["security"] = [{"pair": []}, {"token": []}]
    if route.needs.body_bytes_max != 0:
        operation["requestBody"] = {"content": _body(route)}
    return operation


def _answer(answer: str, *, part: bool) -> dict[str, Any]:
    """The answers to a request that succeeds; `part`: also to one for a range of the bytes, without them."""
    status, content = split_answer(answer)
    if not status:
        return {}
    if not content:
        return {code: {"description": "done"} for code in ((status, "206") if part else (status,))}
    if "/" in content:
        streamed = {"content": {content: {"schema": {"type": "string"}}}}
        ranged = {"206": {"description": "a range of the bytes"} | streamed} if content in _BYTES else {}
        return {status: {"description": "done"} | streamed, **ranged}
    return {status: {"description": "done", "content": {"application/json": {"schema": reference_to(content)}}}}


def _body(route: ApiRoute) -> dict[str, Any]:
    """The media types that a body may have, each with its schema."""
    type_ = body_type(route.handler)
    if type_ is None and route.plain:
        return {"application/json": {"schema": {"type": "object"}}}
    if type_ is None:
        return {
            media: {"schema": {"type": "string", "format": "binary"}} for media in _STREAMED.get(_room(route), _BYTES)
        }
    schema = reference_to(_schema_name(_item_type(type_)))
    return {
        "application/json": {"schema": schema if type_ is _item_type(type_) else {"type": "array", "items": schema}}
    }


def _description(route: ApiRoute) -> str:
    said = " ".join((route.handler.__doc__ or "").split())
    return f"{said}\n\n{_right(route.needs)}".strip()


def _right(needs: RouteNeeds) -> str:
    if needs.right is None:
        return "Needs no pair."
    return f"Needs the right `{needs.right}` on {needs.on.value}."
