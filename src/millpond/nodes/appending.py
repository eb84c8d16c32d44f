"""Appending to the log of a node: `with node.appending(): …`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.errors import Conflict

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("Appending",)


class Appending:
    """The leave to append to the log of one node: no change of the list of nodes comes between."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @contextmanager
    def __call__(self, epoch: int | None = None) -> Iterator[None]:
        """Append within. `epoch`: of the caller's list.

        Raises: as `Node.need_primary`; `Conflict`, kind `nodes_changed`, when the caller has another list.
        """
        node = self._node
        with node.gate.passing():
            node.need_primary()
            current = node.follower.members.current
            if epoch is not None and epoch != current.epoch:
                raise Conflict(
                    "the list of nodes is another one", kind="nodes_changed", epoch=current.epoch,
                    nodes=",".join(current.nodes), hint="take the list from GET /v1/node, and ask again; programs of "
                    "an earlier release must be upgraded first",
                )  # fmt: skip
            yield
