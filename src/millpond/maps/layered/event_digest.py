"""The digest of the events of a load to an aggregate: what its rows forget, and its id must not.

Two loads may bring the same partial rows of different events: both count. A load that brings the same events is the
same load, in whatever order or batches they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.arrays.xxh3 import hash_keys
from millpond.maps.model.address import address_bytes
from millpond.maps.model.values import encode_values

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition

__all__ = ("digest_of", "digest_salt")

_BITS = 64
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def digest_of(definition: MapDefinition, rows: pa.RecordBatch) -> int:
    """A number for canonical rows with the times of events: those of several batches add up."""
    addresses = hash_keys(address_bytes(definition, rows).to_arrow().cast(pa.large_binary()))
    values = hash_keys(encode_values(rows.column("value"), definition.value).to_arrow().cast(pa.large_binary()))
    # Each event is mixed by itself before the sum, so that values which change places between events are seen.
    mixed = (addresses * _ODD) ^ values
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64)) + (rows.num_rows << _BITS)


def digest_salt(digest: int, salt: str) -> str:
    """The salt of the id of a layer whose events have a digest; 0: the rows are those that came."""
    return f"{digest:x} {salt}".strip() if digest else salt
