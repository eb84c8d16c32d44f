"""The decision about a request: its caller, and the right that its route needs.

    route ─▶ row in `route_table.py` ─▶ caller of the token ─▶ right on the map that path, query or header name ─▶ body

`RequestCaller` is the caller, for endpoints that check maps which only the body names, or that answer with what the
caller may read. On a node without tokens it is `ANYBODY`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from millpond.nodes.tokens import ANYBODY, Caller, Tokens
from millpond.server.route_table import On, RouteNeeds

__all__ = ("BEARER", "RequestCaller", "admit", "bearer_of", "caller_of")

BEARER = HTTPBearer(auto_error=False, description="a token of this node, see `millpond token`")
"""The scheme as the OpenAPI document shows it."""
_CALLER = "millpond.caller"


def bearer_of(request: Request) -> str | None:
    """The token of a request."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" and token else None


def admit(request: Request, needs: RouteNeeds) -> None:
    """Check the right that a route needs; nothing of the body is read. Where no right is needed, tokens are ignored.

    Raises: `Denied`; as `Tokens.caller`.
    """
    if needs.right is None:
        request.scope[_CALLER] = ANYBODY
        return
    tokens: Tokens = request.app.state.node.tokens
    caller = tokens.caller(bearer_of(request))
    request.scope[_CALLER] = caller
    match needs.on:
        case On.POND:
            caller.need(needs.right)
        case On.MAP:
            caller.need(needs.right, request.path_params["name"])
        case On.QUERY_MAP | On.QUERY_MAP_OR_POND if "map" in request.query_params:
            caller.need(needs.right, request.query_params["map"])
        case On.QUERY_MAP_OR_POND:
            caller.need("admin")
        case On.HEADER_MAP if "upload-map" in request.headers:
            caller.need(needs.right, request.headers["upload-map"])
        case _:
            caller.need_somewhere(needs.right)


async def caller_of(request: Request) -> Caller:
    """The caller of a request that was admitted."""
    caller: Caller = request.scope[_CALLER]
    return caller


RequestCaller = Annotated[Caller, Depends(caller_of)]
