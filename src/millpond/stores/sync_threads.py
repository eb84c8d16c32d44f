"""Syncs of several files at the same time: a disk that is given them together takes little longer than for one.

A sync waits for the disk, so each runs in a thread; the last one in the thread that wants them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache

__all__ = ("sync_all",)

THREADS_MAX = 16
"""The syncs of a process that run beside those of the threads that want them."""


def sync_all(syncs: Sequence[Callable[[], object]]) -> None:
    """Run syncs at the same time, and wait for all of them.

    Raises: the error of the first one that failed.
    """
    if not syncs:
        return
    *others, own = syncs
    begun = [_threads(os.getpid()).submit(sync) for sync in others]
    try:
        own()
    finally:
        wait(begun)
    for ended in begun:
        ended.result()


@lru_cache(1)
def _threads(_process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of its parent did not survive the fork."""
    return ThreadPoolExecutor(THREADS_MAX, "sync")
