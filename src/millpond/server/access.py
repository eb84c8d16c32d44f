"""The decision about a request: its caller, and the right that its route needs.

    route ─▶ its needs ─▶ caller of the token ─▶ right on the map that path, query or header name ─▶ body

A handler with a parameter of type `Caller` gets the caller: to check maps which only the body names, or to answer with
what the caller may read. On a node without tokens it is `ANYBODY`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.types import Scope

from millpond.events.names import StreamName
from millpond.nodes.rate_limits import RateLimits
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.routes.table import On, RouteNeeds, Work
from millpond.server.stream_rights import need_stream

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = (
    "admit",
    "audit",
    "bearer_of",
    "caller_in",
    "may_read_all",
    "need_right",
    "note_change",
    "pair_in",
    "put_caller",
    "share_in",
    "share_of",
    "take_turn",
    "while_admitted",
)

_CALLER, _COUNTED, _NOTES = "millpond.caller", "millpond.counted", "millpond.notes"


def bearer_of(request: Request) -> str | None:
    """The token of a request."""
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token if scheme.lower() == "bearer" and token else None
    return None


def pair_in(scheme: str, credentials: str) -> tuple[str, str] | None:
    """The name and the secret of basic authentication; None where there is none."""
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, secret = base64.b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:  # also what is no base64
        return None
    return (name, secret) if colon else None


def admit(request: Request, needs: RouteNeeds) -> None:
    """Check the right that a route needs; nothing of the body is read. Where no right is needed, tokens are ignored.

    Raises: `Denied`; as `Tokens.caller` and `take_turn`.
    """
    if needs.right is None:
        put_caller(request, ANYBODY)
        return
    node: Node = request.app.state.node
    caller = node.tokens.caller(bearer_of(request))
    put_caller(request, caller)
    if needs.work is not Work.ADMINISTRATION:
        take_turn(request.scope, caller, node.rate_limits)
    need_right(request, caller, needs)


def need_right(request: Request, caller: Caller, needs: RouteNeeds) -> None:
    """Insist on the right that a route needs on what the request names.

    Raises: `Denied`.
    """
    assert needs.right is not None
    match needs.on:
        case On.POND:
            caller.need(needs.right)
        case On.JOB_SET:
            need_stream(caller, needs.right, StreamName(request.path_params["queue"], request.path_params["id"]))
        case On.MAP:
            caller.need(needs.right, request.path_params["name"])
        case On.QUERY_MAP | On.QUERY_MAP_OR_POND if "map" in request.query_params:
            caller.need(needs.right, request.query_params["map"])
        case On.STREAM:
            query = request.query_params
            need_stream(caller, needs.right, StreamName(query.get("queue", ""), query.get("job_set", "")))
        case On.QUERY_MAP_OR_POND:
            caller.need("admin")
        case On.HEADER_MAP if "upload-map" in request.headers:
            caller.need(needs.right, request.headers["upload-map"])
        case On.TENANT:
            caller.need_tenant(needs.right, request.query_params.get("tenant", "default"))
        case On.ANY_TENANT:
            caller.need_somewhere(needs.right, "tenant")
        case On.ANY_STREAM:
            caller.need_somewhere(needs.right, "stream")
        case _:
            caller.need_somewhere(needs.right)


def take_turn(scope: Scope, caller: Caller, limits: RateLimits) -> None:
    """Count a request towards the limit of its token, once. Callers of a node without tokens have no limit.

    Raises: as `RateLimits.need`.
    """
    if caller is ANYBODY or scope.get(_COUNTED):
        return
    limits.need(caller.name)
    scope[_COUNTED] = True


def put_caller(request: Request, caller: Caller) -> None:
    """Note the caller of a request, for its endpoint and for the audit log."""
    request.scope[_CALLER] = caller


async def while_admitted(request: Request, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The pieces of an answer that lasts, as long as its sender would be let in.

    Raises: as the route's `admit`, such as `Denied` once the token was revoked or has expired.
    """
    route = request.scope.get("route")
    async with aclosing(pieces):
        async for piece in pieces:
            if route is not None:
                route.dialect.admit(request, route.needs)
            yield piece


def share_of(caller: Caller) -> str | None:
    """The name under which a caller shares limits with others; None on a node without tokens."""
    return None if caller is ANYBODY else caller.name


def share_in(request: Request) -> str | None:
    """The same, of the caller of a request that was admitted."""
    return share_of(caller_in(request))


def note_change(request: Request, **values: Any) -> None:
    """Say more about a change in its line of the audit log."""
    request.scope.setdefault(_NOTES, {}).update(values)


def audit(node: Node, scope: Scope, status: int) -> None:
    """Write the line of the audit log about a request, if it is a change."""
    needs: RouteNeeds | None = getattr(scope.get("route"), "needs", None)
    if needs is not None and needs.audited:
        caller: Caller | None = scope.get(_CALLER)
        name = None if caller is None else caller.name
        node.audit.write(name, scope["method"], scope["path"], status, **scope.get(_NOTES, {}))


def may_read_all(request: Request) -> bool:
    """True when the caller of a request is known and may read every map."""
    caller: Caller | None = request.scope.get(_CALLER)
    return caller is not None and caller.may("read")


def caller_in(request: Request) -> Caller:
    """The caller of a request that was admitted."""
    caller: Caller = request.scope[_CALLER]
    return caller
