"""The file of events of a campaign: one line of JSON each, with the second at which it happened."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.clock import Clock

__all__ = ("History",)


class History:
    """An append-only file of events. Threads may share it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._clock = clock
        self._began = clock.monotonic()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """The time since the campaign began."""
        return self._clock.monotonic() - self._began

    def add(self, event: str, **values: object) -> None:
        """Write an event."""
        line = json.dumps({"at": round(self.seconds, 3), "event": event, **values}, default=str)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
