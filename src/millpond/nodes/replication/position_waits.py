"""Waits of others for a node that follows the log: until it has entered everything up to a position.

    begin ─▶ arrived? ─no─▶ the progress is another one, or `look_again` has come ─▶ arrived? … ─▶ yes, or an error

A thread waits in `PositionWaits.wait`. Who must not hold a thread calls `begin` and `arrived`, and is called by
`changed` whenever the progress may be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millpond.clock import Clock
from millpond.errors import MillpondError, Unavailable
from millpond.kernel.signal import Signal

__all__ = ("WAKE_SECONDS", "PositionWait", "PositionWaits", "Progress", "node_behind")

FAILURES_LOGGED = 3
"""A waiter gets an error that the node is behind when so many tries failed while it waited."""
WAKE_SECONDS = 1.0
"""So often a waiter ends the pause of the thread again, which may have begun just after it was ended."""


@dataclass(frozen=True, slots=True)
class Progress:
    """All that ends a wait for a position, or is a reason to look at it again."""

    position: int
    failures: int
    fork: MillpondError | None
    going: bool
    running: bool
    ending: bool


@dataclass(slots=True)
class PositionWait:
    """A wait for a position. Made by `PositionWaits.begin`."""

    waits: PositionWaits
    position: int
    until: float
    seen: Progress
    failures: int
    look_again: float

    def arrived(self) -> bool:
        """True when the node has entered everything up to the position. If not, the thread that follows is woken.

        Raises: as `PositionWaits.wait`.
        """
        self.seen = seen = self.waits.progress()
        if seen.position >= self.position:
            return True
        if not seen.running:
            raise node_behind(self.position, seen.position, "it does not pull")
        if seen.fork is not None and seen.failures > self.failures:
            raise seen.fork
        if not seen.going:
            raise _held(self.position)
        now = self.waits.clock.monotonic()
        if seen.ending or now >= self.until or seen.failures >= self.failures + FAILURES_LOGGED:
            raise node_behind(self.position, seen.position, self.waits.error() or "it was not there in time")
        # Whoever waits is not left waiting for the end of a long pause.
        self.waits.wake()
        self.look_again = min(self.until, now + WAKE_SECONDS)
        return False


class PositionWaits:
    """The waits for one node: `progress` tells where it stands, `changed` rings when that may have changed."""

    def __init__(
        self, clock: Clock, *, progress: Callable[[], Progress],
        error: Callable[[], MillpondError | None], wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self.clock, self.progress, self.error, self.wake = clock, progress, error, wake
        self.changed = Signal(clock)

    def begin(self, position: int, timeout: float) -> PositionWait:
        """A wait for a position, of at most so many seconds.

        Raises: `Conflict` when the log is a fork of the primary's.
        """
        seen, until = self.progress(), self.clock.monotonic() + timeout
        if seen.fork is not None:
            raise seen.fork  # its entry at that position may be another one
        return PositionWait(self, position, until, seen, seen.failures, until)

    def wait(self, position: int, timeout: float) -> int:
        """Wait until the node has entered everything up to a position; the position it has come to.

        Raises:
            Unavailable: kind `node_behind`, with the reason: it is not there in time, or cannot get there for now; kind
                `node_held`.
            Conflict: the log is a fork of the primary's.
        """
        wait = self.begin(position, timeout)
        while not wait.arrived():
            self.changed.wait_for(lambda: self.progress() != wait.seen, wait.look_again)
        return wait.seen.position


def _held(target: int) -> Unavailable:
    return Unavailable(
        "replication is paused on the node", kind="node_held", wanted=target, hint="millpond jobs resume replicate"
    )


def node_behind(target: int, position: int, reason: object) -> Unavailable:
    """The node lacks entries up to a position."""
    return Unavailable(
        "the node has not caught up", kind="node_behind", wanted=target, position=position, reason=reason,
        hint="it goes on by itself; ask again",
    )  # fmt: skip
