"""All that an oracle found wrong: sentences that begin with their word, as `lost: load 7 was acknowledged`."""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ("Findings",)


class Findings:
    """The wrong of a run, in order, and counted by its word. Threads may share it."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.kinds: Counter[str] = Counter()
        self._lock = threading.RLock()

    def report(self, problem: str) -> None:
        """Note something that is wrong; it begins with its word."""
        with self._lock:
            self.kinds[problem.partition(":")[0]] += 1
            self.wrong.append(problem)
