"""Turns: threads that work on one thing follow each other; those that work on different things mostly do not wait.

There are as many locks as `LOCKS`, whatever the number of things: two things may share a lock, which costs time alone.
So a thread that holds the turn of one thing must not wait for that of another.
"""

from __future__ import annotations

import threading
import zlib

__all__ = ("Turns",)

LOCKS = 64


class Turns:
    """Locks by name."""

    def __init__(self) -> None:
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    def of(self, name: str) -> threading.Lock:
        """The lock of a thing.

        >>> turns = Turns()
        >>> turns.of("a") is turns.of("a"), turns.of("a") is turns.of("b")
        (True, False)
        """
        # Not `hash`, which differs by process: two names that clash do so again when somebody looks into it.
        return self._locks[zlib.crc32(name.encode()) % LOCKS]
