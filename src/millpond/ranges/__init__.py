"""Ranges: a segment's immutable file form, sorted Arrow files named by their content. This is their door.

    index = write(objects, batches)             entries, cut where a hash of their keys says, and their index
    find, get, scan, open_index, open_range     read them, memory-mapped
    fetch_blocks, open_filter, may_have         parts of one that lies far away, where its filter has the key
    fold, differences                           changes beside an index, opening only what they meet
    fold_part, join_parts                       a fold by several processes, each a stretch of the keys
    diff, merge                                 side by side, opening only what is not shared
    merge_three_way, conflicts                  what two made of a common base, brought together
    starting, text_prefix                       bounds: keys, or texts within keys, that begin with …
    missing, fetch                              to another place, only what it lacks
    verify, quarantine                          every file against its checksum and its id

What is equal has one name: an index that changed little shares most of its ranges with the one before, and to
diff, merge or fetch costs what changed, not what exists. The bytes are drawn in `docs/format/ranges.md`.
"""

from __future__ import annotations

from millpond.kernel.keys import starting, text_prefix
from millpond.ranges.blocks import FILTER_KEYS_MAX, may_have
from millpond.ranges.cache import CachedObjects, HeldObjects
from millpond.ranges.diff import Difference, diff
from millpond.ranges.fold import Folded, differences, fold
from millpond.ranges.fold_parts import FoldedPart, fold_part, join_parts
from millpond.ranges.index import DEFAULT_BOUNDARIES, Boundaries, Index, RangeEntry, index_name, load_index, range_name
from millpond.ranges.merge import merge
from millpond.ranges.reader import RangeReader, fetch_blocks, find, get, open_filter, open_index, open_range, scan
from millpond.ranges.spans import NO_SPANS, Spans
from millpond.ranges.three_way import Choice, Conflicts, Side, ThreeWay, conflicts, merge_three_way
from millpond.ranges.transfer import FetchReport, fetch, missing
from millpond.ranges.verify import Verifier, check_file, quarantine, verify
from millpond.ranges.writer import RangeWriter, write

__all__ = (
    "DEFAULT_BOUNDARIES", "FILTER_KEYS_MAX", "NO_SPANS", "Boundaries", "CachedObjects", "Choice", "Conflicts",
    "Difference", "FetchReport", "Folded", "FoldedPart", "HeldObjects", "Index", "RangeEntry", "RangeReader",
    "RangeWriter", "Side", "Spans", "ThreeWay", "Verifier", "check_file", "conflicts", "diff", "differences", "fetch",
    "fetch_blocks", "find", "fold", "fold_part", "get", "index_name", "join_parts", "load_index", "may_have", "merge",
    "merge_three_way", "missing", "open_filter", "open_index", "open_range", "quarantine", "range_name", "scan",
    "starting", "text_prefix", "verify", "write",
)  # fmt: skip
