"""Checking an LMDB data file of another writer, page by page, before LMDB itself opens it.

LMDB trusts its file: a page number beyond the end, or a node that overlaps another, kills the process that reads it or
the one that writes on in it. So a file that somebody handed over is walked here first, in machine code that looks at no
byte outside the file. A file that passes can be read and written on by LMDB; its rows come out as columns, and nothing
is copied before it was checked.

Invariants checked:
* both meta pages are LMDB's, of pages of `PAGE` bytes and no special mode, and the newer one describes this file;
* the unnamed table is one page with the expected tables and no others, each with the flags that are expected;
* every page is in the file, is of the kind that its parent says, says its own number, and is reached once: from a tree,
  as a value's overflow page, or from the list of free pages;
* the nodes of a page fill it from `upper` to its end without a gap or an overlap, which is what LMDB's moves rely on;
* keys have 1 to 511 bytes and strictly ascend, within pages and across them, also between the keys of branch pages;
* a value lies on overflow pages where it leaves no room for a second node on its page, and only there;
* of several rows under one key, the values strictly ascend, too, in a page within the node or in a table of their own;
* the numbers of pages and rows are those that the table's record states.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, load_u32, load_u64
from millpond.errors import Corrupt
from millpond.stores.lmdb.bulk_write import INTEGER_KEYS, MAGIC, NO_PAGE, NODE_BYTES_MAX
from millpond.stores.lmdb.page_format import DUPLICATES, HEADER, I64, LEAF, META, PAGE, TABLE, U8
from millpond.stores.lmdb.page_walk import PLAIN, REASONS, SEVERAL, STAMPS, VALUES, Counts, tile, walk

__all__ = ("CheckedFile", "CheckedTable", "check_file")

DATA_VERSION = 1
DEPTH_MAX = 32
NODES_MAX = (PAGE - HEADER) // 12
"""Nodes of a page, at most: two bytes for the place, and a header of eight, with a key of one or two."""
SIZE_MAX = 1 << 47
_META = struct.Struct("<16x IIQQ")
_META_END = struct.Struct("<QQ")
_RECORD_BYTES = TABLE.size
_ONE_FILE = 0x4000
"""LMDB's MDB_NOSUBDIR, in the meta pages of what it wrote as a file without a folder; its pages are as of any other."""


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table of a checked file: its rows as offsets from 0, its leaf pages, and the first row of each of them.

    `several`: there are several rows under one key. Its columns are then empty: a cursor of LMDB reads them.
    """

    name: str
    rows: int
    several: bool
    key_offsets: I64
    value_offsets: I64
    leaves: I64
    first_rows: I64


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that was checked, mapped to memory while this object lives."""

    pages: U8
    tables: tuple[CheckedTable, ...]

    def keys(self, table: CheckedTable, start: int, stop: int) -> tuple[I64, U8]:
        """The keys of the rows `[start, stop)`: offsets from 0 over bytes."""
        return self._column(table, table.key_offsets, start, stop, keys=True)

    def values(self, table: CheckedTable, start: int, stop: int) -> tuple[I64, U8]:
        """The values of the rows `[start, stop)`: offsets from 0 over bytes."""
        return self._column(table, table.value_offsets, start, stop, keys=False)

    def _column(self, table: CheckedTable, offsets: I64, start: int, stop: int, *, keys: bool) -> tuple[I64, U8]:
        some = offsets[start : stop + 1] - offsets[start]
        data = np.empty(int(some[-1]), np.uint8)
        leaf = int(np.searchsorted(table.first_rows, start, side="right")) - 1
        skip = start - int(table.first_rows[leaf]) if stop > start else 0
        _gather(self.pages.ctypes.data, table.leaves, leaf, skip, some, data.ctypes.data, keys)
        return some, data


def check_file(file: Path, size: int, tables: Mapping[str, bool]) -> CheckedFile:
    """Check so many bytes with which a file begins: they may hold these tables, and no others. True for those that take
    several rows under one key.

    Raises: `Corrupt`, kind `part_damaged`, naming what is wrong.
    """
    # Two meta pages and the table of tables: nothing smaller can hold a row.
    if size < 3 * PAGE or size % PAGE:
        raise _damaged(file, f"{size} bytes are no whole pages")
    with file.open("rb") as stream:
        pages: U8 = np.frombuffer(mmap(stream.fileno(), size, access=ACCESS_READ), np.uint8)
    return CheckedFile(pages, tuple(_Check(file, pages).tables(tables)))


def _damaged(file: Path, reason: str, page: int | None = None) -> Corrupt:
    reason = reason if page is None else f"page {page}: {reason}"
    return Corrupt("the part is damaged", kind="part_damaged", piece="data", file=file, reason=reason)


class _Check:
    """One look at a file: the pages that were reached so far."""

    def __init__(self, file: Path, pages: U8) -> None:
        self.file, self.pages = file, pages
        # The same memory twice: pages as bytes, and as the two-byte numbers that they mostly hold.
        self.shorts = pages.view("<u2")
        self.seen = np.zeros(len(pages) // PAGE, np.uint8)
        # The meta pages are in use, and no tree may lead to them.
        self.seen[:2] = 1
        self.stamps = np.zeros(STAMPS, np.int64)

    def tables(self, allowed: Mapping[str, bool]) -> Iterator[CheckedTable]:
        free, main = self._newer_meta()
        for name, record in self._records(main, free).items():
            if name not in allowed:
                raise _damaged(self.file, f"there is a table {name!r}, which its map does not have")
            # Reverse or integer keys would sort in another order than the walk checks.
            if record[0] or record[1] != (DUPLICATES if allowed[name] else 0):
                raise _damaged(self.file, f"table {name} has the flags {record[1]}")
            yield self._table(name, record, SEVERAL if allowed[name] else PLAIN)

    # -- the ends of the file -------------------------------------------------------------------------

    def _newer_meta(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The records of the free list and of the unnamed table."""
        metas = [self._meta(number) for number in (0, 1)]
        # LMDB takes the meta page of the later transaction; the other may be of any age.
        _, last, free, main = max(metas, key=lambda meta: meta[0])
        if last + 1 > len(self.seen) or last < 1:
            raise _damaged(self.file, f"it ends before its page {last}")
        # Pages behind the last used one are unused space: a tree that leads there is damaged.
        self.seen[last + 1 :] = 1
        return free, main

    def _meta(self, number: int) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        page = self.pages[number * PAGE : (number + 1) * PAGE].tobytes()
        magic, version, address, size = _META.unpack_from(page)
        at = _META.size
        free, main = (TABLE.unpack_from(page, at + step) for step in (0, _RECORD_BYTES))
        last, transaction = _META_END.unpack_from(page, at + 2 * _RECORD_BYTES)
        own, flags = struct.unpack_from("<Q2xH", page)
        # A fixed address or special flags make LMDB map the file in a way that this check does not know.
        sound = (
            (magic, version, address, flags, own) == (MAGIC, DATA_VERSION, 0, META, number)
            and (free[0], free[1] & ~_ONE_FILE, main[0], main[1]) == (PAGE, INTEGER_KEYS, 0, 0)
            and size <= SIZE_MAX and last < SIZE_MAX // PAGE and transaction < 1 << 62
        )  # fmt: skip
        if not sound:
            raise _damaged(self.file, "it is no meta page of a plain environment", number)
        return transaction, last, free, main

    def _records(self, main: tuple[int, ...], free: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        records: dict[str, tuple[int, ...]] = {}
        for key, flags, value in self._page_rows(main):
            if flags != 2 or len(value) != _RECORD_BYTES:
                raise _damaged(self.file, "the unnamed table holds more than tables")
            records[key.decode("ascii", "replace")] = TABLE.unpack(value)
        for key, flags, value in self._page_rows(free):
            self._free_pages(key, flags, value)
        return records

    def _page_rows(self, record: tuple[int, ...]) -> list[tuple[bytes, int, bytes]]:
        """Keys, flags and values of a table that is one page at most."""
        _, _, depth, branches, leaves, overflow, rows, root = record
        if root == NO_PAGE and (depth, branches, leaves, overflow, rows) == (0, 0, 0, 0, 0):
            return []
        if (depth, branches, leaves, overflow) != (1, 0, 1, 0) or not 1 < root < len(self.seen) or self.seen[root]:
            raise _damaged(self.file, "the table of tables, or the list of free pages, is not one page")
        self.seen[root] = 1
        code = tile(self.pages, self.shorts, root * PAGE, PAGE, LEAF, self.stamps)
        page = self.pages[root * PAGE : (root + 1) * PAGE].tobytes()
        if code or struct.unpack_from("<Q2xH", page) != (root, LEAF):
            raise _damaged(self.file, REASONS[code] if code else "it is no leaf", root)
        pages = []
        for place in range(HEADER, struct.unpack_from("<12xH", page)[0], 2):
            [at] = struct.unpack_from("<H", page, place)
            size, flags, length = struct.unpack_from("<IHH", page, at)
            value = page[at + 8 + length : at + 8 + length + size]
            pages.append((page[at + 8 : at + 8 + length], flags, value))
        if len(pages) != rows or any(not row[0] or row[1] & 1 for row in pages):
            raise _damaged(self.file, "rows are missing", root)
        # Turned round, bytes of an integer sort as the integer does.
        names = [row[0] if record[1] == 0 else row[0][::-1] for row in pages]  # integers are little-endian
        if any(first >= second for first, second in pairwise(names)):
            raise _damaged(self.file, "keys do not ascend", root)
        return pages

    def _free_pages(self, key: bytes, flags: int, value: bytes) -> None:
        pages = np.frombuffer(value[: len(value) // 8 * 8], "<u8")
        # A list of free pages says its own length first; LMDB reads so many without a look.
        if flags or len(key) != 8 or len(value) % 8 or not len(pages) or int(pages[0]) != len(pages) - 1:
            raise _damaged(self.file, "the list of free pages is not one")
        for page in pages[1:].tolist():
            if not 1 < page < len(self.seen) or self.seen[page]:
                raise _damaged(self.file, "a free page is in use, or outside of the file")
            self.seen[page] = 1
        # LMDB merges these lists, and takes for granted that they fall.
        if bool(np.any(pages[2:] >= pages[1:-1])):
            raise _damaged(self.file, "the list of free pages is not one")

    # -- one table ------------------------------------------------------------------------------------

    def _table(self, name: str, record: tuple[int, ...], kind: int) -> CheckedTable:
        rows = record[6]
        # Before arrays of that size are made: a record can claim 2^64 rows.
        if rows > NODES_MAX * len(self.seen):
            raise _damaged(self.file, f"table {name} has fewer rows than it states")
        key_offsets, value_offsets = np.zeros(rows + 1, np.int64), np.zeros(rows + 1, np.int64)
        counts, leaves, first_rows, subtables = self._walk(name, record, kind, key_offsets, value_offsets)
        row_count = int(counts[Counts.ROWS])
        for at in subtables.tolist():
            # After the main walk, which has shown that the record lies within its page.
            own = TABLE.unpack(self.pages[at : at + _RECORD_BYTES].tobytes())
            if own[0] or own[1] or not own[6]:
                raise _damaged(self.file, f"a table within {name} has flags, or no rows")
            nothing = np.zeros(1, np.int64)
            within, *_ = self._walk(name, own, VALUES, nothing, nothing)
            self._compare(name, own, within, int(within[Counts.ROWS]))
            row_count += int(within[Counts.ROWS])
        several = bool(counts[Counts.SEVERAL])
        if not several:
            self._compare(name, record, counts, row_count)
        # With several rows under one key, LMDB counts pages of the tables within elsewhere.
        elif row_count != rows:
            raise _damaged(self.file, f"table {name} has other rows than it states")
        return CheckedTable(name, rows, several, key_offsets, value_offsets, leaves, first_rows)

    def _walk(
        self, name: str, record: tuple[int, ...], kind: int, key_offsets: I64, value_offsets: I64
    ) -> tuple[I64, I64, I64, I64]:
        _, _, depth, _, leaf_count, _, rows, root = record
        counts = np.zeros(Counts.SIZE, np.int64)
        nothing = np.zeros(0, np.int64)
        if root == NO_PAGE and not any(record[2:7]):
            return counts, nothing, nothing, nothing
        # The stack of the walk has as many places as the record has levels.
        if not 1 <= depth <= DEPTH_MAX or root >= len(self.seen) or not 0 < leaf_count <= len(self.seen) or not rows:
            raise _damaged(self.file, f"the record of table {name} is none")
        leaves, first_rows = np.zeros(len(self.seen), np.int64), np.zeros(len(self.seen), np.int64)
        subtables = np.zeros(len(self.seen) if kind == SEVERAL else 1, np.int64)
        code = walk(
            self.pages, self.shorts, self.pages.ctypes.data, root, depth, kind, self.seen, self.stamps,
            leaves, first_rows, key_offsets, value_offsets, subtables, counts,
        )  # fmt: skip
        if code:
            raise _damaged(self.file, REASONS[code], int(counts[Counts.PAGE]))
        count = int(counts[Counts.LEAVES])
        return counts, leaves[:count].copy(), first_rows[:count].copy(), subtables[: counts[Counts.SUBTABLES]]

    def _compare(self, name: str, record: tuple[int, ...], counts: I64, rows: int) -> None:
        stated = record[3], record[4], record[5], record[6]
        counted = *(int(counts[kind]) for kind in (Counts.BRANCHES, Counts.LEAVES, Counts.OVERFLOW)), rows
        if stated != counted:
            raise _damaged(self.file, f"table {name} has other pages or rows than it states")


assert NODE_BYTES_MAX < PAGE // 2


@kernel
def _gather(memory, leaves, leaf, skip, offsets, target, keys):  # type: ignore[no-untyped-def]
    """Copy keys, or values, of rows from the one after `skip` of a leaf on."""
    row = 0
    rows = len(offsets) - 1
    while row < rows:
        base = memory + leaves[leaf] * PAGE
        # The walk checked every page, so these bytes are read without a look.
        lower = np.int64(load_u32(base + 12)) & 0xFFFF
        for place in range(base + HEADER + 2 * skip, base + lower, 2):
            at = base + (np.int64(load_u32(place)) & 0xFFFF)
            length = offsets[row + 1] - offsets[row]
            start = at + 8
            if not keys:
                node = np.int64(load_u32(at + 4))  # its flags and the length of its key
                start += node >> 16
                if node & 1:
                    start = memory + np.int64(load_u64(start)) * PAGE + HEADER
            copy_bytes(target + offsets[row], start, length)
            row += 1
            if row == rows:
                return
        leaf += 1
        skip = 0
