"""The dialect of the console: the right comes from a cookie or a token, an answer is a page or its data.

    request ─▶ token of `Authorization`, user of a proxy, or cookie ─▶ right of the route ─▶ data ─▶ template ─▶ page
                    │ none, expired                                        │ missing           └─▶ JSON, if wanted
                    ▼                                                      ▼
              page of sign-in                                        page of the error

Invariants:
* the cookie counts for these routes alone; those that change something want the secret of a form (`actions.py`);
* a page may load what this node sends, and run no script but the console's files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from millpond.console import rendered
from millpond.json_forms import parse_object, to_json
from millpond.nodes.node import Node
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.access import bearer_of, need_right, put_caller, take_turn
from millpond.server.console.actions import COOKIE, PROXIED, allowed, secret_of
from millpond.server.console.proxied import proxied_user
from millpond.server.dialect import OWN, Dialect
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import need as need_repository
from millpond.server.refused import refused_part
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.wire import answer_failure

__all__ = ("COOKIE", "CONSOLE", "PAGE_ROWS", "SIGNED_IN", "answered", "pages", "wants_json")

PAGE_ROWS: Final = 50
"""The rows of a page of a list."""
SIGNED_IN = RouteNeeds("read", On.NOTHING, Work.SMALL)
"""The need of pages that show each caller what it may see."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store", "Vary": "Accept, Cookie",
}  # fmt: skip
_PAGES = (
    ("o", "/", "Overview", None), ("m", "/console/maps", "Maps", "map"),
    ("v", "/console/versions", "Versions", "repo"), ("e", "/console/events", "Events", "stream"),
    ("r", "/console/runs", "Runs", "tenant"), ("w", "/console/workflows", "Workflows", "tenant"),
    ("j", "/console/jobs", "Jobs", "*"), ("s", "/console/sql", "SQL", "map"),
)  # fmt: skip
"""The key of each page, its path and name, and the kind of things on which its caller needs a right."""


def wants_json(request: Request) -> bool:
    """True for a request that prefers data to a page."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def answered(
    request: Request, template: str, values: Mapping[str, Any], drawn: Mapping[str, Any] | None = None,
    status: int = 200,
) -> Response:  # fmt: skip
    """The answer of a page: its values as JSON, or in its template together with what is drawn of them."""
    if wants_json(request):
        return Response(to_json(values), status, HEADERS, "application/json")
    frame = {"frame": _frame(request), "drawn": drawn or {}}
    return HTMLResponse(rendered(template, {**values, **frame}), status, HEADERS)


def _frame(request: Request) -> dict[str, Any]:
    """The frame of a page: the pages that its caller may see."""
    caller: Caller | None = request.scope.get("millpond.caller")
    if caller is None or request.url.path == "/console/sign-in":
        return {"nav": (), "here": "", "user": None, "proxied": False, "secret": ""}
    bucket = request.app.state.node.bucket is not None
    shown = [
        (key, path, name) for key, path, name, kind in _PAGES
        if (kind is None or caller.patterns("read", kind)) and not (bucket and refused_part(path))
    ]  # fmt: skip
    here = max((path for _, path, _ in shown if request.url.path.startswith(path)), key=len, default="")
    user = None if caller is ANYBODY else caller.name
    return {"nav": shown, "here": here, "user": user, "proxied": PROXIED in request.scope, "secret": secret_of(request)}


def _admit(request: Request, needs: RouteNeeds) -> None:
    """Check the right that a route needs; nothing of the body is read.

    Raises: `Denied`; as `Tokens.caller` and `take_turn`.
    """
    if needs.right is None:
        put_caller(request, ANYBODY)
        return
    node: Node = request.app.state.node
    caller = _caller(request, node)
    put_caller(request, caller)
    take_turn(request.scope, caller, node.rate_limits)
    match needs.on:
        case On.NOTHING:
            pass
        case On.REPOSITORY:
            need_repository(caller, needs.right, request.path_params["repository"])
        case On.ANY_REPOSITORY:
            caller.need_somewhere(needs.right, "repo")
        case On.BODY_BRANCH:
            repository = request.path_params["repository"]
            if not allowed(caller, needs.right, On.BODY_BRANCH, repository):
                raise caller.denied(needs.right, f"repo:{repository}")
        case _:
            need_right(request, caller, needs)


def _caller(request: Request, node: Node) -> Caller:
    token = bearer_of(request)
    user = proxied_user(request) if token is None else None
    if user is None:
        return node.tokens.caller(token or request.cookies.get(COOKIE))
    request.scope[PROXIED] = user
    return node.tokens.caller_named(user)


def _failed(request: Request, error: BaseException) -> Response:
    """The page of an error; of a caller that is not known, the page of sign-in."""
    return _page_of(request, answer_failure(request, error))


def _unrouted(request: Request, methods: Collection[str]) -> Response:
    return _page_of(request, OWN.unrouted(request, methods))


def _page_of(request: Request, failure: Response) -> Response:
    if wants_json(request):
        return failure
    if failure.status_code == 401 and request.method == "GET":
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/console/sign-in?{urlencode({'next': here})}", 303)
    page = answered(request, "error", {"error": parse_object(bytes(failure.body))}, status=failure.status_code)
    for name in ("Retry-After", "Allow"):
        if name in failure.headers:
            page.headers[name] = failure.headers[name]
    return page


CONSOLE = Dialect(
    title="Millpond console", about="Pages for people.", tags=OWN.tags, security=OWN.security, error=OWN.error,
    admit=_admit, failed=_failed, unrouted=_unrouted,
    strict=lambda _request: True,
)  # fmt: skip
pages = partial(Routes, tag="console", dialect=CONSOLE)
"""The routes of a module of the console."""
