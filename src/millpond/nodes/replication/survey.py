"""The survey: each node exchanges its status with every peer, again and again, in a thread of its own.

    this node ── POST /v1/nodes/status: my status ──▶ peer      both have heard each other
              ◀── its status, what it remembers of me ──

Every exchange moves five things: positions and soundness (`readiness.py`), what the caller once confirmed, the
difference of the two clocks, and the list of nodes that each has (`membership/fence.py`).

Invariants:
* What a peer confirmed is remembered over restarts, in the keyspace `pond/confirmed`. The row never falls, but to the
  position of a peer that is sound: then the larger one was given up by a decision.
* An entry that one node alone has was not acknowledged, and is not remembered: when that disk is lost, nothing is
  missing, and nobody need be asked.
* A peer that cannot be reached delays nothing but its own row: all peers are surveyed at once.
* A node that is no member is heard, for it may be added; it confirms nothing, and nothing is expected of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.kernel.space import Space, Transaction
from millpond.kernel.worker import WorkerThread
from millpond.maps.model.keyspaces import CONFIRMED
from millpond.nodes.replication.members import Members
from millpond.nodes.replication.peer import Peer
from millpond.nodes.replication.peer_health import Soundness
from millpond.nodes.replication.readiness import Hearing
from millpond.nodes.replication.status import PROTOCOL, NodeStatus, check_protocol

__all__ = ("Heard", "Survey", "confirmed_position")

UNSETTLED_SECONDS = 0.25
"""A node that is not sound, or has not heard all of its peers, asks them so often."""
STRANGERS_MAX = 100
"""Nodes that are no members whose word is remembered."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Heard:
    """The last status of a node, the monotonic time at which it came, and the entries that it lacked then."""

    status: NodeStatus
    at: float
    behind: int


class Survey:
    """The exchanges of one node. `after` is called after each round."""

    def __init__(
        self, space: Space, members: Members, soundness: Soundness, clock: Clock, *, seconds: float,
        skew_max_ms: int, after: Callable[[], None],
    ) -> None:  # fmt: skip
        self._space, self._members, self._soundness, self._clock = space, members, soundness, clock
        self._readiness, self._leases = soundness.readiness, soundness.leases
        self._seconds, self._skew_max_ms, self._after = seconds, skew_max_ms, after
        self._worker = WorkerThread("the survey of the peers", self._round, clock, retry_seconds=UNSETTLED_SECONDS)
        self._lock = threading.Lock()
        self._confirmed = self._read()
        self._heard: dict[str, Heard] = {}
        self.protocol = PROTOCOL
        self.failures: dict[str, MillpondError] = {}
        self.skews_ms: dict[str, int] = {}

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask; peers whose addresses are unknown now are asked when they are known."""
        self._worker.start()

    def nudge(self) -> None:
        """Begin the next round now."""
        self._worker.wake()

    def interrupt(self) -> None:
        """Begin no further round; `stop` follows."""
        self._worker.interrupt()

    def stop(self) -> None:
        """Stop, and wait for the round that runs."""
        self._worker.stop()

    def _round(self) -> float:
        self.ask_all()
        settled = not self.failures and not self._readiness.unheard() and self._soundness.settled()
        pause = self._seconds if settled else min(self._seconds, UNSETTLED_SECONDS)
        return self._clock.monotonic() + pause

    # -- exchanges ----------------------------------------------------------------------------------------

    def ask_all(self) -> None:
        """Exchange status with every peer, once."""
        peers = self._members.peers
        if peers:
            with ThreadPoolExecutor(len(peers), "ask-peer") as pool:
                list(pool.map(self._ask, peers))
        self._readiness.surveyed()
        self._soundness.clock_fault = self._clock_fault()
        self._soundness.release_fault = self._release_fault()
        self._after()

    def _ask(self, peer: Peer) -> None:
        began_ms, sent = self._clock.now_ms(), self._clock.monotonic()
        try:
            status = peer.exchange(self._status_for(peer.url))
            check_protocol(self.protocol, status)
        except MillpondError as error:
            earlier = self.failures.get(peer.url)
            if earlier is None or earlier.kind != error.kind:
                _LOG.info("%s", error)
            with self._lock:
                self.failures[peer.url] = error
            return
        ended_ms = self._clock.now_ms()
        with self._lock:
            self.failures.pop(peer.url, None)
            self.skews_ms[peer.url] = _skew(status.clock_ms, began_ms, ended_ms)
        self._note(peer.url, status)
        fence = self._members.fence
        of_mine = status.word.nodes.same(fence.current) and not fence.deposed()
        if status.lease and peer.url == self._members.primary and of_mine:
            self._leases.extend(sent)

    def _clock_fault(self) -> str:
        """The reason not to trust this clock: a replica's differs from the primary's, a primary's from most others."""
        with self._lock:
            skews = dict(self.skews_ms)
        wrong = {url: skew for url, skew in skews.items() if self._skew_max_ms and abs(skew) > self._skew_max_ms}
        primary = self._members.primary
        if primary in wrong:
            return f"its clock differs from the primary's by {-wrong[primary]:+,} ms: set it by NTP"
        if primary == self._members.own and 2 * len(wrong) > len(self._members.peers):
            worst = max(wrong.values(), key=abs)
            return f"its clock differs from most others by up to {-worst:+,} ms: set it by NTP"
        return ""

    def _release_fault(self) -> str:
        """The sentence of the primary, or for a primary of most others, that refuses this node's release."""
        refused = {url: error for url, error in self.failures.items() if error.kind == "protocol_apart"}
        primary = self._members.primary
        if primary in refused or 2 * len(refused) > len(self._members.peers) > 0:
            error = refused.get(primary) or next(iter(refused.values()))
            return f"{error.message}: it speaks protocol {self.protocol}; {error.hint}"
        return ""

    def receive(self, status: NodeStatus) -> NodeStatus:
        """Note the status that a peer sent; the one to answer with.

        Raises: `Conflict`, kind `protocol_apart`.
        """
        check_protocol(self.protocol, status)
        self._note(status.url, status)
        with self._lock:
            if self.failures.pop(status.url, None) is not None:
                self._worker.wake()
        own = self._status_for(status.url)
        granted = status.url in self._members.urls and status.url not in self._members.current.leaving
        if self._members.role != "primary" or not granted or not self._soundness.appends():
            return own
        return replace(own, lease=self._leases.grant(status.url, status.position, own=own.position))

    def _status_for(self, url: str) -> NodeStatus:
        with self._lock:
            remembers = self._confirmed.get(url, 0)
        return replace(self._soundness.own_status(), remembers=remembers, protocol=self.protocol)

    def _note(self, url: str, status: NodeStatus) -> None:
        self._readiness.hear(url, Hearing(position=status.position, sound=status.sound, remembers=status.remembers))
        self._leases.hear(url, status.position)
        position, member = self._soundness.own_position(), url in self._members.urls
        with self._lock:
            accepted = member or url in self._heard or len(self._heard) < STRANGERS_MAX
            if accepted:
                self._heard[url] = Heard(status, self._clock.monotonic(), max(position - status.position, 0))
        if accepted and (position == 0 or status.pond == self._soundness.pond_id()):
            # A node of another pond has no say; one that is empty does not know yet which pond is its own.
            self._members.fence.hear(url, status.word)
        with self._lock:
            if not member:
                return
            before = self._confirmed.get(url, 0)
            elsewhere = [heard.status.position for peer, heard in self._heard.items()
                         if peer != url and peer in self._members.urls]  # fmt: skip
            now = confirmed_position(before, status, max(position, *elsewhere, 0))
            if now == before:
                return
            self._confirmed[url] = now
        self._remember(url, now)

    def heard(self, url: str) -> Heard | None:
        """The last word from a node, member or not; None when there was none."""
        with self._lock:
            return self._heard.get(url)

    def confirmed(self, url: str) -> int:
        """The position that a peer once confirmed."""
        with self._lock:
            return self._confirmed.get(url, 0)

    # -- memory -------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, int]:
        with self._space.read() as tx:
            rows = list(tx.scan(CONFIRMED.range()))
        return {str(CONFIRMED.unpack(key)[0]): int.from_bytes(value, "big") for key, value in rows}

    def _remember(self, url: str, position: int) -> None:
        def put(tx: Transaction) -> None:
            tx.put(CONFIRMED.pack(url), position.to_bytes(8, "big"))

        self._space.write(put)


def confirmed_position(before: int, status: NodeStatus | Hearing, elsewhere: int) -> int:
    """The position to remember of a peer; `elsewhere` is the largest of the other nodes', `before` what was known.

    >>> confirmed_position(7, Hearing(position=9, sound=True), 8)
    8
    >>> confirmed_position(9, Hearing(position=6, sound=True), 8)
    6
    >>> confirmed_position(9, Hearing(position=6, sound=False), 8)
    9
    """
    now = max(before, min(status.position, elsewhere))
    return min(now, status.position) if status.sound else now


def _skew(there_ms: int, began_ms: int, ended_ms: int) -> int:
    """By how much another clock is ahead; the smallest difference that a request of that length allows.

    >>> _skew(1_500, 1_000, 1_200), _skew(1_100, 1_000, 1_200), _skew(500, 1_000, 1_200)
    (300, 0, -500)
    """
    return max(there_ms - ended_ms, 0) + min(there_ms - began_ms, 0)
