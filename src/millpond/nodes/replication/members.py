"""The members of a pond: the list of its nodes as one of them has it, and the connections to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from millpond.client.transport import Connection
from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.nodes.replication.peer import Peer
from millpond.settings import Settings

__all__ = ("Members",)


class Members:
    """The nodes of a pond. `urls` are all of them, the primary first; none for a node that is alone."""

    def __init__(self, settings: Settings, clock: Clock, *, stop: threading.Event) -> None:
        self._settings, self._clock, self._stop = settings, clock, stop
        self.own = settings.own_url()
        self.urls = tuple(url.rstrip("/") for url in settings.nodes)
        self.peers: list[Peer] = [self._connected(url) for url in self.others]

    @property
    def others(self) -> Sequence[str]:
        """The addresses of the other nodes, the primary first."""
        return [url for url in self.urls if url != self.own]

    @property
    def primary(self) -> str:
        """The address of the node that appends to the log."""
        return self.urls[0] if self.urls else self.own

    @property
    def role(self) -> str:
        """`alone`, `primary` or `replica`."""
        return "alone" if not self.urls else "primary" if self.primary == self.own else "replica"

    def peer(self, url: str) -> Peer:
        """Another node by its address.

        Raises: `Invalid`, kind `node_unknown`, for one that is not a member: whoever may order a repair may not send
            this node, with its token, anywhere.
        """
        wanted = url.rstrip("/")
        known = next((peer for peer in self.peers if peer.url == wanted), None)
        if known is None:
            raise Invalid(
                "this is no other node of the pond", kind="node_unknown", node=wanted,
                nodes=", ".join(self.others) or "none",
                hint="name one of `nodes` as it stands there, or add it to the settings of this node first",
            )  # fmt: skip
        return known

    def become(self, urls: Iterable[str]) -> None:
        """Take another list of nodes; connections to those that stay are kept open."""
        self.urls = tuple(urls)
        known = {peer.url: peer for peer in self.peers}
        self.peers = [known.get(url) or self._connected(url) for url in self.others]

    def _connected(self, url: str) -> Peer:
        return Peer(Connection(url, self._settings, stop=self._stop, clock=self._clock))
