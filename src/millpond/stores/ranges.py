"""Ranges: a segment's immutable file form, sorted Arrow files named by their content. This is their door.

    index = write(objects, batches)             entries, cut where a hash of their keys says, and their index
    find, get, scan, open_index, open_range     read them, memory-mapped

What is equal has one name: an index that changed little shares most of its ranges with the one before, and to
diff, merge or fetch costs what changed, not what exists. The bytes are drawn in `docs/format/ranges.md`.
"""

from __future__ import annotations

from millpond.stores.range_index import (
    DEFAULT_BOUNDARIES,
    Boundaries,
    Index,
    RangeEntry,
    index_name,
    load_index,
    range_name,
)  # fmt: skip
from millpond.stores.range_reader import RangeReader, find, get, open_index, open_range, scan
from millpond.stores.range_writer import RangeWriter, write

__all__ = (
    "DEFAULT_BOUNDARIES", "Boundaries", "Index", "RangeEntry", "RangeReader", "RangeWriter", "find", "get",
    "index_name", "load_index", "open_index", "open_range", "range_name", "scan", "write",
)  # fmt: skip
