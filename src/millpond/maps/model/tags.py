"""Sets of tags as keys, in the one form in which they are stored: names in order of their bytes, text of the pairs.

    {"host": "a", "dc": "x"}   ─▶   dc=x,host=a

No name and no value has `=`, `,` or a control character, so the text tells the set, and no two sets have the same text.
Conditions name the value of one tag as a column: `tags['host']`.
"""

from __future__ import annotations

import re
from typing import Any

from millpond.deferred import np, pa, pc

__all__ = ("TAGS", "TAGS_MAX", "shown_tags", "tag_column", "tag_of", "tags_arrow")

TAGS = "tags"
"""The type of such keys, and the column that shows them."""
TAGS_MAX = 64
"""Tags of one set."""
_TAG = re.compile(r"tags\['((?:[^']|'')*)'\]", re.IGNORECASE)


def tags_arrow() -> pa.DataType:
    """The Arrow type of the column that shows sets."""
    return pa.map_(pa.string(), pa.string())


def tag_column(name: str) -> str:
    """The column of a condition that has the values of a tag.

    >>> tag_column("host"), tag_of("tags['host']"), tag_of("host")
    ("tags['host']", 'host', None)
    """
    quoted = name.replace("'", "''")
    return f"{TAGS}['{quoted}']"


def tag_of(column: str) -> str | None:
    """The name of the tag whose values a column of a condition has; None for any other column."""
    match = _TAG.fullmatch(column)
    return None if match is None else match[1].replace("''", "'")


def shown_tags(keys: pa.Array[Any]) -> pa.Array[Any]:
    """Stored keys as maps of names to values.

    >>> import pyarrow
    >>> shown_tags(pyarrow.array(["dc=x,host=a"])).to_pylist()
    [[('dc', 'x'), ('host', 'a')]]
    """
    sets = pc.split_pattern(keys.cast(pa.string()), ",")
    texts = pc.split_pattern(sets.flatten(), "=").flatten()
    positions = np.arange(0, len(texts), 2)
    offsets = sets.offsets.to_numpy()
    return pa.MapArray.from_arrays(
        pa.array(offsets - offsets[0]), texts.take(pa.array(positions)), texts.take(pa.array(positions + 1))
    )
