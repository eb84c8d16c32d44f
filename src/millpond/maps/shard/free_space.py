"""Free space of a shard's file: pages that deletions left, which only compacting gives back to the disk.

LMDB tells of each table how many pages it takes. What no table takes is free, but for a few pages that LMDB needs for
itself, and the nested tables of keys that share a hash; both are small, so the share is a little too great.
"""

from __future__ import annotations

from dataclasses import dataclass

from millpond.maps.shard.shard import Shard
from millpond.stores.lmdb.page_format import TABLE

__all__ = ("FreeSpace", "free_space")

_META_PAGES = 2


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Bytes of a shard's file, and of it those that no table takes."""

    file_bytes: int
    free_bytes: int

    @property
    def share(self) -> float:
        """The free share of the file, 0 to 1."""
        return self.free_bytes / self.file_bytes if self.file_bytes else 0.0


def free_space(shard: Shard) -> FreeSpace:
    """The free space of a shard's file, without reading more than the list of its tables.

    Raises: `Corrupt` when the shard cannot be opened.
    """
    with shard.view() as view:
        env = view.generation.env
        if view.tx is None or env is None:
            return FreeSpace(0, 0)
        main = view.tx.stat(env.handle.open_db(None, txn=view.tx, create=False))
        used = _META_PAGES + main["branch_pages"] + main["leaf_pages"] + main["overflow_pages"]
        for _, record in view.tx.cursor():
            if len(record) == TABLE.size:
                _, _, _, branch, leaf, overflow, _, _ = TABLE.unpack(record)
                used += branch + leaf + overflow
        pages = env.handle.info()["last_pgno"] + 1
        return FreeSpace(pages * main["psize"], max(pages - used, 0) * main["psize"])
