"""The digest of the events of a load to an aggregate: what its rows forget, and its id must not.

Two loads may bring the same partial rows of different events: both count. A load that brings the same events is the
same load, in whatever order, batches or parts they come.

    3f…0a              the salt of a layer, or of a part, of events with this digest
    3f…0a once more    the same, of what was loaded once more
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.arrays.row_digest import digest_of_rows
from millpond.maps.model.columns import RAW_DIGEST

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition

__all__ = ("digest_and_salt", "digest_of", "digest_salt")

_SALT = re.compile(r"([0-9a-f]{1,64})(?: (.*))?", re.DOTALL)


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


def digest_and_salt(salt: str) -> tuple[int, str] | None:
    """The digest and the salt that a salt was made of; None for another text.

    >>> digest_and_salt(digest_salt(10, "once more")), digest_and_salt("more")
    ((10, 'once more'), None)
    """
    match = _SALT.fullmatch(salt)
    return None if match is None else (int(match[1], 16), match[2] or "")
