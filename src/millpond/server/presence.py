"""The presence of a request's sender: work for a sender that has gone away ends, and gives up its place in every queue.

    connection lost ─▶ `Presence.leave` ─▶ what waits for memory or a thread: `ClientDisconnect`, at once
                                       └─▶ what works in a thread: the same, at its next `check_patience`

Only questions end so: a change that has begun is made, for its sender may have gone because the answer took long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, MutableMapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

__all__ = ("Presence", "presence_in", "put_presence")

_PRESENCE = "millpond.presence"
Answer = TypeVar("Answer")


class Presence:
    """The sender of the requests of one connection. Used by its event loop; any thread may read `gone`."""

    __slots__ = ("_waits", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._waits: set[asyncio.Timeout] = set()

    def leave(self) -> None:
        """The connection is lost."""
        self.gone = True
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def during(self, waited: Awaitable[Answer]) -> Answer:
        """Wait for something that may be cancelled, as long as the sender is there.

        Raises: `ClientDisconnect`.
        """
        wait = asyncio.timeout(0 if self.gone else None)
        try:
            async with wait:
                self._waits.add(wait)
                return await waited
        except TimeoutError:
            if wait.expired():
                raise ClientDisconnect from None
            raise
        finally:
            self._waits.discard(wait)


def put_presence(scope: MutableMapping[str, Any], presence: Presence) -> None:
    """Give a request the presence of its sender."""
    scope[_PRESENCE] = presence


def presence_in(scope: MutableMapping[str, Any]) -> Presence:
    """The presence of a request's sender; of one without a connection, it lasts."""
    presence: Presence | None = scope.get(_PRESENCE)
    return Presence() if presence is None else presence
