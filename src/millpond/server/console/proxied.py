"""Sign-in by a reverse proxy: it names its user in a header, and the settings name the header and its addresses.

| request | user |
|---|---|
| with a bearer token | of the token; the header says nothing |
| with the header, from a proxy that the settings name | the name in it, once, printable; else the request is refused |
| with the header, from anybody else | as without it |

Invariant: the sender is the other end of the connection, never what a header says of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.errors import Denied
from millpond.server.forwarded import peer_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from millpond.nodes.node import Node

__all__ = ("proxied_user",)


def proxied_user(request: Request) -> str | None:
    """The user that a trusted proxy names; None when none does.

    Raises: `Denied`, kind `user_header`, for a header that names nobody, or several.
    """
    node: Node = request.app.state.node
    header, proxies = node.settings.server.user_header, node.settings.server.user_proxies
    names = request.headers.getlist(header) if header else []
    if not names or not _trusted(peer_of(request.scope), proxies):
        return None
    try:
        name = names[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        name = ""
    if len(names) != 1 or not name or not name.isprintable():
        raise Denied(
            "the proxy does not name one user", kind="user_header", header=header, values=shown(", ".join(names)),
            hint="let it set the header once, in place of what its client sent",
        )  # fmt: skip
    return name


def _trusted(peer: str | None, proxies: Sequence[str]) -> bool:
    """True for the address of a proxy.

    >>> [_trusted(peer, ["10.1.0.0/16", "::1"]) for peer in ("10.1.2.3", "::ffff:10.1.2.3", "::1")]
    [True, True, True]
    >>> [_trusted(peer, ["10.1.0.0/16", "::1"]) for peer in ("10.2.0.1", None, "x")]
    [False, False, False]
    """
    try:
        address = ip_address(peer or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in _networks(tuple(proxies)))


@lru_cache(maxsize=16)
def _networks(proxies: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    return [ip_network(proxy) for proxy in proxies]
