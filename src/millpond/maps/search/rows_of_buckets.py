"""Canonical rows of aggregates as rows of buckets: those of one bucket of a key become one, by the rules of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import sort_order
from millpond.maps.model.address import address_bytes
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import shown_starts
from millpond.maps.search.combining import combined_values

__all__ = ("at_bucket_starts", "coarser_rows", "combined_rows")


def at_bucket_starts(definition: MapDefinition, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Canonical rows with the starts of their buckets as times."""
    aggregation = definition.aggregation
    assert aggregation is not None, "an aggregate has one"
    for batch in batches:
        at = batch.schema.get_field_index("time")
        starts = shown_starts(aggregation, batch.column(at).to_numpy())
        yield batch.set_column(at, batch.schema.field(at), pa.array(starts))


def coarser_rows(
    definition: MapDefinition, wide: Aggregation, rows: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Canonical rows as `thaw` gives them, with wider buckets: rows of a key are together, in order of time.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    for batch in at_bucket_starts(replace(definition, aggregation=wide), rows):
        yield _as_one(definition, batch)


def combined_rows(definition: MapDefinition, events: pa.RecordBatch) -> pa.RecordBatch:
    """Events, or rows of buckets, in any order as rows of buckets: one of each address, in its order. What comes first
    is added first.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    [rows] = at_bucket_starts(definition, [events])
    order = sort_order(address_bytes(definition, rows))
    return _as_one(definition, rows.take(pa.array(order))) if rows.num_rows else rows


def _as_one(definition: MapDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a batch, those that follow each other with the same key and time as one."""
    keys, times = batch.column("key"), batch.column("time")
    first = np.ones(len(times), np.bool_)
    other = pc.or_(pc.not_equal(keys[1:], keys[:-1]), pc.not_equal(times[1:], times[:-1]))
    first[1:] = other.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(first)
    head = batch.take(pa.array(starts))

    def named(run: int) -> dict[str, Any]:
        key, bucket = head.column("key")[run].as_py(), head.column("time").cast(INSTANT)[run].as_py()
        return {"key": key.decode(errors="replace"), "bucket": bucket.isoformat()}

    values = combined_values(definition, batch.column("value"), starts, named)
    at = head.schema.get_field_index("value")
    return head.set_column(at, head.schema.field(at), values)
