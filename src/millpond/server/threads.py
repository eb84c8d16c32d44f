"""Threads that wait: for an entry of the log, for a merge, for a job.

They are not those that work. So many may wait as want to, and uploads and questions still find a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

__all__ = ("in_thread", "thread_queue")

WAITERS_MAX = 1000

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
