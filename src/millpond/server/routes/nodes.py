"""Routes of the list of nodes.

| route | answers |
|---|---|
| `POST /v1/nodes/promote` | when another node is the primary; sent to the primary, or without it to that node |
| `POST /v1/nodes/add` | when a node that was level is a member; sent to the primary |
| `POST /v1/nodes/remove` | when a node is no member any more; sent to the primary |
| `POST /v1/nodes/promise` | the promise to follow a candidate, which asks for it |
| `POST /v1/nodes/confirmation` | when other nodes have a load; for writers that may not ask those themselves |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.errors import Invalid
from millpond.nodes.acknowledgement import confirm
from millpond.nodes.changes import ListChange
from millpond.nodes.membership.fence import Promise
from millpond.nodes.node import Node
from millpond.nodes.promotion import give_promise, promote_without_primary
from millpond.nodes.tokens import Caller
from millpond.server.access import note_change
from millpond.server.dispatch import Routes
from millpond.server.routes.table import ORDER_BYTES_MAX, On, RouteNeeds, Work, order
from millpond.server.thread_limits import in_thread
from millpond.server.wire import POSITION_MAX, RequestBody

__all__ = ("Confirmation", "NodeOrder", "Promised", "PromiseOrder", "PromoteOrder", "RemoveOrder", "routes")

Url = Annotated[str, Meta(max_length=1024, pattern=r"^https?://[^\s,]+$")]


class NodeOrder(RequestBody):
    """An order about one node."""

    url: Annotated[Url, Meta(description="its address, as it stands in `nodes.urls`")]


class PromoteOrder(NodeOrder):
    """The body of `POST /v1/nodes/promote`."""

    without_primary: Annotated[
        bool, Meta(description="the primary is lost; sent to the node that is to be the primary")
    ] = False


class RemoveOrder(NodeOrder):
    """The body of `POST /v1/nodes/remove`."""

    lost: Annotated[bool, Meta(description="a person knows that the node is off for good, and answers nothing")] = False


class PromiseOrder(RequestBody):
    """The body of `POST /v1/nodes/promise`."""

    epoch: Annotated[int, Meta(ge=1, le=POSITION_MAX)]
    candidate: Url


class Confirmation(RequestBody, kw_only=True):
    """The body of `POST /v1/nodes/confirmation`."""

    position: Annotated[int, Meta(ge=0, description="of the load")]
    chain: Annotated[str, Meta(description="of the entry there")]
    nodes: Annotated[list[Url], Meta(max_length=100)]
    applied: Annotated[bool, Meta(description="wait until it is merged there, too")] = False
    maps: Annotated[list[str], Meta(description="those of the load")]
    timeout: Annotated[float, Meta(ge=0, le=600, description="seconds")] = 20.0


class Promised(msgspec.Struct):
    """The answer to a candidate."""

    granted: bool
    epoch: Annotated[int, Meta(description="of the list that the node has")]
    promised: Annotated[int, Meta(description="the latest epoch that it promised")]
    position: int
    chain: str
    remembers: Annotated[int, Meta(description="the position that the candidate once confirmed")]


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1/nodes", tag="nodes")

    @router.post("/promote", order(), summary="Make another node the primary", answer=ListChange)
    async def promote(request: Request, order: PromoteOrder) -> ListChange:
        """The primary hands over when the node has every entry. Loads wait meanwhile, and go on at the new primary."""
        url = _noted(request, order.url)
        if not order.without_primary:
            return await in_thread(request, node.changes.promote, url)
        if url != node.url:
            raise Invalid(
                "a promotion without the primary is ordered at the node that is to be it", kind="node_other",
                node=url, here=node.url, hint="send the order there",
            )  # fmt: skip
        return await in_thread(request, promote_without_primary, node)

    @router.post("/add", order(), summary="Make a node that is level a member", answer=ListChange)
    async def add(request: Request, order: NodeOrder) -> ListChange:
        """503 `node_not_level` until it has everything: ask again."""
        return await in_thread(request, node.changes.add, _noted(request, order.url))

    @router.post("/remove", order(), summary="Take a node out of the pond", answer=ListChange)
    async def remove(request: Request, order: RemoveOrder) -> ListChange:
        """Its copy is no longer waited for, and it answers nothing any more."""
        return await in_thread(request, _remove, node, _noted(request, order.url), order.lost)

    @router.post("/promise", order(), summary="Promise to follow a candidate", answer=Promised)
    async def promise(request: Request, order: PromiseOrder) -> dict[str, Any]:
        """Asked by a node that is promoted without the primary; from then on nothing of the old primary is entered."""
        promised = Promise(order.epoch, _noted(request, order.candidate))
        return await in_thread(request, give_promise, node, promised)

    @router.post(
        "/confirmation", RouteNeeds("write", On.ANY_MAP, Work.ADMINISTRATION, ORDER_BYTES_MAX),
        summary="Wait until other nodes have a load",
    )  # fmt: skip
    async def confirmation(request: Request, confirmed: Confirmation, caller: Caller) -> dict[str, int]:
        """For a writer that may send its token to this node only."""
        caller.need_all("write", confirmed.maps)
        await in_thread(request, confirm, node, msgspec.structs.asdict(confirmed))
        return {"position": confirmed.position}

    return router


def _noted(request: Request, url: str) -> str:
    note_change(request, node=url)
    return url.rstrip("/")


def _remove(node: Node, url: str, lost: bool) -> ListChange:
    return node.changes.remove(url, lost=lost)
