"""The sync of a folder that several threads share: one that begins after all of them have made their names there.

A thread that comes while a sync runs cannot rely on it, for its names may be too late. It waits for the next one, which
then serves everybody who came meanwhile.

Invariant: `run` returns only after a sync that began after it was called has ended.
"""

from __future__ import annotations

import threading
from pathlib import Path

from millpond.stores.files import sync

__all__ = ("SharedSync",)


class SharedSync:
    """The syncs of one folder, by number: the first to need one runs it for all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        self._running = False

    def run(self) -> None:
        """Make the names in the folder durable.

        Raises: `OSError` of the sync; those who wait then run one of their own.
        """
        with self._changed:
            needed = self._begun + 1
            self._changed.wait_for(lambda: not self._running or self._ended >= needed)
            if self._ended >= needed:
                return
            self._running = True
            self._begun += 1
            number = self._begun
        try:
            sync(self._folder)
        except BaseException:
            number = 0
            raise
        finally:
            with self._changed:
                self._running = False
                self._ended = max(self._ended, number)
                self._changed.notify_all()
