"""The first merge of a map in one pass: the sorted parts of its first loads become the shard's file, row after row.

A part put into a shard that has rows finds a leaf for every one of them. An empty shard needs no search: rows of all
parts are merged in order of their keys, and written as full pages from the first leaf to the last.

Invariants:
* the file has the rows that merging the parts one after another leaves: of rows with one address the last counts, or
  the first where the map keeps the first;
* memory holds a piece of each part, never a part;
* parts that need more than an order of keys are left to LMDB: clashing hashes, several rows under one key, and rows
  that lie in `overflow` because their hash does. `combine` then says False, and has written nothing that counts.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from millpond.arrays.ahead import produced_ahead
from millpond.arrays.byte_columns import Bytes, concatenated, run_ends, sort_order, take
from millpond.maps.model.definition import MapDefinition, Scheme
from millpond.maps.parts.part import PartManifest, open_part
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.tables import HASHED, OVERFLOW, row_tables
from millpond.stores.files import disk_errors
from millpond.stores.lmdb.bulk_read import Piece, read_pieces, rows_until
from millpond.stores.lmdb.stream_write import EnvironmentWriter

__all__ = ("BYTES_MIN", "ROWS_MIN", "combine", "merged_rows")

ROWS_MIN = 100_000
BYTES_MIN = 64 << 20
"""Fewer rows and bytes are put into the shard one part after another, in its one transaction, which memory holds."""
PARTS_MAX = 256
"""So many files are open at once. Of more parts, each is put into the shard after the other."""
PIECE_ROWS_MAX = 65_536
PIECE_BYTES_MIN = 1 << 15
PIECES_SHARE = 12
"""The pieces that are read, sorted and written take about so many times the bytes of their rows."""
ROWS_AT_ONCE_MIN = 65_536
"""The rows that are sorted and written together, but for the last; fewer when they are many bytes."""
BYTES_AT_ONCE_MIN = 8 << 20

_Columns = tuple[Bytes, Bytes]


class _NeedsLmdbError(Exception):
    """The rows cannot be merged by their keys alone."""


def combine(
    definition: MapDefinition, parts: Sequence[tuple[Path, PartManifest]], file: Path, *, overwrite: bool,
    memory_max: int,
) -> bool:  # fmt: skip
    """Write a new data file with the rows of all parts, durably; False when LMDB has to merge them.

    `memory_max`: the bytes of memory that this may take. Rows of table `overflow` of maps that need no hashes are left
    out: they are put when the file is a shard.

    Raises: `Corrupt`, naming a part's file; `Unavailable` when the disk is full.
    """
    tables = [table for table in row_tables(definition) if any(table in manifest.tables for _, manifest in parts)]
    if len(parts) > PARTS_MAX or (OVERFLOW in tables and definition.scheme is Scheme.HASH):
        return False
    rows = _piece_rows([manifest for _, manifest in parts], memory_max)
    with disk_errors(file.parent), file.open("wb") as target:
        writer = EnvironmentWriter(target)
        try:
            for table in tables:
                if table != OVERFLOW:
                    writer.begin(table, duplicates=table == HASHED)
                    sources = [_pieces(folder, table, rows) for folder, manifest in parts if table in manifest.tables]
                    merged = merged_rows(definition, table, sources, overwrite=overwrite)
                    for keys, values in produced_ahead(merged):
                        writer.add(keys, values)
            writer.finish()
        except _NeedsLmdbError:
            return False
        os.fsync(target.fileno())
    return True


def _piece_rows(parts: Sequence[PartManifest], memory_max: int) -> int:
    """The rows of each part that memory may hold."""
    row_bytes = max(1, *(part.data_bytes // max(1, part.rows) for part in parts))
    piece_bytes = max(PIECE_BYTES_MIN, memory_max // PIECES_SHARE // len(parts))
    return min(PIECE_ROWS_MAX, max(1, piece_bytes // row_bytes))


def _pieces(folder: Path, table: str, rows: int) -> Iterator[_Columns]:
    """The rows of one table of a part, straight from its pages."""
    with open_part(folder) as env, env.begin() as tx:
        record = tx.get(table.encode())
        if record is None:
            return
        for piece in read_pieces(folder / "data.mdb", record, rows):
            if not isinstance(piece, Piece):
                raise _NeedsLmdbError
            yield Bytes(piece.key_offsets, piece.keys), Bytes(piece.value_offsets, piece.values)


class _Source:
    """The rows of one part that were read and not taken yet."""

    def __init__(self, pieces: Iterator[_Columns]) -> None:
        self._pieces = pieces
        self.keys = self.values = Bytes(np.zeros(1, np.int64), np.zeros(0, np.uint8))
        self.last: bytes | None = None
        """The key of the last row that was read; None when the part has no more."""
        self.read()

    def read(self) -> None:
        self.last = None
        for keys, values in self._pieces:
            if len(keys):
                self.keys, self.values = keys, values
                self.last = keys.data[keys.offsets[-2] :].tobytes()
                return

    def take_until(self, key: bytes) -> _Columns:
        """Take the rows up to and with this key."""
        count, size = rows_until(self.keys.offsets, self.keys.data, key), len(self.keys)
        taken = self.keys.rows(0, count), self.values.rows(0, count)
        if count == size:
            self.read()
        else:
            self.keys, self.values = self.keys.rows(count, size), self.values.rows(count, size)
        return taken


def merged_rows(
    definition: MapDefinition, table: str, parts: Sequence[Iterator[_Columns]], *, overwrite: bool
) -> Generator[_Columns]:
    """The rows of one table of all parts, given in the order in which they count, in order of their keys.

    Raises: `_NeedsLmdbError` when two keys have one hash.
    """
    with ExitStack() as stack:
        for pieces in parts:
            if hasattr(pieces, "close"):
                stack.callback(pieces.close)
        sources = [source for source in map(_Source, parts) if source.last is not None]
        while sources:
            taken: list[_Columns] = []
            rows = size = 0
            while sources and rows < ROWS_AT_ONCE_MIN and size < BYTES_AT_ONCE_MIN:
                key = min(source.last for source in sources if source.last is not None)
                some = [source.take_until(key) for source in sources]
                taken += [columns for columns in some if len(columns[0])]
                rows += sum(len(keys) for keys, _ in some)
                size += sum(len(column.data) for columns in some for column in columns)
                sources = [source for source in sources if source.last is not None]
            yield _in_order(definition, table, taken, overwrite=overwrite)


def _in_order(definition: MapDefinition, table: str, taken: Sequence[_Columns], *, overwrite: bool) -> _Columns:
    """The rows in order of their keys, one of each."""
    keys, values = concatenated([keys for keys, _ in taken]), concatenated([values for _, values in taken])
    if len(taken) == 1:
        return keys, values
    order = sort_order(keys)
    keys = take(keys, order)
    last = run_ends(keys)
    if last.all():
        return keys, take(values, order)
    if table == HASHED and not _same_keys(definition, keys, take(values, order), last):
        raise _NeedsLmdbError
    chosen = np.flatnonzero(last if overwrite else np.concatenate([[True], last[:-1]]))
    return take(keys, chosen), take(values, order[chosen])


def _same_keys(definition: MapDefinition, places: Bytes, values: Bytes, last: npt.NDArray[np.bool_]) -> bool:
    """True when rows of one place have one key, not just one hash."""
    again = np.flatnonzero(~last)
    first, second = (
        decode_rows(definition, HASHED, take(places, rows), take(values, rows)).column("key")
        for rows in (again, again + 1)
    )
    return bool(first.equals(second))
