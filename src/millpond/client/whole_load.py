"""A small load in one request: the parts and the order to enter them, for a pond of one node.

A load of a few thousand rows is entered sooner than two requests are sent and answered. A pond of several nodes is sent
the parts first and the order then (`upload.py`): nothing may be entered before every node has the parts.

Invariant: the id of the load is the same in every attempt, also when the load goes on in several requests. So what was
entered is not entered twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from millpond.client.connections import Broken
from millpond.client.transport import Nodes, Outcome, Response
from millpond.client.upload import Advance, not_everywhere
from millpond.errors import MillpondError, Unavailable
from millpond.kernel.steps import step
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream

if TYPE_CHECKING:
    from millpond.maps.parts.part import PartFile

__all__ = ("send_whole",)

WHOLE_BYTES_MAX = 4 << 20
"""The size up to which a load is sent in one request."""
TEXT_BYTES_MAX = 2000
"""The names of source and stream travel in the head of the request."""
_ELSEWHERE = ("nodes_changed", "not_primary", "upload_busy", "route_not_found")
"""The kinds of error after which the load is sent in several requests: the list of nodes is another one, somebody else
sends a part, or the node is of an earlier release."""


def send_whole(
    nodes: Nodes, parts: Sequence[PartFile], *, load_id: str, source: str, rejected: int,
    stream: tuple[str, int] | None, advance: Advance | None,
) -> Response | None:  # fmt: skip
    """The primary's answer to a load that was sent with its parts; None: upload them, and then enter it.

    Raises: what is wrong with the parts, or with the right to bring them; `Unavailable`, kind `node_unreachable`, when
    an answer was lost, so that the load may be entered, and kind `load_not_everywhere`, when it is not.
    """
    if len(nodes.connections) != 1 or not nodes.take_whole_loads:
        return None
    streams = [PartStream(Path(part.folder)) for part in parts]
    size = sum(part.size for part in streams)
    texts = (source, "" if stream is None else stream[0])
    if size > WHOLE_BYTES_MAX or sum(len(quote(text)) for text in texts) > TEXT_BYTES_MAX:
        return None
    if len({part.manifest.id for part in parts}) < len(parts):
        return None
    query: dict[str, Any] = {"source": source, "rejected": rejected, "epoch": nodes.epoch}
    if stream is not None:
        query |= {"stream": stream[0], "stream_epoch": stream[1]}
    body = b"".join(chunk for part in streams for chunk in part.chunks())
    answer = _sent(nodes, f"/v1/loads/{quote(load_id, safe='')}", query, body)
    if answer is not None and advance is not None:
        advance(size, size)
    return answer


def _sent(nodes: Nodes, path: str, query: dict[str, Any], body: bytes) -> Response | None:
    node, arrived = nodes.primary(), False

    def ask() -> Response:
        nonlocal arrived
        try:
            return node.ask("PUT", path, query=query, body=body, headers={"Content-Type": MEDIA_TYPE})
        except Broken as error:
            arrived = arrived or error.sent
            raise

    try:
        answer = node.persist(ask)
    except MillpondError as error:
        if error.kind == "route_not_found":
            nodes.take_whole_loads = False
        if error.kind in _ELSEWHERE or nodes.relearn():
            return None
        if isinstance(error, Unavailable) and error.kind == "node_unreachable" and not arrived:
            raise not_everywhere([Outcome(node.url, None, error)]) from error
        raise
    step("upload.sent")
    return answer
