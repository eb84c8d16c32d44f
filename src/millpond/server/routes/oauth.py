"""Tokens for clients that speak OAuth 2.0: the client of workflows presents no other.

A client names a token and presents it, as RFC 6749 §4.4 has it; it gets the token back, to send it with each call. The
node draws nothing and remembers nothing: a token that is revoked or expires is refused with the next call.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote_plus

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millpond.errors import Denied
from millpond.json_forms import to_json
from millpond.nodes.node import Node
from millpond.server.dispatch import Routes
from millpond.server.routes.table import CREDENTIALS_BYTES_MAX, On, RouteNeeds, Work

__all__ = ("VALID_SECONDS", "AccessToken", "routes")

VALID_SECONDS = 3600
"""A client asks again after that."""
_HEADERS = {"Cache-Control": "no-store"}
_BODY: dict[str, Any] = {
    "application/x-www-form-urlencoded": {
        "schema": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("grant_type", "client_id", "client_secret")},
            "required": ["grant_type"],
        }
    }
}


class AccessToken(msgspec.Struct, kw_only=True):
    """The token to send with each call."""

    access_token: str
    token_type: str = "Bearer"
    expires_in: Annotated[int, Meta(description="in seconds")]


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(tag="nodes")

    @router.post(
        "/v1/oauth/token", RouteNeeds(None, On.NOTHING, Work.SMALL, CREDENTIALS_BYTES_MAX),
        summary="A token for a client that speaks OAuth 2.0", answer=AccessToken, body=_BODY,
    )  # fmt: skip
    async def token(request: Request) -> Response:
        """The grant is `client_credentials`; the id is the name of a token, the secret the token."""
        form = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
        if form.get("grant_type") != "client_credentials":
            return _refused(400, "unsupported_grant_type", "the grant is client_credentials")
        name, secret = _credentials(request.headers.get("authorization", ""), form)
        try:
            caller = node.tokens.caller(secret)
        except Denied as error:
            return _refused(401, "invalid_client", error.message)
        if node.tokens.required() and caller.name != name:
            return _refused(401, "invalid_client", "the client's id is the name of its token")
        granted = AccessToken(access_token=secret or "none", expires_in=VALID_SECONDS)
        return Response(to_json(granted), media_type="application/json", headers=_HEADERS)

    return router


def _credentials(authorization: str, form: dict[str, str]) -> tuple[str, str]:
    """The id and the secret of a client, of basic authentication or of the form."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return form.get("client_id", ""), form.get("client_secret", "")
    try:
        name, _, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return unquote_plus(name), unquote_plus(secret)


def _refused(status: int, error: str, reason: str) -> JSONResponse:
    """An error as RFC 6749 §5.2 has it."""
    headers = _HEADERS | ({"WWW-Authenticate": 'Basic realm="millpond"'} if status == 401 else {})
    return JSONResponse({"error": error, "error_description": reason}, status, headers)
