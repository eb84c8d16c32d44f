"""Requests for objects that are far away, side by side: each waits for the bucket, and all together no longer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millpond.arrays.ahead import ordered_results
from millpond.stores.objects.protocol import Objects

__all__ = ("AT_ONCE_MAX", "UNPACKING", "at_once", "fetched_at_once")

T = TypeVar("T")

AT_ONCE_MAX = 32
"""The requests that are on their way at once. More are no faster for a lookup of a thousand keys: this process is what
is waited for then.
"""
_TURNS = 4
"""The turns of a thread in many acts: with more, threads wake each other more often than they need to."""
UNPACKING = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
"""Held while bytes that came are unpacked: more threads that do so side by side wait longer for the interpreter."""


def at_once(objects: Objects, acts: Sequence[Callable[[], T]], threads_max: int = AT_ONCE_MAX) -> list[T]:
    """The answers of acts that read or put objects, one after another where these are on this machine."""
    if len(acts) < 2 or not objects.in_blocks:
        return [act() for act in acts]
    *others, last = acts
    with ThreadPoolExecutor(min(len(others), max(1, threads_max - 1)), thread_name_prefix="objects") as threads:
        answers = threads.map(lambda act: act(), others)
        own = last()  # in this thread, which would only wait
        return [*answers, own]


def fetched_at_once(objects: Objects, acts: Sequence[Callable[[], Callable[[], T]]]) -> Iterator[T]:
    """The outcomes of acts in their order: each reads objects, side by side with others, and leaves to this thread what
    needs the processor. Threads that took turns at that would wait for the interpreter.
    """
    threads = max(1, min(len(acts), AT_ONCE_MAX)) if objects.in_blocks else 1
    size = 1 + len(acts) // (_TURNS * threads)
    runs = (acts[begin : begin + size] for begin in range(0, len(acts), size))
    for rests in ordered_results(lambda run: [act() for act in run], runs, threads):
        for rest in rests:
            yield rest()
