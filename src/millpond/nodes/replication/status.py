"""The status that nodes exchange: `POST /v1/nodes/status` sends one and answers with the other's.

Nodes of different releases exchange it, too. `PROTOCOL` is the number of what nodes say to each other, and nodes that
are more than one apart refuse each other: so a release needs to understand itself and the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import Conflict, Invalid
from millpond.json_forms import FormError, JsonForm
from millpond.maps.log.node_list import NodeList
from millpond.nodes.membership.fence import Word

__all__ = ("LISTS_PROTOCOL", "PROTOCOL", "NodeStatus", "check_protocol")

PROTOCOL = 2
"""1: nodes before the list of nodes was in the log; they send no number. 2: `epoch`, `promised`, entries `nodes`."""
LISTS_PROTOCOL = 2
"""The first protocol whose nodes understand a list in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The status of a node. `remembers` is the position that the receiver of the status once confirmed to it.

    `lease` lets the receiver, a replica, answer for `nodes.lag_limit`: see `leases.py`. `epoch`, `nodes` and `leaving`
    are the list of nodes that it has, `promised` the epoch of its last promise. `level`: a node that is no member has
    merged what it entered.
    """

    url: str
    pond: str
    position: int
    chain: str
    sound: bool
    clock_ms: int
    nodes: tuple[str, ...] = ()
    remembers: int = 0
    lease: bool = False
    protocol: int = 1
    epoch: int = 0
    leaving: tuple[str, ...] = ()
    promised: int = 0
    level: bool = False

    @property
    def word(self) -> Word:
        """The part of it that the fence hears."""
        return Word(NodeList(self.epoch, self.nodes, self.leaving), self.promised, self.sound)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form, read back by `from_dict`."""
        payload: dict[str, Any] = _FORM.plain(self)
        return payload

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> NodeStatus:
        """Parse the dict written by `to_dict`; fields of later versions are ignored.

        Raises: `Invalid` when it is not understood.
        """
        try:
            return _FORM.build({name: value for name, value in payload.items() if name in cls.__dataclass_fields__})
        except FormError as error:
            raise Invalid("the status of a node is not understood", kind="node_status", reason=error) from error


_FORM = JsonForm(NodeStatus)


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
