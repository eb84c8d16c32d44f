"""The index of a stream as an object of JSON, as nodes send it: ids and days are texts.

    {"queue": "etl", "job_set": "nightly", "last_id": "1961…", "last_day": "2026-11-22", "dropped_id": "0000…",
     "segments": [{"state": "open", "stored_bytes": 300, "days": [
        {"day": "2026-11-22", "first_id": "1961…", "last_id": "1961…", "count": 1, "bytes": 280}]}]}

Invariant: `parse_index(shown_index(index)) == index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.errors import Invalid
from millpond.events.days import format_day, parse_day
from millpond.events.ids import format_id, parse_id
from millpond.events.index import Day, DaySegment, State, StreamIndex
from millpond.events.names import StreamName

__all__ = ("parse_index", "shown_index")


def shown_index(index: StreamIndex) -> dict[str, Any]:
    """An index as an object of JSON."""
    return {
        "queue": index.stream.queue,
        "job_set": index.stream.job_set,
        "last_id": format_id(index.last_id),
        "last_day": format_day(index.last_day),
        "dropped_id": format_id(index.dropped_id),
        "segments": [
            {
                "state": segment.state.value,
                "stored_bytes": segment.stored_bytes,
                "days": [_shown_day(day) for day in segment.days],
            }
            for segment in index.segments
        ],
    }


def _shown_day(day: Day) -> dict[str, Any]:
    return {
        "day": format_day(day.day), "first_id": format_id(day.first_id), "last_id": format_id(day.last_id),
        "count": day.count, "bytes": day.bytes,
    }  # fmt: skip


def parse_index(shown: Mapping[str, Any]) -> StreamIndex:
    """The index of an object of JSON.

    Raises:
        Invalid: the object is not what a node sends.
    """
    try:
        segments = tuple(
            DaySegment(State(segment["state"]), tuple(map(_day, segment["days"])), int(segment["stored_bytes"]))
            for segment in shown["segments"]
        )
        return StreamIndex(
            StreamName(shown["queue"], shown["job_set"]), segments, parse_id(shown["last_id"]),
            parse_day(shown["last_day"]), parse_id(shown["dropped_id"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise Invalid("this is no index of a stream", kind="event_index", reason=repr(error)) from error


def _day(shown: Mapping[str, Any]) -> Day:
    first_id, last_id = parse_id(shown["first_id"]), parse_id(shown["last_id"])
    return Day(parse_day(shown["day"]), first_id, last_id, int(shown["count"]), int(shown["bytes"]))
