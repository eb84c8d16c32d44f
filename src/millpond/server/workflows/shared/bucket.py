"""Workflows of the nodes on a bucket: one of them owns all partitions, the others send it what they are called for.

    call ─▶ the owner ─▶ the log in the bucket ─▶ its stores, which are copies
    another node ─▶ each `TELL_SECONDS`: its address, to the owner ◀─ the addresses of all

Invariants:
* nothing is begun before somebody calls, or the pond has workflows: a node that serves maps alone asks for none;
* workers poll the owner: it alone has tasks;
* the owner is another node `LEASE_SECONDS` after it died; calls wait so long for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import MillpondError
from millpond.kernel.keys import encode
from millpond.server.workflows.access import EVERY_TENANT
from millpond.server.workflows.looking import Looking
from millpond.server.workflows.shared.partitions import SharedPartitions, SharedParts
from millpond.server.workflows.shared.wire import parts_of
from millpond.workflows.logs.bucket_owner import LEASE_SECONDS, BucketOwner
from millpond.workflows.partitions import METADATA
from millpond.workflows.partitions.bucket import BUCKET_PARTITIONS, BucketRuns, has_runs

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.workflows.service import WorkflowService

__all__ = ("BucketPartitions",)

TELL_SECONDS = 2.0
SILENT_SECONDS = 10.0
"""A node that told nothing for so long is no member any more."""


class BucketPartitions(SharedPartitions):
    """The partitions of a pond in a bucket."""

    move_seconds = LEASE_SECONDS + 10.0

    def __init__(self, node: Node, service: WorkflowService) -> None:
        super().__init__(node, service)
        self._heard: dict[str, float] = {}
        self._members = [service.address]
        """The nodes that take calls for workflows, as the owner has heard of them."""
        service.for_peers["Members"] = self._members_for
        self.lookings = (Looking("the members on this bucket", TELL_SECONDS, self._tell),)

    def has_runs(self) -> bool:
        """True when the pond has workflows: their timers go on."""
        return has_runs(self._node.pond.space)

    def _open_parts(self) -> SharedParts:
        node = self._node
        beside = node.pond.location.beside("workflows")
        assert beside is not None, "the node is on a bucket"
        runs = BucketRuns.below(beside.objects, node.clock)
        address, folder = self._service.address, node.pond.own_folder / "workflows" / node.pond.log.pond_id
        owner = BucketOwner(node.pond.space, address, node.clock, BUCKET_PARTITIONS, lambda: self._ownership.wake())
        return SharedParts(runs.log, owner, runs.checkpoints, folder)

    def hosts(self) -> list[str]:
        """The address of the owner, whose tasks workers poll for."""
        return [self.owner(METADATA) or self._service.address]

    def members(self) -> list[str]:
        """The nodes that tell the owner that they are there."""
        return self._members

    async def _tell(self) -> None:
        """Tell the owner that this node is there, and learn of the others; the owner counts those it heard of."""
        owner, address = self.owner(METADATA), self._service.address
        if self.owned:
            self._members = self._heard_of()
        elif owner and owner != address:
            try:
                message = encode((METADATA, EVERY_TENANT, address))
                self._members = list(map(str, parts_of(await self._service.peers.call(owner, "Members", message))))
            except MillpondError:  # it has ended, or is none that takes calls: a run in a process without server
                self._members = [address]

    async def _members_for(self, data: bytes) -> bytes:
        """The addresses of all nodes, for one of them."""
        self._heard[str(parts_of(data)[2])] = self._node.clock.monotonic()
        return encode(tuple(self._heard_of()))

    def _heard_of(self) -> list[str]:
        since = self._node.clock.monotonic() - SILENT_SECONDS
        self._heard = {address: at for address, at in self._heard.items() if at >= since}
        return sorted({*self._heard, self._service.address})
