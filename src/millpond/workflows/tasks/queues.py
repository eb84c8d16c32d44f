"""Queues of tasks that wait for a worker, and of workers that wait for a task: one pair for each definition.

    scheduled ─▶ first hungry worker, or the window ─▶ a worker claims it by a command ─▶ handed out

The rows of the queue are the truth; memory holds a window of it. All is used from one event loop.

Invariants:
* no worker waits while a task is queued, and no task is passed over: when the window is empty, it is read again from
  the rows behind the last place that was taken;
* a task leaves a queue only by a command, so one that is offered twice, or was withdrawn, is claimed by nobody;
* a definition takes memory for at most `WINDOW` tasks, however many are queued;
* a task whose claim was not decided is offered again, before all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ("WINDOW", "Place", "QueuedTask", "TaskQueues")

WINDOW = 1_000

Place: TypeAlias = tuple[int, int]
"""Position of the command that queued a task, and its number among what that command wrote."""


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task run in a queue: its run, and its id in it."""

    run: str
    guid: str


Read: TypeAlias = Callable[[str, str, Place | None, int], Awaitable[list[tuple[Place, str, str]]]]


@dataclass(slots=True)
class _Queue:
    tasks: deque[QueuedTask] = field(default_factory=deque)
    hungry: deque[asyncio.Future[None]] = field(default_factory=deque)
    after: Place | None = None
    more: bool = True
    changed: int = 0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class TaskQueues:
    """The queues of a partition; `read` reads their rows."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._queues: dict[tuple[str, str], _Queue] = {}

    def queued(self, tenant: str, definition: str) -> None:
        """Note that a task joined the end of a queue."""
        queue = self._queues.get((tenant, definition))
        if queue is not None:
            queue.more = True
            queue.changed += 1
            _wake_one(queue)

    def give_back(self, tenant: str, definition: str, task: QueuedTask) -> None:
        """Put a task to the front whose claim was not decided."""
        queue = self._of(tenant, definition)
        queue.tasks.appendleft(task)
        _wake_one(queue)

    async def next(self, tenant: str, definition: str) -> QueuedTask:
        """The oldest task that nobody was offered yet, as soon as there is one."""
        queue = self._of(tenant, definition)
        while True:
            if queue.tasks:
                return queue.tasks.popleft()
            if queue.more:
                await self._refill(tenant, definition, queue)
                continue
            turn = asyncio.get_running_loop().create_future()
            queue.hungry.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    _wake_one(queue)  # it was this worker's turn: the next one's now
                raise

    def _of(self, tenant: str, definition: str) -> _Queue:
        return self._queues.setdefault((tenant, definition), _Queue())

    async def _refill(self, tenant: str, definition: str, queue: _Queue) -> None:
        async with queue.reading:
            if queue.tasks or not queue.more:
                return
            changed = queue.changed
            found = await self._read(tenant, definition, queue.after, WINDOW)
            queue.more = len(found) == WINDOW or queue.changed != changed
            if found:
                queue.after = found[-1][0]
                queue.tasks.extend(QueuedTask(run, guid) for _, run, guid in found)
            for _ in found:
                _wake_one(queue)


def _wake_one(queue: _Queue) -> None:
    while queue.hungry:
        turn = queue.hungry.popleft()
        if not turn.done():
            turn.set_result(None)
            return
