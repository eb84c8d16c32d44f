"""Rows of an aggregate's buckets, added to those that its shard has: what is there comes first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millpond.arrays.byte_columns import bytes_of
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.values import decode_values
from millpond.maps.search.rows_of_buckets import combined_rows

__all__ = ("added_to",)


def added_to(definition: MapDefinition, held: Sequence[bytes | None], rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows combined with the values that are held at their addresses, in the order of addresses.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    places = np.flatnonzero([value is not None for value in held])
    if len(places):
        there = pa.array([value for value in held if value is not None], pa.binary())
        before = rows.take(pa.array(places))
        at = before.schema.get_field_index("value")
        values = decode_values(bytes_of(there), definition.value)
        before = before.set_column(at, before.schema.field(at), values)
        rows = pa.concat_batches([before, rows])
    return combined_rows(definition, rows)
