"""Signing in with a token, which the browser keeps in a cookie that no script reads; and the files of the console."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millpond.console import asset
from millpond.errors import Denied, NotFound
from millpond.nodes.node import Node
from millpond.server.console.actions import COOKIE, check_origin
from millpond.server.console.pages import answered, pages
from millpond.server.dispatch import Routes
from millpond.server.routes.table import CREDENTIALS_BYTES_MAX, EVERYBODY, On, RouteNeeds, Work

__all__ = ("routes",)

SIGN_IN = RouteNeeds(None, On.NOTHING, Work.SMALL, CREDENTIALS_BYTES_MAX)
_DAY_SECONDS = 86_400
_IMMUTABLE = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


def routes(node: Node) -> Routes:
    """The routes of sign-in."""
    router = pages("/console")

    @router.get("/sign-in", EVERYBODY, summary="The page of sign-in")
    def show(request: Request, next: str = "/", ticket: str = "") -> Response:
        """With a `ticket`, which counts once, sign in at once: `millpond console` opens this."""
        token = request.app.state.tickets.pop(ticket, None)
        if token is not None or not node.tokens.required():
            return _signed_in(request, node, token or "", next)
        return answered(request, "sign-in", {"error": None, "next": _own(next)})

    @router.post("/sign-in", SIGN_IN, summary="Sign in")
    async def sign_in(request: Request) -> Response:
        """A token that is not known gets the page again."""
        check_origin(request)
        form = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
        return _signed_in(request, node, form.get("token", "").strip(), form.get("next", "/"))

    @router.post("/sign-out", SIGN_IN, summary="Sign out")
    async def sign_out(request: Request) -> Response:
        """Forget the cookie; the token stays."""
        check_origin(request)
        response = RedirectResponse("/console/sign-in", 303)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
        return response

    @router.get("/static/{file}", EVERYBODY, summary="A file of the console")
    def static(file: str, hash: str = "") -> Response:
        """Its address has its `hash`, so that it never changes."""
        del hash
        if (content := asset(file)) is None:
            raise NotFound("there is no such file", kind="route_not_found", path=file, hint="see /")
        return Response(content[0], headers=_IMMUTABLE, media_type=content[1])

    return router


def _signed_in(request: Request, node: Node, token: str, target: str) -> Response:
    try:
        node.tokens.caller(token)
    except Denied as error:
        return answered(request, "sign-in", {"error": error.message, "next": _own(target)}, status=401)
    response = RedirectResponse(_own(target), 303, {"Cache-Control": "no-store"})
    if node.tokens.required():
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, token, max_age=30 * _DAY_SECONDS, path="/", httponly=True, samesite="lax", secure=secure
        )
    return response


def _own(target: str) -> str:
    """A path of this node; the first page for any other target.

    >>> [_own(target) for target in ("/console/maps?prefix=w", "//evil.example", "https://evil.example", "/\\\\evil")]
    ['/console/maps?prefix=w', '/', '/', '/']
    """
    ours = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
    return target if ours else "/"
