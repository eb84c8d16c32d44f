"""A whole LMDB data file from rows that come sorted, piece by piece: as `bulk_write` does, in bounded memory.

    page 0, 1     meta pages; page 1 counts
    page 2        the table of tables
    per table     for each megabyte of leaf pages their overflow pages behind them; then branch pages level by level

The first three pages are written last: before `finish` no LMDB takes the file for one of its own.

Invariants:
* memory holds one piece, the rows of the leaf that is not full yet, and for each leaf its number and its first key;
* leaf pages are as full as they can be, in order, wherever the pieces are cut: the same rows make the same leaves;
* a table with `duplicates` may have no key twice here: that is for LMDB itself to write.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from millpond.arrays.byte_columns import Bytes, concatenated, take
from millpond.stores.lmdb.bulk_write import (
    CHUNK_PAGES,
    NO_PAGE,
    fill_branches,
    fill_leaves,
    meta_page,
    overflow_chunks,
    plan_branches,
    plan_leaves,
    table_of_tables,
)
from millpond.stores.lmdb.page_format import DUPLICATES, I64, PAGE, TABLE

__all__ = ("EnvironmentWriter",)

# Behind two meta pages and the table of tables, whose content is known at the end.
_FIRST_PAGE = 3


class EnvironmentWriter:
    """Writes one data file: `begin` a table, `add` its rows, and so on; `finish` makes it whole."""

    def __init__(self, target: BinaryIO) -> None:
        """The file is empty, and can be written at its beginning again."""
        self._target = target
        self._records: dict[bytes, bytes] = {}
        self._table: _Table | None = None
        self._pages = _FIRST_PAGE
        target.write(bytes(_FIRST_PAGE * PAGE))

    def begin(self, name: str, *, duplicates: bool = False) -> None:
        """Begin the next table; the one before has all its rows."""
        self._end()
        self._table = _Table(name, self._target, self._pages, duplicates=duplicates)

    def add(self, keys: Bytes, values: Bytes) -> None:
        """Take rows of the table in strictly ascending order of their keys, all after those before.

        Raises: `OSError` when the disk is full.
        """
        assert self._table is not None, "a table was begun"
        self._table.add(keys, values)

    def finish(self) -> int:
        """Write what is left, and make the file an LMDB environment; the number of its bytes.

        Raises: `OSError` when the disk is full.
        """
        self._end()
        pages, records = self._pages, self._records
        # The head comes last. Until then it is zeros, so that LMDB refuses the file of a writer that died.
        self._target.seek(0)
        self._target.write(meta_page(0, None, 2) + meta_page(1, len(records), pages) + table_of_tables(records))
        self._target.flush()
        return pages * PAGE

    def _end(self) -> None:
        if self._table is not None:
            self._records[self._table.name.encode()] = self._table.finish()
            self._pages = self._table.page
        self._table = None


class _Table:
    """The pages of one table; `page` is the next that is free."""

    def __init__(self, name: str, target: BinaryIO, page: int, *, duplicates: bool) -> None:
        self.name = name
        self.page = page
        self._target = target
        self._flags = DUPLICATES if duplicates else 0
        self._rows = self._overflow = 0
        self._held: tuple[Bytes, Bytes] | None = None
        self._leaves: list[I64] = []
        self._firsts: list[Bytes] = []

    def add(self, keys: Bytes, values: Bytes) -> None:
        """Write all leaves but the last, which may take more."""
        if not len(keys):
            return
        self._rows += len(keys)
        if self._held is not None:
            keys, values = concatenated([self._held[0], keys]), concatenated([self._held[1], values])
        begins = self._planned(keys, values)
        last = int(begins[-2])
        self._write_leaves(keys, values, begins[:-1])
        self._held = keys.rows(last, len(keys)), values.rows(last, len(values))

    def finish(self) -> bytes:
        """Write the last leaf and the branches; the record of the table."""
        if self._held is not None:
            keys, values = self._held
            self._write_leaves(keys, values, self._planned(keys, values))
            self._held = None
        leaves = sum(map(len, self._leaves))
        if not leaves:
            return TABLE.pack(0, self._flags, 0, 0, 0, 0, 0, NO_PAGE)
        pages, firsts = np.concatenate(self._leaves), concatenated(self._firsts)
        depth, first_branch = 1, self.page
        begins = np.arange(leaves + 1)
        while len(pages) > 1:
            pages, begins = self._write_branches(pages, begins, firsts)
            depth += 1
        branches = self.page - first_branch
        return TABLE.pack(0, self._flags, depth, branches, leaves, self._overflow, self._rows, int(pages[0]))

    def _planned(self, keys: Bytes, values: Bytes) -> I64:
        """The row that begins each leaf, and the end."""
        begins = np.empty(len(keys) + 1, np.int64)
        count, _ = plan_leaves(keys.offsets, values.offsets, begins)
        return begins[: count + 1]

    def _write_leaves(self, keys: Bytes, values: Bytes, begins: I64) -> None:
        """Write leaves, a megabyte at a time, and the overflow pages of each megabyte behind it."""
        for low in range(0, len(begins) - 1, CHUNK_PAGES):
            some = np.ascontiguousarray(begins[low : low + CHUNK_PAGES + 1])
            count, first, last = len(some) - 1, int(some[0]), int(some[-1])
            pages = np.arange(self.page, self.page + count)
            out = np.empty(count * PAGE, np.uint8)
            after = self.page + count
            columns = keys.offsets, keys.data, values.offsets, values.data
            end = int(fill_leaves(out, self.page, after, some, *columns))
            self._target.write(out.data)
            if end > after:
                big_keys, big_values = keys.rows(first, last), values.rows(first, last)
                for chunk in overflow_chunks(
                    after, big_keys.offsets, big_keys.data, big_values.offsets, big_values.data
                ):
                    self._target.write(chunk.data)
                self._overflow += end - after
            self.page = end
            self._leaves.append(pages)
            self._firsts.append(take(keys, some[:-1]))

    def _write_branches(self, pages: I64, begins: I64, firsts: Bytes) -> tuple[I64, I64]:
        """Write the branch pages over these; their numbers, and the row of `firsts` that begins each."""
        children = np.empty(len(begins), np.int64)
        count = int(plan_branches(firsts.offsets, begins, children))
        children = children[: count + 1].copy()
        first = self.page
        for low in range(0, count, CHUNK_PAGES):
            some = children[low : low + CHUNK_PAGES + 1]
            out = np.zeros((len(some) - 1) * PAGE, np.uint8)
            fill_branches(out, self.page, pages, some, begins, firsts.offsets, firsts.data)
            self._target.write(out.data)
            self.page += len(some) - 1
        return np.arange(first, first + count), begins[children]
