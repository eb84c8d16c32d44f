"""The workers that registered lately, at any of several processes: each knows its own, and asks the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from millpond.errors import Unavailable, Uncertain
from millpond.kernel.keys import decode, encode
from millpond.server.workflows.registrations import Registration, Registrations, merged
from millpond.server.workflows.shared.wire import parts_of
from millpond.workflows.partitions import METADATA

if TYPE_CHECKING:
    from typing import Any

    from millpond.clock import Clock
    from millpond.server.workflows.shared.peers import Peers

__all__ = ("SharedRegistrations",)


class SharedRegistrations(Registrations):
    """Those of one process, which asks the processes at the addresses that `others` gives."""

    def __init__(self, clock: Clock, peers: Peers, others: Callable[[], list[str]]) -> None:
        super().__init__(clock)
        self._peers, self._others = peers, others

    async def everywhere(self, tenant: str, task: str) -> list[Registration]:
        """The workers of a task, of all processes that can be reached."""
        pages = await asyncio.gather(*(self._at(address, tenant, task) for address in self._others()))
        return merged(chain(self.of(tenant, task), *pages))

    async def for_peer(self, data: bytes) -> bytes:
        """The workers that registered here, for another process."""
        _, tenant, task = parts_of(data)
        return encode(tuple(part for one in self.of(tenant, task) for part in (one.worker, one.began_ms, one.seen_ms)))

    async def _at(self, address: str, tenant: str, task: str) -> list[Registration]:
        try:
            parts: tuple[Any, ...] = decode(
                await self._peers.call(address, "Workers", encode((METADATA, tenant, task)))
            )
        except (Unavailable, Uncertain):  # it has ended: its workers register elsewhere, within a minute
            return []
        return [Registration(*found) for found in zip(*(parts[part::3] for part in range(3)), strict=True)]
