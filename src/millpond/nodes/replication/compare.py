"""Periodic comparison of this replica's rows with its primary's; the primary is the measure.

It costs next to nothing while the log has not moved since all was equal, and a digest of each map that changed
otherwise, on both nodes (some ten million rows a second). A map that is found to differ is asked about once more before
the difference is reported: a node that gives other answers than its primary must not be read from.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millpond.clock import Clock
from millpond.nodes.replication.follower import Follower
from millpond.nodes.replication.local_peer import LocalPeer
from millpond.nodes.replication.log_agreement import Agreement, Finding, agreement
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond

__all__ = ("Comparing",)

MAP_SECONDS = 10.0
"""So long a map may take to come to where the primary is; a map that is behind is compared the next time."""
PULL_SECONDS = 10.0


class Comparing:
    """The comparisons of one node; `differing` is what the last one found."""

    def __init__(self, pond: Pond, follower: Follower, local_peer: LocalPeer, clock: Clock) -> None:
        self._pond, self._follower, self._local_peer, self._clock = pond, follower, local_peer, clock
        self._lock = threading.Lock()
        self._equal_at: tuple[int, str] | None = None
        self.differing: tuple[Finding, ...] = ()

    def reasons(self, *, named: bool = True) -> list[str]:
        """The reasons why the node must not be read from; empty when it may be. `named`: with the names of maps."""
        if self.differing and not named:
            many = len(self.differing)
            return [f"maps that differ from the primary's: {many}; millpond repair {self._local_peer.url}"]
        return [
            f"map {finding.map} is not as the primary has it: {_in_words(finding)}; "
            f"millpond repair {self._local_peer.url}"
            for finding in self.differing
        ]

    def compare(self, stopping: threading.Event) -> Agreement | None:
        """Compare all maps with the primary's; None when nothing changed since they were equal.

        Raises: `Unavailable` when the primary cannot be reached, or this node cannot come up to it.
        """
        with self._lock:
            at = self._pond.log.position()
            if at == self._equal_at:
                return None
            peer = self._follower.peers()[0]
            agreement = self._compared(peer, None, stopping)
            again = [finding.map for finding in self._wrong(agreement)]
            if again and not stopping.is_set():
                agreement = _joined(agreement, self._compared(peer, again, stopping))
            if not stopping.is_set():
                self.differing = tuple(self._wrong(agreement))
                self._equal_at = at if agreement.ok else None
            return agreement

    def mended(self) -> None:
        """Look again, when something was found to differ and the node was repaired."""
        if self.differing:
            self.compare(threading.Event())

    def _compared(self, peer: Peer, maps: Sequence[str] | None, stopping: threading.Event) -> Agreement:
        # What was made or dropped at the primary by now is known here before maps are compared by their names.
        self._follower.pull(int(peer.node()["position"]), PULL_SECONDS)
        return agreement([peer, self._local_peer], self._clock, maps=maps, seconds=MAP_SECONDS, stopping=stopping)

    def _wrong(self, agreement: Agreement) -> list[Finding]:
        """The findings that concern this node: the primary reports its own damage itself."""
        return [finding for finding in agreement.differing if finding.node == self._local_peer.url]


def _joined(first: Agreement, again: Agreement) -> Agreement:
    pairs = {(finding.map, finding.node) for finding in again.findings}
    retained = [finding for finding in first.findings if (finding.map, finding.node) not in pairs]
    return Agreement((*retained, *again.findings))


def _in_words(finding: Finding) -> str:
    if finding.state == "differs":
        return finding.reason or f"its {finding.rows:,} rows are others"
    return f"{finding.state}, {finding.reason}"
