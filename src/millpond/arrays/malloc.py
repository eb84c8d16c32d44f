"""Memory that is given back too soon, or never.

A body comes in pieces of 256 KiB, which live for a moment. By default the C library takes pages for each from the
system and gives them back at once, and the system hands out every page anew, zeroed: for an upload that costs more
than receiving and writing it together. A process that serves keeps some pages instead.

What was freed in between other things is not given back by itself: a process that serves for long holds more and more
of it, so it is given back now and then. Arrow's own allocator keeps some for every thread that ever asked, out of reach
of the others; a node has many threads, so its Arrow takes memory from the C library like everything else.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa

__all__ = ("give_memory_back", "keep_memory")

TRIM_BYTES = 64 << 20
"""So much free memory the process keeps."""
MAPPED_BYTES_MIN = 2 << 20
"""Larger pieces are given back when they are let go of. LMDB takes some of 1 and 2 MiB for each file, uses little of
them, and clears those that are not new."""
ARENAS = 4
"""Heaps that threads allocate from: each keeps pages of its own, and few of a node's threads run at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def keep_memory() -> bool:
    """Keep what was freed for what comes next; False where the C library knows no such wish (it is not GNU's)."""
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = _of_the_c_library("mallopt")
    if mallopt is None:
        return False
    wishes = ((_M_TRIM_THRESHOLD, TRIM_BYTES // ARENAS), (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (_M_ARENA_MAX, ARENAS))
    heard = [mallopt(name, value) for name, value in wishes]
    return all(heard)


def give_memory_back() -> None:
    """Give back what is free, in Arrow's pool too, but for what `keep_memory` keeps."""
    pa.default_memory_pool().release_unused()
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(TRIM_BYTES))


def _of_the_c_library(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
