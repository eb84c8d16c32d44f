"""Health of a node: for monitoring, and for clients that look for the primary."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from millpond.json_forms import plain
from millpond.nodes.node import Node
from millpond.nodes.replication.status import NodeStatus
from millpond.server.limits import GuardedRoute
from millpond.server.wire import relative

__all__ = ("Alive", "DrainOrder", "NodeResponse", "PeerStatus", "Ready", "routes")


class Alive(BaseModel):
    """The process answers."""

    status: str


class Ready(BaseModel):
    """Readiness of the node for work, with the reasons when it is not."""

    ready: bool
    reasons: list[str]


class NodeResponse(BaseModel):
    """The status document of a node."""

    id: str
    url: str
    version: str
    pond: str = Field(description="drawn once for a pond; all its nodes tell the same")
    role: str = Field(description="primary, replica, or alone")
    nodes: list[str]
    write_to: str = Field(description="the nodes that must have a load: all, or majority")
    primary: str
    position: int = Field(description="the last position of its log")
    chain: str = Field(description="the hash of everything up to there")
    clock_ms: int
    ready: bool
    reasons: list[str] = Field(description="the reasons for which it is not ready")
    draining: bool
    clock_skews_ms: dict[str, int] = Field(description="by how much the clock of each peer is ahead of its own")
    epoch: int = Field(description="of the list of nodes; 0: that of the settings")
    leaving: list[str] = Field(description="nodes that are being removed")
    settings_differ: bool = Field(description="the setting `nodes` names other nodes than the list, which counts")
    protocol: int = Field(description="of what nodes say to each other")
    only_here: list[str] = Field(description="what no replica has: repositories, streams of events, runs of workflows")
    not_backed_up: list[str] = Field(description="what a backup has not, for it is in another place")


class DrainOrder(BaseModel):
    """The order to take no new work, or to take it again."""

    draining: bool = True


class PeerStatus(BaseModel):
    """The status that a peer sends, and is answered with."""

    url: str = Field(max_length=1024)
    pond: str
    position: int = Field(ge=0, lt=1 << 63)
    chain: str
    sound: bool = Field(description="it has every load that was acknowledged")
    clock_ms: int
    nodes: list[str] = []
    remembers: int = Field(0, ge=0, lt=1 << 63, description="the position that the receiver once confirmed")
    lease: bool = Field(False, description="the receiver may answer for `lag_limit`")
    protocol: int = Field(1, ge=1, description="nodes that are more than one apart refuse each other")
    epoch: int = Field(0, ge=0, lt=1 << 63, description="of the list of nodes")
    leaving: list[str] = []
    promised: int = Field(0, ge=0, lt=1 << 63, description="the epoch that the node promised to a candidate")
    level: bool = Field(False, description="a node that is no member has everything that it needs to be one")


def routes(node: Node) -> APIRouter:
    """The routes of one node."""
    router = APIRouter(route_class=GuardedRoute, tags=["health"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Whether the process answers", response_model=Alive)
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Whether the node may be sent work", response_model=Ready,
                responses={503: {"model": Ready}})  # fmt: skip
    def readyz() -> JSONResponse:
        reasons = relative(node.reasons(), node.pond.folder)
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @router.get("/v1/node", summary="What this node is", response_model=NodeResponse)
    def facts() -> dict[str, Any]:
        return dict(relative(node.facts(), node.pond.folder))

    @router.get("/v1/nodes/drain", summary="Whether it is safe to stop the node", tags=["nodes"])
    def drained() -> dict[str, Any]:
        """`safe` is true when the node is drained and nothing runs any more."""
        return dict(plain(node.drain.status()))

    @router.post("/v1/nodes/drain", summary="Take no new work, or take it again", tags=["nodes"])
    def drain(order: DrainOrder) -> dict[str, Any]:
        """Questions, uploads and changes are refused with 503; what runs goes on."""
        node.drain.active = order.draining
        return dict(plain(node.drain.status()))

    @router.post("/v1/nodes/status", summary="Exchange status with a peer", response_model=PeerStatus, tags=["nodes"])
    def exchange(status: PeerStatus) -> dict[str, Any]:
        """The caller is heard by this node, and this node by the caller."""
        return node.follower.survey.receive(NodeStatus.from_dict(status.model_dump())).to_dict()

    return router
