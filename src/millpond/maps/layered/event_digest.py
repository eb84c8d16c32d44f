"""The digest of the events of a load to an aggregate: what its rows forget, and its id must not.

Two loads may bring the same partial rows of different events: both count. A load that brings the same events is the
same load, in whatever order or batches they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import U64
from millpond.arrays.xxh3 import hash_keys

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition

__all__ = ("digest_of", "digest_salt")

_BITS = 128
_HALF = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(31)


def digest_of(definition: MapDefinition, rows: pa.RecordBatch) -> int:
    """A number for canonical rows with the times of events: those of several batches add up."""
    assert definition.aggregation is not None, "an aggregate has one"
    mixed = hash_keys(rows.column("key"))
    for column in (rows.column("time"), *rows.column("value").flatten()):
        # Column after column, so that values which change places, within an event or between two, are seen.
        mixed ^= _numbers(column)
        mixed *= _ODD
        mixed ^= mixed >> _SHIFT
    # The whole sum, without a bit lost: else it would depend on where batches end.
    total = (int((mixed >> _HALF).sum(dtype=np.uint64)) << 32) + int((mixed & _LOW).sum(dtype=np.uint64))
    return total + (rows.num_rows << _BITS)


def _numbers(column: pa.Array) -> U64:
    """A number for each value: itself, or the hash of its bytes."""
    kind, missing = column.type, column.null_count
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        numbers = hash_keys((column.fill_null("") if missing else column).cast(pa.large_binary()))
    elif pa.types.is_boolean(kind):
        numbers = column.fill_null(False).cast(pa.uint64()).to_numpy()
    else:
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
        numbers = (plain.fill_null(0) if missing else plain).to_numpy().view(np.uint64)
    if missing:
        numbers = np.where(column.is_valid().to_numpy(zero_copy_only=False), numbers, ~numbers)
    return numbers


def digest_salt(digest: int, salt: str) -> str:
    """The salt of the id of a layer whose events have a digest; 0: the rows are those that came."""
    return f"{digest:x} {salt}".strip() if digest else salt
