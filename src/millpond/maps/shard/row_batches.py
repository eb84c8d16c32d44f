"""Rows streamed from a table, decoded to canonical batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from millpond.arrays.byte_columns import Bytes, concatenated
from millpond.maps.model.definition import MapDefinition
from millpond.maps.shard.cursors import between
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.plain_tables import PlainStore
from millpond.stores.lmdb.bulk_read import RECORD_BYTES, Rest, read_from, read_pieces
from millpond.stores.lmdb.environment import Environment
from millpond.stores.lmdb.page_format import PAGE

__all__ = ("column_of", "decoded", "gathered", "rows_by_cursor", "rows_from", "table_columns", "whole_table")

Pair = tuple[bytes, bytes]
CHUNK_ROWS, CHUNK_ROWS_FIRST = 4096, 8
"""The rows that are read between two looks at their bytes: few while it is not known how large they are."""
BATCH_BYTES_MAX = 8 << 20
ROWS_AT_CLASHES = 128
"""The number of rows read by a cursor where pages cannot be read: about one page of them."""


def column_of(rows: list[bytes] | tuple[bytes, ...]) -> Bytes:
    """Byte strings as a column."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    return Bytes(offsets, np.frombuffer(b"".join(rows), np.uint8))


def gathered(pairs: Iterator[Pair], batch_rows: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of up to `batch_rows` rows or about 8 MiB at a time, however large a row is."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size, chunk_rows = 0, CHUNK_ROWS_FIRST
    while chunk := list(islice(pairs, min(chunk_rows, batch_rows))):
        some_keys, some_values = zip(*chunk, strict=True)
        keys += some_keys
        values += some_values
        grown = sum(map(len, some_values))
        size += grown
        chunk_rows = min(_rows_next(chunk_rows, grown, BATCH_BYTES_MAX // 16), CHUNK_ROWS)
        if len(keys) >= batch_rows or size >= BATCH_BYTES_MAX:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values


def _rows_next(rows: int, size: int, bytes_: int) -> int:
    """The number of rows to take at a time, after so many were `size` bytes: half or twice as many."""
    return 2 * rows if 2 * size <= bytes_ else max(1, rows // 2) if size > bytes_ else rows


def decoded(
    definition: MapDefinition, store: PlainStore | InternedStore, tx: lmdb.Transaction | None, table: str,
    pairs: Iterator[Pair], batch_rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Canonical batches of the rows of one table, of about 8 MiB at most."""
    rows = CHUNK_ROWS_FIRST
    for keys, values in gathered(pairs, batch_rows):
        if isinstance(store, PlainStore):
            yield decode_rows(definition, table, column_of(keys), column_of(values))
            continue
        assert tx is not None, "interned rows are decoded within their transaction"
        start = 0
        while start < len(keys):
            # The rows are ids: how many bytes they stand for is known when they are decoded.
            batch = store.decode(tx, keys[start : start + rows], values[start : start + rows])
            yield batch
            start += batch.num_rows
            rows = min(_rows_next(rows, batch.nbytes, BATCH_BYTES_MAX), batch_rows)


def rows_from(
    tx: lmdb.Transaction, env: Environment, table: str, db: Any, first: bytes, rows_max: int
) -> tuple[Bytes, Bytes, bytes | None]:
    """Keys and values of up to `rows_max` rows of a table from a key on, and the key after them, None at the end.

    There are fewer rows when they are many bytes, and more when the last of them share a key.

    Raises: `Corrupt` when the file is damaged.
    """
    record = _readable(tx, env, table)
    if record is None:
        return rows_by_cursor(tx, db, first, rows_max)
    keys: list[Bytes] = []
    values: list[Bytes] = []
    room, following = rows_max, first or None
    while room > 0:
        status = read_from(env.path / "data.mdb", record, following or b"", room)
        if isinstance(status, Rest):
            some_keys, some_values, following = rows_by_cursor(tx, db, following or b"", min(room, ROWS_AT_CLASHES))
        else:
            piece, following = status
            some_keys, some_values = Bytes(piece.key_offsets, piece.keys), Bytes(piece.value_offsets, piece.values)
        keys.append(some_keys)
        values.append(some_values)
        room -= len(some_keys)
        if following is None or sum(len(column.data) for column in values) > BATCH_BYTES_MAX:
            break
    return concatenated(keys), concatenated(values), following


def rows_by_cursor(tx: lmdb.Transaction, db: Any, first: bytes, rows_max: int) -> tuple[Bytes, Bytes, bytes | None]:
    """As `rows_from`, row by row; several rows under one key stay together."""
    pairs = between(tx.cursor(db=db), first, None)
    read = list(islice(pairs, rows_max))
    following = next(pairs, None)
    while following is not None and following[0] == read[-1][0]:
        read.append(following)
        following = next(pairs, None)
    keys, values = zip(*read, strict=True) if read else ((), ())
    return column_of(keys), column_of(values), None if following is None else following[0]


def table_columns(
    tx: lmdb.Transaction, env: Environment, table: str, db: Any, rows_max: int
) -> Iterator[tuple[Bytes, Bytes]]:
    """Keys and values of a whole table, as the transaction sees it, straight from its pages, in pieces.

    Raises: `Corrupt` when the file is damaged.
    """
    record = _readable(tx, env, table)
    for piece in (Rest(b""),) if record is None else read_pieces(env.path / "data.mdb", record, rows_max):
        if isinstance(piece, Rest):
            for keys, values in gathered(between(tx.cursor(db=db), piece.key, None), rows_max):
                yield column_of(keys), column_of(values)
            return
        yield Bytes(piece.key_offsets, piece.keys), Bytes(piece.value_offsets, piece.values)


def _readable(tx: lmdb.Transaction, env: Environment, table: str) -> bytes | None:
    """The record of a table whose pages can be read without LMDB."""
    record: bytes | None = tx.get(table.encode())
    readable = record is not None and len(record) == RECORD_BYTES and env.handle.stat()["psize"] == PAGE
    return record if readable else None


def whole_table(
    store: PlainStore, tx: lmdb.Transaction, env: Environment, table: str, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Canonical batches of all rows of one table, as the transaction sees it, straight from its pages.

    Raises: `Corrupt` when the file is damaged.
    """
    for keys, values in table_columns(tx, env, table, store.dbs[table], batch_rows):
        rows = decode_rows(store.definition, table, keys, values)
        for start in range(0, rows.num_rows, batch_rows):
            yield rows.slice(start, batch_rows)
