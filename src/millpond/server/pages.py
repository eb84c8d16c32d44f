"""The pages that show a node's routes: text of their own, which needs no script and no other machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from starlette.responses import HTMLResponse

from millpond.json_forms import to_json
from millpond.server.description import described
from millpond.server.dispatch import Application, Routes
from millpond.server.lakefs.dialect import LAKEFS
from millpond.server.routes.table import EVERYBODY

__all__ = ("routes",)

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }
details { border: 1px solid #d5dde5; border-radius: 6px; margin: .4rem 0; padding: .4rem .7rem }
summary { cursor: pointer } code, pre { font: 13px/1.4 ui-monospace, monospace } pre { overflow-x: auto }
table { border-collapse: collapse } td { border-top: 1px solid #d5dde5; padding: .15rem .6rem; vertical-align: top }
"""


def routes(app: Application) -> Routes:
    """`/docs` and `/docs/versions`, and the documents that they show."""
    router = Routes()

    @router.get("/openapi.json", EVERYBODY, hidden=True)
    def openapi() -> dict[str, Any]:
        return described(app.state.routes)

    @router.get("/openapi-versions.json", EVERYBODY, hidden=True)
    def openapi_of_versions() -> dict[str, Any]:
        return described(app.state.routes, LAKEFS)

    @router.get("/docs", EVERYBODY, hidden=True)
    def docs() -> HTMLResponse:
        return HTMLResponse("".join(_page(openapi(), "/openapi.json")))

    @router.get("/docs/versions", EVERYBODY, hidden=True)
    def docs_of_versions() -> HTMLResponse:
        return HTMLResponse("".join(_page(openapi_of_versions(), "/openapi-versions.json")))

    return router


def _page(document: Mapping[str, Any], url: str) -> Iterator[str]:
    """The page of a document, whose operations stand in the order of their tags."""
    title, schemas = escape(document["info"]["title"]), document["components"]["schemas"]
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    yield f"<h1>{title}</h1><p>{escape(document['info']['description'])}</p>"
    yield '<p><a href="/docs">maps and nodes</a>, <a href="/docs/versions">versions</a>, '
    yield f'<a href="{url}">in OpenAPI</a></p>'
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2><p>{escape(tag.get('description', ''))}</p>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(f"{method.upper()} {path}", operation)
    yield "<h2>Schemas</h2>"
    for name, schema in sorted(schemas.items()):
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>'


def _operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details><summary><code>{escape(name)}</code> {escape(operation['summary'])}</summary>"
    yield f"<p>{escape(operation['description'])}</p><table>"
    for parameter in operation.get("parameters", ()):
        cells = (parameter["name"], parameter["in"], parameter.get("description", ""))
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td>{_json(parameter['schema'])}</td></tr>"
    yield "</table>"
    for what in ("requestBody", "responses"):
        if what in operation:
            yield f"<h4>{what}</h4>{_json(operation[what])}"
    yield "</details>"


def _json(value: object) -> str:
    return f"<pre>{escape(to_json(value, indent=1).decode(), quote=False)}</pre>"
