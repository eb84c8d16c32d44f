"""The beginning of a read or a watch: behind an id, at a time, or at the newest event."""

from __future__ import annotations

from collections.abc import Callable

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.events.ids import is_id, parse_id, position_before
from millpond.events.index import StreamIndex
from millpond.times.instants import parse_instant

__all__ = ("NEWEST", "start_position")

NEWEST = "newest"


def start_position(text: str, index: Callable[[], StreamIndex | None]) -> int:
    """The place that a text names: an id, a time of appending, or `newest`; `index` is asked for the last two.

    >>> start_place("0000000000100000", lambda: None) == 1 << 20, start_place("newest", lambda: None)
    (True, 0)

    Raises:
        Invalid: the text is none of them.
    """
    try:
        if text == "" or is_id(text):
            return parse_id(text)
        position = None if text == NEWEST else position_before(parse_instant(text))
    except (Invalid, TypeError) as error:
        raise Invalid(
            "this is no place in a stream of events", kind="event_id", id=shown(text),
            hint="take the id of an event that you read, a time such as 2026-11-24T10:00:00Z, or 'newest'; "
            "an empty one is the start",
        ) from error  # fmt: skip
    current = index()
    last_id = 0 if current is None else current.last_id
    return last_id if position is None else min(position, last_id)
