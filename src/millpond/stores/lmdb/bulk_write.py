"""A whole LMDB data file, written in one go from rows that are sorted already.

LMDB puts row by row; a sealed segment knows all its rows beforehand, so its pages can be filled straight from the
columns: the same tree, in LMDB's own format, at the speed of memory. Any LMDB reads it, and writes on in it.

    page 0, 1     meta pages; page 1 counts, as after a first transaction
    page 2        the table of tables
    per table     leaf pages, then branch pages level by level up to the root, then overflow pages

A page has 4096 bytes: a header of 16, two-byte places of its nodes from the front, nodes from the back. A node is
8 bytes of sizes and flags, the key, the value; a value that leaves no room for a second node on its page lies on
overflow pages of its own. The first node of a branch page has no key: everything before the second's is there.

Invariants:
* leaf pages are as full as they can be, in order; a branch page has at least two nodes;
* the same rows make the same bytes: what no node uses is zero;
* a table with `duplicates` may have no key twice here: that is for LMDB itself to write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.stores.lmdb.page_format import (
    BIG_VALUE,
    BRANCH,
    DUPLICATES,
    HEADER,
    I64,
    LEAF,
    META,
    NODE_HEADER,
    OVERFLOW,
    PAGE,
    SUB_TABLE,
    TABLE,
    U8,
)

__all__ = ("BulkTable", "write_environment")

ROOM = PAGE - HEADER
NODE_BYTES_MAX = 2038
"""A node that is larger keeps its value on overflow pages: two nodes must fit a page."""

INTEGER_KEYS = 0x08
# LMDB's P_INVALID: the root of a table without rows.
NO_PAGE = (1 << 64) - 1
MAGIC, DATA_VERSION = 0xBEEFC0DE, 1

CHUNK_PAGES = 256
"""A megabyte is filled, handed to the disk while it is still in the cache, and filled again."""

_PAGE_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_META = struct.Struct("<IIQQ")


@dataclass(frozen=True, slots=True)
class BulkTable:
    """One table and its rows, ascending: offsets (int64, from 0) over bytes, for keys and for values."""

    name: str
    key_offsets: I64
    key_data: U8
    value_offsets: I64
    value_data: U8
    duplicates: bool = False

    def __len__(self) -> int:
        return len(self.key_offsets) - 1

    @property
    def columns(self) -> tuple[I64, U8, I64, U8]:
        """The columns in the form that kernels read."""
        return self.key_offsets, self.key_data, self.value_offsets, self.value_data


def write_environment(tables: Sequence[BulkTable], put: Callable[[memoryview], Any]) -> int:
    """Give `put` the bytes of the data file, from first to last; how many there are."""
    # A second level for the names would be code that no store needs.
    assert len({table.name for table in tables}) == len(tables) < 16, "the table of tables is one page"
    # The place of each page is known before the first is written, so the file is written from front to back.
    plans, records, pages = [], {}, 3
    for table in tables:
        plan = _Plan(table, pages)
        plans.append(plan)
        records[table.name.encode()] = plan.record()
        pages += plan.pages
    # Page 1 has the higher transaction number, so LMDB takes it; page 0 is the empty environment before.
    put(memoryview(_meta_page(0, None, 2) + _meta_page(1, len(records), pages) + _table_of_tables(records)))
    for plan in plans:
        for chunk in plan.chunks():
            put(chunk.data)
    return pages * PAGE


def _meta_page(number: int, tables: int | None, pages: int) -> bytes:
    """A meta page: of the empty environment (`tables` None), or of the one transaction that filled it."""
    # The list of free pages carries the page size in its padding, and has integers as keys.
    free = TABLE.pack(PAGE, INTEGER_KEYS, 0, 0, 0, 0, 0, NO_PAGE)
    main = TABLE.pack(0, 0, 1, 0, 1, 0, tables, 2) if tables else TABLE.pack(0, 0, 0, 0, 0, 0, 0, NO_PAGE)
    header = _PAGE_HEADER.pack(number, 0, META, 0, 0) + _META.pack(MAGIC, DATA_VERSION, 0, pages * PAGE)
    return (header + free + main + struct.pack("<QQ", pages - 1, number)).ljust(PAGE, b"\x00")


def _table_of_tables(records: dict[bytes, bytes]) -> bytes:
    """The page that names the tables, each with its record."""
    page = bytearray(PAGE)
    upper = PAGE
    # Nodes are laid from the back in the order of places; names must ascend, as all keys.
    for place, name in enumerate(sorted(records)):
        node = _NODE.pack(len(records[name]), 0, SUB_TABLE, len(name)) + name + records[name]
        upper -= len(node) + len(node) % 2
        page[upper : upper + len(node)] = node
        struct.pack_into("<H", page, HEADER + 2 * place, upper)
    _PAGE_HEADER.pack_into(page, 0, 2, 0, LEAF, HEADER + 2 * len(records), upper)
    return bytes(page)


class _Plan:
    """The layout of one table: the first row of each page, and the place of its pages."""

    def __init__(self, table: BulkTable, first_page: int) -> None:
        self.table = table
        self.first_page = first_page
        leaves = np.empty(len(table) + 1, np.int64)
        count, self.overflow_pages = _plan_leaves(table.key_offsets, table.value_offsets, leaves)
        # The row that begins each page, level by level; the last entry is the end.
        self.leaves = leaves[: count + 1].copy()
        self.branches: list[I64] = []
        # Level by level, until one page is over all: the root.
        begins = self.leaves
        while len(begins) > 2:
            children = np.empty(len(begins), np.int64)
            pages = _plan_branches(table.key_offsets, begins, children)
            children = children[: pages + 1].copy()
            self.branches.append(children)
            begins = begins[children]

    @property
    def branch_pages(self) -> int:
        return sum(len(children) - 1 for children in self.branches)

    @property
    def pages(self) -> int:
        return len(self.leaves) - 1 + self.branch_pages + self.overflow_pages

    def record(self) -> bytes:
        """The MDB_db record of this table in the main database."""
        leaves = len(self.leaves) - 1
        depth = 1 + len(self.branches) if leaves else 0
        root = self.first_page + leaves + self.branch_pages - 1 if leaves else NO_PAGE
        flags = DUPLICATES if self.table.duplicates else 0
        return TABLE.pack(
            0, flags, depth, self.branch_pages, leaves, self.overflow_pages, len(self.table), root
        )  # fmt: skip

    def chunks(self) -> Iterator[U8]:
        """The bytes of all pages, in order."""
        yield from self._leaf_chunks()
        page, below, begins = self.first_page + len(self.leaves) - 1, self.first_page, self.leaves
        for children in self.branches:
            # Zeros, so that gaps between places and nodes are the same bytes each time.
            out = np.zeros((len(children) - 1) * PAGE, np.uint8)
            pages = np.arange(below, below + len(begins) - 1)
            _fill_branches(out, page, pages, children, begins, self.table.key_offsets, self.table.key_data)
            yield out
            page, below, begins = page + len(children) - 1, page, begins[children]
        if self.overflow_pages:
            yield from _overflow_chunks(page, self.table)

    def _leaf_chunks(self) -> Iterator[U8]:
        # Overflow pages follow all others of the table, in order of the rows.
        big = self.first_page + len(self.leaves) - 1 + self.branch_pages
        # One buffer for all chunks: `put` must be done with it when it returns.
        chunk = np.empty(min(CHUNK_PAGES, len(self.leaves)) * PAGE, np.uint8)
        for first in range(0, len(self.leaves) - 1, CHUNK_PAGES):
            begins = self.leaves[first : first + CHUNK_PAGES + 1]
            out = chunk[: (len(begins) - 1) * PAGE]
            big = _fill_leaves(out, self.first_page + first, big, begins, *self.table.columns)
            yield out


def _overflow_chunks(page: int, table: BulkTable) -> Iterator[U8]:
    """The overflow pages of the values that need some, from `page` on, in order of the rows."""
    keys, values = np.diff(table.key_offsets), np.diff(table.value_offsets)
    rows = np.flatnonzero(NODE_HEADER + keys + values > NODE_BYTES_MAX)
    # An exact multiple would need one page more without the header: that is LMDB's OVPAGES.
    ends = np.cumsum((HEADER - 1 + values[rows]) // PAGE + 1)
    first, done = 0, 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, done + CHUNK_PAGES, side="right")))
        out = np.zeros(int(ends[last - 1] - done) * PAGE, np.uint8)
        _fill_overflow(out, page + done, rows[first:last], table.value_offsets, table.value_data)
        yield out
        first, done = last, int(ends[last - 1].item())


LEAF_VALUES_BYTES_MAX = 8 << 20
"""A leaf ends when the values beside it are so many bytes: readers and writers hold the rows of a leaf in memory."""


@kernel
def _plan_leaves(key_offsets, value_offsets, begins):  # type: ignore[no-untyped-def]
    """Fill in the row that begins each leaf; how many leaves there are, and how many overflow pages."""
    count = overflow = used = beside = 0
    rows = len(key_offsets) - 1
    for i in range(rows):
        value = value_offsets[i + 1] - value_offsets[i]
        # Header and key; two bytes for the place come below.
        size = 8 + key_offsets[i + 1] - key_offsets[i]
        large = 0
        if size + value > NODE_BYTES_MAX:
            overflow += (HEADER - 1 + value) // PAGE + 1
            large = value
            # In the node stands the number of the first overflow page instead.
            value = 8
        size += value
        # Nodes begin at even places; each has a place of two bytes in front.
        size += (size & 1) + 2
        # Filled to the last byte: the file is read more often than it is written on.
        if i == 0 or used + size > ROOM or (beside and beside + large > LEAF_VALUES_BYTES_MAX):
            begins[count] = i
            count += 1
            used = beside = 0
        used += size
        beside += large
    begins[count] = rows
    return count, overflow


@kernel
def _plan_branches(key_offsets, begins, children):  # type: ignore[no-untyped-def]
    """Fill in the child that begins each branch page over the pages that begin with these rows; how many."""
    count = used = 0
    below = len(begins) - 1
    for i in range(below):
        row = begins[i]
        # The whole first key of the child is its separator, as LMDB itself has it.
        key = key_offsets[row + 1] - key_offsets[row]
        size = 8 + key + (key & 1) + 2
        if i == 0 or used + size > ROOM:
            children[count] = i
            count += 1
            # The first child of a page has no key: a header and its place.
            used = 10
        else:
            used += size
    # A last page with one child takes one of its neighbour, which has more than two.
    if count > 1 and below - children[count - 1] == 1:
        children[count - 1] -= 1
    children[count] = below
    return count


@kernel
def _put_number(out, at, value, width):  # type: ignore[no-untyped-def]
    # Byte by byte: places are even, but not aligned for numbers of eight bytes.
    for k in range(width):
        out[at + k] = (value >> (8 * k)) & 0xFF


@kernel
def _put_header(out, at, page, flags, lower, upper):  # type: ignore[no-untyped-def]
    _put_number(out, at, page, 8)
    # The padding of a header, which LMDB ignores, is zero for equal bytes.
    _put_number(out, at + 8, 0, 2)
    _put_number(out, at + 10, flags, 2)
    _put_number(out, at + 12, lower, 2)
    _put_number(out, at + 14, upper, 2)


@kernel
def _copy(out, at, data, start, stop):  # type: ignore[no-untyped-def]
    for k in range(stop - start):
        out[at + k] = data[start + k]


@kernel
def _fill_leaves(out, page, big, begins, key_offsets, key_data, value_offsets, value_data):  # type: ignore[no-untyped-def]
    """Fill leaf pages; `big` is the next free overflow page, before and, as the answer, after."""
    for number in range(len(begins) - 1):
        base = number * PAGE
        upper = PAGE
        place = base + HEADER
        for i in range(begins[number], begins[number + 1]):
            key, value = key_offsets[i + 1] - key_offsets[i], value_offsets[i + 1] - value_offsets[i]
            is_big = NODE_HEADER + key + value > NODE_BYTES_MAX
            size = NODE_HEADER + key + (8 if is_big else value)
            # Nodes grow from the back, and places from the front, until they would meet.
            upper -= size + (size & 1)
            at = base + upper
            _put_number(out, place, upper, 2)
            place += 2
            _put_number(out, at, value, 4)
            _put_number(out, at + 4, BIG_VALUE if is_big else 0, 2)
            _put_number(out, at + 6, key, 2)
            _copy(out, at + NODE_HEADER, key_data, key_offsets[i], key_offsets[i + 1])
            if is_big:
                _put_number(out, at + NODE_HEADER + key, big, 8)
                big += (HEADER - 1 + value) // PAGE + 1
            else:
                _copy(out, at + NODE_HEADER + key, value_data, value_offsets[i], value_offsets[i + 1])
            if size & 1:
                # The chunk is used again, so what no node writes has bytes of the page before.
                out[at + size] = 0
        out[place : base + upper] = 0
        _put_header(out, base, page + number, LEAF, place - base, upper)
    return big


@kernel
def _fill_branches(out, page, pages, children, begins, key_offsets, key_data):  # type: ignore[no-untyped-def]
    """Fill branch pages over `pages`, which begin with the rows `begins`."""
    for number in range(len(children) - 1):
        base = number * PAGE
        upper = PAGE
        place = base + HEADER
        for i in range(children[number], children[number + 1]):
            row = begins[i]
            # LMDB reads no key of the first node: everything before the second is there.
            key = 0 if i == children[number] else key_offsets[row + 1] - key_offsets[row]
            upper -= NODE_HEADER + key + (key & 1)
            at = base + upper
            _put_number(out, place, upper, 2)
            place += 2
            # The number takes the place of sizes and flags; pages beyond 2^48 do not exist.
            _put_number(out, at, pages[i], 6)
            _put_number(out, at + 6, key, 2)
            _copy(out, at + NODE_HEADER, key_data, key_offsets[row], key_offsets[row] + key)
        _put_header(out, base, page + number, BRANCH, place - base, upper)


@kernel
def _fill_overflow(out, page, rows, value_offsets, value_data):  # type: ignore[no-untyped-def]
    at = 0
    for row in rows:
        value = value_offsets[row + 1] - value_offsets[row]
        pages = (HEADER - 1 + value) // PAGE + 1
        _put_number(out, at, page, 8)
        _put_number(out, at + 10, OVERFLOW, 2)
        # Overflow pages have their count where others have `lower` and `upper`.
        _put_number(out, at + 12, pages, 4)
        _copy(out, at + HEADER, value_data, value_offsets[row], value_offsets[row + 1])
        at += pages * PAGE
        page += pages
