"""`PUT /v1/parts/{id}/upload` without a detour: a small part is taken before anything is routed.

For a part of a mebibyte, finding the route, validating its parameters and handing the body over piece by piece takes
longer than writing the part. So a small part that is sent whole, as a stream, by a caller who may send it, is collected
and taken here, in one turn of one thread. Everything else goes on to the route of that path, which does the same and
more: parts that are continued, large ones, zips, and every request that is not well formed, which is described there.

Invariant: a request is passed on before any of its body is read, or answered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.errors import MillpondError, Unavailable
from millpond.json_forms import to_json
from millpond.maps.parts.stream import MEDIA_TYPE
from millpond.nodes.uploads.receiver import TURN_SECONDS, Receiver, UploadState
from millpond.nodes.uploads.session import UploadOffer
from millpond.nodes.uploads.whole import take_whole
from millpond.server.access import admit, share_in
from millpond.server.limits import count_work
from millpond.server.memory import MemoryBudget, Room
from millpond.server.routes.table import needs_of
from millpond.server.threads import in_thread
from millpond.server.transfers import mark_continuable
from millpond.server.wire import answer_failure, reporting_damage

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.dispatch import Application

__all__ = ("SMALL_BYTES", "taking_small_uploads")

SMALL_BYTES = 4 << 20
"""The largest part that is collected in memory; larger ones are written while they come."""
_BEFORE, _AFTER = "/v1/parts/", "/upload"
_PATH = f"{_BEFORE}{{part_id}}{_AFTER}"
_NEEDS = needs_of("PUT", _PATH)
_ROUTE = SimpleNamespace(path_format=_PATH, needs=_NEEDS)  # what metrics know the route by


def taking_small_uploads(quick: ASGIApp, app: Application, node: Node) -> ASGIApp:
    """The application `app`, by way of `quick`, which is called for all but small uploads."""
    silence = node.settings.read_timeout / 1000

    def small(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        wanted = scope["type"] == "http" and scope["method"] == "PUT" and not node.drain.active
        offer = _offer(scope, app) if wanted else None
        return quick(scope, receive, send) if offer is None else taking(offer, scope, receive, send)

    async def taking(offer: UploadOffer, scope: Scope, receive: Receive, send: Send) -> None:
        memory: MemoryBudget = app.state.memory
        with memory.room(share_in(Request(scope))) as room:
            if _fits(room, offer.length):
                scope["route"] = _ROUTE
                mark_continuable(scope)
                count_work(Request(scope))
                chunks = await _body(receive, silence)
                if chunks is None:
                    await Response(status_code=499)(scope, receive, send)  # nobody is there to read it
                else:
                    app.state.metrics.upload_bytes.inc(offer.length)
                    response = await _response(Request(scope), node, offer, chunks)
                    await response(scope, receive, send)
                return
        await quick(scope, receive, send)  # the route needs no room: it writes what comes at once

    return small


def _fits(room: Room, length: int) -> bool:
    try:
        room.need(length)
    except Unavailable:
        return False
    return True


def _offer(scope: Scope, app: Application) -> UploadOffer | None:
    """The offer of a request that is well formed and allowed; None for any other."""
    path: str = scope["path"]
    if not path.startswith(_BEFORE) or not path.endswith(_AFTER) or scope["query_string"]:
        return None
    headers = dict(scope["headers"])
    if headers.get(b"content-type") != MEDIA_TYPE.encode() or headers.get(b"upload-offset", b"0") != b"0":
        return None
    try:
        length, name = int(headers[b"content-length"]), headers[b"upload-map"].decode("ascii")
        whole = int(headers.get(b"upload-length", length))
        offer = UploadOffer(path[len(_BEFORE) : -len(_AFTER)], name, whole, headers[b"upload-checksum"].decode("ascii"))
        if not 0 < length == whole <= SMALL_BYTES:
            return None
        scope["app"] = app
        admit(Request(scope), _NEEDS)
    except (KeyError, ValueError, MillpondError):
        return None  # the route finds it again, and reports it
    return offer


async def _body(receive: Receive, silence: float) -> list[bytes] | None:
    """The body as the socket gives it; None when the sender is gone, or has said nothing for so many seconds."""
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(silence) as patience:
            loop = asyncio.get_running_loop()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return chunks
                patience.reschedule(loop.time() + silence)
    except TimeoutError:
        return None


async def _response(request: Request, node: Node, offer: UploadOffer, chunks: list[bytes]) -> Response:
    try:
        try:
            state = await anyio.to_thread.run_sync(_take, node.receiver, offer, chunks, 0.0)
        except Unavailable as error:
            if error.kind != "upload_busy":
                raise
            # Somebody else sends the part: threads that wait are not those that work.
            state = await in_thread(request, _take, node.receiver, offer, chunks, TURN_SECONDS)
    except Exception as error:
        return answer_failure(request, error)
    return Response(to_json(state), media_type="application/json")


def _take(receiver: Receiver, offer: UploadOffer, chunks: list[bytes], patience: float) -> UploadState:
    with reporting_damage():
        return take_whole(receiver, offer, chunks, patience)
