"""Readers that wait for more through `watchers.py`: of one stream, or of several."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from millpond.events.batches import AsyncBatches

if TYPE_CHECKING:
    from millpond.events.watchers import Position, Watchers

__all__ = ("WaitingBatches",)

T = TypeVar("T")


class WaitingBatches(AsyncBatches[T]):
    """A reader that looks for its next events, and waits while there are none.

    It looks on over events that its filter refuses, until one matches or its time has come.
    """

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers

    @abstractmethod
    def poll(self) -> list[T]:
        """The next events that are there, or none; it waits for none.

        Raises: as `next_batch`.
        """

    @abstractmethod
    async def poll_async(self) -> list[T]:
        """As `poll`, for an event loop. When it is cancelled the reader is where it was: a thread only reads."""

    @abstractmethod
    def positions(self) -> list[Position] | None:
        """The places of all its streams; None before all have caught up: then there is nothing to wait for."""

    @property
    @abstractmethod
    def state(self) -> tuple[bool, object]:
        """The reader hears of a change of it at once: that all was read, and that events were missed."""

    def next_batch(self, due: float | None) -> list[T]:
        """The next events: at once while there are some; else when they come, or none at a monotonic time.

        The first time that everything was read, it returns none as well: `caught_up` is then true.

        Raises:
            Closed: the watch or the store was closed. Corrupt: what is stored is damaged.
        """
        while True:
            state, batch = self.state, self.poll()
            if batch or self.state != state or self._watchers.is_due(due):
                return batch
            if (positions := self.positions()) is not None:
                self._watchers.wait(positions, due)

    async def next_batch_async(self, seconds: float | None) -> list[T]:
        """As `next_batch`, for an event loop; it waits for so many seconds of the loop at most."""
        loop = asyncio.get_running_loop()
        due = None if seconds is None else loop.time() + seconds
        while True:
            state, batch = self.state, await self.poll_async()
            if batch or self.state != state or (due is not None and loop.time() >= due):
                return batch
            if (positions := self.positions()) is not None:
                await self._watchers.wait_async(positions, None if due is None else due - loop.time())
