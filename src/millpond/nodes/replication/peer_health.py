"""The soundness of a node: its readiness (`readiness.py`), applied to its pond, its log and its members."""

from __future__ import annotations

from collections.abc import Callable

from millpond.clock import Clock
from millpond.errors import MillpondError, Unavailable
from millpond.nodes.replication.answer_leases import AnswerLeases
from millpond.nodes.replication.members import Members
from millpond.nodes.replication.readiness import Readiness
from millpond.nodes.replication.status import NodeStatus
from millpond.pond import Pond
from millpond.settings import Settings

__all__ = ("Soundness", "not_ready")


def not_ready(node: str, reason: str) -> Unavailable:
    """The error of a node that answers no question and takes no change."""
    return Unavailable(
        "the node is not ready", kind="node_not_ready", node=node, reason=reason,
        hint="other nodes answer meanwhile: millpond node status",
    )  # fmt: skip


class Soundness:
    """The judgement of one node about itself. `fork` is the error of a log that went its own way, None without."""

    def __init__(
        self, pond: Pond, members: Members, clock: Clock, settings: Settings, *, paused: Callable[[], bool]
    ) -> None:
        self._pond, self._members, self._clock, self._paused = pond, members, clock, paused
        self.readiness = Readiness(
            members.others, leads=members.role != "replica", majority=settings.nodes.write_to == "majority",
            position=pond.log.position()[0],
        )  # fmt: skip
        lag_seconds, majority = settings.nodes.lag_limit / 1000, settings.nodes.write_to == "majority"
        self.leases = AnswerLeases(clock, lag_seconds, majority=majority)
        self.fork: MillpondError | None = None
        self.cloning = False
        self.clock_fault = self.release_fault = ""

    def own_status(self) -> NodeStatus:
        """The status that peers are sent."""
        position, chain = self._pond.log.position()
        fence = self._members.fence
        current = fence.current
        return NodeStatus(
            url=self._members.own, pond=self._pond.log.pond_id, position=position, chain=chain, sound=self.sound(),
            clock_ms=self._clock.now_ms(), nodes=current.nodes, epoch=current.epoch, leaving=current.leaving,
            promised=fence.promise.epoch, level=self._level(position),
        )  # fmt: skip

    def own_position(self) -> int:
        """The end of the log."""
        return self._pond.log.position()[0]

    def pond_id(self) -> str:
        return self._pond.log.pond_id

    def _level(self, position: int) -> bool:
        """True when a node that is no member could become one: it is sound, and has merged what it entered."""
        return not self._members.fence.member() and self.fork is None and self._judged() and self._merged(position)

    def settled(self) -> bool:
        """True when nothing is expected of the peers: this node answers, and appends if it is the primary."""
        fence = self._members.fence
        return self.sound() and not fence.deposed() and (self._members.role == "replica" or self.appends())

    @property
    def answers(self) -> bool:
        """True when the node was found to be sound, is no fork, and is not being replaced; costs nothing."""
        whole = self.readiness.sound and self.fork is None and not self.cloning and self._members.fence.member()
        return whole and not self.clock_fault and not self.release_fault and self.leased()

    def leased(self) -> bool:
        """True while others have shown lately that nothing is acknowledged without this node."""
        if self._members.role == "replica":
            return self.readiness.without_peers or self.leases.held()
        if self.leases.majority and self._members.fence.deposed():
            return self.readiness.without_peers
        return self.readiness.without_peers or self.leases.most_heard(self._members.others)

    def sound(self) -> bool:
        """True when the node has every load that was acknowledged, and its log is no fork."""
        return self.fork is None and self._judged() and self.leased() and self._members.fence.member()

    def appends(self) -> bool:
        """True when this primary may append to the log."""
        fence = self._members.fence
        return self.sound() and fence.appends() and self.readiness.judge_append(self._pond.log.position()[0])

    def not_appending(self) -> str:
        """The reason why a sound primary appends nothing."""
        fence, unheard = self._members.fence, self.readiness.unheard()
        if fence.promise.epoch > fence.current.epoch:
            promise = fence.promise
            return (
                f"it promised to follow {promise.candidate} as the primary of epoch {promise.epoch}, which has not "
                f"begun: millpond node promote {promise.candidate} --without-primary, or name another node"
            )
        if fence.deposed():
            return "another node is the primary of a later epoch, or is to be: millpond node status"
        if not fence.most_adopted():
            return f"most nodes have not followed it into epoch {fence.current.epoch} yet"
        if unheard:
            return (
                f"the primary has not heard from {', '.join(unheard)} since it started: they may have entries that it "
                "lost; start them, or remove one that is lost for good: millpond node remove URL --lost"
            )
        return "the primary gets back entries that only its peers have"

    def unready(self) -> MillpondError | None:
        """The error to answer questions with; None while the node may answer them."""
        if self.fork is not None:
            return not_ready(self._members.own, str(self.fork))
        if fault := self.clock_fault or self.release_fault:
            return not_ready(self._members.own, fault)
        judged = self._judged()
        if not self._members.fence.member():
            return not_ready(self._members.own, self._outside())
        if judged and not self.cloning and not self.leased():
            return not_ready(self._members.own, self._unleased())
        if judged and not self.cloning:
            return None
        reason = self.readiness.reason(self._pond.log.position()[0])
        if self.cloning:
            reason = f"it becomes a copy of another node; {reason}"
        elif self._paused():
            reason = f"{reason}; replication is paused: millpond jobs resume replicate"
        return not_ready(self._members.own, reason)

    def _outside(self) -> str:
        own = self._members.own
        if own in self._members.current.leaving:
            return f"it is being removed from the pond: millpond node remove {own} goes on with that"
        return f"it is no member of the pond: millpond node add {own}"

    def _unleased(self) -> str:
        if self._members.role == "primary":
            return "it has not heard from most nodes for nodes.lag_limit: they may have another primary"
        return (
            f"it lags, or has not heard from the primary {self._members.primary} for nodes.lag_limit: loads may have "
            "been acknowledged without it"
        )

    def _judged(self) -> bool:
        return self.readiness.sound or self.readiness.judge(self._pond.log.position()[0], self._merged)

    def _merged(self, position: int) -> bool:
        log = self._pond.log
        return all(log.applied(definition.name) >= position for definition in self._pond.catalogue.list())
