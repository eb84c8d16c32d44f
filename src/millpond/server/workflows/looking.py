"""Something that a service looks for again and again, on its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millpond.errors import MillpondError

__all__ = ("Looking",)

_LOG = logging.getLogger(__name__)


class Looking:
    """Calls `look` every so many seconds, from `begin` to `end`; an error of ours is logged, and it is looked again."""

    def __init__(self, what: str, seconds: float, look: Callable[[], Awaitable[None]]) -> None:
        self._what, self._seconds, self._look = what, seconds, look
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """True from `begin` to `end`."""
        return self._task is not None

    def begin(self) -> None:
        """Look from now on; nothing more when that has begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._repeat())

    async def end(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._look()
            except MillpondError as error:
                _LOG.warning("%s: looked for again: %s", self._what, error)
