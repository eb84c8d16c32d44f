"""Threads of requests: those that may wait (for a lock, for a turn), those of large work, and all others.

They are apart, so that uploads and small questions find a thread and a processor, however much waits or is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

__all__ = ("in_large_thread", "in_thread", "thread_queue")

WAITERS_MAX = 256

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


def thread_queue() -> anyio.CapacityLimiter:
    """For the life of one application: `app.state.thread_queue`."""
    return anyio.CapacityLimiter(WAITERS_MAX)


async def in_thread(
    request: Request, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs
) -> Answer:
    """Do what may wait long."""
    return await anyio.to_thread.run_sync(lambda: act(*args, **options), limiter=request.app.state.thread_queue)


async def in_large_thread(
    request: Request, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs
) -> Answer:
    """Do a step of large work: of its threads there are few, so that small questions find a processor."""
    return await anyio.to_thread.run_sync(lambda: act(*args, **options), limiter=request.app.state.large_threads)
