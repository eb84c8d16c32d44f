"""A signal: threads wait for a change, of this process or of others.

    look ─ it is there ─▶ returned
     ▲  └─ it is not ─▶ wait ─▶ a ring, another number of the last change, or `due` ─┐
     └──────────────────────────────────────────────────────────────────────────────┘

Whoever changes something in this process rings, and nothing is polled. What other processes change is found by a
number that every change of theirs makes another one, and that is read without a transaction. Where there is no such
number, what is waited for is read itself, less often.

Invariants:
* a change that is visible before its ring is seen by every thread that waits then: the rings, and the number, are
  taken before each look;
* `look` is called without a lock, so it may take its time, and ring;
* a wait that ends without what it waits for has looked at `due` or later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from millpond.clock import Clock
from millpond.kernel.space import Space

__all__ = ("Signal", "last_change_of", "uncounted")

LOOK_SECONDS = 0.02
"""The pause between two looks at the number of the last change."""
READ_SECONDS = 0.05
"""The pause between two looks at what has no number."""
STILL_SECONDS = 1.0
"""The pause between two looks though the number stands still: the lease of a process that died ends unsaid."""

T = TypeVar("T")


def uncounted() -> None:
    """The number of the last change where nobody counts them."""


def last_change_of(space: Space) -> Callable[[], int | None]:
    """The number of the last change of a space, of any process."""
    count: Callable[[], int | None] = getattr(space, "last_change", uncounted)
    return count


class Signal:
    """Changes that threads wait for. `others`: the number of the changes of other processes; None: there are none.

    `listeners` are called at each ring, by the thread that rings, for those who hold no thread while they wait.
    """

    def __init__(self, clock: Clock, others: Callable[[], int | None] | None = None) -> None:
        self._clock, self._others = clock, others
        self._changed = threading.Condition()
        self._rings = 0
        self.listeners: list[Callable[[], None]] = []

    def ring(self) -> None:
        """Let all who wait look again."""
        with self._changed:
            self._rings += 1
            self._changed.notify_all()
        # Without the lock: a listener may ring, and those who wait need not wait for it.
        for listener in tuple(self.listeners):
            listener()

    def wait_for(self, look: Callable[[], T], due: float | None, holds: Callable[[T], bool] = bool) -> T:
        """The result of `look` as soon as that `holds`, or at the monotonic time `due`; None: however long it takes.

        Raises: what `look` and `others` raise.
        """
        while True:
            # Before the look: a change that comes while it looks makes another ring, or number, which ends the wait.
            rings, number = self._rings, self._number()
            seen = look()
            if holds(seen) or (due is not None and self._clock.monotonic() >= due):
                return seen
            self._wait(rings, number, due)

    def _number(self) -> int | None:
        return None if self._others is None else self._others()

    def _wait(self, rings: int, number: int | None, due: float | None) -> None:
        """Wait for another ring or number, or until it is time to look all the same."""
        clock, again = self._clock, due
        if self._others is not None:
            still = clock.monotonic() + (READ_SECONDS if number is None else STILL_SECONDS)
            again = still if due is None else min(still, due)
        while True:
            until = again if self._others is None or again is None else min(again, clock.monotonic() + LOOK_SECONDS)
            with self._changed:
                if clock.wait_for(self._changed, lambda: self._rings != rings, until):
                    return
            if (again is not None and clock.monotonic() >= again) or self._number() != number:
                return
