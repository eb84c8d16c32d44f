"""The gate before the log: appends pass it while it is open, and a change of the list of nodes closes it.

Invariants:
* while it is closed no append runs: those that ran have ended, and others wait;
* an append that waited looks again whether this node may append; a gate that stays closed refuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millpond.clock import Clock
from millpond.errors import Unavailable

__all__ = ("AppendGate",)

WAIT_SECONDS = 20.0
"""The time for which an append waits at a closed gate."""
QUEUED_MAX = 16
"""So many appends wait, each in a thread; more are refused at once."""
CLOSE_SECONDS = 20.0
"""The time that appends have to end before a change is given up."""


class AppendGate:
    """The gate of one node."""

    def __init__(self, clock: Clock, url: str) -> None:
        self._clock, self._url = clock, url
        self._changed = threading.Condition()
        self._running, self._queued, self._closed = 0, 0, False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Pass it for one append.

        Raises: `Unavailable`, kind `nodes_changing`, when it stays closed.
        """
        with self._changed:
            if not self._opened():
                raise Unavailable(
                    "the list of nodes is being changed", kind="nodes_changing", node=self._url, hint="ask again"
                )
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close it, and wait until no append runs.

        Raises: `Unavailable`, kind `appends_running`, when one does not end in time.
        """
        with self._changed:
            self._closed = True
            ended = self._wait(lambda: self._running == 0, CLOSE_SECONDS)
        try:
            if not ended:
                raise Unavailable(
                    "a load or another change does not end", kind="appends_running", node=self._url,
                    hint="nothing was changed; begin again when it has ended",
                )  # fmt: skip
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def _opened(self) -> bool:
        """Wait for it to be open; False when it stays closed, or too many wait."""
        if not self._closed or self._queued >= QUEUED_MAX:
            return not self._closed
        self._queued += 1
        try:
            return self._wait(lambda: not self._closed, WAIT_SECONDS)
        finally:
            self._queued -= 1

    def _wait(self, true: Callable[[], bool], seconds: float) -> bool:
        self._clock.wait_for(self._changed, true, self._clock.monotonic() + seconds)
        return true()
