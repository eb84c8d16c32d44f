"""Threads of requests: those that may wait (for a lock, for a turn), those of large work, and all others.

They are apart, so that uploads and small questions find a thread and a processor, however much waits or is large.

Each kind is shared between tokens as `shares.py` says. A step of large work ends when its sender has gone
away, or when it has taken `NodeLimits.question_seconds`: loops over rows look for that between batches, see
`kernel/patience.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request

from millpond.errors import Unavailable
from millpond.kernel.patience import patient
from millpond.server.access import share_in
from millpond.server.presence import Presence, presence_in
from millpond.server.routes.table import RouteNeeds, Work
from millpond.server.shares import Shares, Turns

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = (
    "WAITERS_MAX", "FairThreads", "check_of", "in_large_thread", "in_short_thread", "in_thread", "in_thread_of",
    "on_loop",
)  # fmt: skip

WAITERS_MAX = 256

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class FairThreads:
    """Threads that tokens share, for the life of one application."""

    def __init__(self, threads: int) -> None:
        self._turns = Turns(Shares(threads))
        self._limiter = anyio.CapacityLimiter(threads)  # never full: there are as many turns

    async def run(self, name: str | None, act: Callable[[], Answer], presence: Presence | None = None) -> Answer:
        """Do something in a thread, when it is the turn of a token; `presence` ends the wait."""
        turn = self._turns.take(name)
        await (turn if presence is None else presence.during(turn))
        try:
            return await anyio.to_thread.run_sync(act, limiter=self._limiter)
        finally:
            self._turns.give(name)


async def in_short_thread(request: Request, act: Callable[[], Answer]) -> Answer:
    """Do what takes little time."""
    threads: FairThreads = request.app.state.short_threads
    return await threads.run(share_in(request), act)


async def in_thread(
    request: Request, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs
) -> Answer:
    """Do what may wait long."""
    threads: FairThreads = request.app.state.waiting_threads
    return await threads.run(share_in(request), lambda: act(*args, **options))


async def in_large_thread(
    request: Request, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs
) -> Answer:
    """Do a step of large work: of its threads there are few, so that small questions find a processor.

    Raises: `ClientDisconnect`; `Unavailable`, kind `question_slow`.
    """
    threads: FairThreads = request.app.state.large_threads
    node, presence = request.app.state.node, presence_in(request.scope)

    def step() -> Answer:
        with patient(check_of(node, presence)):
            return act(*args, **options)

    return await threads.run(share_in(request), step, presence)


async def in_thread_of(request: Request, needs: RouteNeeds, act: Callable[[], Answer]) -> Answer:
    """Do the work of a route in a thread of its class: changes may wait long, large questions take turns."""
    if needs.audited or needs.work is Work.UPLOAD:
        return await in_thread(request, act)
    if needs.work is Work.LARGE:
        return await in_large_thread(request, act)
    return await (in_short_thread(request, act) if needs.right is not None else anyio.to_thread.run_sync(act))


def on_loop(act: Callable[Params, Coroutine[Any, Any, Answer]], *args: Params.args, **options: Params.kwargs) -> Answer:
    """Do something on the event loop, from a thread of a request, outside the scope of that request.

    `anyio.from_thread.run` does it within: once the sender has gone, what waits there waits for a cancellation
    that does not come.
    """
    loop = anyio.from_thread.run_sync(asyncio.get_running_loop)
    return asyncio.run_coroutine_threadsafe(act(*args, **options), loop).result()


def check_of(node: Node, presence: Presence) -> Callable[[], None]:
    """The patience for one step of a question, which begins now."""
    seconds = node.limits.question_seconds
    due = node.clock.monotonic() + seconds

    def check() -> None:
        if presence.gone:
            raise ClientDisconnect
        if node.clock.monotonic() >= due:
            raise Unavailable(
                "the question takes longer than one may", kind="question_slow", seconds=seconds,
                hint="bound the key or the time in its condition, or read a snapshot",
            )  # fmt: skip

    return check
