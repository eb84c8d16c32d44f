"""`PUT /v1/loads/{id}` without a detour: a small load that comes with its parts is entered before anything is routed.

As in `small_loads.py`, what is short, well formed and sent by a caller who may write is read and entered here, in one
turn of one thread. Everything else goes on to the route of that path, with the body that was read.

Invariant: what is answered here is answered by the route in the same words.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond.errors import MillpondError, Unavailable
from millpond.json_forms import plain, to_json
from millpond.maps.parts.stream import SEVERAL_MEDIA_TYPE, split_streams
from millpond.server.access import admit, caller_in, note_change, share_in
from millpond.server.limits import count_work
from millpond.server.memory import MemoryBudget
from millpond.server.routes.table import WHOLE_LOAD_BYTES_MAX, needs_of
from millpond.server.small_loads import body_of, heard_again
from millpond.server.wire import answer_failure, reporting_damage

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller
    from millpond.server.dispatch import Application

__all__ = ("LoadOrder", "bring_load", "taking_whole_loads")

_BEFORE = "/v1/loads/"
_PATH = f"{_BEFORE}{{load_id}}"
_NEEDS = needs_of("PUT", _PATH)
_ROUTE = SimpleNamespace(path_format=_PATH, needs=_NEEDS)  # what metrics and the audit log know the route by
_UNSAID = ("empty",)
"""Facts of a load that a node does not know."""


class LoadOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The query, as `routes/uploads.py` describes it."""

    source: str = ""
    rejected: int = 0
    stream: str | None = None
    stream_epoch: int = 0
    epoch: int = 0


def bring_load(node: Node, load: str, order: LoadOrder, body: bytes, caller: Caller) -> dict[str, Any]:
    """Enter a load with the streams of its parts; what the node answers.

    Raises: as `LoadCommit.bring`; `RequestError` when a part is damaged.
    """
    stream = None if order.stream is None else (order.stream, order.stream_epoch)
    with reporting_damage(), node.appending(order.epoch):
        result = node.load_commit.bring(
            load, split_streams(memoryview(body)), source=order.source, rejected=order.rejected, stream=stream,
            caller=caller,
        )  # fmt: skip
    found = {name: value for name, value in plain(result).items() if name not in _UNSAID}
    return found | {"chain": node.load_commit.chain_at(result.position)}


def taking_whole_loads(routed: ASGIApp, app: Application, node: Node) -> ASGIApp:
    """The application `app`, by way of `routed`, which is called for all but small loads with their parts."""
    silence = node.settings.read_timeout / 1000

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["type"] == "http" and scope["method"] == "PUT" and not node.drain.active
        order = _order(scope, app) if wanted else None
        if order is None:
            await routed(scope, receive, send)
            return
        memory: MemoryBudget = app.state.memory
        messages = []
        with memory.room(share_in(Request(scope))) as room:
            try:
                room.need(int(dict(scope["headers"])[b"content-length"]))
            except Unavailable:
                order = None  # the route says so
            else:
                messages = await body_of(receive, silence)
                if messages[-1]["type"] != "http.request":
                    order = None  # the sender is gone
            if order is not None:
                scope["route"] = _ROUTE
                request = Request(scope)
                count_work(request)
                body = b"".join(message.get("body", b"") for message in messages)
                app.state.metrics.upload_bytes.inc(len(body))
                response = await _response(request, node, order, body)
                await response(scope, receive, send)
        if order is None:
            await routed(scope, heard_again(messages, receive), send)

    return whole


def _order(scope: Scope, app: Application) -> LoadOrder | None:
    """The order of a request that is well formed and allowed; None for any other."""
    path: str = scope["path"]
    if not path.startswith(_BEFORE) or "/" in path[len(_BEFORE) :]:
        return None
    headers = dict(scope["headers"])
    if headers.get(b"content-type") != SEVERAL_MEDIA_TYPE.encode():
        return None
    try:
        if not 0 < int(headers[b"content-length"]) <= WHOLE_LOAD_BYTES_MAX:
            return None
        query = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
        order = msgspec.convert(dict(query), LoadOrder, strict=False)
        if len(dict(query)) < len(query) or min(order.rejected, order.stream_epoch, order.epoch) < 0:
            return None
        scope["app"] = app
        admit(Request(scope), _NEEDS)
    except (KeyError, ValueError, MillpondError):
        return None  # the route finds it again, and reports it
    return order


async def _response(request: Request, node: Node, order: LoadOrder, body: bytes) -> Response:
    load, caller = request.scope["path"][len(_BEFORE) :], caller_in(request)
    try:
        result = await anyio.to_thread.run_sync(bring_load, node, load, order, body, caller)
    except Exception as error:
        return answer_failure(request, error)
    note_change(request, load=result["load"], position=result["position"], rows=result["maps"])
    return Response(to_json(result), media_type="application/json")
