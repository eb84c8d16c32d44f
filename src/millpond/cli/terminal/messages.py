"""Parser of `--with` phrases: `MAP`, or `MAP on KEY at TIME over WINDOW as COLUMN`.

    weather
    weather on origin at time_hour
    planes on tailnum as plane
    weather on `airport code` at time_hour
    sales on shop at time over 7 days as week

A column whose name holds a space stands in backticks. What a phrase leaves out comes from `--key` and `--time`;
the column of the answer is called as the map.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millpond.errors import Invalid

if TYPE_CHECKING:
    from millpond.maps.protocols import MapLike

__all__ = ("ColumnLookup", "Phrase", "parse_lookup", "settled")

_COLUMN = r"(`[^`]+`|[^\s`]+)"
_PHRASE = re.compile(
    rf"^\s*(\w+)(?:\s+on\s+{_COLUMN})?(?:\s+at\s+{_COLUMN})?(?:\s+over\s+(\d+\s*\w+))?(?:\s+as\s+{_COLUMN})?\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A lookup as it was said."""

    map: str
    key: str | None = None
    time: str | None = None
    into: str | None = None
    window: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnLookup:
    """One lookup for every event: its `key` column, its `time` column if the map asks for one, the column to fill.

    `textual` says that the key is text, also where it looks like a number; `window` is as in `Lookup`.
    """

    map: str
    key: str
    time: str | None
    into: str
    textual: bool
    window: str | None = None


def parse_lookup(phrase: str) -> Phrase:
    """Parse a phrase.

    >>> parse_lookup("weather on origin at time_hour")
    Phrase(map='weather', key='origin', time='time_hour', into=None, window=None)

    Raises: `Invalid` when it is not understood.
    """
    said = _PHRASE.match(phrase)
    if said is None:
        raise Invalid(
            "lookup is not understood", kind="lookup_phrase", lookup=repr(phrase),
            hint="write it as 'MAP on KEY at TIME as COLUMN', such as 'weather on origin at time_hour'",
        )  # fmt: skip
    name, key, time, window, into = said.groups()
    key, time, into = (column and column.strip("`") for column in (key, time, into))
    return Phrase(name, key, time, into, window)


def settled(phrase: Phrase, find: Callable[[str], MapLike], *, key: str | None, time: str | None) -> ColumnLookup:
    """The phrase with nothing left open.

    Raises: `NotFound` for a map that is not there; `Invalid` when key or time is said nowhere.
    """
    pond_map = find(phrase.map)
    used_key, used_time = phrase.key or key, phrase.time or time
    if used_key is None:
        raise Invalid(
            "nothing says which column holds the key", kind="lookup_key", map=pond_map.name,
            hint=f"--key COLUMN, or --with '{pond_map.name} on COLUMN'",
        )  # fmt: skip
    if pond_map.kind.timed and used_time is None:
        raise Invalid(
            f"a {pond_map.kind} is asked as of a time, and nothing says which column holds it", kind="lookup_time",
            map=pond_map.name, hint=f"--time COLUMN, or --with '{pond_map.name} on {used_key} at COLUMN'",
        )  # fmt: skip
    if phrase.time is not None and not pond_map.kind.timed:
        raise Invalid(
            f"a {pond_map.kind} holds at all times and is not asked as of one", kind="lookup_time", map=pond_map.name,
            hint=f"leave out 'at {phrase.time}'",
        )  # fmt: skip
    return ColumnLookup(
        pond_map.name,
        used_key,
        used_time if pond_map.kind.timed else None,
        phrase.into or pond_map.name,
        pond_map.kind.keyed,
        phrase.window,
    )
