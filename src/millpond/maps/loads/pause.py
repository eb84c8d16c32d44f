"""Work that goes on by itself until it is held; what is held goes on only while somebody keeps it awake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ("Pause",)


class Pause:
    """A switch that pauses some work. `nudge` is called on every change."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self._lock = threading.Lock()
        self._awake = 0
        self.held = False

    @property
    def going(self) -> bool:
        """True when the work is not paused."""
        return not self.held or self._awake > 0

    def set(self, held: bool) -> None:
        """Pause it, or let it go again."""
        self.held = held
        self._nudge()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it go on while this lasts, although it is held."""
        with self._lock:
            self._awake += 1
        self._nudge()
        try:
            yield
        finally:
            with self._lock:
                self._awake -= 1
