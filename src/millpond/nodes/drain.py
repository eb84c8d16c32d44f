"""Draining: a node takes no new work, finishes what runs, and says when it is safe to stop.

It answers no questions and takes no uploads and no changes; clients go on to other nodes. It still follows the log, so
loads whose parts it has are acknowledged. It is safe to stop when no question, upload or load runs, and no upload that
came lately still waits to be entered. A restart ends the draining.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import Unavailable
from millpond.nodes.replication.peer_health import not_ready
from millpond.nodes.uploads.receiver import Receiver

__all__ = ("Drain", "DrainStatus")

LATELY_SECONDS = 10.0
"""An upload that waits longer belongs to a load that failed, or can be sent again."""


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """The state of draining. `requests` run, `uploads` wait to be entered; `safe` says that the node may be stopped."""

    draining: bool
    requests: int
    uploads: int
    safe: bool


class Drain:
    """The draining of one node, and the count of its requests that are work."""

    def __init__(self, receiver: Receiver, url: str) -> None:
        self._receiver, self._url = receiver, url
        self._lock = threading.Lock()
        self._requests = 0
        self._active = False
        self.changed: Callable[[bool], object] = bool
        """Called when the draining begins or ends, before anybody is told."""
        self.elsewhere: Callable[[], int] = int
        """The count of such requests in other processes of the node."""

    @property
    def active(self) -> bool:
        """True while the node takes no new work."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        self._active = active
        self.changed(active)

    def begin_request(self) -> None:
        """Count a request that must end before the node is stopped."""
        with self._lock:
            self._requests += 1

    def end_request(self) -> None:
        """Count the end of such a request."""
        with self._lock:
            self._requests -= 1

    def refusal(self) -> Unavailable:
        """The error for new work."""
        return not_ready(self._url, "it is drained: millpond node drain URL --undo")

    def status(self) -> DrainStatus:
        """The state, now."""
        uploads = self._receiver.recent_uploads(LATELY_SECONDS)
        with self._lock:
            requests = self._requests + self.elsewhere()
            return DrainStatus(self.active, requests, uploads, self.active and requests == 0 and uploads == 0)
