"""How large a body may be before anybody looks at it: what is read whole into memory has a limit.

Uploads and questions in bulk have limits of their own, and are not read before it is known who asks.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.errors import Invalid
from millpond.server.wire import error_answer

__all__ = ("JSON_BYTES_MAX", "limited")

JSON_BYTES_MAX = 16 << 20
"""A load of a hundred thousand parts fits into it."""
_OWN_LIMITS = ("/upload", "/lookup")


def limited(app: ASGIApp) -> ASGIApp:
    """The application, which is sent no body that is too large."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(_OWN_LIMITS):
            await app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > JSON_BYTES_MAX:
            await error_answer(_too_large())(scope, receive, send)
            return
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > JSON_BYTES_MAX:
                raise _too_large()
            return message

        await app(scope, counted, send)

    return guarded


def _too_large() -> Invalid:
    return Invalid(
        "the body is larger than any that this route takes", kind="body_too_large", bytes_max=JSON_BYTES_MAX,
        hint="send less at once",
    )  # fmt: skip
