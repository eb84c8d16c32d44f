"""Threads that wait: for an entry of the log, for a merge, for a job.

They are not those that work. So many may wait as want to, and uploads and questions still find a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

__all__ = ("patiently", "waiting_room")

WAITERS_MAX = 1000

Told = ParamSpec("Told")
Answer = TypeVar("Answer")


def waiting_room() -> anyio.CapacityLimiter:
    """For the life of one application: `app.state.waiting`."""
    return anyio.CapacityLimiter(WAITERS_MAX)


async def patiently(request: Request, act: Callable[Told, Answer], *args: Told.args, **options: Told.kwargs) -> Answer:
    """Do what may wait long."""
    return await anyio.to_thread.run_sync(lambda: act(*args, **options), limiter=request.app.state.waiting)
