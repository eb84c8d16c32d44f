"""The kernels that walk a tree of an LMDB file of another writer, see `page_check.py` for what they check.

    walk    from the root to every leaf, in the order of the keys
    tile    the nodes of one page, or of the page within a node that holds several rows of one key

Nothing is read before it is known to lie within the file. A walk ends at the first fault with its number, `REASONS`.
"""

from enum import IntEnum

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_u8, load_u64, swap_u64
from millpond.stores.lmdb.bulk_read import number_at
from millpond.stores.lmdb.bulk_write import NODE_BYTES_MAX
from millpond.stores.lmdb.page_format import BIG_VALUE, BRANCH, HEADER, LEAF, OVERFLOW, PAGE, SEVERAL_ROWS, SUB_TABLE

__all__ = ("PLAIN", "REASONS", "SEVERAL", "STAMPS", "VALUES", "Counts", "tile", "walk")

PLAIN, SEVERAL, VALUES = 0, 1, 2
"""Tables of one row a key, of several rows a key, and the table within a node: the values of one key, as keys."""

STAMPS = PAGE // 2 + 1
"""A place for every even offset of a page, and a counter of the pages that were tiled."""
# LMDB's own limit in its default build: no key of it is longer.
_KEY_BYTES_MAX = 511
_RECORD_BYTES = 48
# A page within a node is a leaf (0x02) of values (0x40); LMDB may leave its mark of a page not yet written (0x10).
_LEAF_WITHIN, _DIRTY = 0x42, 0x10


class Counts(IntEnum):
    """The places of what a walk counts."""

    BRANCHES, LEAVES, OVERFLOW, ROWS, SEVERAL, SUBTABLES, PAGE, SIZE = range(8)


# Numba takes plain numbers for constants, and looks an enumeration up at each use.
_C_BRANCHES, _C_LEAVES, _C_OVERFLOW, _C_ROWS = 0, 1, 2, 3
_C_SEVERAL, _C_SUBTABLES, _C_PAGE = 4, 5, 6

REASONS = (
    "",
    "it is outside of the file, or reached twice",
    "it is of another kind, or another page",
    "its nodes do not fill it",
    "a branch has fewer than two children",
    "keys do not ascend",
    "a key has no bytes, or more than 511",
    "a node has flags that its table does not use",
    "an overflow page is outside of the file, reached twice, or none",
    "a value is stored in another way than its size wants",
    "there are more rows or pages than the table states",
    "several rows under one key are stored in a way that cannot be read",
)
_SOUND, _OUTSIDE, _KIND, _NODES, _FEW, _ORDER, _KEY, _FLAGS, _OVERFLOWS, _SIZE, _MORE, _SUBPAGE = range(12)


@kernel
def tile(pages, shorts, base, size, kind, stamps):  # type: ignore[no-untyped-def]
    """Check that the nodes of a page of `size` bytes fill it from `upper` on; its base is even."""
    # All numbers of a page but its own are of two bytes and even places, so the file is read as shorts.
    half = base // 2
    lower, upper = np.int64(shorts[half + 6]), np.int64(shorts[half + 7])
    if lower < HEADER or lower & 1 or upper < lower or upper > size or upper & 1:
        return _NODES
    # Mostly nodes lie as they were added, each right before the one that was added first: one look shows it.
    end = size
    for place in range(half + HEADER // 2, half + lower // 2):
        at = np.int64(shorts[place])
        if at & 1 or at < upper or at + 8 > end or at + _node_bytes(shorts, half + at // 2, kind) != end:
            end = -1
            break
        end = at
    if end == upper:
        return _SOUND
    last = len(stamps) - 1
    # A new stamp for each page, so that the array need not be cleared for each.
    stamps[last] += 1
    stamp = stamps[last]
    total, least = np.int64(0), size
    for place in range(half + HEADER // 2, half + lower // 2):
        at = np.int64(shorts[place])
        # Two places that lead to one node are as bad as nodes that overlap: a delete would free it twice.
        if at & 1 or at < upper or at + 8 > size or stamps[at // 2] == stamp:
            return _NODES
        stamps[at // 2] = stamp
        least = min(least, at)
        total += _node_bytes(shorts, half + at // 2, kind)
        # Before the sum could overflow: sizes are up to 2^32.
        if total > size:
            return _NODES
    if total != size - upper or least != upper:
        return _NODES
    # Every node ends where another begins, or at the end: with the right sum, none overlaps and there is no gap.
    for place in range(half + HEADER // 2, half + lower // 2):
        at = np.int64(shorts[place])
        end = at + _node_bytes(shorts, half + at // 2, kind)
        if end != size and (end > size or stamps[end // 2] != stamp):
            return _NODES
    return _SOUND


@kernel
def _node_bytes(shorts, at, kind):  # type: ignore[no-untyped-def]
    """The even size of a node on its page."""
    size = 8 + np.int64(shorts[at + 3])
    if kind == LEAF:
        value = np.int64(shorts[at]) | np.int64(shorts[at + 1]) << np.int64(16)
        # LMDB keeps nodes at even places, so an odd size has a byte of padding.
        size += 8 if shorts[at + 2] & BIG_VALUE else value
    return size + (size & 1)


@kernel
def _ascend(memory, first, first_bytes, second, second_bytes, strictly):  # type: ignore[no-untyped-def]
    """True when the bytes at `first` sort before those at `second`, or are equal, unless `strictly`."""
    least = min(first_bytes, second_bytes)
    k = 0
    # Eight bytes at once; turned round, since the first byte weighs most in the order of keys.
    while k + 8 <= least:
        left, other = load_u64(memory + first + k), load_u64(memory + second + k)
        if left != other:
            return swap_u64(left) < swap_u64(other)
        k += 8
    while k < least:
        one_byte, other_byte = load_u8(memory + first + k), load_u8(memory + second + k)
        if one_byte != other_byte:
            return one_byte < other_byte
        k += 1
    return first_bytes < second_bytes if strictly else first_bytes <= second_bytes


@kernel
def _enter_page(pages, shorts, page, kind, seen, stamps):  # type: ignore[no-untyped-def]
    """Check a page of a tree by itself, and mark it as reached."""
    # Reached once, over all tables: two trees that share a page would free it twice.
    if page < 2 or page >= len(seen) or seen[page]:
        return _OUTSIDE
    seen[page] = 1
    base = page * PAGE
    if shorts[base // 2 + 5] != kind or number_at(pages, base, 8) != page:
        return _KIND
    fault = tile(pages, shorts, base, PAGE, kind, stamps)
    if fault:
        return fault
    # LMDB merges a branch page with one child away, and its rebalancing relies on there being two.
    if kind == BRANCH and shorts[base // 2 + 6] < HEADER + 4:
        return _FEW
    return _SOUND


@kernel
def walk(  # type: ignore[no-untyped-def]
    pages, shorts, memory, root, depth, kind, seen, stamps, leaves, first_rows, key_offsets, value_offsets, subtables,
    counts,
):  # fmt: skip
    """Check a whole tree; fill in its leaves, and of tables with one row a key the offsets of keys and values."""
    page, place = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    page[0] = root
    level = 0
    # The last key, by offset and length; after a branch page's key, that key, which the next one may equal.
    # Offsets, not bytes: nothing is copied for a comparison.
    before = np.zeros(3, np.int64)
    before[2] = 1
    while level >= 0:
        counts[_C_PAGE] = page[level]
        is_leaf = level == depth - 1
        base = page[level] * PAGE
        if place[level] == 0:
            # Before anything of the page is read.
            fault = _enter_page(pages, shorts, page[level], LEAF if is_leaf else BRANCH, seen, stamps)
            if fault:
                return fault
        if is_leaf:
            fault = _leaf(
                pages, shorts, memory, base, kind, seen, stamps, leaves, first_rows, key_offsets, value_offsets,
                subtables, counts, before,
            )  # fmt: skip
            if fault:
                return fault
            level -= 1
            continue
        if place[level] == 0:
            counts[_C_BRANCHES] += 1
        half = base // 2
        if place[level] == (np.int64(shorts[half + 6]) - HEADER) // 2:
            level -= 1
            continue
        at = base + np.int64(shorts[half + HEADER // 2 + place[level]])
        # The key of the first child is empty by the format, and LMDB never reads it.
        if place[level] > 0:
            length = np.int64(shorts[at // 2 + 3])
            if length < 1 or length > _KEY_BYTES_MAX:
                return _KEY
            # A separator above all keys to its left, or a search would go past rows that exist.
            if not _ascend(memory, before[0], before[1], at + 8, length, True):
                return _ORDER
            before[0], before[1], before[2] = at + 8, length, 0
        place[level] += 1
        level += 1
        page[level] = number_at(pages, at, 6)
        place[level] = 0
    return _SOUND


@kernel
def _leaf(  # type: ignore[no-untyped-def]
    pages, shorts, memory, base, kind, seen, stamps, leaves, first_rows, key_offsets, value_offsets, subtables, counts,
    before,
):  # fmt: skip
    lower = np.int64(shorts[base // 2 + 6])
    if lower == HEADER:
        return _FEW
    # LMDB removes a leaf without rows, except the root of an empty table, which has no page at all.
    row = counts[_C_ROWS]
    leaves[counts[_C_LEAVES]] = base // PAGE
    first_rows[counts[_C_LEAVES]] = row
    counts[_C_LEAVES] += 1
    for place in range(base // 2 + HEADER // 2, base // 2 + lower // 2):
        at = base + np.int64(shorts[place])
        half = at // 2
        value = np.int64(shorts[half]) | np.int64(shorts[half + 1]) << np.int64(16)
        flags, key = np.int64(shorts[half + 2]), np.int64(shorts[half + 3])
        if key < 1 or key > _KEY_BYTES_MAX:
            return _KEY
        # A leaf may begin with the key of its separator; among rows, keys must rise.
        if before[1] and not _ascend(memory, before[0], before[1], at + 8, key, before[2] == 1):
            return _ORDER
        before[0], before[1], before[2] = at + 8, key, 1
        # The values of one key are stored as keys without values.
        if kind == VALUES:
            if flags or value:
                return _FLAGS
            row += 1
            continue
        if kind == SEVERAL and flags & SEVERAL_ROWS:
            fault = _several(pages, shorts, memory, at, key, value, flags, stamps, subtables, counts)
            if fault:
                return fault
            row = counts[_C_ROWS]
            continue
        # A value of a table of several rows is a key of the table within: the same limits hold.
        if flags & ~BIG_VALUE or (kind == SEVERAL and (flags or value < 1 or value > _KEY_BYTES_MAX)):
            return _FLAGS
        # LMDB's moves of nodes between pages take for granted that two fit a page.
        if (8 + key + value > NODE_BYTES_MAX) != (flags == BIG_VALUE):
            return _SIZE
        if flags:
            used = _overflow(pages, shorts, number_at(pages, at + 8 + key, 8), value, seen)
            if used < 0:
                return _OVERFLOWS
            counts[_C_OVERFLOW] += used
        # The arrays have the rows that the record states.
        if row + 1 >= len(key_offsets):
            return _MORE
        key_offsets[row + 1] = key_offsets[row] + key
        value_offsets[row + 1] = value_offsets[row] + value
        row += 1
        counts[_C_ROWS] = row
    counts[_C_ROWS] = row
    return _SOUND


@kernel
def _overflow(pages, shorts, first, value, seen):  # type: ignore[no-untyped-def]
    """Mark the overflow pages of a value; how many, or -1."""
    if first < 2 or first >= len(seen):
        return -1
    base = first * PAGE
    count = number_at(pages, base + 12, 4)
    # One header for all pages of a value; more pages than needed are left from a longer value, and are fine.
    page_count = (HEADER - 1 + value) // PAGE + 1
    if number_at(pages, base, 8) != first or shorts[base // 2 + 5] != OVERFLOW:
        return -1
    if count < page_count or count > len(seen) - first:
        return -1
    # Each page of the run is the value's alone.
    for page in range(first, first + count):
        if seen[page]:
            return -1
        seen[page] = 1
    return count


@kernel
def _several(pages, shorts, memory, at, key, value, flags, stamps, subtables, counts):  # type: ignore[no-untyped-def]
    """Check a node with several rows: a page within it, or the record of a table, which is walked later."""
    counts[_C_SEVERAL] = 1
    # The page within a node must begin at an even place to be read as shorts.
    if key & 1:
        return _SUBPAGE
    base = at + 8 + key
    if flags == SEVERAL_ROWS | SUB_TABLE:
        if value != _RECORD_BYTES or counts[_C_SUBTABLES] == len(subtables):
            return _SUBPAGE
        # Walked later: this walk has one stack, and the other tree its own counts.
        subtables[counts[_C_SUBTABLES]] = base
        counts[_C_SUBTABLES] += 1
        return _SOUND
    half = base // 2
    if flags != SEVERAL_ROWS or value < HEADER or value & 1 or shorts[half + 5] & ~_DIRTY != _LEAF_WITHIN:
        return _SUBPAGE
    if 8 + key + value > NODE_BYTES_MAX or tile(pages, shorts, base, value, LEAF, stamps):
        return _SUBPAGE
    last, last_bytes = np.int64(0), np.int64(0)
    for place in range(half + HEADER // 2, half + np.int64(shorts[half + 6]) // 2):
        row = base + np.int64(shorts[place])
        inner = row // 2
        length = np.int64(shorts[inner + 3])
        # Size of value and flags must be zero: rows of a page within have keys only.
        if shorts[inner] or shorts[inner + 1] or shorts[inner + 2] or length < 1 or length > _KEY_BYTES_MAX:
            return _SUBPAGE
        if last_bytes and not _ascend(memory, last, last_bytes, row + 8, length, True):
            return _ORDER
        last, last_bytes = row + 8, length
        counts[_C_ROWS] += 1
    return _SOUND if last_bytes else _SUBPAGE
