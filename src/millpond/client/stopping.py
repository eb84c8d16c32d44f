"""Ending work for sure: what it waits for is broken off, and its thread has ended before what it works on is closed.

interrupt.set() ─▶ pauses end · connections are shut down, new ones are refused ─▶ the thread sees it, and ends
wait_ended(thread) ─▶ now the pond may be closed
"""

from __future__ import annotations

import logging
import socket
import threading
import weakref
from contextlib import suppress

__all__ = ("Interrupt", "wait_ended")

TELL_SECONDS = 10.0
"""So often it is said that a thread is still waited for."""
_LOG = logging.getLogger(__name__)


class Interrupt(threading.Event):
    """An event that also breaks connections: reads and writes that wait on a watched socket fail when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._guard = threading.Lock()

    def set(self) -> None:
        """Set the event, and shut down every watched socket that is still open."""
        with self._guard:
            super().set()
            sockets = list(self._sockets)
            self._sockets.clear()
        for opened in sockets:
            # Of the plain socket, below TLS: to say goodbye there takes a lock that the reader may hold. The socket
            # stays open, so that its number is not given to another file while somebody still reads from it.
            with suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def watch(self, opened: socket.socket) -> None:
        """Break this socket when the event is set.

        Raises: `ConnectionAbortedError` when it is set already: whoever sets it breaks what there is, and this refuses
            what comes after, so nothing slips through in between.
        """
        with self._guard:
            if self.is_set():
                raise ConnectionAbortedError("the node is stopping")
            self._sockets.add(opened)


def wait_ended(thread: threading.Thread, what: str) -> None:
    """Wait until a thread has ended, however long that takes, and say so now and then.

    There is no limit after which to go on: the pond would be closed under the thread.
    """
    while True:
        thread.join(TELL_SECONDS)
        if not thread.is_alive():
            return
        _LOG.warning("waiting for %s to end", what)
