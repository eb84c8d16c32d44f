"""Changes of the list of nodes by the primary: another primary, a node more, a node less.

    promote   the gate is closed, the new primary enters what it lacks, the last entry of the old one names it
    add       a node that follows the log already, and is level, becomes a member
    remove    the node leaves: loads wait for it still, and it answers nothing once it has that entry; then it is gone

Each change is one entry of the log, removing is two; between two entries nothing is remembered elsewhere. So a change
that a crash interrupts has happened or has not, and every order may be repeated.

Invariants:
* one change at a time: the next begins when most nodes have adopted the one before;
* an entry with a list is appended while the gate is closed, so a load is entered before it or after it, and its writer
  waits for the nodes of the list before it or after it;
* a node is removed when it has shown that it answers nothing, or when its lease is over, or when a person says that it
  is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Invalid, MillpondError, Unavailable
from millpond.kernel.signal import Signal, uncounted
from millpond.kernel.steps import step
from millpond.maps.log.node_list import NodeList
from millpond.nodes.replication.peer import Peer
from millpond.nodes.replication.readiness import Hearing
from millpond.nodes.replication.status import LISTS_PROTOCOL

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.replication.survey import Heard

__all__ = ("Changes", "ListChange")

ENTER_SECONDS = 10.0
"""The time that the new primary has to enter what it lacks, while loads wait."""
FOLLOW_SECONDS = 15.0
"""The time that nodes have to adopt a list, before the order ends and says who has not."""
HEARD_SECONDS = 15.0
"""A node whose last word is older is taken for unreachable."""
BEHIND_MAX = 100
"""A node that lacks more entries is not level: loads would wait for it."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListChange:
    """The result of an order. `changed`: False when nothing was to do. `pending`: nodes that have not adopted it."""

    epoch: int
    nodes: tuple[str, ...]
    changed: bool
    pending: tuple[str, ...] = ()


class Changes:
    """The changes that one node orders while it is the primary."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._heard = Signal(node.clock, uncounted)

    # -- orders -------------------------------------------------------------------------------------------

    def promote(self, url: str) -> ListChange:
        """Hand over to another node.

        Raises: `Invalid` for one that is no member; `Unavailable`, kind `node_not_level`, when it is not ready or does
            not enter in time what it lacks: nothing was changed then; as `Node.need_primary`.
        """
        with self._alone():
            self._node.need_primary()
            current = self._current()
            if current.primary == url:
                return self._unchanged()
            peer = self._members.peer(url)
            self._need_speaking()
            self._need_ready(peer)
            with self._node.gate.closed():
                step("nodes.gate_closed")
                self._node.need_primary()
                self._bring_level(peer)
                self._append(current.promoted(url))
                # While appends wait: who asks again is sent to a node that takes them.
                self._wait(lambda: self._is_primary(peer), FOLLOW_SECONDS)
            return self._done()

    def add(self, url: str) -> ListChange:
        """Add a node that follows the log, and is level.

        Raises: `Unavailable`, kind `node_not_heard`, when it has not reported to this node; kind `node_not_level` while
            it lacks entries or merges; as `Node.need_primary`.
        """
        with self._alone():
            self._node.need_primary()
            current = self._current()
            if url in current.nodes and url not in current.leaving:
                return self._unchanged()
            self._need_speaking()
            self._need_level(url)
            with self._node.gate.closed():
                self._node.need_primary()
                self._append(current.added(url))
                self._wait_adopted()
            return self._done(url)

    def remove(self, url: str, *, lost: bool) -> ListChange:
        """Remove a node; `lost`: a person says that it is off for good.

        Raises: `Invalid` for the primary itself; `Unavailable`, kind `node_not_heard`, when it cannot be reached and is
            not said to be lost; as `Node.need_primary`.
        """
        with self._alone():
            current = self._current()
            if url == self._node.url:
                raise Invalid("the primary cannot be removed", kind="node_primary", node=url,
                              hint="make another node the primary first: millpond node promote URL")  # fmt: skip
            if lost:
                # Nothing is expected of it: as if it were heard, and had nothing.
                self._node.follower.soundness.readiness.hear(url, Hearing(position=0, sound=False))
            self._node.need_primary()
            if url not in current.nodes:
                return self._unchanged()
            self._need_speaking(but=url)
            if not lost:
                self._leave(url)
            with self._node.gate.closed():
                self._node.need_primary()
                self._append(self._current().removed(url))
                self._wait_adopted()
            return self._done()

    def _leave(self, url: str) -> None:
        """Let a node know that it leaves, and wait until it answers nothing."""
        leases = self._node.follower.soundness.leases
        if not leases.majority:
            self._need_heard(url)
        if url not in self._current().leaving:
            with self._node.gate.closed():
                self._append(self._current().left_by(url))
                self._wait_adopted()
            step("nodes.leaving")
        position = self._node.pond.log.position()[0]
        due = leases.due(url, position + 1) if leases.majority else float("inf")
        seconds = min(FOLLOW_SECONDS, due - self._now()) if due < float("inf") else FOLLOW_SECONDS
        self._wait(lambda: self._has_adopted(url), max(seconds, 0.0))
        if not self._has_adopted(url) and self._now() < due:
            raise Unavailable(
                "the node does not say that it answers nothing any more", kind="node_not_heard", node=url,
                hint="order it again when the node can be reached; when it is off: millpond node remove URL --lost",
            )  # fmt: skip

    # -- what must hold -----------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Conflict("the list of nodes is being changed already", kind="nodes_change_running",
                           node=self._node.url, hint="wait until that has ended")  # fmt: skip
        try:
            yield
        finally:
            self._lock.release()

    def _need_speaking(self, *, but: str = "") -> None:
        """Insist that every member understands a list in the log."""
        for url in self._members.others:
            heard = self._survey.heard(url)
            if heard is not None and heard.status.protocol < LISTS_PROTOCOL and url != but:
                raise Conflict(
                    "a node runs a release that does not understand this change", kind="protocol_apart", node=url,
                    protocol=heard.status.protocol, hint="upgrade all nodes first",
                )  # fmt: skip
            if self._current().epoch == 0 and heard is not None and heard.status.nodes != self._members.urls:
                raise Conflict(
                    "the nodes have different lists in their settings", kind="nodes_differ", node=url,
                    there=", ".join(heard.status.nodes), here=", ".join(self._members.urls),
                    hint="make the setting `nodes.urls` alike on all nodes, and start them again",
                )  # fmt: skip

    def _need_ready(self, peer: Peer) -> None:
        facts = peer.node()
        if not facts["ready"]:
            raise Unavailable("the node is not ready", kind="node_not_level", node=peer.url,
                              reason="; ".join(facts["reasons"]),
                              hint="it becomes ready by itself when its reason is gone")  # fmt: skip

    def _need_heard(self, url: str) -> Heard:
        heard = self._survey.heard(url)
        if heard is None or self._now() - heard.at > HEARD_SECONDS:
            raise Unavailable(
                "the node has not reported to the primary lately", kind="node_not_heard", node=url,
                hint="start it, with a setting `nodes.urls` that names the nodes of the pond and itself; a member that "
                "is off for good is removed with: millpond node remove URL --lost",
            )  # fmt: skip
        return heard

    def _need_level(self, url: str) -> None:
        heard = self._need_heard(url)
        status = heard.status
        if status.pond != self._node.pond.log.pond_id and status.position:
            raise Conflict("the node holds another pond", kind="pond_other", node=url,
                           hint="start it with an empty folder")  # fmt: skip
        if self._node.url not in status.nodes:
            raise Conflict("the node knows this one by another address", kind="nodes_differ", node=url,
                           there=", ".join(status.nodes), here=self._node.url,
                           hint="set `server.url` of this node to the address that others use")  # fmt: skip
        if status.protocol < LISTS_PROTOCOL:
            raise Conflict("the node runs a release that does not understand this change", kind="protocol_apart",
                           node=url, protocol=status.protocol, hint="upgrade it first")  # fmt: skip
        if not status.level or heard.behind > BEHIND_MAX:
            raise Unavailable(
                "the node does not have everything yet", kind="node_not_level", node=url, position=status.position,
                behind=heard.behind, hint="it follows by itself: ask again",
            )  # fmt: skip

    def _bring_level(self, peer: Peer) -> None:
        position = self._node.pond.log.position()[0]
        try:
            there = int(peer.replicate({"position": position, "timeout": ENTER_SECONDS})["position"])
        except MillpondError as error:
            raise Unavailable("the node does not enter what it lacks", kind="node_not_level", node=peer.url,
                              reason=str(error), hint="nothing was changed; order it again") from error  # fmt: skip
        assert there >= position, "a node that answers has come there"
        step("nodes.level")

    # -- the entry, and who has adopted it ----------------------------------------------------------------

    def _append(self, nodes: NodeList) -> None:
        follower, current = self._node.follower, self._current()
        follower.members.stored.append(nodes, own=self._node.url, epoch=current.epoch)
        follower.refresh()
        _LOG.info("the list of nodes is changed: epoch %d, %s", nodes.epoch, ", ".join(nodes.nodes))

    def _wait_adopted(self) -> None:
        self._wait(lambda: self._members.fence.most_adopted(), FOLLOW_SECONDS)

    def _has_adopted(self, url: str) -> bool:
        heard = self._survey.heard(url)
        return heard is not None and heard.status.epoch >= self._current().epoch

    def _is_primary(self, peer: Peer) -> bool:
        try:
            facts = peer.node()
        except MillpondError:
            return False
        return bool(facts["role"] == "primary" and facts["ready"])

    def _wait(self, true: Callable[[], bool], seconds: float) -> bool:
        return self._heard.wait_for(true, self._now() + seconds, lambda is_true: is_true or self._node.stopping)

    def _done(self, *also: str) -> ListChange:
        current = self._current()
        step("nodes.followed")
        pending = [url for url in current.nodes if url != self._node.url and not self._has_adopted(url)]
        return ListChange(current.epoch, current.nodes, changed=True, pending=tuple(pending))

    def _unchanged(self) -> ListChange:
        current = self._current()
        return ListChange(current.epoch, current.nodes, changed=False)

    @property
    def _members(self) -> Any:
        return self._node.follower.members

    @property
    def _survey(self) -> Any:
        return self._node.follower.survey

    def _current(self) -> NodeList:
        current: NodeList = self._members.current
        return current if current.nodes else replace(current, nodes=(self._node.url,))

    def _now(self) -> float:
        return self._node.clock.monotonic()
