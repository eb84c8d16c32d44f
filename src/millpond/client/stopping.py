"""Ending work for sure: what its thread waits for is broken off, so that it ends before what it works on is closed.

interrupt.set() ─▶ pauses end · connections are shut down, new ones are refused ─▶ the thread sees it, and ends
"""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress

__all__ = ("Interrupt",)


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
        for connection in sockets:
            # Of the plain socket, below TLS: to say goodbye there takes a lock that the reader may hold. The socket
            # stays open, so that its number is not given to another file while somebody still reads from it.
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def watch(self, connection: socket.socket) -> None:
        """Break this socket when the event is set.

        Raises: `ConnectionAbortedError` when it is set already: whoever sets it breaks what there is, and this refuses
            what comes after, so nothing slips through in between.
        """
        with self._guard:
            if self.is_set():
                raise ConnectionAbortedError("the node is stopping")
            self._sockets.add(connection)
