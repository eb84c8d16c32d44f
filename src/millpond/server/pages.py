"""The pages that show a node's routes, from files of their own: they work without the internet.

Their assets (`swagger_ui_bundle`) read OpenAPI 3.0. What FastAPI writes is 3.1, so the few words that differ are
put in the older way; what they mean stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from millpond.server.lakefs.description import described as described_versions
from millpond.server.limits import GuardedRoute
from millpond.server.routes.table import ROUTES

__all__ = ("in_older_words", "in_openapi", "routes")

OPENAPI = "3.0.3"
_ASSETS = "/docs/assets"
_ABOUT = (
    "Commands, `millpond.open`, Spark and the nodes themselves use these routes. Where tokens are on, each request "
    "carries one: `Authorization: Bearer …`. Errors are JSON objects with a stable `kind`, what it is about, and the "
    "way out. Repositories of objects have [a page of their own](/docs/versions)."
)
_TAGS = [
    {"name": "maps", "description": "What there is, and making, altering and dropping it."},
    {"name": "loads", "description": "Sending parts, and entering them as one load."},
    {"name": "questions", "description": "Values of keys, and rows. Arrow streams in and out."},
    {"name": "snapshots", "description": "Frozen maps, to be fetched and asked elsewhere."},
    {"name": "parts", "description": "Parts that wait, were merged, or were quarantined."},
    {"name": "jobs", "description": "What the node does by itself, and maintenance."},
    {"name": "nodes", "description": "What nodes ask each other."},
    {"name": "health", "description": "How the node stands."},
]


def routes(app: FastAPI) -> APIRouter:
    """`/docs` and `/docs/versions` with their files, and the documents that they show."""
    router = APIRouter(route_class=GuardedRoute)
    assets = StaticFiles(directory=str(swagger_ui_path))

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, summary=app.summary, description=app.description,
                routes=app.routes, tags=_TAGS,
            )  # fmt: skip
            document["openapi"] = OPENAPI
            for path, method, operation in _operations(document):
                operation["description"] = _needs_in_words(method, path, operation.get("description", ""))
            document["info"]["description"] = f"{document['info'].pop('summary', '')}\n\n{_ABOUT}".strip()
            app.openapi_schema = in_older_words(document)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(await run_in_threadpool(app.openapi))

    @router.get(f"{_ASSETS}/{{file:path}}", include_in_schema=False)
    async def asset(request: Request, file: str) -> Response:
        return await assets.get_response(file, request.scope)

    @router.get("/openapi-versions.json", include_in_schema=False)
    async def versions() -> JSONResponse:
        return JSONResponse(described_versions(app.state.versions_api, OPENAPI))

    def shown(url: str) -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=url, title=app.title, swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS}/swagger-ui.css", swagger_favicon_url=f"{_ASSETS}/favicon-32x32.png",
            swagger_ui_parameters={"defaultModelsExpandDepth": 0, "displayRequestDuration": True},
        )  # fmt: skip

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return shown("/openapi.json")

    @router.get("/docs/versions", include_in_schema=False)
    async def docs_of_versions() -> HTMLResponse:
        return shown("/openapi-versions.json")

    @router.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse("/docs")

    return router


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _needs_in_words(method: str, path: str, said: str) -> str:
    [needs] = [needs for (verb, template), needs in ROUTES.items() if (verb, in_openapi(template)) == (method, path)]
    right = "Needs no token." if needs.right is None else f"Needs the right `{needs.right}` on {needs.on.value}."
    return f"{said}\n\n{right}".strip()


def in_openapi(template: str) -> str:
    """The template of a route as OpenAPI writes it.

    >>> in_openapi("/objects/{file:path}")
    '/objects/{file}'
    """
    return template.replace(":path}", "}")


def in_older_words(schema: Any) -> Any:
    """A description in OpenAPI 3.1 in the words of 3.0.

    >>> in_older_words({"anyOf": [{"type": "string"}, {"type": "null"}], "examples": ["a"]})
    {'type': 'string', 'nullable': True, 'example': 'a'}
    """
    if isinstance(schema, list):
        return [in_older_words(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = dict(schema)
    _write_null(schema)
    words = {name: in_older_words(value) for name, value in schema.items()}
    if isinstance(words.get("examples"), list):
        first, *_ = words.pop("examples")
        words["example"] = first
    if "const" in words:
        words["enum"] = [words.pop("const")]
    if "prefixItems" in words:
        kinds = words.pop("prefixItems")
        words["items"] = {"anyOf": kinds}
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(words.get(bound), int | float) and not isinstance(words[bound], bool):
            words[limit], words[bound] = words[bound], True
    if words.pop("contentMediaType", None):
        words["format"] = "binary"
    return words


def _write_null(words: dict[str, Any]) -> None:
    """`null` is no type of 3.0, but a property of others."""
    options = words.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        left = [option for option in options if option != {"type": "null"}]
        del words["anyOf"]
        words["nullable"] = True
        if len(left) > 1:
            words["anyOf"] = left
        elif "$ref" in left[0]:
            words["allOf"] = left  # beside a reference nothing else is read
        else:
            for name, value in left[0].items():
                words.setdefault(name, value)
    elif words.get("type") == "null":
        del words["type"]
        words["nullable"] = True
