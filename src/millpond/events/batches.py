"""Readers that wait for more, of one stream or of several, here or on a node: what all of them are used by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from millpond.errors import Closed
from millpond.kernel.closing import Closing

__all__ = ("AsyncBatches", "Batches")

T = TypeVar("T")


class Batches(Closing, ABC, Generic[T]):
    """A reader that is iterated over without end; close it after use. Used by one thread, or one task, at a time."""

    @abstractmethod
    def next_batch(self, due: float | None) -> list[T]:
        """The next events; none when there are none at a monotonic time."""

    @abstractmethod
    def close(self) -> None:
        """End the watch; closing twice is harmless."""

    def __iter__(self) -> Iterator[T]:
        while True:
            yield from self.next_batch(None)


class AsyncBatches(Batches[T]):
    """A reader for event loops, too. Iteration ends when it is closed, or the store."""

    @abstractmethod
    async def next_batch_async(self, seconds: float | None) -> list[T]:
        """As `next_batch`, for an event loop; it waits for so many seconds of the loop at most."""

    def __iter__(self) -> Iterator[T]:
        with suppress(Closed):
            yield from super().__iter__()

    async def __aiter__(self) -> AsyncIterator[T]:
        with suppress(Closed):
            while True:
                for event in await self.next_batch_async(None):
                    yield event
