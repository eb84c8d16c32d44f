"""Ids of events: whole numbers that grow, written as 16 hexadecimal digits, opaque to those who use them.

    bits 63 … 20   the milliseconds at which the event was appended, or those of the id before it
    bits 19 … 0    a counter

Ids follow the clock so that a stream which was dropped and forgotten, and begins anew, goes on with greater ids: a
reader with an old cursor misses nothing. A clock that goes back, or a burst, only counts on.

Invariants:
* the ids of a batch are consecutive, and the first is greater than the last id of the stream;
* `parse_id(format_id(id)) == id`, and the order of the texts is the order of the ids.
"""

from __future__ import annotations

import re

from millpond.error_values import shown
from millpond.errors import Invalid, Unavailable

__all__ = (
    "ID_MAX",
    "START",
    "first_id",
    "format_id",
    "id_time_ms",
    "is_id",
    "parse_id",
    "position_before",
    "restart_position",
)

START = 0
"""The place before every event."""
RESTART_MS = 60_000
"""A server that took over from another gives ids by its own clock, which may be so far behind the other's."""
ID_MAX = (1 << 63) - 1
_COUNTER_BITS = 20
_MS_MAX = (1 << 42) - 1  # the year 2109; a clock beyond it counts on from there
_TEXT = re.compile("[0-7][0-9a-f]{15}")


def first_id(last_id: int, now_ms: int, count: int) -> int:
    """The first of `count` ids for events that are appended after the id `last_id`.

    >>> hex(first_id(0, 1, 10)), first_id(1 << 30, 1, 10) - (1 << 30)
    ('0x100000', 1)

    Raises:
        Unavailable: the ids are used up.
    """
    first = max(last_id + 1, min(max(now_ms, 0), _MS_MAX) << _COUNTER_BITS, 1)
    if first + count - 1 > ID_MAX:
        raise Unavailable("the stream has no more ids", kind="event_ids_used_up", last_id=format_id(last_id))
    return first


def id_time_ms(id_: int) -> int:
    """The time at which the event of an id was appended, as far as the id tells; later only after a clock went back."""
    return id_ >> _COUNTER_BITS


def position_before(ms: int) -> int:
    """The place before every event that is appended at a time or later.

    >>> id_time_ms(place_before(7) + 1), place_before(7) < first_id(0, 7, 1), place_before(0) == START
    (7, True, True)
    """
    return max((ms << _COUNTER_BITS) - 1, START)


def restart_position(after: int, last_id: int) -> int:
    """The place from which a reader goes on whose place is behind the end of its stream: the stream lost its end.

    What was appended since has ids that the reader may have seen on other events, so it gets the last minute anew.

    >>> restart_place(9 << 20, 3 << 20), restart_place(100_000 << 20, 99_000 << 20) == place_before(40_000)
    (0, True)
    """
    assert last_id < after
    return min(last_id, position_before(id_time_ms(after) - RESTART_MS))


def format_id(id_: int) -> str:
    """The text of an id.

    >>> format_id(1 << 20)
    '0000000000100000'
    """
    assert 0 <= id_ <= ID_MAX
    return f"{id_:016x}"


def is_id(text: str) -> bool:
    """True for the text of an id."""
    return _TEXT.fullmatch(text) is not None


def parse_id(text: str) -> int:
    """The id of a text; the empty text is the place before every event.

    >>> parse_id(""), parse_id("0000000000100000") == 1 << 20
    (0, True)

    Raises:
        Invalid: the text is no id.
    """
    if text == "":
        return START
    if not is_id(text):
        raise Invalid(
            "this is no id of an event", kind="event_id", id=shown(text),
            hint="take the id of an event that you read; an empty one is the start",
        )  # fmt: skip
    return int(text, 16)
