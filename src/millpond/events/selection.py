"""Streams by their names and patterns, as people name them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.errors import NotFound
from millpond.events.names import StreamName

if TYPE_CHECKING:
    from millpond.events.index import StreamIndex
    from millpond.events.interface import EventsLike

__all__ = ("named_indexes", "named_streams", "no_such_stream")


def named_streams(events: EventsLike, queue: str, job_sets: Sequence[str]) -> list[StreamName]:
    """The streams of names and patterns, each once; `*` and `?` stand for those that are there.

    Raises: `NotFound` when no stream matches a pattern.
    """
    patterns = [job_set for job_set in job_sets if "*" in job_set or "?" in job_set]
    there = [stream.job_set for stream in events.streams(queue)] if patterns else []
    names: dict[str, None] = {}
    for job_set in job_sets:
        matching = fnmatch.filter(there, job_set.replace("[", "[[]")) if job_set in patterns else [job_set]
        if not matching:
            raise NotFound(
                "no job set is named so", kind="stream_not_found", queue=queue, job_set=job_set,
                hint=f"see: millpond events list {queue}",
            )  # fmt: skip
        names |= dict.fromkeys(matching)
    return [StreamName(queue, job_set) for job_set in names]


def named_indexes(events: EventsLike, queue: str | None, job_sets: Sequence[str]) -> Iterator[StreamIndex]:
    """The indexes of the streams of names and patterns; without any, of all streams of the queue; or of the pond.

    Raises: `NotFound` when there is no such stream.
    """
    if job_sets:
        assert queue is not None, "a job set is one of a queue"
        for stream in named_streams(events, queue, job_sets):
            index = events.index(*stream)
            if index is not None:
                yield index
            elif stream.job_set in job_sets:  # others have expired since they were listed
                raise no_such_stream(*stream)
        return
    none = True
    for index in events.indexes(queue):
        none = False
        yield index
    if none and queue is not None:
        raise no_such_stream(queue)


def no_such_stream(queue: str, job_set: str | None = None) -> NotFound:
    """The error for a stream, or a queue, that is not there."""
    named = {} if job_set is None else {"job_set": shown(job_set)}
    return NotFound(
        "there is no such stream", kind="stream_not_found", queue=shown(queue), **named,
        hint="see: millpond events list",
    )  # fmt: skip
