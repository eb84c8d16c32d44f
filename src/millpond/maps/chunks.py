"""Rows streamed from a table, decoded to canonical batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import lmdb
import numpy as np
import pyarrow as pa

from millpond.maps.cursors import between
from millpond.maps.interned_store import InternedStore
from millpond.maps.kinds import MapDefinition
from millpond.maps.pieces import Bytes
from millpond.maps.plain_store import PlainStore
from millpond.maps.tables import decode_rows
from millpond.stores.lmdb_environment import Environment
from millpond.stores.lmdb_format import PAGE
from millpond.stores.lmdb_pages import RECORD_BYTES, Rest, read_pieces

__all__ = ("column_of", "decoded", "gathered", "whole_table")

Pair = tuple[bytes, bytes]
CHUNK_ROWS = 4096
BATCH_BYTES_MAX = 64 << 20


def column_of(rows: list[bytes] | tuple[bytes, ...]) -> Bytes:
    """Byte strings as a column."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    return Bytes(offsets, np.frombuffer(b"".join(rows), np.uint8))


def gathered(pairs: Iterator[Pair], batch_rows: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of up to `batch_rows` rows or 64 MiB at a time."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    while chunk := list(islice(pairs, min(CHUNK_ROWS, batch_rows))):
        some_keys, some_values = zip(*chunk, strict=True)
        keys += some_keys
        values += some_values
        size += sum(map(len, some_values))
        if len(keys) >= batch_rows or size >= BATCH_BYTES_MAX:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values


def decoded(
    definition: MapDefinition, store: PlainStore | InternedStore, tx: lmdb.Transaction | None, table: str,
    pairs: Iterator[Pair], batch_rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Canonical batches of the rows of one table."""
    for keys, values in gathered(pairs, batch_rows):
        if isinstance(store, InternedStore):
            assert tx is not None, "interned rows are decoded within their transaction"
            yield store.decode(tx, keys, values)
        else:
            yield decode_rows(definition, table, column_of(keys), column_of(values))


def whole_table(
    store: PlainStore, tx: lmdb.Transaction, env: Environment, table: str, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Canonical batches of all rows of one table, as the transaction sees it, straight from its pages.

    Raises: `Corrupt` when the file is damaged.
    """
    definition, record = store.definition, tx.get(table.encode())
    readable = record is not None and len(record) == RECORD_BYTES and env.handle.stat()["psize"] == PAGE
    for piece in read_pieces(env.path / "data.mdb", record, batch_rows) if readable else (Rest(b""),):
        if isinstance(piece, Rest):
            pairs = between(tx.cursor(db=store.dbs[table]), piece.key, None)
            yield from decoded(definition, store, tx, table, pairs, batch_rows)
            return
        keys, values = Bytes(piece.key_offsets, piece.keys), Bytes(piece.value_offsets, piece.values)
        rows = decode_rows(definition, table, keys, values)
        for start in range(0, rows.num_rows, batch_rows):
            yield rows.slice(start, batch_rows)
