"""Transfers that can be continued: a node that stops does not wait for their end.

A client that sends a part or fetches a file goes on where the connection was lost, here after the next start or at
another node. So a node that stops lets what is nearly done be done, and then cuts the rest off, however slow the
other end is.

uvicorn has no public way to do so, or to see what a connection is at. These names of its HTTP protocols (as of 0.54)
are used here, and `Server.server_state`, `shutdown`, `capture_signals` and `handle_exit` in `run.py`; another version
may name them otherwise, so the dependency needs an upper bound:

    connection.cycle                    the request that is being answered; None before the first
    connection.transport                of asyncio
    cycle.scope                         of ASGI, with the request's state
    cycle.more_body                     whether more of the request's body is to come
    cycle.response_started, .response_complete
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

__all__ = ("GRACE_SECONDS", "can_be_continued", "cut_off", "is_long")

GRACE_SECONDS = 1.0
"""The time that transfers have to end when the node stops."""
_MARK = "can_be_continued"


def can_be_continued(request: Request) -> None:
    """Say so of what is sent or fetched now."""
    request.scope.setdefault("state", {})[_MARK] = True


def is_long(scope: Scope) -> bool:
    """True for a request that said so."""
    return _MARK in scope.get("state", ())


def cut_off(connections: Iterable[Any]) -> int:
    """Close the connections of uvicorn over which such bytes still go, in either direction; how many those were."""
    count = 0
    for connection in list(connections):
        cycle = connection.cycle
        if cycle is None or cycle.response_complete or not cycle.scope.get("state", {}).get(_MARK):
            continue
        if cycle.more_body or cycle.response_started:
            connection.transport.abort()  # to close it politely would wait until the other end has read
            count += 1
    return count
