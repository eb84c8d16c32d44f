"""Replication: a replica pulls the log of the primary and enters what is new, in order.

One thread does it. It asks the primary for what comes after its own position, and the primary answers as soon as
there is something. Whoever wants the node to have reached a position waits for that thread: a hundred waiters are one
pull. When nothing comes, and now and then while much does, it looks after the node: parts that were quarantined are
fetched from a peer, whole.

A second thread exchanges status with all peers (`survey.py`), and `readiness.py` says what follows from it. So a
primary notices that a peer knows more: it lost what it once entered, and gets it back. When it starts and finds that it
entered something else instead, it is not ready before that is decided: that the peer who knows otherwise cannot be
reached for a while decides nothing. A replica that is not sound, while its primary is away, takes what it lacks from
another peer.

An entry of the log may bring another list of nodes: `refresh` lets every part of the node know of it. While a peer has
a list of a later epoch, it is followed, also by a node that was the primary until then.

Held, it enters nothing by itself, and says so to who waits; a primary that starts asks its peers all the same.

| what happens | what the follower does |
|---|---|
| a lost connection, a full disk, a refusal | tries again after longer and longer pauses, which a waiter ends |
| the node is new and the primary is not; it keeps the next entry no more, or no node a part of it | clones |
| the primary has another entry where this node has one | enters nothing more; not ready; the way out is `repair` |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from millpond.client.stopping import Interrupt
from millpond.clock import Clock
from millpond.errors import Internal, MillpondError, Unavailable
from millpond.json_forms import plain
from millpond.kernel.worker import WorkerThread
from millpond.maps.loads.pause import Pause
from millpond.nodes.limits import intervals_ms
from millpond.nodes.replication.clone import RECOPIED
from millpond.nodes.replication.heal import Healer
from millpond.nodes.replication.log_apply import LogApplier
from millpond.nodes.replication.members import Members
from millpond.nodes.replication.part_sources import PartSources, Uploads
from millpond.nodes.replication.peer import Peer
from millpond.nodes.replication.peer_health import Soundness
from millpond.nodes.replication.position_waits import PositionWaits, Progress, node_behind
from millpond.nodes.replication.survey import Survey
from millpond.pond import Pond
from millpond.retry import Backoff, retry
from millpond.settings import Settings
from millpond.stores.files import remove_tree

__all__ = ("Follower", "FollowerStatus")

_BACKOFF = Backoff(first_seconds=0.2, seconds_max=30.0)
LONG_POLL_SECONDS_MAX = 30.0
REST_SECONDS_MAX = 10.0
"""However much there is to enter, so often the node is looked after."""

_LOG = logging.getLogger(__name__)
_FORK = ("log_forked", "pond_other")
_Phase: TypeAlias = Literal["stopped", "starting", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """Replication state. `state`: `alone, following, held, broken, cloning, forked, stopped`."""

    role: str
    primary: str | None
    state: str
    position: int
    chain: str
    behind: int
    pulled: int
    clones: int
    healed: int
    error: str | None
    error_kind: str | None
    since_ms: int

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form."""
        return plain(self)


class Follower:
    """Keeps one node at the end of its primary's log."""

    def __init__(self, pond: Pond, settings: Settings, receiver: Uploads, clock: Clock) -> None:
        self._pond, self._settings, self._clock = pond, settings, clock
        self._wake, self._stopping = threading.Event(), Interrupt()
        self.pause = Pause(self._nudge)
        self.members = Members(pond, settings, clock, stop=self._stopping)
        self.soundness = Soundness(
            pond, self.members, clock, settings, paused=lambda: not self.pause.going
        )  # fmt: skip
        self.survey = Survey(
            pond.space, self.members, self.soundness, clock, seconds=self._poll_seconds(),
            skew_max_ms=settings.nodes.max_clock_skew, after=self._surveyed,
        )  # fmt: skip
        self.sources = PartSources(pond.folder, receiver, self.peers)
        self.healer = Healer(pond, self.sources, self.peers, clock)
        self.applier = LogApplier(
            pond, self.sources, clock, stopping=self._stopping, report=self._applied,
            may_follow=self.members.fence.may_follow,
        )  # fmt: skip
        self._lock = threading.RLock()
        self.waits = PositionWaits(clock, progress=self._progress, error=lambda: self._error, wake=self._wake.set)
        self._phase: _Phase = "stopped"
        self._worker = WorkerThread("the thread that follows the log", self._act, clock)
        self._state = "stopped" if self.members.urls else "alone"
        self._error: MillpondError | None = None
        self._since_ms = clock.now_ms()
        self._failures = 0
        self._disputed = ""
        self._rounds = 0
        self._rested = clock.monotonic()

    @property
    def role(self) -> str:
        """`alone`, `primary` or `replica`."""
        return self.members.role

    def peers(self) -> Sequence[Peer]:
        """The other nodes, the primary first."""
        return self.members.peers

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to pull. A primary asks first whether a peer knows more than it does."""
        if not self.members.urls or self._phase != "stopped":
            return
        self._phase = "starting"
        remove_tree(self._pond.folder / RECOPIED)  # of a copy that a crash interrupted
        self._tell("following")
        if self.role == "primary":
            self._attempt(self._consult_all, once=True)
        self.survey.start()
        self._phase = "running"
        self._worker.start()

    def interrupt(self) -> None:
        """Break off what is waited for: pauses, and all that peers are asked. `stop` follows."""
        self._stopping.set()
        self.survey.interrupt()
        self._nudge()

    def stop(self) -> None:
        """Stop, when what is being entered has been entered: afterwards no thread of it uses the pond."""
        self.interrupt()
        self.survey.stop()
        if self._worker.started:
            self._worker.stop()
            self._phase = "stopped"
            self._tell("stopped")
        self._stopping.clear()

    def _nudge(self) -> None:
        self._wake.set()
        self.waits.changed.ring()

    def refresh(self) -> None:
        """Adopt the list of nodes that the log has now."""
        fence = self.members.fence
        was, member, before = self.role, fence.member(), fence.current.epoch
        if not self.members.refresh():
            return
        role, current = self.role, fence.current
        _LOG.info("epoch %d: the nodes are %s", current.epoch, ", ".join(current.nodes))
        joined = fence.member() and not member and before < current.epoch
        self.soundness.readiness.become(
            self.members.others, leads=role != "replica", joined_at=current.position if joined else None
        )
        if role != was:
            self.soundness.leases.begin()
            self._nudge()  # the thread may wait for entries of a node that is the primary no more
        self.survey.nudge()
        if was == "alone" and self._state == "alone":
            self.start()

    def _surveyed(self) -> None:
        somebody = len(self.survey.failures) < len(self.peers())
        if somebody and (not self.soundness.sound() or (self.role == "primary" and not self.soundness.appends())):
            self._wake.set()

    def status(self) -> FollowerStatus:
        """Replication state: position, lag, last error."""
        position, chain = self._pond.log.position()
        with self._lock:
            error = self._error
            return FollowerStatus(
                role=self.role, primary=self.members.primary if self.members.urls else None, state=self._state,
                position=position, chain=chain,
                behind=max(self.applier.seen - position, 0), pulled=self.applier.pulled, clones=self.applier.clones,
                healed=self.healer.healed, error=None if error is None else str(error),
                error_kind=None if error is None else error.kind, since_ms=self._since_ms,
            )  # fmt: skip

    def _tell(self, state: str, error: MillpondError | None = None) -> None:
        with self._lock:
            if (state, error and error.kind) != (self._state, self._error and self._error.kind):
                self._since_ms = self._clock.now_ms()
            self._state, self._error = state, error
            self.soundness.cloning = state == "cloning"
        self.waits.changed.ring()

    # -- waiting for a position -----------------------------------------------------------------------

    def pull(self, position: int, timeout: float) -> int:
        """Wait until the node has entered everything up to `position`; where it is then.

        Raises:
            Unavailable: kind `node_behind`, with the reason: it is not there in time, or cannot get there for now; kind
                `node_held`.
            Conflict: the log is a fork of the primary's.
        """
        return self.waits.wait(position, timeout)

    def _progress(self) -> Progress:
        return Progress(
            self._pond.log.position()[0], self._failures, self.soundness.fork, self.pause.going,
            self._phase == "running", self._ending(),
        )  # fmt: skip

    def ask_now(self, timeout: float) -> None:
        """Let the node ask the others once more, also while it is held, and wait until it has entered what they have.

        Raises: as `pull`.
        """
        if self._phase != "running":
            raise self._behind(self.applier.seen, "it does not pull")
        until = self._clock.monotonic() + timeout
        with self.pause.awake():
            rounds, failures = self._rounds, self._failures
            self.waits.changed.wait_for(
                lambda: self._rounds > rounds or self._failures > failures or self._ending(), until
            )
            if self._rounds == rounds:
                raise self.soundness.fork or self._behind(self.applier.seen, self._error or "it was not there in time")

    def _ending(self) -> bool:
        return self._stopping.is_set() or self._phase != "running"

    def _behind(self, target: int, reason: object) -> Unavailable:
        return node_behind(target, self._pond.log.position()[0], reason)

    # -- the thread -----------------------------------------------------------------------------------

    def _act(self) -> float:
        self._attempt(self._round)
        return self._clock.monotonic()  # it waits within, for what its peers say

    def _attempt(self, act: Callable[[], None], *, once: bool = False) -> None:
        """Do it, again and again while it fails, with pauses that double; or `once`."""

        def policy(error: Exception, failures: int, chance: float) -> float | None:
            self._failed(error)
            return None if once else _BACKOFF(error, failures, chance)

        try:
            retry(act, policy, self._clock, stop=self._stopping, wake=self._wake)
        except Exception:
            # It was reported by `_failed`, or it was broken off, which says nothing of the others.
            _LOG.debug("an attempt was given up", exc_info=True)

    def _pause(self, seconds: float) -> None:
        self._clock.wait(self._wake, self._clock.monotonic() + seconds)
        self._wake.clear()

    def _failed(self, failure: Exception) -> None:
        if isinstance(failure, MillpondError):
            error = failure
        else:
            _LOG.error("pulling failed unexpectedly", exc_info=failure)
            error = Internal("pulling failed unexpectedly", kind="unexpected", reason=repr(failure))
        # A replica that went its own way does not stop a primary at work; one that starts may be the one at fault.
        follows = self.role == "replica" or self._later() is not None
        unsure = follows or self._phase == "starting" or self.soundness.fork is not None
        stuck = error.kind in _FORK and unsure
        with self._lock:
            self._failures += 1
            self.soundness.fork = error if stuck else self.soundness.fork
            if error.kind in _FORK:
                self.applier.seen = 0  # there is nothing of that log to come up to
        if self._error is None or self._error.kind != error.kind:
            _LOG.warning("%s", error)
        self._tell("broken" if self.soundness.fork is None else "forked", error)

    def _round(self) -> None:
        if not self.pause.going:
            self._tell("held" if self.soundness.fork is None else "forked", self.soundness.fork)
            self._pause(self._poll_seconds())
            return
        # Who is only kept awake asks now, and not for what may come.
        held = self.pause.held
        if self.role == "primary" and self._later() is None:
            self._consult()
        elif self._follow(self._source(), 0 if held else self._poll_seconds(), by_job=True) and not self._tired():
            return
        self._rest()
        with self._lock:
            self._rounds += 1
        self.waits.changed.ring()
        if held or self.role == "primary":
            self._pause(self._poll_seconds())

    def _source(self) -> Peer:
        """The primary; while that is away, and this node lacks something, a peer that has it.

        A peer with a later list comes first: it says who is the primary.
        """
        later = self._later()
        if later is not None:
            return later
        primary = self.members.peers[0]
        if primary.url not in self.survey.failures or self.soundness.sound():
            return primary
        richest = self.soundness.readiness.richest()
        if richest is None or self.soundness.readiness.position_of(richest) <= self._pond.log.position()[0]:
            return primary
        return self.members.peer(richest)

    def _later(self) -> Peer | None:
        """A peer that has a later list, and can be reached."""
        newer = self.members.fence.newer()
        peers = [peer for peer in self.members.peers if peer.url in newer and peer.url not in self.survey.failures]
        return min(peers, key=lambda peer: newer.index(peer.url), default=None)

    def _poll_seconds(self) -> float:
        return min(intervals_ms(self._settings)["replicate"] / 1000, LONG_POLL_SECONDS_MAX)

    def _well(self) -> None:
        self.soundness.fork = None
        self._tell("following")

    # -- following a peer -----------------------------------------------------------------------------

    def follow(self, peer: Peer) -> None:
        """Enter all that a peer has entered until now.

        Raises: what stops it.
        """
        while self._follow(peer, 0):
            pass

    def _follow(self, peer: Peer, wait_seconds: float, *, by_job: bool = False) -> bool:
        """Apply the next page of a peer's log; False when there was nothing new.

        `by_job`: apply nothing when it is held meanwhile.
        """
        going = (lambda: self.pause.going) if by_job else (lambda: True)
        return self.applier.next_page(peer, wait_seconds, going=going)

    def clone(self, peer: Peer) -> None:
        """Become what a peer is, whatever this node was.

        Raises: what stops it; the node is then as it was.
        """
        self.applier.clone(peer)

    def _applied(self, what: str) -> None:
        if what != "cloning":
            self.refresh()
        if what == "following":
            self._well()
        elif what == "cloning":
            self._tell("cloning")
        else:
            self.waits.changed.ring()

    def heal(self) -> list[str]:
        """Heal what was quarantined, now; the ids of these parts."""
        with self.applier.working:
            return self.healer.heal(again=True)

    # -- a primary's questions, and everybody's rest ---------------------------------------------------

    def _consult_all(self) -> None:
        """Ask all peers now, then get back what they have."""
        self.survey.ask_all()
        self._consult()

    def _consult(self) -> None:
        """Get back from the peer that knows most what this node does not know any more."""
        failures = {url: error for url, error in self.survey.failures.items() if url in self.members.urls}
        richest = self.soundness.readiness.richest()
        if richest is not None and self.soundness.readiness.position_of(richest) > self._pond.log.position()[0]:
            self._disputed = richest
            self.follow(self.members.peer(richest))
        if self.soundness.fork is not None and (self._disputed in failures or not self._disputed):
            raise self.soundness.fork
        refused = [error for error in failures.values() if not isinstance(error, Unavailable)]
        if refused:
            raise refused[0]
        self._well()

    def _tired(self) -> bool:
        return self._clock.monotonic() >= self._rested + REST_SECONDS_MAX

    def _rest(self) -> None:
        with self.applier.working:
            self.sources.sweep()
            self.healer.heal()
        self._rested = self._clock.monotonic()
