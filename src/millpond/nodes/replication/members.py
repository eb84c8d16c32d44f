"""The members of a pond: the list of its nodes as one of them has it, and the connections to the others.

The list is that of the log, once it has one; before, that of the settings. `membership/fence.py` says how it changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from millpond.client.transport import Connection
from millpond.clock import Clock
from millpond.errors import Invalid
from millpond.kernel.steps import step
from millpond.maps.log.node_list import NodeList
from millpond.nodes.membership.fence import Fence
from millpond.nodes.membership.stored_lists import StoredLists
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond
from millpond.settings import Settings

__all__ = ("Members",)


class Members:
    """The nodes of a pond. `urls` are all of them, the primary first; none for a node that is alone."""

    def __init__(self, pond: Pond, settings: Settings, clock: Clock, *, stop: threading.Event) -> None:
        self._settings, self._clock, self._stop = settings, clock, stop
        self.stored = StoredLists(pond)
        self.own = settings.own_url()
        self.settings_urls = tuple(url.rstrip("/") for url in settings.nodes.urls)
        self.fence = Fence(self.own, self._list_here(), self.stored.promise())
        self.peers: list[Peer] = [self._connected(url) for url in self.others]

    def _list_here(self) -> NodeList:
        """The list of the log. One without nodes, or none, lets the settings count."""
        members = self.stored.current()
        if members is None:
            return NodeList(0, self.settings_urls)
        return members if members.nodes else NodeList(members.epoch, self.settings_urls, (), members.position)

    @property
    def current(self) -> NodeList:
        """The list that this node has adopted."""
        return self.fence.current

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all nodes."""
        return self.fence.current.nodes

    @property
    def replicates(self) -> bool:
        """True when the pond has other nodes."""
        return len(self.urls) > 1

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

    @property
    def settings_differ(self) -> bool:
        """True when the setting `nodes.urls` is another list than that of the log, which counts."""
        return self.current.epoch > 0 and set(self.settings_urls) != set(self.urls)

    def peer(self, url: str) -> Peer:
        """Another node by its address.

        Raises: `Invalid`, kind `node_unknown`, for one that is not a member: whoever may order a repair may not send
            this node, with its token, anywhere.
        """
        address = url.rstrip("/")
        member = next((peer for peer in self.peers if peer.url == address), None)
        if member is None:
            raise Invalid(
                "this is no other node of the pond", kind="node_unknown", node=address,
                nodes=", ".join(self.others) or "none",
                hint="name one of `nodes.urls` as it stands there, or add it to the settings of this node first",
            )  # fmt: skip
        return member

    def refresh(self) -> bool:
        """Adopt the list of the log; True when it is another one. Connections to nodes that stay are kept open."""
        current = self._list_here()
        if current == self.current:
            return False
        if current.primary == self.own:
            self.stored.may_append()
        self.fence.adopt(current)
        by_url = {peer.url: peer for peer in self.peers}
        self.peers = [by_url.get(url) or self._connected(url) for url in self.others]
        step("nodes.adopted")
        return True

    def _connected(self, url: str) -> Peer:
        return Peer(Connection(url, self._settings, stop=self._stop, clock=self._clock))
