"""The rows of a chunk in groups, in the order of their times: what the rules of maintenance look at.

Most tables keep them so. Where they do not, keys that share a hash are taken apart, and times before 1970, which
sort after the others in two's complement, are put in their place.

Values are compared as they are stored: equal bytes are equal values, and of interned ones, equal ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import (
    Bytes,
    fixed_piece,
    join,
    ordered_long,
    plain_long,
    run_ends,
    sort_order,
    take,
    var_piece,
)
from millpond.arrays.compiled import kernel
from millpond.arrays.key_hash import fold32
from millpond.arrays.memory import load_u8, same_bytes
from millpond.arrays.radix import ordered_u64, radix_order
from millpond.arrays.xxh3 import hash_keys
from millpond.maps.maintenance.chunks import Chunk, Store, first_rows, in_order, tail_bytes
from millpond.maps.model.address import unescape
from millpond.maps.shard.cursors import Pair, prefixed
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.layouts import long_at, split_seed_values
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.row_batches import column_of
from millpond.maps.shard.tables import CLASH_BYTES, DIRECT, HASHED, OVERFLOW

__all__ = (
    "GroupRows", "addresses_of", "emptied_ranges", "ending_at", "group_keys", "group_rows", "interrupted", "longs_of",
)  # fmt: skip

Mask = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of a chunk, group by group.

    * `order`: the number of each row in the chunk, None where they lie in this order.
    * `first`: rows that begin a group.
    * `longs`: the times of the rows (sessions: start and end).
    """

    chunk: Chunk
    order: I64 | None
    first: Mask
    longs: list[I64]

    def __len__(self) -> int:
        return len(self.first)

    def repeats(self) -> Mask:
        """Rows that are stored with the same bytes as the row before them."""
        values = self.chunk.values if self.order is None else take(self.chunk.values, self.order)
        return ~_differs(values)

    def numbers(self, rows: I64) -> I64:
        """The numbers in the chunk of rows by their numbers here."""
        return rows if self.order is None else self.order[rows]

    def positions(self, chosen: Mask) -> I64:
        """The numbers in the chunk of some of the rows, ascending."""
        return np.sort(self.numbers(np.flatnonzero(chosen)))

    def one_a_group(self, chosen: Mask) -> I64:
        """The number in the chunk of one row of every group that has a chosen row."""
        rows = np.flatnonzero(chosen)
        group = np.cumsum(self.first)[rows]
        return self.numbers(rows[np.flatnonzero(np.diff(group, prepend=0))])


def group_rows(store: Store, chunk: Chunk) -> GroupRows:
    """The rows of a chunk in groups, in the order of their times."""
    first, longs = first_rows(chunk.keys, tail_bytes(store, chunk.table)), longs_of(store, chunk)
    if in_order(store, chunk.table):
        return GroupRows(chunk, None, first, longs)
    keyed = chunk.table in (HASHED, OVERFLOW)
    clashing = keyed and _clashing(
        chunk.values.offsets, chunk.values.data.ctypes.data, first, store.definition.kind.valued
    )
    if not clashing and not bool(np.any(_falls(longs) & ~first)):
        return GroupRows(chunk, None, first, longs)
    if not keyed:
        groups = [long_at(chunk.keys, 8 * (2 + len(longs) - position), plain=True) for position in range(2)]
        order = radix_order([ordered_u64(column) for column in (*groups, *longs)])
        return GroupRows(chunk, order, _begins(groups, order), [column[order] for column in longs])
    return _ordered(store, chunk, _seed_keys(store, chunk), longs)


def longs_of(store: Store, chunk: Chunk) -> list[I64]:
    """The times of the rows of a chunk, in its order (sessions: start and end)."""
    tail = tail_bytes(store, chunk.table)
    plain = not isinstance(store, InternedStore) and store.plain
    return [long_at(chunk.keys, at, plain) for at in range(tail, CLASH_BYTES, -8)]


def _ordered(store: Store, chunk: Chunk, keys: Bytes, longs: list[I64]) -> GroupRows:
    hashes = hash_keys(keys.to_arrow(), bits=store.definition.hash_bits)
    order = radix_order([hashes, *(ordered_u64(column) for column in longs)])
    sorted_keys = take(keys, order)
    first = _differs(sorted_keys)
    if bool(np.any(first[1:] & (np.diff(hashes[order]) == 0))):
        # Two keys with one hash: the keys themselves say what belongs together.
        ranks = np.cumsum(_differs(take(keys, by_key := sort_order(keys))), dtype=np.uint64)
        rank = np.empty(len(ranks), np.uint64)
        rank[by_key] = ranks
        order = radix_order([rank, *(ordered_u64(column) for column in longs)])
        first = _differs(take(keys, order))
    return GroupRows(chunk, order, first, [column[order] for column in longs])


@kernel
def _clashing(offsets, data, first, valued):  # type: ignore[no-untyped-def]
    """True when rows of one hash belong to several keys: a row is its key, or the key's length in 4 bytes, key and
    value.
    """
    for i in range(1, len(first)):
        if first[i]:
            continue
        before, here = offsets[i - 1], offsets[i]
        length = offsets[i + 1] - here
        if valued:
            key = np.int64(0)
            for k in range(min(4, length)):
                key = (key << 8) | np.int64(load_u8(data + here + k))
            length = min(length, 4 + key)
        elif length != here - before:
            return True
        if length > here - before or not same_bytes(data + before, data + here, length):
            return True
    return False


def _differs(column: Bytes) -> Mask:
    differs = np.ones(len(column), np.bool_)
    differs[1:] = run_ends(column)[:-1]
    return differs


def _falls(longs: list[I64]) -> Mask:
    """Rows that sort before the row before them."""
    falls, same = np.zeros(len(longs[0]), np.bool_), np.ones(max(len(longs[0]) - 1, 0), np.bool_)
    for column in longs:
        falls[1:] |= same & (column[1:] < column[:-1])
        same &= column[1:] == column[:-1]
    return falls


def _begins(groups: list[I64], order: I64) -> Mask:
    first = np.zeros(len(order), np.bool_)
    first[:1] = True
    for column in groups:
        first[1:] |= np.diff(column[order]) != 0
    return first


# -- rows of a key in two tables -----------------------------------------------------------------------


def interrupted(store: Store, tx: lmdb.Transaction, rows: GroupRows, chosen: Mask) -> Mask:
    """Rows after which the next in time lies in another table, for the groups of the chosen rows.

    With scheme `hash`, the size of a row says whether it lies in `hashed` or `overflow`.
    """
    mask = np.zeros(len(rows), np.bool_)
    if not isinstance(store, PlainStore) or not store.plain or rows.chunk.table not in (HASHED, OVERFLOW):
        return mask
    table = OVERFLOW if rows.chunk.table == HASHED else HASHED
    if not chosen.any() or not tx.stat(store.dbs[table])["entries"]:
        return mask
    single = rows.one_a_group(chosen)
    which, elsewhere = _rows_elsewhere(store, tx, table, _seed_keys(store, rows.chunk.taken(single)))
    if not len(elsewhere):
        return mask
    numbers = np.cumsum(rows.first, dtype=np.uint64)
    groups = np.unique(numbers[chosen])
    order = radix_order(
        [
            np.concatenate([numbers, groups[which]]),
            ordered_u64(np.concatenate([rows.longs[0], longs_of(store, elsewhere)[0]])),
        ]
    )
    here = order < len(rows)
    mask[order[1:][here[1:] & ~here[:-1]]] = True
    # The first row of a group comes after one of another group, wherever that lies.
    return mask & ~rows.first


def _rows_elsewhere(store: PlainStore, tx: lmdb.Transaction, table: str, keys: Bytes) -> tuple[I64, Chunk]:
    """The rows of these keys in another table, and the number of the key of each."""
    hashes = hash_keys(keys.to_arrow(), bits=store.definition.hash_bits)
    width = store.definition.hash_bytes if table == HASHED else 8
    packed = (fold32(hashes).astype(">u4") if width == 4 else hashes.astype(">u8")).tobytes()
    cursor, numbers, pairs = tx.cursor(db=store.dbs[table]), [], list[Pair]()
    for number in range(len(keys)):
        prefix = packed[width * number : width * (number + 1)]
        if cursor.set_range(prefix) and cursor.key().startswith(prefix):
            for pair in prefixed(cursor, prefix):
                numbers.append(number)
                pairs.append(pair)
    which = np.array(numbers, np.int64)
    chunk = Chunk(table, column_of([key for key, _ in pairs]), column_of([row for _, row in pairs]), None, split=False)
    sought = take(keys, which).to_arrow()
    same = np.flatnonzero(pc.equal(sought, _seed_keys(store, chunk).to_arrow().cast(sought.type)))
    return which[same], chunk.taken(same)


# -- the keys and addresses of rows -------------------------------------------------------------------


def _seed_keys(store: Store, chunk: Chunk) -> Bytes:
    """The key of each row of `hashed` and `overflow`."""
    return split_seed_values(store.definition, chunk.values)[0]


def group_keys(store: Store, tx: lmdb.Transaction, chunk: Chunk) -> pa.Array:
    """The key of each row of a chunk, or its range as 16 ordered bytes: the words of what a change touches."""
    if not store.definition.kind.keyed:
        ends = [fixed_piece(ordered_long(column)) for column in _range_ends(store, chunk)]
        return join(len(chunk), ends).to_arrow()
    if isinstance(store, InternedStore):
        ids = chunk.keys.data[chunk.keys.offsets[:-1, None] + np.arange(8)].tobytes()
        return pa.array(store.keys.texts_of(tx, [ids[at : at + 8] for at in range(0, len(ids), 8)]), pa.binary())
    if chunk.table == DIRECT:
        return unescape(chunk.keys, tail_bytes(store, DIRECT)).to_arrow()
    return _seed_keys(store, chunk).to_arrow()


def _range_ends(store: Store, chunk: Chunk) -> list[I64]:
    plain = not isinstance(store, InternedStore) and store.plain
    tail = tail_bytes(store, chunk.table)
    return [long_at(chunk.keys, tail + at, plain) for at in (16, 8)]


def addresses_of(store: Store, tx: lmdb.Transaction, chunk: Chunk) -> pa.RecordBatch:
    """The address columns of the rows of a chunk."""
    kind = store.definition.kind
    names = list(kind.address)
    if kind.keyed:
        columns = [group_keys(store, tx, chunk).cast(pa.binary()), *longs_of(store, chunk)]
    else:
        columns = [*_range_ends(store, chunk), *longs_of(store, chunk)]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names)


def emptied_ranges(store: Store, chunk: Chunk, removal: Mask) -> tuple[list[int], list[int]]:
    """Starts and ends of the ranges of a chunk whose rows all go; those at its edges may have rows beside it."""
    first = first_rows(chunk.keys, tail_bytes(store, chunk.table))
    begins = np.flatnonzero(first)
    if not len(begins):
        return [], []
    empty = begins[np.logical_and.reduceat(removal, begins)]
    start, end = _range_ends(store, chunk)
    return start[empty].tolist(), end[empty].tolist()


def ending_at(store: Store, sessions: Chunk, ends: I64) -> Chunk:
    """Sessions as they lie in their table, with other ends; in `overflow`, as the first of those that clash."""
    plain = isinstance(store, PlainStore) and store.plain
    tail = fixed_piece(plain_long(ends) if plain else ordered_long(ends))
    cut = 8 + (CLASH_BYTES if sessions.table == OVERFLOW else 0)
    keys = sessions.keys
    bounds = np.empty(2 * len(keys) + 1, np.int64)
    bounds[0::2], bounds[1::2] = keys.offsets, keys.offsets[1:] - cut
    heads = take(Bytes(bounds, keys.data), np.arange(0, 2 * len(keys), 2))
    pieces = [var_piece(heads), tail]
    if sessions.table == OVERFLOW:
        pieces.append(fixed_piece(np.zeros(len(keys), ">u2")))
    return Chunk(sessions.table, join(len(keys), pieces), sessions.values, None, split=False)
