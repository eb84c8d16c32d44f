"""Ranges: a segment's immutable file form, sorted Arrow files named by their content. This is their door.

    index = write(objects, batches)             entries, cut where a hash of their keys says, and their index
    find, get, scan, open_index, open_range     read them, memory-mapped
    diff, merge                                 side by side, opening only what is not shared
    missing, fetch                              to another place, only what it lacks
    verify, quarantine                          every byte against its name

What is equal has one name: an index that changed little shares most of its ranges with the one before, and to
diff, merge or fetch costs what changed, not what exists. The bytes are drawn in `docs/format/ranges.md`.
"""

from __future__ import annotations

from millpond.stores.range_diff import Difference, diff
from millpond.stores.range_index import (
    DEFAULT_BOUNDARIES,
    Boundaries,
    Index,
    RangeEntry,
    index_name,
    load_index,
    range_name,
)  # fmt: skip
from millpond.stores.range_merge import merge
from millpond.stores.range_reader import RangeReader, find, get, open_index, open_range, scan
from millpond.stores.range_transfer import FetchReport, fetch, missing
from millpond.stores.range_verify import Verifier, quarantine, verify
from millpond.stores.range_writer import RangeWriter, write

__all__ = (
    "DEFAULT_BOUNDARIES", "Boundaries", "Difference", "FetchReport", "Index", "RangeEntry", "RangeReader",
    "RangeWriter", "Verifier", "diff", "fetch", "find", "get", "index_name", "load_index", "merge", "missing",
    "open_index", "open_range", "quarantine", "range_name", "scan", "verify", "write",
)  # fmt: skip
