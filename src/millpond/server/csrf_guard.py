"""Requests that a web page makes: refused on a node without tokens, where nothing else would stop them.

A browser on the node's machine reaches its loopback address, and so does a script of any page that it shows. Such a
script can send a request that changes something (`Origin` names the page), or have its own name resolve to 127.0.0.1
and read the answers, too (`Host` names the page's host). Where tokens are wanted, a page has none to send.

Invariants:
* `Host` is a name of the loopback interface, or that of an address in `server.url`, `server.host` or `nodes.urls`;
* `Origin`, where a browser sends one, is the node itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.errors import Denied
from millpond.nodes.node import Node, is_loopback
from millpond.server.metrics import Metrics
from millpond.server.wire import error_answer

__all__ = ("Origin", "checking_origin", "origin_of")

Origin = Callable[[Scope], Denied | None]
"""The error for a request that a foreign page makes."""


def origin_of(node: Node, urls: Iterable[str] = ()) -> Origin:
    """The check of a node's requests; `urls` are those of all nodes."""
    named = frozenset(filter(None, (urlsplit(url).hostname for url in (node.url, *urls)))) | {node.settings.server.host}

    def error_of(scope: Scope) -> Denied | None:
        error = _foreign(scope, named)
        return None if error is None or node.tokens.required() else error

    return error_of


def checking_origin(app: ASGIApp, origin: Origin, metrics: Metrics) -> ASGIApp:
    """The application, called only for requests that no foreign page makes."""

    def checked(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        error = origin(scope) if scope["type"] == "http" else None
        if error is None:
            return app(scope, receive, send)
        metrics.count_refused("http", error.kind)
        return error_answer(error)(scope, receive, send)

    return checked


def _foreign(scope: Scope, named: frozenset[str]) -> Denied | None:
    host = origin = None
    for name, value in scope["headers"]:
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
    if host is not None and not _is_ours(host, named):
        return Denied(
            "the request is for another host than this node", kind="host_foreign", host=host,
            hint="use the address in `server.url` or `nodes.urls`, or 127.0.0.1; or have the node want tokens",
        )  # fmt: skip
    if origin is not None and origin != f"{scope['scheme']}://{host}":
        return Denied(
            "the request comes from a page of another site", kind="origin_foreign", origin=origin,
            hint="pages of other sites may not use a node without tokens",
        )  # fmt: skip
    return None


@lru_cache(maxsize=256)
def _is_ours(host: str, named: frozenset[str]) -> bool:
    try:
        hostname = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return hostname is not None and (hostname in named or is_loopback(hostname))
