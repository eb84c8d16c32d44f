"""A walk over the rows of a shard in bounded chunks of columns: maintenance passes over a map of any size.

A chunk holds whole *groups* (the rows of one key, or of one range) but for two cases. Where a table keeps a group
in the order of time, a group longer than a chunk is cut (`Chunk.split`), and the caller says where to take it up again.
Where it does not (hashes with clashing keys, two's complement), the group is read to its end, however long.

Nothing is held between two chunks but a `Position`, so rows may be merged and deleted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb
import numpy as np
import numpy.typing as npt

from millpond.arrays.byte_columns import Bytes, take
from millpond.arrays.compiled import kernel
from millpond.arrays.memory import same_bytes
from millpond.maps.shard.generation import Generation
from millpond.maps.shard.interned_tables import ROWS, InternedStore
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.row_batches import rows_by_cursor, rows_from
from millpond.maps.shard.tables import CLASH_BYTES, DIRECT, OVERFLOW, RANGES

__all__ = ("Chunk", "Position", "Store", "chunk_at", "first_rows", "in_order", "tail_bytes")

Mask = npt.NDArray[np.bool_]
Store = PlainStore | InternedStore


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard: the least table key that the next chunk may start with."""

    table: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table in its order. `following` is the table key after the last one, None at the table's end."""

    table: str
    keys: Bytes
    values: Bytes
    following: Position | None
    split: bool

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, row: int) -> bytes:
        """The table key of one row."""
        return self.keys.data[self.keys.offsets[row] : self.keys.offsets[row + 1]].tobytes()

    def to_delete(self, rows: npt.NDArray[np.int64]) -> tuple[Bytes, Bytes | None]:
        """The arguments by which LMDB deletes some of the rows: their keys, and their values when two rows share a
        key.
        """
        values = None if bool(first_rows(self.keys, 0).all()) else take(self.values, rows)
        return take(self.keys, rows), values

    def taken(self, rows: npt.NDArray[np.int64]) -> Chunk:
        """Some of the rows, in the order of these numbers."""
        return Chunk(self.table, take(self.keys, rows), take(self.values, rows), self.following, self.split)


def chunk_at(generation: Generation, tx: lmdb.Transaction, position: Position | None, rows_max: int) -> Chunk | None:
    """The chunk of about `rows_max` rows that starts at `position`, or at the first row; None when none is left."""
    store = generation.store
    tables = [name for name in (ROWS, *_plain_tables(store)) if name in store.dbs]
    for name in tables[tables.index(position.table) if position else 0 :]:
        first = position.key if position is not None and position.table == name else b""
        chunk = _read(generation, tx, name, first, rows_max)
        if len(chunk):
            return chunk if chunk.following else _continued(chunk, tables)
    return None


def _plain_tables(store: Store) -> tuple[str, ...]:
    return store.names if isinstance(store, PlainStore) else ()


def _continued(chunk: Chunk, tables: list[str]) -> Chunk:
    after = tables[tables.index(chunk.table) + 1 :]
    following = Position(after[0], b"") if after else None
    return Chunk(chunk.table, chunk.keys, chunk.values, following, chunk.split)


def _read(generation: Generation, tx: lmdb.Transaction, name: str, first: bytes, rows_max: int) -> Chunk:
    store, env = generation.store, generation.env
    assert env is not None, "what is read has an environment"
    keys, values, following = rows_from(tx, env, name, store.dbs[name], first, rows_max)
    chunk = _whole_groups(store, name, keys, values, following)
    while chunk is None:
        # One group fills all that was read, and its rows belong together.
        keys, values, following = rows_by_cursor(tx, store.dbs[name], first, rows_max)
        chunk = _whole_groups(store, name, keys, values, following)
        rows_max *= 2
    return chunk


def _whole_groups(store: Store, name: str, keys: Bytes, values: Bytes, following: bytes | None) -> Chunk | None:
    """The chunk without the rows of a last group that goes on; None when there is no other, and it may not be cut."""
    if following is None:
        return Chunk(name, keys, values, None, split=False)
    tail = tail_bytes(store, name)
    last = keys.data[keys.offsets[-2] : keys.offsets[-1] - tail].tobytes()
    if following[: len(following) - tail] != last:
        return Chunk(name, keys, values, Position(name, following), split=False)
    begin = int(np.flatnonzero(first_rows(keys, tail))[-1])
    if begin:
        ends, value_ends = keys.offsets[: begin + 1], values.offsets[: begin + 1]
        position = Position(name, keys.data[ends[-1] : keys.offsets[begin + 1]].tobytes())
        keys, values = Bytes(ends, keys.data[: ends[-1]]), Bytes(value_ends, values.data[: value_ends[-1]])
        return Chunk(name, keys, values, position, split=False)
    return Chunk(name, keys, values, Position(name, following), split=True) if in_order(store, name) else None


def in_order(store: Store, name: str) -> bool:
    """True when a group's rows lie side by side, in the order of their times."""
    return name in (ROWS, DIRECT) or (name == RANGES and isinstance(store, PlainStore) and not store.plain)


def tail_bytes(store: Store, name: str) -> int:
    """Bytes of a table key behind the group: times, and a clash number. Clashing keys share a group."""
    kind = store.definition.kind
    return 8 * (len(kind.address) - (1 if kind.keyed else 2)) + (CLASH_BYTES if name == OVERFLOW else 0)


def first_rows(keys: Bytes, tail: int) -> Mask:
    """Mask of the keys that differ from the one before them, but for their last `tail` bytes."""
    mask: Mask = _first_rows(keys.offsets, keys.data.ctypes.data, tail)
    return mask


@kernel
def _first_rows(offsets, data, tail):  # type: ignore[no-untyped-def]
    first = np.ones(len(offsets) - 1, np.bool_)
    for i in range(1, len(first)):
        before, here = offsets[i - 1], offsets[i]
        length = here - before - tail
        first[i] = length != offsets[i + 1] - here - tail or not same_bytes(data + before, data + here, length)
    return first
