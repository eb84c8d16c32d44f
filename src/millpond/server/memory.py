"""Memory for requests: bodies, what is made of them, and what answers take, for all requests of a process together.

    large question ─▶ room for its work, or a place in the queue ─▶ body ─▶ room for what the body declares ─▶ answer
                               │ queue full, or too slow                     │ no room
                               ▼                                             ▼
                        503, Retry-After                              503, Retry-After

A route states in `routes/table.py` what its work takes. The room of a request is given back when its answer is sent.

Invariants:
* the rooms of all requests together hold at most `bytes_max`, the setting `max_request_memory`;
* requests of up to `SMALL_BYTES` are not counted: what tends a node gets through while it is busy;
* the queue has at most `queued_max` requests, in the order in which they came, each for at most `queue_seconds`; a
  request in the queue holds no room and no thread. So no two requests wait for each other;
* a request that holds room never waits for more: it is refused. Requests that queue leave a quarter free for those that
  do not, which would else be refused for as long as there is a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from fastapi import Request
from starlette.types import Scope

from millpond.errors import Unavailable

__all__ = ("SMALL_BYTES", "MemoryBudget", "Room", "put_room", "room_of")

SMALL_BYTES = 64 << 10
"""About what one connection holds in any case while it is read."""
_ROOM = "millpond.room"


class MemoryBudget:
    """Memory for all requests of a process. Used by its event loop alone."""

    def __init__(self, bytes_max: int, *, queued_max: int = 0, queue_seconds: float = 0.0) -> None:
        self.bytes_max, self.taken = bytes_max, 0
        self.queueing_max = bytes_max * 3 // 4
        self.queued_max, self.queue_seconds = queued_max, queue_seconds
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def queued(self) -> int:
        """The number of requests that wait for room."""
        return len(self._queue)

    def room(self) -> Room:
        """Room for one request; as a context manager it is given back at the end."""
        return Room(self)

    def take(self, size: int, *, queueing: bool = False) -> bool:
        """Take so many bytes, if they are free."""
        if self.taken + size > (self.queueing_max if queueing else self.bytes_max):
            return False
        self.taken += size
        return True

    async def wait(self, size: int) -> None:
        """Take so many bytes as soon as they are free, after those who came before.

        Raises: `Unavailable`, kinds `request_queue_full` and `request_queue_slow`.
        """
        if not self._queue and self.take(size, queueing=True):
            return
        if len(self._queue) >= self.queued_max:
            raise Unavailable(
                "as many requests wait for memory as may", kind="request_queue_full", queued=len(self._queue),
                hint="send it again in a moment, or to another node",
            )  # fmt: skip
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, turn)
        self._queue.append(place)
        try:
            async with asyncio.timeout(self.queue_seconds):
                await turn
        except BaseException as error:
            self._leave(place)
            if not isinstance(error, TimeoutError):
                raise
            raise Unavailable(
                "the node is too busy with other requests", kind="request_queue_slow", seconds=self.queue_seconds,
                hint="send it again in a moment, or to another node",
            ) from None  # fmt: skip

    def _leave(self, place: tuple[int, asyncio.Future[None]]) -> None:
        """Give up a place in the queue, or the room that was given in the same moment."""
        size, turn = place
        if turn.done() and not turn.cancelled():
            self.give(size)
            return
        if place in self._queue:
            self._queue.remove(place)
            self._serve()

    def give(self, size: int) -> None:
        """Give bytes back, to those who wait."""
        self.taken -= size
        assert self.taken >= 0
        self._serve()

    def _serve(self) -> None:
        while self._queue:
            size, turn = self._queue[0]
            if not turn.cancelled():
                if not self.take(size, queueing=True):
                    return
                turn.set_result(None)
            self._queue.popleft()


class Room:
    """The memory of one request. Made by `MemoryBudget.room`."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget, self.held = budget, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.keep(0)

    async def queue(self, size: int) -> None:
        """Wait for room, before anything is held.

        Raises: as `MemoryBudget.wait`.
        """
        assert not self.held, "a request that holds room waits for no more"
        size = min(size, self.budget.queueing_max)
        if size:
            await self.budget.wait(size)
            self.held = size

    def need(self, total: int) -> None:
        """Hold so many bytes in all, or more.

        Raises: `Unavailable`, kind `request_memory_full`.
        """
        if total <= SMALL_BYTES or total <= self.held:
            return
        if not self.budget.take(total - self.held):
            raise Unavailable(
                "the node holds as many bytes of requests as it may", kind="request_memory_full", bytes=total,
                bytes_max=self.budget.bytes_max, hint="send it again in a moment, or raise max_request_memory",
            )  # fmt: skip
        self.held = total

    def keep(self, total: int) -> None:
        """Give back what is held beyond so many bytes."""
        if self.held > total:
            given, self.held = self.held - total, total
            self.budget.give(given)


def put_room(scope: Scope, room: Room) -> None:
    """Give a request its room."""
    scope[_ROOM] = room


def room_of(request: Request) -> Room:
    """The room of a request."""
    room: Room = request.scope[_ROOM]
    return room
