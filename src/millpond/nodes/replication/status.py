"""The status that nodes exchange: `POST /v1/nodes/status` sends one and answers with the other's.

Nodes of different releases exchange it, too. `PROTOCOL` is the number of what nodes say to each other, and nodes that
are more than one apart refuse each other: so a release needs to understand itself and the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from millpond.errors import Conflict, Invalid
from millpond.maps.log.node_list import NodeList
from millpond.nodes.membership.fence import Word

__all__ = ("LISTS_PROTOCOL", "PROTOCOL", "NodeStatus", "check_protocol")

PROTOCOL = 2
"""1: nodes before the list of nodes was in the log; they send no number. 2: `epoch`, `promised`, entries `nodes`."""
LISTS_PROTOCOL = 2
"""The first protocol whose nodes understand a list in the log."""


_Position = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that a node sends to another, and is answered with. Fields of later versions are ignored."""

    url: Annotated[str, Meta(max_length=1024)]
    pond: str
    position: _Position
    chain: str
    sound: Annotated[bool, Meta(description="it has every load that was acknowledged")]
    clock_ms: int
    nodes: tuple[str, ...] = ()
    remembers: Annotated[_Position, Meta(description="the position that the receiver once confirmed")] = 0
    lease: Annotated[bool, Meta(description="the receiver, a replica, may answer for `nodes.lag_limit`")] = False
    protocol: Annotated[int, Meta(ge=1, description="nodes that are more than one apart refuse each other")] = 1
    epoch: Annotated[_Position, Meta(description="of the list of nodes that it has")] = 0
    leaving: tuple[str, ...] = ()
    promised: Annotated[_Position, Meta(description="the epoch that the node promised to a candidate last")] = 0
    level: Annotated[bool, Meta(description="a node that is no member has merged what it entered")] = False

    @property
    def word(self) -> Word:
        """The part of it that the fence hears."""
        return Word(NodeList(self.epoch, self.nodes, self.leaving), self.promised, self.sound)

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> NodeStatus:
        """The status that another node answered with.

        Raises: `Invalid` when it is not understood.
        """
        try:
            return msgspec.convert(payload, cls)
        except msgspec.ValidationError as error:
            raise Invalid("the status of a node is not understood", kind="node_status", reason=error) from error


def check_protocol(own: int, status: NodeStatus) -> None:
    """Insist that a peer's release is at most one apart from this one.

    Raises: `Conflict`, kind `protocol_apart`.
    """
    if abs(own - status.protocol) > 1:
        raise Conflict(
            "the releases of two nodes are too far apart", kind="protocol_apart", node=status.url,
            protocol=status.protocol, own=own,
            hint="nodes understand the release before theirs: upgrade all nodes one release at a time",
        )  # fmt: skip
