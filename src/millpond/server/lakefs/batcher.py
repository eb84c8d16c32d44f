"""Small acts that requests begin at about the same time: one thread does them together.

    request ─ entry ─┐
    request ─ entry ─┼─▶ staged by one write, found by one statement ─▶ each request has its own outcome
    request ─ entry ─┘   while that goes on, the next ones gather

A thread for each of them would cost more than the act does; so would a turn of the threads that all requests share.

Invariants:
* A request is answered when its act is done. One that fails fails alone; when the group does, all of it do.
* At most `ITEMS_MAX` are done at once, all by one thread, which ends with `close`.
* A request holds the memory of its body until it is answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

from millpond.kernel.worker import begin_thread
from millpond.server.wire import stopping

__all__ = ("Batcher",)

ITEMS_MAX = 256
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
_Group: TypeAlias = "list[tuple[Item, asyncio.Future[Outcome]]]"


class Batcher(Generic[Item, Outcome]):
    """Items that wait to be acted on, and the thread that does. Used by an event loop alone."""

    def __init__(self, act: Callable[[Sequence[Item]], Sequence[Outcome | BaseException]], name: str) -> None:
        """`act`: the outcomes of items, in their order; `name` is that of the thread."""
        self._act, self._name = act, name
        self._loop = asyncio.get_running_loop()
        self._queue: _Group[Item, Outcome] = []
        self._groups: SimpleQueue[_Group[Item, Outcome]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._acting = self._closed = False

    async def act(self, item: Item) -> Outcome:
        """Act on an item.

        Raises: its outcome, if that is an error; what the act raises for all; `Unavailable` after `close`.
        """
        if self._closed:
            raise stopping()
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._queue.append((item, outcome))
        if not self._acting:
            self._begin()
        return await outcome

    def close(self) -> None:
        """Finish what is being done, and end the thread."""
        self._closed = True
        self._groups.put([])
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        """Hand the items that wait to the thread."""
        if self._thread is None:
            self._thread = begin_thread(self._name, self._act_on_groups)
        group, self._queue = self._queue[:ITEMS_MAX], self._queue[ITEMS_MAX:]
        self._acting = True
        self._groups.put(group)

    def _act_on_groups(self) -> None:
        while group := self._groups.get():
            self._loop.call_soon_threadsafe(self._resolve, group, self._outcomes([item for item, _ in group]))

    def _outcomes(self, items: list[Item]) -> Sequence[Outcome | BaseException]:
        try:
            return self._act(items)
        except BaseException as failed:
            return [failed] * len(items)

    def _resolve(self, group: _Group[Item, Outcome], outcomes: Sequence[Outcome | BaseException]) -> None:
        """Let the requests of a group go on. The next group is handed over before: it is acted on meanwhile."""
        self._acting = False
        if self._queue:
            self._begin()
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue  # the sender went away
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
