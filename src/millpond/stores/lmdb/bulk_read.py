"""Whole tables read from the pages of an LMDB file, as columns: many times faster than a cursor's row after row.

What a read transaction sees never changes: LMDB writes changed pages elsewhere, and keeps those of the transaction
until it ends. So the tree of a table, from the root that the transaction tells, can be walked in the file itself.
`bulk_write.py` draws the pages.

Invariants:
* the transaction is open until the last piece was taken (the caller's to keep);
* nothing outside the file is read, whatever its bytes say: damage is `Corrupt`, naming the file;
* several rows under one key are left to LMDB: the reading ends before them, at the beginning of a page, and says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.errors import Corrupt
from millpond.stores.lmdb.page_format import (
    BIG_VALUE,
    BRANCH,
    DUPLICATES,
    HEADER,
    I64,
    LEAF,
    NODE_HEADER,
    PAGE,
    SEVERAL_ROWS,
    SUB_TABLE,
    TABLE,
    U8,
)

__all__ = ("RECORD_BYTES", "Piece", "Rest", "number_at", "read_from", "read_pieces")

DAMAGED, SEVERAL = -1, -2
TREE_ENDS, ENOUGH, SEVERAL_NEXT = 0, 1, 2
"""The reasons for which a walk over leaves ends."""

RECORD_BYTES = TABLE.size

DEPTH_MAX = 32
LEAVES_AHEAD = 1024
PIECE_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows in their order: offsets (int64, from 0) over bytes, for keys and for values."""

    key_offsets: I64
    keys: U8
    value_offsets: I64
    values: U8

    def __len__(self) -> int:
        return len(self.key_offsets) - 1

    def key(self, row: int) -> bytes:
        """The key of one row."""
        return self.keys[self.key_offsets[row] : self.key_offsets[row + 1]].tobytes()

    def rows(self, start: int, stop: int) -> Piece:
        """Some of the rows; the bytes are shared."""
        keys, values = self.key_offsets[start : stop + 1], self.value_offsets[start : stop + 1]
        return Piece(
            keys - keys[0], self.keys[keys[0] : keys[-1]], values - values[0], self.values[values[0] : values[-1]]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rest:
    """From this key on, or from the first, a cursor has to go on."""

    key: bytes


def read_pieces(file: Path, record: bytes, rows_max: int) -> Iterator[Piece | Rest]:
    """All rows of a table, in pieces of about `rows_max` rows and 8 MiB.

    `record` is what the unnamed table holds under the table's name, read in the transaction. It must be of an
    environment with pages of `PAGE` bytes.

    Raises: `Corrupt`.
    """
    _, flags, depth, branches, leaf_count, _, entries, root = TABLE.unpack(record)
    if not entries:
        return
    try:
        pages: U8 = np.memmap(file, np.uint8, mode="r")
    except FileNotFoundError:
        # Unlinked since: who has it open goes on reading it.
        yield Rest(b"")
        return
    # The record may lie about its leaves: no more memory is asked for than the file has pages.
    leaves = np.empty(min(leaf_count, len(pages) // PAGE), np.int64)
    sound = 1 <= depth <= DEPTH_MAX and len(leaves) == leaf_count
    status = _find_leaves(pages, root, depth, branches, leaves) if sound else DAMAGED
    if status == DAMAGED:
        raise _damaged(file)
    # With several rows under one key, pages of the tables below are counted here too. Else the count is right, and
    # where it is not, LMDB is asked instead.
    if status > leaf_count or (status < leaf_count and not flags & DUPLICATES):
        yield Rest(b"")
        return
    leaves = leaves[:status]
    done = rows = 0
    while done < len(leaves):
        counts = _counts(pages, leaves[done : done + LEAVES_AHEAD])
        if counts.min() < 0:
            raise _damaged(file)
        # A leaf with more rows than a piece may have is a piece of its own.
        taken = max(1, int(np.searchsorted(np.cumsum(counts), rows_max, side="right")))
        piece = _piece(pages, leaves[done : done + taken], int(counts[:taken].sum()), file)
        # Few rows may have large values: half of the leaves, until their bytes fit.
        while piece is None and taken > 1:
            taken //= 2
            piece = _piece(pages, leaves[done : done + taken], int(counts[:taken].sum()), file)
        assert piece is not None, "a page alone is a piece"
        yield piece
        if isinstance(piece, Rest):
            return
        done += taken
        rows += len(piece.key_offsets) - 1
    if rows != entries:
        raise _damaged(file)


def read_from(file: Path, record: bytes, first: bytes, rows_max: int) -> tuple[Piece, bytes | None] | Rest:
    """Up to `rows_max` rows from the key `first` on, of about 8 MiB at most, and the key after them, None at the end.

    They end early before a page with several rows under one key; where that is the first page, a `Rest` says so.

    Raises: `Corrupt`.
    """
    _, _, depth, _, leaf_count, _, entries, root = TABLE.unpack(record)
    if not entries:
        return _piece_of_none(), None
    try:
        pages: U8 = np.memmap(file, np.uint8, mode="r")
    except FileNotFoundError:
        return Rest(first)
    # Every leaf has a row at least, and one more than these is looked at.
    leaves = np.empty(min(leaf_count, rows_max + 1) + 2, np.int64)
    sought: U8 = np.frombuffer(first, np.uint8)
    status, ended = _leaves_from(pages, root, depth, sought, rows_max, leaves) if depth <= DEPTH_MAX else (DAMAGED, 0)
    if status == DAMAGED:
        raise _damaged(file)
    if status == 0 and ended == SEVERAL_NEXT:
        return Rest(first)
    piece = _piece(pages, leaves[:status], int(_counts(pages, leaves[:status]).sum()), file, bounded=False)
    assert isinstance(piece, Piece), "leaves with several rows under one key are left out"
    start = int(_rows_before(piece.key_offsets, piece.keys, sought))
    stop = min(start + rows_max, len(piece))
    if stop < len(piece):
        return piece.rows(start, stop), piece.key(stop)
    following = _first_key(pages, int(leaves[status])) if ended != TREE_ENDS else None
    if start == stop and following is not None:
        # What is before the next leaf was looked at in vain: the key lies between two leaves.
        return read_from(file, record, following, rows_max)
    return piece.rows(start, stop), following


def _piece_of_none() -> Piece:
    nothing, none = np.zeros(1, np.int64), np.zeros(0, np.uint8)
    return Piece(nothing, none, nothing, none)


def _first_key(pages: U8, leaf: int) -> bytes:
    base = leaf * PAGE
    # The first place stands right behind the header; a node has the length of its key at its bytes 6 and 7.
    at = base + int.from_bytes(pages[base + HEADER : base + HEADER + 2].tobytes(), "little")
    length = int.from_bytes(pages[at + 6 : at + 8].tobytes(), "little")
    return pages[at + NODE_HEADER : at + NODE_HEADER + length].tobytes()


def _piece(pages: U8, leaves: I64, rows: int, file: Path, *, bounded: bool = True) -> Piece | Rest | None:
    """The rows of these leaves; None when they are too many bytes, and of more than one leaf, where that is bounded."""
    key_offsets, value_offsets = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
    status = _measure(pages, leaves, key_offsets, value_offsets)
    if status == DAMAGED:
        raise _damaged(file)
    if status == SEVERAL:
        return Rest(_first_key(pages, int(leaves[0])))
    size = int(key_offsets[-1] + value_offsets[-1])
    if bounded and size > PIECE_BYTES_MAX and len(leaves) > 1:
        return None
    # Measured first, so that each column is one allocation of the right size.
    keys, values = np.empty(int(key_offsets[-1]), np.uint8), np.empty(int(value_offsets[-1]), np.uint8)
    _gather(pages, leaves, key_offsets, keys, value_offsets, values)
    return Piece(key_offsets, keys, value_offsets, values)


def _damaged(file: Path) -> Corrupt:
    return Corrupt("the file is damaged", kind="space_damaged", hint="restore it from a copy", file=file)


@kernel
def number_at(pages, at, width):  # type: ignore[no-untyped-def]
    """The number of so many bytes at a place of the file."""
    number = np.int64(0)
    # LMDB writes numbers as the machine does: little-endian on all that Millpond runs on.
    for k in range(width):
        number |= np.int64(pages[at + k]) << np.int64(8 * k)
    return number


@kernel
def _nodes(pages, page, kind):  # type: ignore[no-untyped-def]
    """The number of nodes of a page; below zero when there is no such page of this kind."""
    # Pages 0 and 1 are the meta pages: no tree leads to them.
    if page < 2 or page >= len(pages) // PAGE:
        return -1
    base = page * PAGE
    # `lower` is the end of the two-byte places, so it counts them.
    lower = number_at(pages, base + 12, 2)
    # A page says its own number: a torn or misplaced write does not.
    if not pages[base + 10] & kind or lower < HEADER or lower > PAGE or number_at(pages, base, 8) != page:
        return -1
    return (lower - HEADER) // 2


@kernel
def _find_leaves(pages, root, depth, branches, leaves):  # type: ignore[no-untyped-def]
    """Fill in the numbers of the leaf pages, in order; how many, or one more than the tree claims."""
    # An explicit stack: numba has no recursion without types, and a damaged tree may not use up ours.
    page, place = np.empty(depth + 1, np.int64), np.zeros(depth + 1, np.int64)
    page[0] = root
    level = count = seen = 0
    while level >= 0:
        if level == depth - 1:
            # More leaves than stated: the caller asks LMDB, and nothing is written beyond the array.
            if count == len(leaves):
                return count + 1
            leaves[count] = page[level]
            count += 1
            level -= 1
            continue
        nodes = _nodes(pages, page[level], BRANCH)
        # Each branch page is counted once, when it is entered. A cycle is entered again and again: the count bounds it.
        if place[level] == 0:
            seen += 1
            if nodes < 1:
                return DAMAGED
            if seen > branches:
                return len(leaves) + 1
        if place[level] == nodes:
            level -= 1
            continue
        base = page[level] * PAGE
        at = number_at(pages, base + HEADER + 2 * place[level], 2)
        # A place that leads out of the page would read its neighbour.
        if at < HEADER or at + NODE_HEADER > PAGE:
            return DAMAGED
        place[level] += 1
        level += 1
        # The number of a child takes six bytes: the sizes and flags of a leaf's node.
        page[level] = number_at(pages, base + at, 6)
        place[level] = 0
    return count


@kernel
def _leaves_from(pages, root, depth, first, rows_max, leaves):  # type: ignore[no-untyped-def]
    """Fill in the leaf pages from the one where `first` would lie until they hold more than `rows_max` rows from it on.

    How many, and why there are no more; unless the tree ends, the number of the next leaf stands behind them.
    """
    page, place = np.empty(depth + 1, np.int64), np.zeros(depth + 1, np.int64)
    page[0] = root
    level = count = rows = size = 0
    seeking = True
    while level >= 0:
        if level == depth - 1:
            # Unlike above the array has room by design, so only a damaged tree fills it.
            if count == len(leaves):
                return DAMAGED, TREE_ENDS
            leaves[count] = page[level]
            several, nodes, more = _leaf_sizes(pages, page[level])
            if nodes < 1:
                return DAMAGED, TREE_ENDS
            # LMDB alone reads pages with several rows under one key, and begins at such a page.
            if several:
                return count, SEVERAL_NEXT
            if rows > rows_max or (count and size + more > PIECE_BYTES_MAX):
                return count, ENOUGH
            # Of the first leaf, all rows but one may lie before the key.
            rows += 1 if count == 0 else nodes
            size += more
            count += 1
            level -= 1
            seeking = False
            continue
        nodes = _nodes(pages, page[level], BRANCH)
        if nodes < 1:
            return DAMAGED, TREE_ENDS
        if place[level] == nodes:
            level -= 1
            continue
        base = page[level] * PAGE
        # Only the way down to the first leaf searches; from there on every child is taken.
        if seeking:
            place[level] = _child_of(pages, base, nodes, first)
        at = number_at(pages, base + HEADER + 2 * place[level], 2) if place[level] >= 0 else 0
        if at < HEADER or at + NODE_HEADER > PAGE:
            return DAMAGED, TREE_ENDS
        place[level] += 1
        level += 1
        page[level] = number_at(pages, base + at, 6)
        place[level] = 0
    return count, TREE_ENDS


@kernel
def _leaf_sizes(pages, page):  # type: ignore[no-untyped-def]
    """A flag for several rows under a key, the number of rows, and their bytes; no rows where there is no leaf."""
    nodes = _nodes(pages, page, LEAF)
    base = page * PAGE
    size = 0
    for place in range(nodes):
        at = number_at(pages, base + HEADER + 2 * place, 2)
        if at < HEADER or at + NODE_HEADER > PAGE:
            return False, -1, 0
        # The value is then a page or a table of its own, whose size says nothing about rows.
        if pages[base + at + 4] & SEVERAL_ROWS:
            return True, nodes, size
        size += number_at(pages, base + at + 6, 2) + number_at(pages, base + at, 4)
    return False, nodes, size


@kernel
def _child_of(pages, base, nodes, first):  # type: ignore[no-untyped-def]
    """The child of a branch page that holds the key: the last that does not begin after it; -1: damaged."""
    # The first node of a branch page has no key, so it is below everything: it is never compared.
    low, high = 0, nodes - 1
    while low < high:
        # Rounded up, or `low = middle` would not end with two left.
        middle = (low + high + 1) // 2
        at = number_at(pages, base + HEADER + 2 * middle, 2)
        if at < HEADER or at + NODE_HEADER > PAGE:
            return -1
        length = number_at(pages, base + at + 6, 2)
        if at + NODE_HEADER + length > PAGE:
            return -1
        if _is_after(pages, base + at + NODE_HEADER, length, first):
            high = middle - 1
        else:
            low = middle
    return low


@kernel
def _is_after(data, start, length, other):  # type: ignore[no-untyped-def]
    """True when the `length` bytes from `start` sort after `other`, as LMDB compares keys."""
    # Bytes as unsigned numbers, and of two with a common beginning the shorter first: that is memcmp of LMDB.
    for k in range(min(length, len(other))):
        if data[start + k] != other[k]:
            return data[start + k] > other[k]
    return length > len(other)


@kernel
def _rows_before(offsets, data, key):  # type: ignore[no-untyped-def]
    """The number of these sorted keys that sort before `key`."""
    low, high = 0, len(offsets) - 1
    while low < high:
        middle = (low + high) // 2
        start, length = offsets[middle], offsets[middle + 1] - offsets[middle]
        # Equal keys count as not before, so that a question from a key finds the key.
        same = length == len(key)
        for k in range(min(length, len(key))):
            same = same and data[start + k] == key[k]
        if same or _is_after(data, start, length, key):
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _counts(pages, leaves):  # type: ignore[no-untyped-def]
    """The number of rows of each leaf; below zero when it is none."""
    counts = np.empty(len(leaves), np.int64)
    for i in range(len(leaves)):
        counts[i] = _nodes(pages, leaves[i], LEAF)
    return counts


@kernel
def _measure(pages, leaves, key_offsets, value_offsets):  # type: ignore[no-untyped-def]
    """Fill in where keys and values will begin."""
    row = 0
    for leaf in leaves:
        base = leaf * PAGE
        for place in range(base + HEADER, base + number_at(pages, base + 12, 2), 2):
            at = number_at(pages, place, 2)
            if at < HEADER or at + NODE_HEADER > PAGE:
                return DAMAGED
            flags = pages[base + at + 4]
            key, value = number_at(pages, base + at + 6, 2), number_at(pages, base + at, 4)
            # All is measured against the page before `_gather` copies without a look.
            room = PAGE - at - NODE_HEADER - key
            if flags & SEVERAL_ROWS:
                return SEVERAL
            # On overflow pages, only their number of eight bytes stands in the node.
            if flags & SUB_TABLE or key == 0 or room < (8 if flags & BIG_VALUE else value):
                return DAMAGED
            if flags & BIG_VALUE:
                first = number_at(pages, base + at + NODE_HEADER + key, 8)
                # The division first: a product with a page number of 2^48 could overflow.
                if first < 2 or first >= len(pages) // PAGE or first * PAGE + HEADER + value > len(pages):
                    return DAMAGED
            key_offsets[row + 1] = key_offsets[row] + key
            value_offsets[row + 1] = value_offsets[row] + value
            row += 1
    return row


@kernel
def _gather(pages, leaves, key_offsets, keys, value_offsets, values):  # type: ignore[no-untyped-def]
    row = 0
    for leaf in leaves:
        base = leaf * PAGE
        for place in range(base + HEADER, base + number_at(pages, base + 12, 2), 2):
            at = base + number_at(pages, place, 2)
            # No check here: `_measure` made them all on the same pages, which the open transaction keeps as they are.
            is_big = pages[at + 4] & BIG_VALUE
            at += NODE_HEADER
            length = key_offsets[row + 1] - key_offsets[row]
            _copy(keys[key_offsets[row] :], pages[at : at + length])
            at += length
            if is_big:
                at = number_at(pages, at, 8) * PAGE + HEADER
            length = value_offsets[row + 1] - value_offsets[row]
            _copy(values[value_offsets[row] :], pages[at : at + length])
            row += 1


@kernel
def _copy(target, source):  # type: ignore[no-untyped-def]
    # Slices that both begin at 0: the compiler sees that no index is negative, and moves whole words.
    for k in range(len(source)):
        target[k] = source[k]
