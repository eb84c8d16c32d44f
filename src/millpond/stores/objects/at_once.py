"""Requests for objects that are far away, side by side: each waits for the bucket, and all together no longer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millpond.stores.objects.protocol import Objects

__all__ = ("AT_ONCE_MAX", "UNPACKING", "at_once")

T = TypeVar("T")

AT_ONCE_MAX = 32
"""The requests that are on their way at once. More are no faster for a lookup of a thousand keys: this process is what
is waited for then.
"""
UNPACKING = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
"""Held while bytes that came are unpacked: more threads that do so side by side wait longer for the interpreter."""


def at_once(objects: Objects, acts: Sequence[Callable[[], T]], threads_max: int = AT_ONCE_MAX) -> list[T]:
    """The answers of acts that read or put objects, one after another where these are on this machine."""
    if len(acts) < 2 or not objects.in_blocks:
        return [act() for act in acts]
    with ThreadPoolExecutor(min(len(acts), threads_max), thread_name_prefix="objects") as threads:
        return list(threads.map(lambda act: act(), acts))
