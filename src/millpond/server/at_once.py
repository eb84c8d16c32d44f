"""`GET /v1/maps/{name}/get` without a detour: a cached answer is sent before anything is routed.

For one value, finding the route, working out its parameters and handing the question to a thread takes longer than the
answer. So whatever can be answered well and at once is answered here. Everything else goes on to the route of that
path, which answers the same to the same question: a map that is not open, a value that lies on the disk, and every
error, which is found again there and described.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.errors import Invalid
from millpond.json_forms import to_json
from millpond.nodes.fast_get import FastGet
from millpond.server.access import take_turn
from millpond.server.limits import parameter_unknown
from millpond.server.routes.table import needs_of
from millpond.server.same_map import incarnation_of

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("answering_at_once", "request_in", "key_of")

_BEFORE, _AFTER = "/v1/maps/", "/get"
_PARAMETERS = frozenset(("key", "key_hex", "at"))
_RIGHT = needs_of("GET", f"{_BEFORE}{{name}}{_AFTER}").right or ""
_TEMPLATE = SimpleNamespace(path_format=f"{_BEFORE}{{name}}{_AFTER}")  # what metrics know the route by


def answering_at_once(app: ASGIApp, node: Node) -> ASGIApp:
    """The application, called only for what is not cached."""
    cached = FastGet(node.pond, node.clock)

    def quick(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        name = _name(scope)
        body = _answer(name, scope, node, cached) if name and node.answers else None
        if body is None:
            return app(scope, receive, send)
        scope["route"] = _TEMPLATE
        return _send(body, send)

    return quick


async def _send(body: bytes, send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _name(scope: Scope) -> str | None:
    """The map of a question for one value; None for any other request."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    path: str = scope["path"]
    if not path.startswith(_BEFORE) or not path.endswith(_AFTER):
        return None
    name = path[len(_BEFORE) : -len(_AFTER)]
    return None if "/" in name else name


def _answer(name: str, scope: Scope, node: Node, cached: FastGet) -> bytes | None:
    try:
        caller = node.tokens.caller(_token(scope))
        caller.need(_RIGHT, name)
        take_turn(scope, caller, node.rate_limits)
        answer = cached.get(name, *request_in(scope), incarnation=incarnation_of(scope["headers"]))
    except Exception:
        return None  # the route finds it again, and tells it
    return None if answer is None else to_json(answer)


def _token(scope: Scope) -> str | None:
    """The token that is shown, as `server/access.py` reads it."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token if scheme.lower() == "bearer" and token else None
    return None


def request_in(scope: Scope) -> tuple[str | bytes, str | None]:
    """The key, and the time, that a query asks for.

    Raises: `Invalid` when there is none, or one that is not understood or not known.
    """
    try:
        query = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise Invalid(
            "the query is no UTF-8", kind="query_encoding",
            hint="escape text as UTF-8, such as key=%C3%A9; say key_hex=… for bytes that are no text",
        ) from None  # fmt: skip
    except ValueError as error:
        raise Invalid("the query is not understood", kind="query_encoding", reason=str(error)) from None
    for name in query.keys() - _PARAMETERS:
        raise parameter_unknown(name, _PARAMETERS)
    return key_of(query.get("key"), query.get("key_hex")), query.get("at")


def key_of(key: str | None, key_hex: str | None) -> str | bytes:
    """The key, given in one way or the other.

    Raises: `Invalid` when it is not.
    """
    if key is not None:
        return key
    try:
        if key_hex is not None:
            return bytes.fromhex(key_hex)
    except ValueError:
        pass
    raise Invalid("no key is asked for", kind="key_missing", hint="say key=…, or key_hex=… for bytes that are no text")
