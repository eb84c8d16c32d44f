"""The acknowledgement of loads without nodes that lag, with `write_to = "majority"`: see `replication/leases.py`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("acknowledge",)

LOOK_SECONDS = 0.1
"""While a lease runs out, so often the primary looks for the replica to have got the load after all."""


def acknowledge(node: Node, position: int, without: Sequence[str]) -> None:
    """Wait until a load at a position may be acknowledged without some nodes; called on the primary.

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
    never = threading.Event()
    for url in lacking:
        while not node.stopping and node.clock.monotonic() < (due := leases.due(url, position)):
            node.clock.wait(never, min(due, node.clock.monotonic() + LOOK_SECONDS))
    node.need_primary()  # it may have ceased to be it meanwhile
