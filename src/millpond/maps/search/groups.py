"""The groups of a snapshot where they lie: addresses of the columns of every range file, layer by layer.

A snapshot's layers are lists of record batches, mapped from files. Kernels do not see Arrow objects: they read from a
table of addresses, one line per batch (a *piece*), made once when the snapshot is opened. Nothing is copied.

Invariants:
* Pieces are numbered layer by layer, the newest layer first, in order of key within a layer; empty ones are left out.
* The batches are kept alive as long as the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.radix import I64, U64
from millpond.maps.model.definition import Kind
from millpond.maps.search.directories import FILTER_WORDS, directory_bits, fill_directory, fill_filter, filter_blocks
from millpond.maps.search.group_table import COUNT

__all__ = ("Directories", "Groups", "column_address", "gather_table", "rows_of")


@dataclass(frozen=True, slots=True)
class Groups:
    """All layers of a snapshot, as kernels read them.

    * `layers`: offsets of the layers over the pieces.
    * `table`: see `group_table.py`.
    * `names`: of the file of each piece, for when it is damaged.
    """

    kind: Kind
    batches: tuple[pa.RecordBatch, ...]
    layers: I64
    table: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def of(cls, kind: Kind, layers: Sequence[Sequence[pa.RecordBatch]], names: Sequence[str] | None = None) -> Groups:
        """The table over `layers`, newest first, each in order of key; `names` of their files."""
        filled = [[batch for batch in layer if batch.num_rows] for layer in layers]
        batches = tuple(batch for layer in filled for batch in layer)
        assert names is None or len(names) == len(batches), "files hold groups"
        offsets = np.cumsum([0, *(len(layer) for layer in filled)]).astype(np.int64)
        # One line more than pieces: a kernel may look at the piece after the last, which is empty.
        lines = [*(_addresses(batch, kind) for batch in batches), [0] * 8]
        table = np.array(lines, np.int64)
        return cls(kind, batches, offsets, table, tuple(names or [""] * len(batches)))

    @property
    def address(self) -> int:
        """Memory address of the table."""
        return int(self.table.ctypes.data)

    def __len__(self) -> int:
        return int(self.table[:, COUNT].sum())

    def ids(self, first: int, end: int) -> tuple[int, ...]:
        """The pieces of a layer as other groups may have them: they are the same where their memory is."""
        return tuple(map(id, self.batches[first:end]))


def column_address(array: pa.Array, buffer: int, width: int) -> int:
    """The address of an array's first element in one of its buffers; 0 when there is no such buffer."""
    content = array.buffers()[buffer]
    return 0 if content is None else content.address + array.offset * width


def rows_of(batch: pa.RecordBatch) -> pa.Array:
    """The structs of all rows of a batch of groups, which `ROW_OFFSETS` count."""
    return batch.column("rows").values


def _addresses(batch: pa.RecordBatch, kind: Kind) -> list[int]:
    key, rows = batch.column("key"), batch.column("rows")
    data = key.buffers()[2]
    # One row for each group, in the same order: there is nothing to look up.
    alike = not kind.timed and len(rows.values) == len(rows)
    addresses = [
        batch.num_rows,
        column_address(batch.column("hash"), 1, 8) if kind.keyed else 0,
        column_address(key, 1, 4),
        0 if data is None else data.address,
        0 if alike else column_address(rows, 1, 4),
    ]
    if kind is not Kind.SESSION:
        return [*addresses, 0, 0, 0]
    cover = batch.column("cover")
    since, row = cover.values.field("from"), cover.values.field("row")
    return [*addresses, column_address(cover, 1, 4), column_address(since, 1, 8), column_address(row, 1, 4)]


@dataclass(frozen=True, slots=True)
class Directories:
    """For each layer, the first group of each prefix of the hash, and of those over others the filter: `kernels.py`.

    A line of `layers`: first piece, end piece, begin within `slots`, bits, begin within `filters`, blocks.
    """

    layers: npt.NDArray[np.int64]
    slots: I64
    filters: U64

    @classmethod
    def of(cls, groups: Groups, before: tuple[Groups, Directories] | None = None) -> Directories:
        """The directories of all layers: one pass over their hashes, but of those that groups `before` have, too."""
        lines, begin, word = [], 0, 0
        for first, end in itertools.pairwise(groups.layers.tolist()):
            count = int(groups.table[first:end, COUNT].sum())
            bits, blocks = directory_bits(count), 0 if end == groups.layers[-1] else filter_blocks(count)
            lines.append((first, end, begin, bits, word, blocks))
            begin += (1 << bits) + 1
            word += blocks * FILTER_WORDS
        slots, filters, table = np.empty(begin, np.int64), np.zeros(word, np.uint64), groups.table.ctypes.data
        lines_before = {} if before is None else before[1].by_batches(before[0])
        for first, end, begin, bits, word, blocks in lines:
            slot, words = slots[begin : begin + (1 << bits) + 1], filters[word : word + blocks * FILTER_WORDS]
            there = lines_before.get(groups.ids(first, end))
            if before is not None and there is not None and there[5] == blocks:
                np.add(before[1].slots[there[2] : there[2] + len(slot)], (first - there[0]) << 32, out=slot)
                words[:] = before[1].filters[there[4] : there[4] + len(words)]
                continue
            fill_directory(table, first, end, bits, slot)
            if blocks:
                fill_filter(table, first, end, words)
        return cls(np.array(lines, np.int64).reshape(-1, 6), slots, filters)

    def by_batches(self, groups: Groups) -> dict[tuple[int, ...], list[int]]:
        """The lines of layers, by their batches."""
        return {groups.ids(line[0], line[1]): line for line in self.layers.tolist()}


def gather_table(groups: Groups, arrays: Sequence[pa.Array], width: int) -> npt.NDArray[np.int64]:
    """For one row column of every piece: address of values (or offsets), of bytes, of validity, and validity's offset.

    Validity is 0 where nothing is null. Bits (`width` 0) are addressed by the buffer alone and share the offset.
    """
    assert len(arrays) == len(groups.batches)
    columns = []
    for array in arrays:
        buffers = array.buffers()
        data = buffers[2].address if len(buffers) > 2 and buffers[2] is not None else 0
        valid = buffers[0].address if buffers[0] is not None and array.null_count else 0
        values = column_address(array, 1, width) if len(buffers) > 1 else 0
        columns.append((values, data, valid, array.offset))
    return np.array(columns, np.int64).reshape(-1, 4)
