"""The acknowledgement of loads: without nodes that lag, with `nodes.write_to = "majority"`, see
`replication/answer_leases.py`; and for writers that may not send their token to all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("LOOK_SECONDS", "AcknowledgementWait", "begin_acknowledgement", "confirm")

LOOK_SECONDS = 0.1
"""While a lease runs out, so often the primary looks for the replica to have got the load after all."""


@dataclass(frozen=True, slots=True)
class AcknowledgementWait:
    """The wait until a load at a position may be acknowledged without the nodes that lack it."""

    node: Node
    position: int
    lacking: frozenset[str]

    def left_seconds(self) -> float:
        """The seconds that it takes, at most; 0 when it may be acknowledged, and when the node stops."""
        if self.node.stopping:
            return 0.0
        leases = self.node.follower.soundness.leases
        due = max((leases.due(url, self.position) for url in self.lacking), default=0.0)
        return max(due - self.node.clock.monotonic(), 0.0)


def begin_acknowledgement(node: Node, position: int, without: Sequence[str]) -> AcknowledgementWait:
    """Acknowledge a load at a position without some nodes, when that may be; called on the primary.

    Raises: `Conflict`, kind `write_to_all`; `Unavailable`, kind `too_few_nodes`, when most nodes lack the load; as
    `Node.need_primary`.
    """
    nodes, leases = node.follower.members.urls, node.follower.soundness.leases
    lacking = set(without) & set(nodes)
    if not leases.majority:
        raise Conflict(
            "a load needs every node of this pond", kind="write_to_all", node=node.url,
            hint='set write_to = "majority" on all nodes, or start those that are down',
        )  # fmt: skip
    if 2 * len(lacking) >= len(nodes):
        raise Unavailable(
            "most nodes lack the load", kind="too_few_nodes", position=position, without=", ".join(sorted(lacking)),
            hint="the load is entered, and reaches them by itself; loading the same data again is safe",
        )  # fmt: skip
    node.need_primary()
    leases.require(position)
    return AcknowledgementWait(node, position, frozenset(lacking))


def confirm(node: Node, question: Mapping[str, Any]) -> None:
    """Wait until nodes have a load, as `POST /v1/log/replication` of each says.

    Raises: as that; `Invalid`, kind `node_unknown`, for one that is no member.
    """
    body = {name: question[name] for name in ("position", "chain", "applied", "maps", "timeout")}
    for url in question["nodes"]:
        if url != node.url:
            node.follower.members.peer(url).replicate(body)
