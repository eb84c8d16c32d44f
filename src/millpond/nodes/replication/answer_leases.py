"""Leases: the time for which a node may answer without hearing from others, where a load needs only most nodes.

With `nodes.write_to = "majority"` a load is acknowledged without the nodes that lag. They must not answer then, and a
node that is cut off cannot know that it lags. So a replica answers only while it holds a lease of the primary, which
each exchange of status extends; and the primary acknowledges a load without a replica only when that one's lease is
over.

    replica    sent ────────────── lag_limit ──────────────▶ answers nothing
    primary          granted ────────────── lag_limit, and a tenth ──────────────▶ acknowledges without it

Invariants:
* a lease that a replica holds ends before the primary takes it for ended: the replica counts from before it sent its
  request, the primary from after it answered, and a tenth longer, so that clocks may run a little differently;
* no lease is granted to a replica that lacks what was acknowledged without it;
* a primary that starts knows of no leases, and takes every replica for one that was granted one just now;
* a primary answers only while it hears from most nodes: the others may have been given another primary.

With `nodes.write_to = "all"` nothing is acknowledged without a node, and all leases hold.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millpond.clock import Clock

__all__ = ("AnswerLeases",)

GRACE = 1.1


class AnswerLeases:
    """The leases of one node: the one that it holds as a replica, and those that it grants as the primary."""

    def __init__(self, clock: Clock, seconds: float, *, majority: bool) -> None:
        self._clock, self._seconds, self.majority = clock, seconds, majority
        self._lock = threading.Lock()
        self._until = -1.0
        self._heard: dict[str, float] = {}
        self._granted: dict[str, float] = {}
        self._positions: dict[str, int] = {}
        self._begun = clock.monotonic()
        self._required: int | None = None

    def begin(self) -> None:
        """Become the primary, or cease to be it: leases of the past are not known."""
        with self._lock:
            self._granted, self._required, self._begun = {}, None, self._clock.monotonic()
            self._until = -1.0

    # -- a replica ----------------------------------------------------------------------------------------

    def extend(self, sent: float) -> None:
        """Note that the primary granted a lease to a request that was sent at that monotonic time."""
        with self._lock:
            self._until = max(self._until, sent + self._seconds)

    def held(self) -> bool:
        """True while a replica may answer."""
        return not self.majority or self._clock.monotonic() < self._until

    # -- the primary --------------------------------------------------------------------------------------

    def hear(self, url: str, position: int) -> None:
        """Note a peer's word."""
        with self._lock:
            self._heard[url], self._positions[url] = self._clock.monotonic(), position

    def most_heard(self, others: Sequence[str]) -> bool:
        """True while a primary hears from most nodes, itself among them."""
        if not self.majority:
            return True
        since = self._clock.monotonic() - self._seconds
        with self._lock:
            heard = sum(self._heard.get(url, -1.0) >= since for url in others)
        return 2 * (heard + 1) > len(others) + 1

    def grant(self, url: str, position: int, *, own: int) -> bool:
        """Grant a lease to a replica at a position, by a primary at `own`; False when it lacks what it must have."""
        if not self.majority:
            return True
        with self._lock:
            if self._required is None:
                self._required = own  # what a primary before this one acknowledged without the replica
            if position < self._required:
                return False
            self._granted[url] = self._clock.monotonic()
            return True

    def require(self, position: int) -> None:
        """Grant no more leases to replicas that lack this position."""
        with self._lock:
            self._required = max(self._required or 0, position)

    def due(self, url: str, position: int) -> float:
        """The monotonic time from which a load at a position may be acknowledged without a replica."""
        with self._lock:
            if self._positions.get(url, 0) >= position:
                return self._clock.monotonic()
            return self._granted.get(url, self._begun) + GRACE * self._seconds
