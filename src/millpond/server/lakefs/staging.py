"""Entries that requests stage at about the same time: one thread writes them, with one sync.

    request ─ entry ─┐
    request ─ entry ─┼─▶ written together ─▶ each request has its own outcome
    request ─ entry ─┘   while that goes on, the next ones gather

A thread for each of them would cost more than the write does.

Invariants:
* A request is answered when its entry is durable. One that fails fails alone; when the write fails, all of it do.
* At most `ENTRIES_MAX` are written at once, by one thread at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio.to_thread

from millpond.errors import Unavailable
from millpond.versions.staging.writes import StagedEntry, put_together

if TYPE_CHECKING:
    from anyio import CapacityLimiter

__all__ = ("StagedTogether",)

ENTRIES_MAX = 256


class StagedTogether:
    """The entries of a node that wait to be staged. Used by its event loop alone."""

    def __init__(self) -> None:
        self._queue: list[tuple[StagedEntry, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def stage(self, staged: StagedEntry, threads: CapacityLimiter) -> None:
        """Stage an entry.

        Raises: as `put_entry`, without a condition.
        """
        outcome = asyncio.get_running_loop().create_future()
        self._queue.append((staged, outcome))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(threads))
        await outcome

    async def _write(self, threads: CapacityLimiter) -> None:
        try:
            while self._queue:
                group, self._queue = self._queue[:ENTRIES_MAX], self._queue[ENTRIES_MAX:]
                await _write_group(group, threads)
        finally:
            self._writer = None


async def _write_group(group: list[tuple[StagedEntry, asyncio.Future[None]]], threads: CapacityLimiter) -> None:
    entries = [staged for staged, _ in group]
    outcomes: list[BaseException | None] = [Unavailable("the node is stopping", kind="node_stopping")] * len(group)
    try:
        outcomes = [*await anyio.to_thread.run_sync(put_together, entries[0].site.space, entries, limiter=threads)]
    except Exception as failed:
        outcomes = [failed] * len(group)
    finally:
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue  # the sender went away
            if outcome is None:
                future.set_result(None)
            else:
                future.set_exception(outcome)
