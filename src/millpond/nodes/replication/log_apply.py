"""Applying the log of a peer to this node: page by page, in order, or as a whole by cloning.

| what a peer's log shows | what is done |
|---|---|
| entries that this node lacks | their parts are fetched, and they are applied |
| nothing new, and the same end | nothing |
| another entry where this node has one, or another pond | `Conflict`: a fork |
| it ends before this node's log | `Unavailable`: the peer lost entries |
| it does not keep the next entry any more, or no node has a part of it | the peer is cloned |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from millpond.clock import Clock
from millpond.errors import Conflict, NotFound, Unavailable
from millpond.maps.log.log import Entry
from millpond.maps.log.node_list import NodeList
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.store_limits import need_shard
from millpond.nodes.replication.clone import clone_pond
from millpond.nodes.replication.part_sources import PartSources
from millpond.nodes.replication.peer import LogPage
from millpond.nodes.replication.source import PondSource
from millpond.pond import Pond

__all__ = ("LogApplier", "forked")

FETCH_BYTES_AHEAD = 256 << 20
"""So many bytes of parts, of several entries, are fetched at once."""

_LOG = logging.getLogger(__name__)
_CLONE = ("log_trimmed", "part_nowhere")


def forked(peer: str, reason: object) -> Conflict:
    """The logs of this node and of a peer went different ways."""
    return Conflict(
        "this node's log is another one than its peer's", kind="log_forked", peer=peer, reason=reason,
        hint="decide which node is right, then clone it over the other: millpond repair URL --from URL",
    )  # fmt: skip


def _ahead(peer: str, position: int, there: int) -> Unavailable:
    return Unavailable(
        "the peer's log ends before this node's", kind="log_ahead", peer=peer, position=position, peer_at=there,
        hint="it lost entries that it gets back from here by itself",
    )  # fmt: skip


class LogApplier:
    """Applies logs of peers to one pond; `working` is held while rows change, also by those who heal them.

    `may_follow` is called with the list of nodes of a peer whose entries came, before any is entered. `report` is
    called with `following` when a page was applied or nothing was to be, with `cloning` when a clone begins, and with
    `applied` after every entry. `layers_come`: the layers of maps are brought by another way, else such maps are
    refused.
    """

    def __init__(
        self, pond: Pond, sources: PartSources, clock: Clock, *, stopping: threading.Event,
        report: Callable[[str], None], may_follow: Callable[[NodeList], bool] = lambda _: True,
        layers_come: bool = False,
    ) -> None:  # fmt: skip
        self._may_follow, self._layers_come = may_follow, layers_come
        self._pond, self._sources, self._clock = pond, sources, clock
        self._stopping, self._report = stopping, report
        self.working = threading.Lock()
        self.pulled, self.clones, self.seen = 0, 0, 0
        self._joined: set[str] = set()

    def next_page(self, peer: PondSource, wait_seconds: float, *, going: Callable[[], bool] = lambda: True) -> bool:
        """Apply the next page of a peer's log; False when there was nothing new.

        `going` is called when a page has come; when it gives False, the page is left.

        Raises: what stops it.
        """
        if not self._join(peer):
            self.clone(peer)
            self._joined.add(peer.url)
            return True
        clones = self.clones
        after, chain = self._pond.log.position()
        try:
            page = peer.log(after, wait_seconds=wait_seconds)
            self.seen = page.last[0]
            if not page.entries:
                self._compare_ends(peer, page, after, chain)
            if not going():
                return True
            with self.working:
                self._need_followed(peer.url, page.nodes)
                self._apply(page.entries)
        except (NotFound, Conflict) as error:
            if self.clones != clones:
                return True  # the page is of what this node was before
            if error.kind == "log_forked":
                raise error if "peer" in error.values else forked(peer.url, error.message) from error
            if error.kind not in _CLONE:
                raise
            _LOG.warning("%s; cloning from %s", error, peer.url)
            self.clone(peer)
            return True
        self._report("following")
        return bool(page.entries)

    def _need_followed(self, peer: str, nodes: NodeList) -> None:
        """Insist that the entries of a peer may be entered; called while `working` is held."""
        if not self._may_follow(nodes):
            raise Unavailable(
                "this node promised to follow another primary", kind="node_promised", peer=peer, epoch=nodes.epoch,
                hint="finish the promotion: millpond node promote URL --without-primary",
            )  # fmt: skip

    def clone(self, peer: PondSource) -> None:
        """Become what a peer is, whatever this node was.

        Raises: what stops it; the node is then as it was.
        """
        self._report("cloning")
        with self.working:
            facts = peer.node()
            self._need_followed(peer.url, NodeList(int(facts.get("epoch", 0)), tuple(facts.get("nodes", ()))))
            clone_pond(self._pond, peer, self._clock)
            self.clones += 1
        self._report("following")

    def _join(self, peer: PondSource) -> bool:
        """Be of the same pond; False for a new node, when the pond is not: a copy is had sooner than its whole past."""
        if peer.url not in self._joined:
            facts = peer.node()
            own, there = self._pond.log.position()[0], int(facts["position"])
            if own and not there:
                # An empty node has a new id: it is no other pond, it lost its disk.
                raise _ahead(peer.url, own, there)
            self._pond.log.join(str(facts["pond"]))
            if own == 0 and there > 0:
                return False
            self._joined.add(peer.url)
        return True

    def _compare_ends(self, peer: PondSource, page: LogPage, after: int, chain: str) -> None:
        """Notice a fork that no new entry would show: the peer's log ends where ours does, or before."""
        position, last = page.last
        if position <= after and last != (chain if position == after else self._chain_at(position, last)):
            raise forked(peer.url, f"the entries at position {position} differ")
        if position < after:
            raise _ahead(peer.url, after, position)

    def _chain_at(self, position: int, unknown: str) -> str:
        """Our own chain at an earlier position, `unknown` when it is trimmed."""
        if position == 0:
            return ""
        try:
            return self._pond.log.entries(position - 1, 1)[0].chain
        except NotFound:
            return unknown

    def _apply(self, entries: Sequence[Entry]) -> None:
        position, _ = self._pond.log.position()
        for some in _in_batches([entry for entry in entries if entry.position > position]):
            parts = self._sources.parts(some)
            for entry in some:
                if self._stopping.is_set():
                    return
                if entry.kind in ("create", "alter") and not self._layers_come:
                    need_shard(MapDefinition.from_dict(entry.body["definition"]), "replication")
                part_ids = {str(part["id"]) for part in entry.body.get("parts", ())}
                self._pond.log.enter(entry, {part: folder for part, folder in parts.items() if part in part_ids})
                self.pulled += 1
                self._report("applied")


def _in_batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries whose parts are fetched together."""
    batches: list[list[Entry]] = []
    room = 0
    for entry in entries:
        size = sum(int(part["bytes"]) for part in entry.body.get("parts", ()))
        if not batches or size > room:
            batches.append([])
            room = FETCH_BYTES_AHEAD
        batches[-1].append(entry)
        room -= size
    return batches
