"""Memory that is given back too soon.

A body comes in pieces of 256 KiB, which live for a moment. By default the C library takes pages for each from the
system and gives them back at once, and the system hands out every page anew, zeroed: for an upload that costs more
than receiving and writing it together. A process that serves keeps some pages instead.
"""

from __future__ import annotations

import ctypes

__all__ = ("keep_memory",)

TRIM_BYTES = 64 << 20
"""So much free memory the process keeps."""
MAPPED_BYTES_MIN = 4 << 20
"""Larger pieces are given back when they are let go of."""
ARENAS = 4
"""Heaps that threads allocate from: each keeps pages of its own, and few of a node's threads run at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def keep_memory() -> bool:
    """Keep what was freed for what comes next; False where the C library knows no such wish (it is not GNU's)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wishes = ((_M_TRIM_THRESHOLD, TRIM_BYTES), (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (_M_ARENA_MAX, ARENAS))
    heard = [mallopt(name, value) for name, value in wishes]
    return all(heard)
