"""The shards that this process has open, at most so many: the system limits the files of a process.

An open shard takes `FILES_PER_SHARD` files. When one more is opened than the limit allows, one that was not used lately
is closed; it opens by itself when it is used again. Some files are reserved for everything else: the small records,
locks, parts that are written. Of the others open shards may take one half, for `SHARDS_MAX` shards at most, and the
connections of a node what shards may not; so neither can use up what a load needs.

Invariants:
* a shard that is being changed stays open; so does one that a transaction reads, until that ends;
* nobody waits here for the lock of another shard: what is busy is passed over.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Protocol
from weakref import ref

__all__ = (
    "FILES_PER_SHARD", "FILES_RESERVED", "OPEN_SHARDS", "SHARDS_MAX", "Closable", "OpenShards",
    "connections_of_files", "raise_file_limit", "shards_max",
)  # fmt: skip

FILES_PER_SHARD = 4
"""The pointer to the current generation; the data file, twice; its lock."""
SHARDS_MAX = 2048
"""The most shards open at once, whatever the system allows: each takes 25 KB of memory in a node, and up to 250
where the C library maps no large pieces by themselves (`arrays/malloc.py`); nearly all of it is LMDB's. And
each reserves 16 GiB of 128 TiB of address space."""
FILES_RESERVED = 256
"""The files that neither shards nor connections take; a quarter of all where a process may have fewer than 1,024."""
_SHARDS_MIN = 8
_FILES_MAX = 1 << 16
"""The files that `raise_file_limit` asks for: more are of no use."""


class Closable(Protocol):
    """A shard, as far as it matters here."""

    recent: bool
    """True when it was used since it was last looked at."""

    def let_go(self) -> bool:
        """Close it unless it is busy; True when it is closed."""


def raise_file_limit() -> int:
    """Let this process have as many files as the system allows it; how many.

    For processes that are Millpond's own: a program that uses Millpond as a library decides for itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < files:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            soft = files
    return files if soft == resource.RLIM_INFINITY else soft


def connections_of_files(soft: int) -> int:
    """The number of connections that a node may have under a limit of files: those that no shard can take.

    >>> [connections_of_files(soft) for soft in (256, 1024, 20_000)]
    [96, 384, 11552]
    """
    free = _unreserved(soft)
    return free - min(free // 2, SHARDS_MAX * FILES_PER_SHARD)


def _unreserved(soft: int) -> int:
    return soft - min(FILES_RESERVED, soft // 4)


def shards_max() -> int:
    """The number of shards that may be open at once under the limit of files that holds now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return SHARDS_MAX
    return max(_SHARDS_MIN, min(SHARDS_MAX, _unreserved(soft) // 2 // FILES_PER_SHARD))


class OpenShards:
    """Open shards in the order in which they were opened, or were last found to be in use; threads may share it."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, ref[Closable]] = OrderedDict()
        self._lock = threading.Lock()

    def opening(self, shard: Closable) -> None:
        """Make room for a shard, which is about to open."""
        self.close_some(shards_max() - 1)
        with self._lock:
            self._open[id(shard)] = ref(shard)

    def closed(self, shard: Closable) -> None:
        """A shard has no files open any more."""
        with self._lock:
            self._open.pop(id(shard), None)

    def close_some(self, left: int) -> None:
        """Close shards until so many are left, those first that were not used lately; busy ones stay."""
        for _ in range(2 * len(self._open)):
            with self._lock:
                if len(self._open) <= left:
                    return
                number, reference = self._open.popitem(last=False)
                shard = reference()
                if shard is None:
                    continue
                self._open[number] = reference
            if shard.recent:
                shard.recent = False
            else:
                shard.let_go()


OPEN_SHARDS = OpenShards()
"""Those of this process: the limit is the process's, however many ponds it has open."""
