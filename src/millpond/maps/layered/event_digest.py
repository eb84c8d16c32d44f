"""The digest of the events of a load to an aggregate: what its rows forget, and its id must not.

Two loads may bring the same partial rows of different events: both count. A load that brings the same events is the
same load, in whatever order or batches they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.arrays.row_digest import digest_of_rows
from millpond.maps.model.columns import RAW_DIGEST

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition

__all__ = ("digest_of", "digest_salt")


def digest_of(definition: MapDefinition, rows: pa.RecordBatch) -> int:
    """A number for canonical rows with the times of events, of a table by query for the raw rows that they are of.

    Those of several batches add up.
    """
    assert definition.aggregation is not None, "an aggregate has one"
    raw = (rows.schema.metadata or {}).get(RAW_DIGEST)
    if raw is not None:
        return int(raw)
    return digest_of_rows((rows.column("key"), rows.column("time"), *rows.column("value").flatten()), rows.num_rows)


def digest_salt(digest: int, salt: str) -> str:
    """The salt of the id of a layer whose events have a digest; 0: the rows are those that came."""
    return f"{digest:x} {salt}".strip() if digest else salt
