"""The digest of the events of a load to an aggregate: what its rows forget, and its id must not.

Two loads may bring the same partial rows of different events: both count. A load that brings the same events is the
same load, in whatever order, batches or parts they come.

    3f…0a              the salt of a layer of events with this digest
    3f…0a once more    the same, of what was loaded once more
    3f…0a/9c… once …   that of a part, with a number of its own: two parts of one load may be of the same events
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from millpond.arrays.row_digest import digest_of_rows
from millpond.maps.model.columns import RAW_DIGEST
from millpond.maps.model.definition import MapDefinition
from millpond.ranges.files import content_id

__all__ = ("digest_and_salt", "digest_of", "digest_salt", "events_id", "events_of_parts")

_SALT = re.compile(r"([0-9a-f]{1,64})(?:/[0-9a-f]{16})?(?: (.*))?", re.DOTALL)


def digest_of(definition: MapDefinition, rows: pa.RecordBatch) -> int:
    """A number for canonical rows with the times of events, of a table by query for the raw rows that they are of.

    Those of several batches add up.
    """
    assert definition.aggregation is not None, "an aggregate has one"
    raw = (rows.schema.metadata or {}).get(RAW_DIGEST)
    if raw is not None:
        return int(raw)
    return digest_of_rows((rows.column("key"), rows.column("time"), *rows.column("value").flatten()), rows.num_rows)


def digest_salt(digest: int, salt: str, own: str = "") -> str:
    """The salt of the id of a layer, or part, whose events have a digest; 0: the rows are those that came. `own`: 16
    hexadecimal digits of this part.
    """
    return f"{digest:x}{'/' if own else ''}{own} {salt}".strip() if digest else salt


def events_id(salt: str) -> str:
    """The id of a load to an aggregate, of the salt that tells its events: rows of equal events may differ by what
    doubles are rounded to, and by the bytes of sketches.
    """
    return content_id(salt.encode())


def events_of_parts(salts: Sequence[str], stream: tuple[str, int] | None) -> str:
    """The id of the events of all parts of a load to an aggregate, by their salts, however they are cut. Two epochs of
    a `stream` may bring the same events.
    """
    parsed = [digest_and_salt(salt) for salt in salts]
    digests, words = zip(*(part for part in parsed if part is not None), strict=True)
    assert len(digests) == len(salts), "parts were verified"
    epoch = () if stream is None else map(str, stream)
    return events_id(digest_salt(sum(digests), " ".join((*epoch, *sorted({*words} - {""})))))


def digest_and_salt(salt: str) -> tuple[int, str] | None:
    """The digest and the salt that a salt was made of; None for another text.

    >>> digest_and_salt(digest_salt(10, "once more")), digest_and_salt("more")
    ((10, 'once more'), None)
    """
    match = _SALT.fullmatch(salt)
    return None if match is None else (int(match[1], 16), match[2] or "")
