"""Rows streamed from a table, decoded to canonical batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import lmdb
import numpy as np
import pyarrow as pa

from millpond.maps.interned_store import InternedStore
from millpond.maps.kinds import MapDefinition
from millpond.maps.pieces import Bytes
from millpond.maps.plain_store import PlainStore
from millpond.maps.tables import decode_rows

__all__ = ("column_of", "decoded", "gathered")

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
