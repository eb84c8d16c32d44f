"""Health of a node: for monitoring, and for clients that look for the primary."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import JSONResponse

from millpond.json_forms import plain
from millpond.kernel.worker import WorkerStatus, workers
from millpond.nodes.node import Node
from millpond.nodes.replication.status import NodeStatus
from millpond.server.dispatch import Routes
from millpond.server.routes.table import EVERYBODY, OPERATOR, order
from millpond.server.wire import RequestBody, relative

__all__ = ("Alive", "DrainOrder", "NodeResponse", "Ready", "routes")


class Alive(msgspec.Struct):
    """The process answers; `workers` are the threads by which it works by itself, of all that runs in the process."""

    status: str
    workers: list[WorkerStatus]


class Ready(msgspec.Struct):
    """Readiness of the node for work, with the reasons when it is not."""

    ready: bool
    reasons: list[str]


class NodeResponse(msgspec.Struct):
    """The status document of a node."""

    id: str
    url: str
    version: str
    pond: Annotated[str, Meta(description="drawn once for a pond; all its nodes tell the same")]
    role: Annotated[str, Meta(description="primary, replica, or alone")]
    nodes: list[str]
    write_to: Annotated[str, Meta(description="the nodes that must have a load: all, or majority")]
    primary: str
    position: Annotated[int, Meta(description="the last position of its log")]
    chain: Annotated[str, Meta(description="the hash of everything up to there")]
    clock_ms: int
    ready: bool
    reasons: Annotated[list[str], Meta(description="the reasons for which it is not ready")]
    draining: bool
    clock_skews_ms: Annotated[
        dict[str, int], Meta(description="by how much the clock of each peer is ahead of its own")
    ]
    epoch: Annotated[int, Meta(description="of the list of nodes; 0: that of the settings")]
    leaving: Annotated[list[str], Meta(description="nodes that are being removed")]
    settings_differ: Annotated[
        bool, Meta(description="the setting `nodes.urls` names other nodes than the list, which counts")
    ]
    protocol: Annotated[int, Meta(description="of what nodes say to each other")]
    only_here: Annotated[
        list[str], Meta(description="what no replica has: repositories, streams of events, runs of workflows")
    ]
    not_backed_up: Annotated[list[str], Meta(description="what a backup has not, for it is in another place")]
    grpc_port: Annotated[int | None, Meta(description="where events and workflows are served; null: nowhere")]


class DrainOrder(RequestBody):
    """The order to take no new work, or to take it again."""

    draining: bool = True


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(tag="health")

    @router.head("/healthz", EVERYBODY, hidden=True)
    @router.get("/healthz", EVERYBODY, summary="Whether the process answers", answer=Alive)
    async def healthz() -> dict[str, Any]:
        # Everybody may ask: failures, which may name maps, are told by /v1/jobs.
        return {"status": "ok", "workers": [plain(replace(worker, failure=None)) for worker in workers()]}

    @router.head("/readyz", EVERYBODY, hidden=True)
    @router.get("/readyz", EVERYBODY, summary="Whether the node may be sent work", answer=Ready,
                responses={503: Ready})  # fmt: skip
    def readyz() -> JSONResponse:
        reasons = relative(node.reasons(), node.pond.folder)
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @router.get("/v1/node", EVERYBODY, summary="What this node is", answer=NodeResponse)
    def facts() -> dict[str, Any]:
        return dict(relative(node.facts(), node.pond.folder))

    @router.get("/v1/nodes/drain", OPERATOR, summary="Whether it is safe to stop the node", tag="nodes")
    def drained() -> dict[str, Any]:
        """`safe` is true when the node is drained and nothing runs any more."""
        return dict(plain(node.drain.status()))

    @router.post("/v1/nodes/drain", order(audited=False), summary="Take no new work, or take it again", tag="nodes")
    def drain(order: DrainOrder) -> dict[str, Any]:
        """Questions, uploads and changes are refused with 503; what runs goes on."""
        node.drain.active = order.draining
        return dict(plain(node.drain.status()))

    @router.post(
        "/v1/nodes/status", order(audited=False), summary="Exchange status with a peer", answer=NodeStatus, tag="nodes"
    )  # fmt: skip
    def exchange(status: NodeStatus) -> NodeStatus:
        """The caller is heard by this node, and this node by the caller."""
        return node.follower.survey.receive(status)

    return router
