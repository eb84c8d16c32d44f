"""The caller of a request: a dependency of every route that needs a right.

    def maps(asking: RequestCaller) -> …:
        asking.need("read", name)

`RequestCaller` is the caller whom the `Authorization: Bearer …` header names, or anybody where no tokens are wanted.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from millpond.nodes.tokens import Caller, Tokens

__all__ = ("RequestCaller", "bearer_of", "caller_of", "check_caller")

_BEARER = HTTPBearer(auto_error=False, description="a token of this node, see `millpond token`")


async def caller_of(
    request: Request, shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
) -> Caller:
    """The caller of a request.

    Raises: `Denied` when nobody we know does.
    """
    tokens: Tokens = request.app.state.node.tokens
    return tokens.caller(shown.credentials if shown is not None else None)


def bearer_of(request: Request) -> str | None:
    """The token that a request shows."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" and token else None


async def check_caller(request: Request) -> None:
    """Insist that the caller is known, before any of its body is read.

    Raises: as `caller_of`.
    """
    await caller_of(request, await _BEARER(request))


RequestCaller = Annotated[Caller, Depends(caller_of)]
