"""Memory for requests: bodies, what is made of them, and what answers take, for all requests of a process together.

    large question ─▶ room for its work, or a place in the queue ─▶ body ─▶ room for what the body declares ─▶ answer
                               │ queue full, or too slow                     │ no room
                               ▼                                             ▼
                        503, Retry-After                              503, Retry-After

A route states what its work takes where it is declared. The room of a request is given back when its answer is sent.

Invariants:
* the rooms of all requests together hold at most `bytes_max`, the setting `server.max_request_memory`;
* requests of up to `SMALL_BYTES` are not counted: what tends a node gets through while it is busy;
* the queue has at most `queued_max` requests, each for at most `queue_seconds`; a request in the queue holds no room
  and no thread. So no two requests wait for each other;
* tokens share rooms and queue as `shares.py` says: one token's requests do not take all of them from another;
* a request that holds room never waits for more: it is refused. Requests that queue leave a quarter free for those that
  do not, which would else be refused for as long as there is a queue.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import Request
from starlette.types import Scope

from millpond.errors import Unavailable
from millpond.server.shares import Shares, Turns

__all__ = ("SMALL_BYTES", "MemoryBudget", "Room", "process_room_of", "put_rooms", "room_of")

SMALL_BYTES = 64 << 10
"""About what one connection holds in any case while it is read."""
SPARE = 4
"""The part of the memory of requests that is given to what can do with less: one of so many."""
_ROOM, _PROCESS_ROOM = "millpond.room", "millpond.process_room"


class MemoryBudget:
    """Memory for all requests of a process. Used by its event loop alone."""

    def __init__(self, bytes_max: int, *, queued_max: int = 0, queue_seconds: float = 0.0) -> None:
        self.bytes_max, self.queueing_max = bytes_max, bytes_max * 3 // 4
        self.queue_seconds = queue_seconds
        self.shares = Shares(bytes_max)
        self.turns = Turns(self.shares, self.queueing_max)
        self._queued = Shares(queued_max)

    @property
    def taken(self) -> int:
        """The bytes that requests hold."""
        return self.shares.taken

    @property
    def queued(self) -> int:
        """The number of requests that wait for room."""
        return len(self.turns)

    def room(self, name: str | None = None) -> Room:
        """Room for one request of a token; as a context manager it is given back at the end."""
        return Room(self, name)

    async def wait(self, name: str | None, size: int) -> None:
        """Take so many bytes as soon as it is the token's turn.

        Raises: `Unavailable`, kinds `request_queue_full` and `request_queue_slow`.
        """
        if self.turns.take_now(name, size):
            return
        with self._queued.holding(name) as has_room:
            if not has_room:
                raise Unavailable(
                    "as many requests wait for memory as may", kind="request_queue_full", queued=self.queued,
                    hint="send it again in a moment, or to another node",
                )  # fmt: skip
            try:
                async with asyncio.timeout(self.queue_seconds):
                    await self.turns.take(name, size)
            except TimeoutError:
                raise Unavailable(
                    "the node is too busy with other requests", kind="request_queue_slow", seconds=self.queue_seconds,
                    hint="send it again in a moment, or to another node",
                ) from None  # fmt: skip


class Room:
    """The memory of one request, made by `MemoryBudget.room`. `name` is that of its token, if there are any."""

    __slots__ = ("budget", "held", "name")

    def __init__(self, budget: MemoryBudget, name: str | None = None) -> None:
        self.budget, self.name, self.held = budget, name, 0

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
            await self.budget.wait(self.name, size)
            self.held = size

    def need(self, total: int) -> None:
        """Hold so many bytes in all, or more.

        Raises: `Unavailable`, kind `request_memory_full`.
        """
        if total <= SMALL_BYTES or total <= self.held:
            return
        if not self.budget.shares.take(self.name, total - self.held, own=self.held):
            raise Unavailable(
                "the node holds as many bytes of requests as it may", kind="request_memory_full", bytes=total,
                bytes_max=self.budget.bytes_max, hint="send it again in a moment, or raise server.max_request_memory",
            )  # fmt: skip
        self.held = total

    def hold_spare(self, total: int) -> bool:
        """Hold so many bytes in all, while most of the memory is free and nobody waits for it; True when it does."""
        budget, more = self.budget, total - self.held
        if more > 0:
            if budget.queued or not budget.shares.take(self.name, more, own=self.held, total=budget.bytes_max // SPARE):
                return False
            self.held = total
        return True

    def keep(self, total: int) -> None:
        """Give back what is held beyond so many bytes."""
        if self.held > total:
            surplus, self.held = self.held - total, total
            self.budget.turns.give(self.name, surplus)


def put_rooms(scope: Scope, room: Room, of_process: Room) -> None:
    """Give a request its room, and that of a process which may work for it."""
    scope[_ROOM], scope[_PROCESS_ROOM] = room, of_process


def process_room_of(request: Request) -> Room:
    """The room of a process that works for a request."""
    room: Room = request.scope[_PROCESS_ROOM]
    return room


def room_of(request: Request) -> Room:
    """The room of a request."""
    room: Room = request.scope[_ROOM]
    return room
