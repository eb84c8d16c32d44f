"""The description of the API of versions, in OpenAPI: each route, its right, and the names in its path.

Its bodies and answers are those that the clients of lakeFS know; `docs/versions.md` tells what there is besides.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from millpond.server.lakefs.table import PREFIX
from millpond.server.routes.table import RouteNeeds

if TYPE_CHECKING:
    from millpond.server.lakefs.api import Api, ApiRoute

__all__ = ("described",)

_NAMES = re.compile(r"\{(\w+)\}")
_ODD = re.compile(r"\W+")
_ABOUT = (
    "Repositories of objects: branches, staging, commits, merges. The clients of lakeFS use these routes as they are, "
    "and `millpond.open` those besides. Where tokens are on, each request carries an access key and its secret, or a "
    "token with `admin` on everything. [The routes of maps and nodes](/docs)."
)
_ERROR = {
    "description": "an error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}  # fmt: skip


def described(api: Api, openapi: str) -> dict[str, Any]:
    """All routes; `openapi` is the version of its words."""
    paths: dict[str, dict[str, Any]] = {}
    for route in api.routes:
        paths.setdefault(route.path_format, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": openapi,
        "info": {"title": "Millpond node: versions", "version": version("millpond"), "description": _ABOUT},
        "tags": [{"name": name} for name in dict.fromkeys(map(_room, api.routes))],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": {"type": "object", "properties": {"message": {"type": "string"}}}},
            "securitySchemes": {
                "pair": {"type": "http", "scheme": "basic"}, "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }  # fmt: skip


def _room(route: ApiRoute) -> str:
    return route.handler.__module__.rpartition(".")[2].replace("_", " ")


def _operation(route: ApiRoute) -> dict[str, Any]:
    name = route.handler.__name__.lstrip("_")
    unique = _ODD.sub("_", f"{route.method.lower()}{route.path_format.removeprefix(PREFIX)}").strip("_")
    operation: dict[str, Any] = {
        "tags": [_room(route)], "operationId": unique,
        "summary": name.replace("_", " ").capitalize(), "description": _description(route),
        "parameters": [
            {"name": found, "in": "path", "required": True, "schema": {"type": "string"}}
            for found in _NAMES.findall(route.path_format.removeprefix(PREFIX))
        ],
        "responses": {"2XX": {"description": "done"}, "4XX": _ERROR, "5XX": _ERROR},
    }  # fmt: skip
    if route.needs.right is not None:
        operation["security"] = [{"pair": []}, {"token": []}]
    if route.needs.body_bytes_max != 0:
        media = "application/json" if route.plain and route.needs.body_bytes_max else "application/octet-stream"
        schema = {"type": "object"} if media == "application/json" else {"type": "string", "format": "binary"}
        operation["requestBody"] = {"content": {media: {"schema": schema}}}
    return operation


def _description(route: ApiRoute) -> str:
    said = " ".join((route.handler.__doc__ or "").split())
    return f"{said}\n\n{_right(route.needs)}".strip()


def _right(needs: RouteNeeds) -> str:
    if needs.right is None:
        return "Needs no pair."
    return f"Needs the right `{needs.right}` on {needs.on.value}."
