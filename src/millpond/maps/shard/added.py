"""Rows of an aggregate's buckets, added to those that its shard has: what is there comes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays.byte_columns import bytes_of
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up, shown_starts
from millpond.maps.model.values import decode_values
from millpond.maps.search.rows_of_buckets import combined_rows

__all__ = ("added_to", "held_rows", "in_shown_buckets")


def in_shown_buckets(definition: MapDefinition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of buckets, unique by address, in those that the map shows.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    aggregation = definition.aggregation
    if aggregation is None or not is_rolled_up(aggregation):
        return rows
    times = rows.column("time").to_numpy()
    return rows if np.array_equal(shown_starts(aggregation, times), times) else combined_rows(definition, rows)


def added_to(definition: MapDefinition, held: Sequence[bytes | None], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows combined with the values that are held at their addresses, in the order of addresses.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    before = held_rows(definition, held, rows)
    return combined_rows(definition, pa.concat_batches([before, rows]) if before.num_rows else rows)


def held_rows(definition: MapDefinition, held: Sequence[bytes | None], rows: pa.RecordBatch) -> pa.RecordBatch:
    """The canonical rows that are held at the addresses of rows: those that are there."""
    if not any(held):
        return pa.RecordBatch.from_pylist([], schema=canonical_schema(definition))
    positions = pa.array(np.flatnonzero([value is not None for value in held]))
    there = pa.array([value for value in held if value is not None], pa.binary())
    columns = [rows.column(name).take(positions) for name in definition.kind.address]
    values = decode_values(bytes_of(there), definition.value)
    return pa.RecordBatch.from_arrays([*columns, values], schema=canonical_schema(definition))
