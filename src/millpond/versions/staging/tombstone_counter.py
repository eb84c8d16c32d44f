"""The sensor: counts the tombstones of each branch, and says when the branch should be compacted.

One for each process, in memory. A count belongs to a branch and its staging token: another token begins at 0.

Invariants:
* `count` never waits, and never raises.
* After so many tombstones as the threshold the branch is offered once, and the count begins anew; when the offer is
  not taken, the next tombstone offers it again.
* After `close` nothing is offered. Closing twice is harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from millpond.kernel.cache import Cache

__all__ = ("Offer", "TombstoneCounter")

BRANCHES_MAX = 10_000

Offer: TypeAlias = "Callable[[str, str, str], bool]"
"""Takes a repository's uid, a branch and its token; False when it cannot be taken now."""


class TombstoneCounter:
    """Counts of tombstones by branch."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._counts: Cache[tuple[str, str], tuple[str, int]] = Cache(BRANCHES_MAX)
        self._lock = threading.Lock()
        self._closed = False

    def count(self, uid: str, branch: str, token: str, *, tombstones: int, threshold: int) -> None:
        """Note tombstones that were written to a branch; `threshold` 0 is off."""
        if threshold <= 0 or tombstones <= 0:
            return
        with self._lock:
            if self._closed:
                return
            before, counted = self._counts.get((uid, branch)) or (token, 0)
            counted = tombstones + (counted if before == token else 0)
            offered = counted - counted % threshold
            self._counts.put((uid, branch), (token, counted - offered))
        if offered and not self._offer(uid, branch, token):
            with self._lock:
                # Others may have counted on meanwhile, with another token even, or the branch was compacted.
                count = self._counts.get((uid, branch))
                if count is not None and count[0] == token:
                    self._counts.put((uid, branch), (token, count[1] + offered))

    def counted(self, uid: str, branch: str) -> int:
        """The tombstones counted since the last offer that was taken."""
        return (self._counts.get((uid, branch)) or ("", 0))[1]

    def total(self) -> int:
        """The tombstones counted on all branches."""
        return sum(count for _, count in self._counts.values())

    def forget(self, uid: str, branch: str) -> None:
        """Begin anew for a branch."""
        self._counts.pop((uid, branch))

    def close(self) -> None:
        """Offer nothing any more."""
        with self._lock:
            self._closed = True
