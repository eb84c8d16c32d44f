"""Workflows of the nodes on a bucket: one of them owns all partitions, the others send it what they are called for.

    call ─▶ the owner ─▶ the log in the bucket ─▶ its stores, which are copies
    another node ─▶ each `TELL_SECONDS`: its address, to the owner ◀─ the addresses of all

Invariants:
* nothing is begun before somebody calls, or the pond has workflows: a node that serves maps alone asks for none;
* workers poll the owner: it alone has tasks;
* the owner is another node `LEASE_SECONDS` after it died; calls wait so long for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from anyio.to_thread import run_sync

from millpond.errors import MillpondError
from millpond.kernel.keys import encode
from millpond.server.wire import stopping
from millpond.server.workflows.access import EVERY_TENANT
from millpond.server.workflows.looking import Looking
from millpond.server.workflows.shared.peers import Elsewhere
from millpond.server.workflows.shared.service import SharedParts, SharedWorkflows
from millpond.server.workflows.shared.wire import parts_of
from millpond.workflows.logs.bucket_owner import LEASE_SECONDS, BucketOwner
from millpond.workflows.partitions import METADATA
from millpond.workflows.partitions.bucket import BUCKET_PARTITIONS, BucketRuns, has_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from millpond.nodes.node import Node
    from millpond.server.rpc.threads import CallThreads
    from millpond.workflows.engine import Request
    from millpond.workflows.processor import ReadRows

__all__ = ("BucketWorkflows",)

T = TypeVar("T")
TELL_SECONDS = 2.0
SILENT_SECONDS = 10.0
"""A node that told nothing for so long is no member any more."""


class BucketWorkflows(SharedWorkflows):
    """The workflows of one node on a bucket."""

    _group: BucketOwner
    move_seconds = LEASE_SECONDS + 10.0

    def __init__(self, node: Node, threads: CallThreads) -> None:
        super().__init__(node, threads)
        self._begun = False
        self._heard: dict[str, float] = {}
        self._known = [self.address]
        """The nodes that take calls for workflows, as the owner has heard of them."""
        self.members = lambda: self._known
        self._for_peers["Members"] = self._members_for
        self._telling = Looking("the members on this bucket", TELL_SECONDS, self._tell)

    def _open_parts(self) -> SharedParts:
        pond = self._node.pond
        beside = pond.place.beside("workflows")
        assert beside is not None, "the node is on a bucket"
        runs = BucketRuns.below(beside.objects, self.clock)
        owner = BucketOwner(pond.space, self.address, self.clock, BUCKET_PARTITIONS, lambda: self._ownership.wake())
        return SharedParts(runs.log, owner, runs.checkpoints, pond.own_folder / "workflows" / pond.log.pond_id)

    # -- life -----------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Begin if the pond has workflows: their timers go on."""
        if await run_sync(has_runs, self._node.pond.space):
            await self.begin()

    async def join(self) -> None:
        """Nothing: the first call begins it, or `resume`."""

    async def begin(self) -> None:  # type: ignore[override]
        """Open the log and look for the owner, with the first call.

        Raises: as `SharedWorkflows.join`; `ExtraMissing` without RocksDB.
        """
        async with self._beginning:
            if not self._begun:
                if self._released:
                    raise stopping()
                await super().join()
                self._begun = True
                self._telling.begin()

    async def leave(self) -> None:
        """Give the lease back, so that another node has it a moment later."""
        async with self._beginning:
            if self._begun:
                await super().leave()
            else:
                self._released = True

    async def end(self) -> None:
        """End the calls to other nodes."""
        await self._telling.end()
        await super().end()

    # -- who is there ---------------------------------------------------------------------------------

    def hosts(self) -> list[str]:
        """The address of the owner, whose tasks workers poll for."""
        return [(self._group.owner(METADATA) if self._begun else None) or self.address]

    async def _tell(self) -> None:
        """Tell the owner that this node is there, and learn of the others; the owner counts those it heard of."""
        owner = self._group.owner(METADATA)
        if self._ownership.owned:
            self._known = self._heard_of()
        elif owner and owner != self.address:
            try:
                answer = await self._peers.call(owner, "Members", encode((METADATA, EVERY_TENANT, self.address)))
                self._known = list(map(str, parts_of(answer)))
            except MillpondError:  # it has ended, or is none that takes calls: a run in a process without server
                self._known = [self.address]

    async def _members_for(self, data: bytes) -> bytes:
        """The addresses of all nodes, for one of them."""
        self._heard[str(parts_of(data)[2])] = self.clock.monotonic()
        return encode(tuple(self._heard_of()))

    def _heard_of(self) -> list[str]:
        since = self.clock.monotonic() - SILENT_SECONDS
        self._heard = {address: at for address, at in self._heard.items() if at >= since}
        return sorted({*self._heard, self.address})

    # -- calls ----------------------------------------------------------------------------------------

    async def submit(self, tenant: str, request: Request) -> Message | None:
        """See `SharedWorkflows`."""
        await self.begin()
        return await super().submit(tenant, request)

    async def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """See `SharedWorkflows`."""
        await self.begin()
        return await super().read(tenant, act)

    async def for_peer(self, method: str, data: bytes) -> bytes:
        """See `SharedWorkflows`."""
        if not self._begun:
            raise Elsewhere("the node has no workflows yet", node=self.address, hint="ask the owner")
        return await super().for_peer(method, data)
