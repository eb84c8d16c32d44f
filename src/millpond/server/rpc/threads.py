"""Threads of calls: a few for questions, which burn the processor, and more for changes, which wait for the disk.

Both are shared between tokens as `shares.py` says, so one token's calls keep no other's waiting, nor the event loop.

Invariants:
* a turn is given back when its thread is free: a caller that gives up, and calls again, gets no second thread;
* a question ends when its caller has gone, or when it takes longer than one may (`kernel/patience.py`); a change that
  has begun is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from millpond.kernel.patience import patient
from millpond.server.presence import Presence
from millpond.server.thread_limits import WAITERS_MAX, FairThreads, check_of

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("SHARE", "CallThreads")

SHARE: ContextVar[str | None] = ContextVar("share", default=None)
"""The name under which the caller of the call that is worked on shares limits with others."""
T = TypeVar("T")


class CallThreads:
    """The threads of all calls of a node. Used by its event loop alone."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._questions, self._changes = FairThreads(node.limits.large_threads), FairThreads(WAITERS_MAX)

    async def ask(self, act: Callable[[], T]) -> T:
        """The answer to a question, in a thread.

        Raises: what `act` raises; `Unavailable`, kind `question_slow`.
        """
        presence = Presence()

        def step() -> T:
            with patient(check_of(self._node, presence)):
                return act()

        return await self._run(self._questions, step, presence)

    async def change(self, act: Callable[[], T]) -> T:
        """The result of a change, or of what waits for others, in a thread.

        Raises: what `act` raises.
        """
        return await self._run(self._changes, act, Presence())

    async def _run(self, threads: FairThreads, act: Callable[[], T], presence: Presence) -> T:
        work = asyncio.ensure_future(threads.run(SHARE.get(), act, presence))
        work.add_done_callback(_heed)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            presence.leave()
            raise


def _heed(work: asyncio.Future[T]) -> None:
    """Look at a failure of which nobody waits to hear."""
    if not work.cancelled():
        work.exception()
