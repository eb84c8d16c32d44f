"""Layouts of a map's rows in the tables of an LMDB environment, for every scheme.

    table      key                                   value                                       holds
    direct     address (`address.py`)                <VALUE_TYPE><VALUE>, sessions: empty        short keys, not `hash`
    hashed     hash · times in two's complement      <KEY_LENGTH int><KEY><VALUE_TYPE><VALUE>,   scheme `hash`
               (duplicate rows, 1 to 511 bytes)      sessions: <KEY>
    overflow   hash (8) · times · clash number (2)   as `hashed`                                 what these cannot hold
    ranges     start · end [· time]                  <VALUE_TYPE><VALUE>                         ranged kinds

Longs are two's complement, big-endian, wherever the map's scheme is `hash` (the published layout), else with
their sign bit flipped so that byte order is number order. LMDB allows 511 bytes for a key and for a duplicate row:
what is longer lies in `overflow`, where rows of clashing keys are distinguished by a clash number instead.
Scheme `lookup` writes its parts as `auto` does and interns them in the shard (`interned.py`).

Invariants:
* the table of a row depends on its address and value alone;
* an address lies in one table at most: writers remove it from the other;
* within one (hash, times), clash numbers may have gaps but never repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.arrays.byte_columns import (
    Bytes,
    bytes_of,
    fixed_piece,
    join,
    ordered_long,
    plain_long,
    run_ends,
    sort_order,
    take,
    take_column,
    take_rows,
    var_piece,
)
from millpond.arrays.compiled import kernel
from millpond.arrays.key_hash import fold32
from millpond.arrays.memory import load_u64, swap_u64
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Corrupt
from millpond.maps.model.address import address_bytes, escape, times_of, unescape
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.model.values import decode_values, encode_values
from millpond.maps.shard.tables import (
    CLASH_BYTES,
    DIRECT,
    HASHED,
    LMDB_BYTES_MAX,
    OVERFLOW,
    RANGES,
    direct_bytes_max,
    plain_longs,
)

__all__ = (
    "TableRows", "decode_rows", "encode_rows", "fits_hashed", "hashed_keys", "hashed_values", "long_at",
    "split_seed_values",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for one table, sorted as LMDB sorts them."""

    table: str
    keys: Bytes
    values: Bytes


# -- rows to tables -----------------------------------------------------------------------------------


def encode_rows(
    definition: MapDefinition, rows: pa.RecordBatch, order: npt.NDArray[np.int64] | None = None,
    address: Bytes | None = None,
) -> list[TableRows]:  # fmt: skip
    """Canonical rows, unique by address and in its order, as rows of the tables they belong to.

    Who sorts them first may leave them as they came and give the `order` that sorts them, and with it the sorted
    `address`: most tables need no more than these and the values.
    """
    if order is not None and address is not None and _addressed(definition, address):
        table = DIRECT if definition.kind.keyed else RANGES
        return [TableRows(table, address, _values_in(definition, rows, order))]
    if order is not None:
        rows = take_rows(rows, order)
    values = _values_of(definition, rows)
    if not definition.kind.keyed:
        return [_encode_ranges(definition, rows, values)]
    key = bytes_of(rows.column("key"))
    if definition.scheme is Scheme.HASH:
        return _encode_hashed(definition, rows, key, values)
    fits = escape(key).lengths <= direct_bytes_max(definition)
    if fits.all():
        return [TableRows(DIRECT, address_bytes(definition, rows), values)]
    chosen, rest = np.flatnonzero(fits), np.flatnonzero(~fits)
    short = rows.take(pa.array(chosen))
    tables = [TableRows(DIRECT, address_bytes(definition, short), take(values, chosen))] if len(chosen) else []
    long = rows.take(pa.array(rest))
    stored = _seed_values(definition, take(key, rest), take(values, rest))
    return [*tables, _encode_overflow(definition, long, stored)]


def _addressed(definition: MapDefinition, address: Bytes) -> bool:
    """True when the addresses, as they are, are the keys of one table."""
    if plain_longs(definition):
        return False
    longest = direct_bytes_max(definition) + 1 + 8 * (len(definition.kind.address) - 1)
    return not definition.kind.keyed or int(address.lengths.max(initial=0)) <= longest


def _values_of(definition: MapDefinition, rows: pa.RecordBatch) -> Bytes:
    if definition.kind is Kind.SESSION:
        return Bytes(np.zeros(rows.num_rows + 1, np.int64), np.zeros(0, np.uint8))
    return encode_values(rows.column("value"), definition.value)


def _values_in(definition: MapDefinition, rows: pa.RecordBatch, order: npt.NDArray[np.int64]) -> Bytes:
    if definition.kind is Kind.SESSION:
        return Bytes(np.zeros(len(order) + 1, np.int64), np.zeros(0, np.uint8))
    return encode_values(take_column(rows.column("value"), order), definition.value)


def _encode_ranges(definition: MapDefinition, rows: pa.RecordBatch, values: Bytes) -> TableRows:
    if not plain_longs(definition):
        return TableRows(RANGES, address_bytes(definition, rows), values)
    keys = join(rows.num_rows, [fixed_piece(plain_long(column)) for column in times_of(definition, rows)])
    order = sort_order(keys)
    return TableRows(RANGES, take(keys, order), take(values, order))


def _seed_values(definition: MapDefinition, key: Bytes, values: Bytes) -> Bytes:
    if definition.kind is Kind.SESSION:
        return key
    length = fixed_piece(key.lengths.astype(">u4"))
    return join(len(key), [length, var_piece(key), var_piece(values)])


def _encode_hashed(definition: MapDefinition, rows: pa.RecordBatch, key: Bytes, values: Bytes) -> list[TableRows]:
    stored = _seed_values(definition, key, values)
    fits = fits_hashed(stored)
    if fits.all():
        return [_sorted_hashed(definition, rows, stored)]
    chosen, rest = np.flatnonzero(fits), np.flatnonzero(~fits)
    tables = []
    if len(chosen):
        tables.append(_sorted_hashed(definition, rows.take(pa.array(chosen)), take(stored, chosen)))
    tables.append(_encode_overflow(definition, rows.take(pa.array(rest)), take(stored, rest)))
    return tables


def _hashes(definition: MapDefinition, rows: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    return hash_keys(rows.column("key"), bits=definition.hash_bits)


def hashed_keys(definition: MapDefinition, rows: pa.RecordBatch) -> Bytes:
    """The key of each row in table `hashed`: hash and times."""
    hashes = _hashes(definition, rows)
    head = fold32(hashes).astype(">u4") if definition.hash_bytes == 4 else hashes.astype(">u8")
    longs = [fixed_piece(plain_long(column)) for column in times_of(definition, rows)]
    return join(rows.num_rows, [fixed_piece(head), *longs])


def hashed_values(definition: MapDefinition, key: Bytes, value: pa.Array | None) -> Bytes:
    """The value of each row in table `hashed`, of keys and canonical values (sessions: None)."""
    if value is None:
        return key
    return _seed_values(definition, key, encode_values(value, definition.value))


def fits_hashed(stored: Bytes) -> npt.NDArray[np.bool_]:
    """Mask of the values that table `hashed` takes: LMDB limits duplicate rows."""
    fits: npt.NDArray[np.bool_] = (stored.lengths >= 1) & (stored.lengths <= LMDB_BYTES_MAX)
    return fits


def _sorted_hashed(definition: MapDefinition, rows: pa.RecordBatch, stored: Bytes) -> TableRows:
    keys = hashed_keys(definition, rows)
    order = sort_order(keys)
    if not run_ends(take(keys, order)).all():
        # Clashing keys: LMDB keeps duplicate rows in the order of their values.
        order = sort_order(join(len(keys), [var_piece(keys), var_piece(stored)]))
    return TableRows(HASHED, take(keys, order), take(stored, order))


def _encode_overflow(definition: MapDefinition, rows: pa.RecordBatch, stored: Bytes) -> TableRows:
    longs = times_of(definition, rows)
    as_bytes = plain_long if plain_longs(definition) else ordered_long
    head = fixed_piece(_hashes(definition, rows).astype(">u8"))
    base = join(rows.num_rows, [head, *(fixed_piece(as_bytes(column)) for column in longs)])
    order = sort_order(base)
    base, stored = take(base, order), take(stored, order)
    last = run_ends(base)
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1]) if len(last) else np.zeros(0, np.int64)
    runs = np.cumsum(np.concatenate([[0], last[:-1]]).astype(np.int64)) if len(last) else starts
    clash = (np.arange(len(last)) - starts[runs]).astype(">u2") if len(last) else np.zeros(0, ">u2")
    return TableRows(OVERFLOW, join(len(base), [var_piece(base), fixed_piece(clash)]), stored)


# -- tables to rows -----------------------------------------------------------------------------------


def decode_rows(definition: MapDefinition, table: str, keys: Bytes, values: Bytes) -> pa.RecordBatch:
    """Canonical rows from rows of a table, in the table's order."""
    longs = len(definition.kind.address) - definition.kind.keyed
    tail = 8 * longs + (CLASH_BYTES if table == OVERFLOW else 0)
    plain = plain_longs(definition)
    columns = [long_at(keys, tail - 8 * index, plain) for index in range(longs)]
    arrays: list[pa.Array] = []
    if definition.kind.keyed:
        if table == DIRECT:
            arrays.append(unescape(keys, tail).to_arrow().cast(pa.binary()))
        else:
            key, values = split_seed_values(definition, values)
            arrays.append(key.to_arrow().cast(pa.binary()))
    arrays += [pa.array(column) for column in columns]
    if definition.kind.valued:
        arrays.append(decode_values(values, definition.value))
    return pa.RecordBatch.from_arrays(arrays, schema=canonical_schema(definition))


def long_at(keys: Bytes, from_end: int, plain: bool) -> npt.NDArray[np.int64]:
    """The long that begins so many bytes before the end of each key.

    Raises: `Corrupt` when a key is shorter.
    """
    if len(keys) and int(keys.lengths.min()) < from_end:
        raise Corrupt("a row's key is cut short", kind="row_key", wanted=from_end, found=int(keys.lengths.min()))
    unsigned = np.empty(len(keys), np.uint64)
    _longs_at(unsigned, keys.offsets[1:] - from_end, keys.data.ctypes.data)
    if not plain:
        unsigned ^= np.uint64(1 << 63)
    return unsigned.view(np.int64)


@kernel
def _longs_at(out, starts, data):  # type: ignore[no-untyped-def]
    for i in range(len(starts)):
        out[i] = swap_u64(load_u64(data + starts[i]))


def split_seed_values(definition: MapDefinition, stored: Bytes) -> tuple[Bytes, Bytes]:
    """`split_seed_value` of a column."""
    if definition.kind is Kind.SESSION:
        return stored, Bytes(np.zeros(len(stored) + 1, np.int64), np.zeros(0, np.uint8))
    starts = stored.offsets[:-1]
    raw = stored.data[starts[:, None] + np.arange(4)] if len(stored) else np.zeros((0, 4), np.uint8)
    lengths = np.ascontiguousarray(raw).reshape(-1).view(">u4").astype(np.int64)
    return _cut(stored, starts + 4, lengths), _cut(stored, starts + 4 + lengths, stored.lengths - 4 - lengths)


def _cut(column: Bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Bytes:
    """`lengths` bytes of each row from `starts`."""
    # Every second row of the interleaved column is what is wanted; the others are what lies between.
    bounds = np.empty(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = starts, starts + lengths, len(column.data)
    return take(Bytes(bounds, column.data), np.arange(0, 2 * len(starts), 2))
