"""Repairing a node: everything that makes it equal to another one, in the order that costs least.

1. pull what it lacks of the other's log; where the logs went different ways, and only when allowed, clone all of it;
2. fetch parts that were quarantined, whole, from a peer;
3. compare every map, and clone those that differ or cannot be read.

It runs in a thread of the node: who asked for it may go away, and ask later what became of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millpond.client.wire_errors import to_wire
from millpond.clock import Clock
from millpond.errors import Closed, Conflict, Corrupt, Internal, Invalid, MillpondError, Unavailable
from millpond.kernel.signal import Signal
from millpond.kernel.worker import WorkerThread
from millpond.nodes.replication.clone import clone_map
from millpond.nodes.replication.follower import Follower
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.nodes.replication.log_agreement import agreement
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond

__all__ = ("Repairs",)

COMPARE_SECONDS = 300.0
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Repair:
    """One repair: what it did so far, and how it ended."""

    source: str | None
    state: str = "running"
    done: list[str] = field(default_factory=list)
    error: MillpondError | None = None

    def to_dict(self) -> dict[str, Any]:
        error = None if self.error is None else to_wire(self.error)
        return {"source": self.source, "state": self.state, "done": list(self.done), "error": error}


class Repairs:
    """The repairs of one node: one at a time. `mended` is called after each that ended well."""

    def __init__(
        self,
        pond: Pond,
        follower: Follower,
        local_peer: LocalPeer,
        clock: Clock,
        *,
        mended: Callable[[], object] = lambda: None,
    ) -> None:
        self._pond, self._follower, self._local_peer, self._clock, self._mended = (
            pond,
            follower,
            local_peer,
            clock,
            mended,
        )
        self._lock, self.ended = threading.Lock(), Signal(clock)
        self._worker = WorkerThread("repairs", self._act, clock)
        self._stopping = self._worker.stopping
        self._repair: _Repair | None = None
        self._order: tuple[_Repair, Peer | None, bool] | None = None

    def begin(self, source: str | None = None, *, over: bool = False) -> dict[str, Any]:
        """Begin a repair, from the primary by default; `over` allows to throw away a log that is a fork of it.

        Raises: `Conflict` while another one runs; `Invalid` when the source is the node itself; `Closed` when the node
        stops.
        """
        peer = self._source(source)
        with self._lock:
            if self._stopping.is_set():
                raise Closed("the node is stopping", kind="node_stopping", node=self._local_peer.url,
                             hint="ask again when it is up")  # fmt: skip
            if self._repair is not None and self._runs():
                raise Conflict("a repair is running", kind="repair_running", source=self._repair.source,
                               hint="wait until it is done")  # fmt: skip
            self._repair = _Repair(None if peer is None else peer.url)
            self._order = self._repair, peer, over
            self._worker.start()
            self._worker.wake()
        return self.status()

    def status(self) -> dict[str, Any]:
        """The state of the last repair: `{source, state, done, error}`; `state` is `never, running, done` or
        `failed`.
        """
        repair = self._repair
        return _Repair(None, "never").to_dict() if repair is None else repair.to_dict()

    def stop(self) -> None:
        """Begin no more, and wait for the one that runs: it ends after what it is at."""
        with self._lock:
            self._worker.interrupt()
        self._worker.stop()

    def wait(self, seconds: float) -> bool:
        """Wait for the running repair; whether none runs any more."""
        return self.ended.wait_for(lambda: not self._runs(), self._clock.monotonic() + seconds)

    def _runs(self) -> bool:
        return self._repair is not None and self._repair.state == "running"

    def _act(self) -> None:
        order, self._order = self._order, None
        if order is not None:
            self._run(*order)
            self.ended.ring()

    def _source(self, source: str | None) -> Peer | None:
        if source is not None:
            if source.rstrip("/") == self._local_peer.url.rstrip("/"):
                raise Invalid("a node cannot be repaired from itself", kind="repair_source", source=source)
            return self._follower.members.peer(source)
        return self._follower.peers()[0] if self._follower.role == "replica" else None

    def _run(self, repair: _Repair, peer: Peer | None, over: bool) -> None:
        try:
            if peer is not None:
                self._pull(repair, peer, over)
            self._heal(repair)
            if peer is not None:
                self._replace_damaged(repair, peer)
                self._compare(repair, peer)
            self._go_on()
            if over:
                self._follower.soundness.readiness.decided()
            with suppress(Unavailable):  # it is looked at again by itself
                self._mended()
            repair.state = "done"
        except MillpondError as error:
            repair.error, repair.state = error, "failed"
        except Exception as error:
            _LOG.exception("a repair failed unexpectedly")
            repair.error = Internal("the repair failed unexpectedly", kind="unexpected", reason=repr(error))
            repair.state = "failed"

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise Closed("the node is stopping", kind="node_stopping", node=self._local_peer.url,
                         hint="begin the repair again when it is up")  # fmt: skip

    def _pull(self, repair: _Repair, peer: Peer, over: bool) -> None:
        before = self._pond.log.position()[0]
        if before and not peer.node()["position"]:
            raise Conflict(
                "the source is empty: its copy would delete everything here", kind="repair_from_empty", source=peer.url,
                position=before, hint="repair the empty node from this one",
            )  # fmt: skip
        try:
            self._follower.follow(peer)
        except (Conflict, Unavailable) as error:
            if error.kind not in ("log_forked", "log_ahead", "pond_other") or not over:
                raise
            self._follower.clone(peer)
            repair.done.append(f"cloned everything from {peer.url}: {error.message}")
            return
        entered = self._pond.log.position()[0] - before
        if entered:
            repair.done.append(f"entered {entered} of the log of {peer.url}")

    def _heal(self, repair: _Repair) -> None:
        repair.done += [f"fetched part {part} again" for part in self._follower.heal()]
        quarantine = [part.part for part in self._pond.parts.quarantined()]
        repair.done += [f"part {part} stays quarantined: no peer gave it whole" for part in quarantine]

    def _replace_damaged(self, repair: _Repair, peer: Peer) -> None:
        """Clone maps whose shards cannot be read: nothing can be merged into them, so they would stay behind."""
        for pond_map in self._pond.maps():
            self._go_on()
            try:
                self._local_peer.digest(pond_map.name)
            except Corrupt as error:
                clone_map(self._pond, peer, pond_map.name)
                repair.done.append(f"cloned map {pond_map.name} from {peer.url}: {error.message}")
            except Unavailable as error:
                _LOG.info("%s", error)  # expected: the comparison waits for maintenance

    def _compare(self, repair: _Repair, peer: Peer) -> None:
        result = agreement([peer, self._local_peer], self._clock, seconds=COMPARE_SECONDS, stopping=self._stopping)
        for finding in result.findings:
            self._go_on()
            if finding.state == "differs" and finding.reason is None:
                clone_map(self._pond, peer, finding.map)
                repair.done.append(f"cloned map {finding.map} from {peer.url}: its rows differed")
            elif finding.state != "agrees":
                repair.done.append(
                    f"map {finding.map} is not equal yet on {finding.node}: {finding.state}, {finding.reason}"
                )
