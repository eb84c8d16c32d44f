"""Entries that requests stage at about the same time, with their bytes if these are few: one thread writes them.

    request ─ entry ─┐
    request ─ entry ─┼─▶ written together, with one sync ─▶ each request has its own outcome
    request ─ entry ─┘   while that goes on, the next ones gather

A thread for each of them would cost more than the write does; so would a turn of the threads that all requests share.

Invariants:
* A request is answered when its entry is durable. One that fails fails alone; when the write fails, all of it do.
* At most `ENTRIES_MAX` are written at once, all by one thread, which ends with `close`.
* A request holds the memory of its body until it is answered.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TypeAlias

from millpond.errors import Unavailable
from millpond.versions.staging.group_commit import StagedEntry, put_together

__all__ = ("StagedTogether",)

ENTRIES_MAX = 256
_Group: TypeAlias = "list[tuple[StagedEntry, asyncio.Future[None]]]"


class StagedTogether:
    """The entries of a node that wait to be staged, and the thread that stages them. Used by its event loop alone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: _Group = []
        self._groups: SimpleQueue[_Group] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._writing = self._closed = False

    async def stage(self, staged: StagedEntry) -> None:
        """Stage an entry.

        Raises: as `put_entry`, without a condition; `Unavailable` after `close`.
        """
        if self._closed:
            raise Unavailable("the node is stopping", kind="node_stopping", hint="ask another")
        outcome: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((staged, outcome))
        if not self._writing:
            self._begin()
        await outcome

    def close(self) -> None:
        """Finish what is being written, and end the thread."""
        self._closed = True
        self._groups.put([])
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        """Hand the entries that wait to the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_groups, name="stage-entries", daemon=True)
            self._thread.start()
        group, self._queue = self._queue[:ENTRIES_MAX], self._queue[ENTRIES_MAX:]
        self._writing = True
        self._groups.put(group)

    def _write_groups(self) -> None:
        while group := self._groups.get():
            outcomes = _written([staged for staged, _ in group])
            self._loop.call_soon_threadsafe(self._settle, group, outcomes)

    def _settle(self, group: _Group, outcomes: list[BaseException | None]) -> None:
        """Let the requests of a group go on. The next group is handed over before: it is written meanwhile."""
        self._writing = False
        if self._queue:
            self._begin()
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue  # the sender went away
            if outcome is None:
                future.set_result(None)
            else:
                future.set_exception(outcome)


def _written(entries: list[StagedEntry]) -> list[BaseException | None]:
    try:
        return [*put_together(entries[0].site.space, entries)]
    except BaseException as failed:
        return [failed] * len(entries)
