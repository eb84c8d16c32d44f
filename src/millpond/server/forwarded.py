"""Requests that a proxy hands on, with the address and the scheme of its client in `X-Forwarded-For` and `-Proto`.

uvicorn reads them of every request, and first looks whether the sender may say so. Here it is called for those requests
alone that have such a header.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

__all__ = ("behind_proxies", "peer_of")

_PEER = "millpond.peer"
_HEADERS = (b"x-forwarded-for", b"x-forwarded-proto")


def behind_proxies(app: ASGIApp, trusted: list[str] | str) -> ASGIApp:
    """The application, which sees the clients of proxies at the trusted addresses."""
    believing = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, app), trusted))

    def handed_on(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            for name, _ in scope["headers"]:
                if name in _HEADERS:
                    scope[_PEER] = scope.get("client")
                    return believing(scope, receive, send)
        return app(scope, receive, send)

    return handed_on


def peer_of(scope: Scope) -> str | None:
    """The address from which the connection of a request comes, whatever proxies say of their clients."""
    peer = scope.get(_PEER, scope.get("client"))
    return None if peer is None else peer[0]
