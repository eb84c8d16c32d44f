"""The status that nodes exchange: `POST /v1/nodes/status` sends one and answers with the other's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import Invalid
from millpond.json_forms import FormError, JsonForm

__all__ = ("NodeStatus",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The status of a node. `remembers` is the position that the receiver of the status once confirmed to it.

    `lease` lets the receiver, a replica, answer for `lag_limit`: see `leases.py`.
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
