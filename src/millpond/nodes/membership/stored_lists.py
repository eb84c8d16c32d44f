"""The list of nodes and the promise of one node, as its space stores them.

Invariants:
* a promise is on the disk before it is given;
* a primary that hands over cannot append after the entry that does it, see `maps/log/node_list.py`.
"""

from __future__ import annotations

from operator import attrgetter

from millpond.errors import Conflict, Corrupt
from millpond.json_forms import JsonForm
from millpond.kernel.head import Heads
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.log.apply import record
from millpond.maps.log.log import Entry
from millpond.maps.log.node_list import NodeList, node_list, set_handed_over
from millpond.maps.model.keyspaces import HANDED_OVER, PROMISE
from millpond.nodes.membership.fence import Promise
from millpond.pond import Pond

__all__ = ("StoredLists",)


def _damaged(_name: str, reason: object) -> Corrupt:
    return Corrupt("the promise of the node cannot be read", kind="node_promise", reason=reason)


_FORM = JsonForm(Promise)
_HEADS: Heads[Promise] = Heads(_FORM.decode, _FORM.encode, attrgetter("epoch"), _damaged)


class StoredLists:
    """The list and the promise of one pond's folder."""

    def __init__(self, pond: Pond) -> None:
        self._pond = pond

    def current(self) -> NodeList | None:
        """The list of the log; None when the setting `nodes.urls` counts."""
        with self._pond.space.read() as tx:
            return node_list(tx)

    def promise(self) -> Promise:
        """The last promise.

        Raises: `Corrupt` when it cannot be read.
        """
        with self._pond.space.read() as tx:
            return _HEADS.read(tx, PROMISE.pack()) or Promise()

    def put_promise(self, promise: Promise) -> None:
        """Store a promise, which is of a later epoch than the one there, or is that one."""
        self._pond.space.write(lambda tx: _HEADS.put(tx, PROMISE.pack(), promise, _HEADS.read(tx, PROMISE.pack())))
        step("nodes.promised")

    def append(self, nodes: NodeList, *, own: str, epoch: int) -> Entry:
        """Append the entry of a list, when the last one is of an epoch. Another primary in it ends all appends here.

        Raises: `Conflict`, kind `nodes_changed`, when the last one is of another epoch.
        """

        def act(tx: Transaction) -> Entry:
            current = node_list(tx)
            if (0 if current is None else current.epoch) != epoch:
                raise Conflict(
                    "the list of nodes has changed meanwhile", kind="nodes_changed", epoch=epoch,
                    hint="look at 'millpond node status', and begin again",
                )  # fmt: skip
            set_handed_over(tx, None)  # a node that was promoted without its primary appends its first entry
            entry = record(tx, "nodes", (), nodes.body(), self._pond.loading.clock.now_ms())
            if nodes.nodes and nodes.primary != own:
                set_handed_over(tx, nodes.primary)
            return entry

        with self._pond.loading.writing():
            entry = self._pond.space.write(act)
        step("nodes.entered")
        self._pond.log.announce()
        return entry

    def may_append(self) -> None:
        """Let this folder append again: its node has adopted a list in which it is the primary."""
        with self._pond.space.read() as tx:
            fenced = tx.get(HANDED_OVER.pack()) is not None
        if fenced:
            self._pond.space.write(lambda tx: set_handed_over(tx, None))
