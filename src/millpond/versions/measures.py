"""Counters of the maintenance of branches, and of the moves of their heads, for one process since it opened the pond.

    compactions by outcome, the layers they folded, the time they took; heads moved, and moves that were built again

Counters alone: no branch is named, so that there are as many of them on a thousand branches as on one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ("Measures",)


@dataclass(slots=True)
class Measures:
    """The counters. Threads share them."""

    compactions: int = 0
    """Compactions that switched a branch to their index."""
    compactions_lost: int = 0
    """Compactions whose layers changed meanwhile, or had no turn: nothing was switched."""
    compaction_ms: int = 0
    layers_folded: int = 0
    """Sealed layers that compactions replaced."""
    heads_moved: int = 0
    moves_repeated: int = 0
    """Commits and merges that were built again, because the branch was not what it was."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def compacted(self, *, done: bool, layers: int, ms: int) -> None:
        """Count a compaction."""
        with self._lock:
            self.compaction_ms += ms
            if done:
                self.compactions += 1
                self.layers_folded += layers
            else:
                self.compactions_lost += 1

    def moved(self, *, tries: int) -> None:
        """Count a head that moved, and how often its commit was built."""
        with self._lock:
            self.heads_moved += 1
            self.moves_repeated += tries - 1
