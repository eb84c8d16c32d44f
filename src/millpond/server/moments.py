"""Moments of a pond in a bucket: so that who wrote through one node reads that through another, behind any balancer.

    answer of any node   ──▶ Millpond-Moment: 7431 ──▶ the client keeps the greatest
    request to any node  ◀── Millpond-Moment: 7431 ◀── and sends it along

A node whose copy of the pond is older asks the bucket before it answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from millpond.client.moments import MOMENT_HEADER
from millpond.errors import Invalid

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from millpond.nodes.node import Node

__all__ = ("come_up", "show_moment")


async def come_up(request: Request) -> None:
    """Take in what the bucket has, if the copy of it here is older than the moment that a request names.

    Raises: `Invalid`, kind `request_invalid`, for what is no moment; `Unavailable` when the bucket does not answer.
    """
    node: Node = request.app.state.node
    text = request.headers.get(MOMENT_HEADER)
    if node.bucket is None or text is None:
        return
    if not (text.isdigit() and len(text) < 20):
        raise Invalid("this is no moment of a pond", kind="request_invalid", header=MOMENT_HEADER, value=text,
                      hint="send the number that a node of the pond answered, or leave it out")  # fmt: skip
    if node.bucket.space.moment < int(text):
        await run_sync(node.bucket.space.come_up, int(text))


def show_moment(node: Node, response: Response) -> None:
    """Say of an answer from which moment on it holds."""
    if node.bucket is not None:
        response.headers[MOMENT_HEADER] = str(node.bucket.space.moment)
