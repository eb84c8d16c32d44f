"""Ranges and indexes that were opened lately, held in memory: objects whose ranges need not be read twice.

Compressed ranges are unpacked when they are opened, and those of a bucket are fetched. Whoever reads the same ranges
again and again wraps the place: `open_range` then answers from memory. Each range is verified when it is read.

Invariants:
* Memory is bounded by `bytes_max`, one range excepted; what was used longest ago is let go first.
* A range that is removed from the place may still be answered: its name stands for its content.
* A walk through many ranges does not take the place of those that others read again: it holds its first few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.kernel.cache import Cache
from millpond.kernel.space import WouldBlock
from millpond.stores.objects.below import ObjectsBelow

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from millpond.ranges.index import Index
    from millpond.stores.objects import Objects

__all__ = ("RANGES_BYTES_MAX", "CachedObjects", "HeldObjects")

RANGES_BYTES_MAX = 256 << 20
"""Bytes of ranges, unpacked, that are held for each place."""
INDEXES_MAX = 64


class CachedObjects(ObjectsBelow):
    """The objects of another place, with the ranges and indexes of it that were opened lately."""

    def __init__(self, inner: Objects, *, bytes_max: int = RANGES_BYTES_MAX) -> None:
        super().__init__(inner)
        self.in_blocks = False  # a range that is held was read whole
        self._ranges: Cache[str, pa.RecordBatch] = Cache(bytes_max, lambda batch: int(batch.nbytes))
        self._indexes: Cache[str, Index] = Cache(INDEXES_MAX)

    def __reduce__(self) -> tuple[object, ...]:
        # Without what is held, which may be more than the other process will ever read.
        return (type(self), (self.inner,))

    def opened_range(self, id_: str, open_: Callable[[], pa.RecordBatch], *, keep: bool = True) -> pa.RecordBatch:
        """The entries of a range: those held, else what `open_` reads; without `keep` that is not held."""
        if keep:
            return self._ranges.get_or_make(id_, open_)
        content = self._ranges.get(id_)
        return open_() if content is None else content

    def opened_index(self, id_: str, load: Callable[[], Index]) -> Index:
        """An index: the one held, else what `load` reads."""
        return self._indexes.get_or_make(id_, load)


class HeldObjects(CachedObjects):
    """The ranges and indexes that a cache holds, for readers that must not wait: all else is `WouldBlock`."""

    def __init__(self, cache: CachedObjects) -> None:
        # A cache by its type, for `open_range` and `load_index` ask no others. It holds nothing of its own.
        super().__init__(cache.inner)
        self._cache = cache

    def opened_range(self, id_: str, open_: Callable[[], pa.RecordBatch], *, keep: bool = True) -> pa.RecordBatch:
        """The entries of a range that is held.

        Raises: `WouldBlock`.
        """
        # Whatever would read raises instead, before the cache holds anything of it.
        return self._cache.opened_range(id_, _refuse)

    def opened_index(self, id_: str, load: Callable[[], Index]) -> Index:
        """An index that is held.

        Raises: `WouldBlock`.
        """
        return self._cache.opened_index(id_, _refuse)


def _refuse() -> Any:
    raise WouldBlock("the file is not held in memory", hint="read it where waiting is allowed")
