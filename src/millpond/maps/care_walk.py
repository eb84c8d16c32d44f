"""Walking the rows of a shard in bounded chunks, each read anew: how care passes over a map of any size.

A chunk holds whole *groups* (the rows of one key, or of one range) but for two cases. Where a table keeps a group
in the order of time, a long group is cut (`Chunk.split`), and the caller says where to take it up again. Where it
does not (hashes with clashing keys, two's complement), the group is read to its end, however long.

Nothing is held between two chunks but a `Place`, so rows may be merged and deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.maps.address import address_bytes
from millpond.maps.chunks import column_of
from millpond.maps.interned_store import ROWS, InternedStore
from millpond.maps.pieces import Bytes, sort_order, take
from millpond.maps.plain_store import PlainStore
from millpond.maps.tables import DIRECT, HASHED, OVERFLOW, RANGES, decode_rows

__all__ = ("Chunk", "GroupRows", "Place", "chunk_at", "group_rows", "rows_of_keys")

Pair = tuple[bytes, bytes]
Store = PlainStore | InternedStore


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a shard: the least table key that the next chunk may start with."""

    table: str
    key: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table in its order. `following` is the table key after the last one, None at the table's end."""

    table: str
    keys: list[bytes]
    values: list[bytes]
    following: Place | None
    split: bool


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The addresses of rows, in their order, and the stored bytes of each: equal bytes are equal values.

    `places`: where each row lay among those that were read, whose keys may be in another order (of their ids).
    """

    addresses: pa.RecordBatch
    stored: Bytes
    places: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.addresses.num_rows)

    @property
    def last_read(self) -> int:
        """The number of the row that was read last."""
        return int(np.argmax(self.places))


def chunk_at(store: Store, tx: lmdb.Transaction, place: Place | None, rows_max: int) -> Chunk | None:
    """The chunk of about `rows_max` rows that starts at `place`, or at the first row; None when there is none left."""
    tables = [name for name in (ROWS, *_plain_tables(store)) if name in store.dbs]
    for name in tables[tables.index(place.table) if place else 0 :]:
        first = place.key if place is not None and place.table == name else b""
        chunk = _read(store, tx, name, first, rows_max)
        if chunk is not None:
            return chunk if chunk.following else _continued(chunk, tables)
    return None


def _plain_tables(store: Store) -> tuple[str, ...]:
    return store.names if isinstance(store, PlainStore) else ()


def _continued(chunk: Chunk, tables: list[str]) -> Chunk:
    after = tables[tables.index(chunk.table) + 1 :]
    following = Place(after[0], b"") if after else None
    return Chunk(chunk.table, chunk.keys, chunk.values, following, chunk.split)


def _read(store: Store, tx: lmdb.Transaction, name: str, first: bytes, rows_max: int) -> Chunk | None:
    cursor = tx.cursor(db=store.dbs[name])
    if not (cursor.set_range(first) if first else cursor.first()):
        return None
    pairs = cursor.iternext()
    read = list(islice(pairs, rows_max))
    following = next(pairs, None)
    split = following is not None and _group(store, name, following[0]) == _group(store, name, read[-1][0])
    if split and not _in_order(store, name):
        read, following = _to_the_end(store, name, read, following, pairs)
        split = False
    keys, values = zip(*read, strict=True)
    place = None if following is None else Place(name, following[0])
    return Chunk(name, list(keys), list(values), place, split)


def _to_the_end(
    store: Store, name: str, read: list[Pair], following: Pair | None, pairs: Iterator[Pair]
) -> tuple[list[Pair], Pair | None]:
    group = _group(store, name, read[-1][0])
    while following is not None and _group(store, name, following[0]) == group:
        read.append(following)
        following = next(pairs, None)
    return read, following


def _in_order(store: Store, name: str) -> bool:
    """Whether a group's rows lie side by side, in the order of their times."""
    return name in (ROWS, DIRECT) or (name == RANGES and isinstance(store, PlainStore) and not store.plain)


def _group(store: Store, name: str, key: bytes) -> bytes:
    """What all rows of a group start with; clashing keys share it."""
    definition = store.definition
    if name == DIRECT:
        return key[: len(key) - 8 * (len(definition.kind.address) - 1)]
    if name == HASHED:
        return key[: definition.hash_bytes]
    return key[:8] if name == OVERFLOW or definition.kind.keyed else key[:16]


def group_rows(store: Store, tx: lmdb.Transaction, chunk: Chunk) -> GroupRows:
    """The rows of a chunk in the order of their addresses."""
    return _ordered(store, _addresses(store, tx, chunk.table, chunk.keys, chunk.values), column_of(chunk.values))


def _addresses(
    store: Store, tx: lmdb.Transaction, table: str, keys: list[bytes], values: list[bytes]
) -> pa.RecordBatch:
    if isinstance(store, InternedStore):
        rows = store.decode(tx, keys, values)
    else:
        rows = decode_rows(store.definition, table, column_of(keys), column_of(values))
    return rows.select(list(store.definition.kind.address))


def _ordered(store: Store, addresses: pa.RecordBatch, stored: Bytes) -> GroupRows:
    order = sort_order(address_bytes(store.definition, addresses))
    if bool((order[1:] > order[:-1]).all()):
        return GroupRows(addresses, stored, order)
    return GroupRows(addresses.take(pa.array(order)), take(stored, order), order)


def rows_of_keys(store: Store, tx: lmdb.Transaction, keys: list[bytes]) -> GroupRows:
    """All rows of these keys (ranged maps: 16-byte ordered ranges), whichever tables they lie in."""
    batches: list[pa.RecordBatch] = []
    stored: list[bytes] = []
    for table, pairs in store.stream_keys(tx, keys):
        read = list(pairs)
        if read:
            told, values = zip(*read, strict=True)
            batches.append(_addresses(store, tx, table, list(told), list(values)))
            stored += values
    together = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return _ordered(store, together, column_of(stored))
