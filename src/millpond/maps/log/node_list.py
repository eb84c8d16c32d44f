"""The list of a pond's nodes, as its log has it: the entries of kind `nodes`.

    ("pond", "nodes")          the list of the last such entry, as JSON
    ("pond", "handed_over")    on a node that was the primary: the address of the one that is now

The log carries the list, so the list at a position is the same on every node, like the rows of maps. Each change is one
entry with the next *epoch*. Without such an entry, the epoch is 0 and the setting `nodes.urls` counts.

Invariants:
* the row is written in the transaction of its entry; epochs rise along the log;
* a primary that hands over appends the entry and its own fence in one transaction: no entry of its own follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millpond.errors import Conflict, Corrupt
from millpond.json_forms import FormError, JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.model.keyspaces import HANDED_OVER, NODE_LIST

__all__ = ("NodeList", "check_not_handed_over", "node_list", "put_node_list", "set_handed_over")


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of a pond in one epoch, the primary first. `leaving`: those that are being removed, and answer nothing.

    `position` is the entry of the log that has it; 0 for a list of the settings.
    """

    epoch: int
    nodes: tuple[str, ...]
    leaving: tuple[str, ...] = ()
    position: int = 0

    @property
    def primary(self) -> str:
        """The address of the primary; empty in an empty list."""
        return self.nodes[0] if self.nodes else ""

    def same(self, other: NodeList) -> bool:
        """True when both are one list: of one epoch, with the same nodes."""
        return (self.epoch, self.nodes, self.leaving) == (other.epoch, other.nodes, other.leaving)

    def promoted(self, url: str, epoch: int | None = None) -> NodeList:
        """The next list, with this node first and the old primary last.

        >>> NodeList(1, ("a", "b", "c")).promoted("b").nodes
        ('b', 'c', 'a')
        """
        rest = [node for node in self.nodes if node not in (url, self.primary)]
        order = (url, *rest, *(() if url == self.primary else (self.primary,)))
        return replace(self, epoch=epoch or self.epoch + 1, nodes=order)

    def added(self, url: str) -> NodeList:
        """The next list, with this node last, or not leaving any more."""
        nodes = self.nodes if url in self.nodes else (*self.nodes, url)
        return replace(self, epoch=self.epoch + 1, nodes=nodes, leaving=_without(self.leaving, url))

    def left_by(self, url: str) -> NodeList:
        """The next list, in which this node leaves."""
        return replace(self, epoch=self.epoch + 1, leaving=(*_without(self.leaving, url), url))

    def removed(self, url: str) -> NodeList:
        """The next list, without this node."""
        leaving = _without(self.leaving, url)
        return replace(self, epoch=self.epoch + 1, nodes=_without(self.nodes, url), leaving=leaving)

    def body(self) -> dict[str, Any]:
        """The body of its entry."""
        return {"epoch": self.epoch, "nodes": list(self.nodes), "leaving": list(self.leaving)}

    @classmethod
    def of_body(cls, body: Mapping[str, Any], position: int) -> NodeList:
        """The list of an entry.

        Raises: `Corrupt` when it is not understood.
        """
        try:
            return _FORM.build({**body, "position": position})
        except FormError as error:
            raise Corrupt("an entry of the log is not understood", kind="log_entry", position=position) from error


def _without(nodes: tuple[str, ...], url: str) -> tuple[str, ...]:
    return tuple(node for node in nodes if node != url)


_FORM = JsonForm(NodeList)


def node_list(tx: ReadTransaction) -> NodeList | None:
    """The list of the last entry that has one; None when there was none.

    Raises: `Corrupt` when the row is not understood.
    """
    row = tx.get(NODE_LIST.pack())
    return None if row is None else _FORM.stored(row, "the list of nodes cannot be read", kind="node_list")


def put_node_list(tx: Transaction, body: Mapping[str, Any], position: int) -> None:
    """Perform an entry with a list.

    Raises: `Corrupt` when its epoch does not rise.
    """
    new, current = NodeList.of_body(body, position), node_list(tx)
    if current is not None and new.epoch <= current.epoch:
        raise Corrupt(
            "the epoch of a list of nodes does not rise", kind="log_entry", position=position, epoch=new.epoch,
            known=current.epoch,
        )  # fmt: skip
    tx.put(NODE_LIST.pack(), _FORM.encode(new))


def set_handed_over(tx: Transaction, primary: str | None) -> None:
    """Let this folder append nothing any more, as another node is the primary; None: it may append again."""
    if primary is None:
        tx.delete(HANDED_OVER.pack())
    else:
        tx.put(HANDED_OVER.pack(), primary.encode())


def check_not_handed_over(tx: ReadTransaction) -> None:
    """Insist that this folder may append to its log.

    Raises: `Conflict`, kind `not_primary`, naming the primary that it handed over to.
    """
    primary = tx.get(HANDED_OVER.pack())
    if primary is not None:
        raise Conflict(
            "this node handed over to another primary", kind="not_primary", primary=primary.decode(),
            hint="changes are entered at the primary; 'millpond node reset FOLDER' makes a folder a pond of its own",
        )  # fmt: skip
