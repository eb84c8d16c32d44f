"""Unclaimed external events of a run, oldest first: a node finds its event without a look at those that were claimed.

Invariants:

* An event has a row here, under its definition and its instant, exactly while it is there and unclaimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from littlehorse.model import ExternalEvent, ExternalEventId

from millpond.workflows.engine.keys import Key, key_of
from millpond.workflows.engine.work import Work

__all__ = ("claim", "drop", "note", "oldest")

_AT_FIRST = 16


def note(work: Work, event: ExternalEvent) -> None:
    """Write a new event."""
    work.rows.put(key_of(event.id), event)
    work.rows.put(_row_key(event), event.id)


def claim(work: Work, event: ExternalEvent) -> None:
    """Mark an event as taken, and write it."""
    event.claimed = True
    work.rows.put(key_of(event.id), event)
    work.rows.delete(ExternalEventId, _row_key(event))


def drop(work: Work, event: ExternalEvent) -> None:
    """Delete an event."""
    work.rows.delete(ExternalEvent, key_of(event.id))
    work.rows.delete(ExternalEventId, _row_key(event))


def oldest(work: Work, path: str, name: str, thread: int, position: int) -> ExternalEvent | None:
    """The oldest unclaimed event of a definition that is for a node of a run, or for any."""
    for event in _events(work, path, name):
        for_thread = not event.HasField("thread_run_number") or event.thread_run_number == thread
        if for_thread and (not event.HasField("node_run_position") or event.node_run_position == position):
            return event
    return None


def _events(work: Work, path: str, name: str) -> Iterator[ExternalEvent]:
    """The unclaimed events of a definition. Most often one of the first is taken, so few are read at first."""
    seen = 0
    for limit in (_AT_FIRST, None):
        events = work.rows.list(ExternalEventId, (path, name), limit=limit)
        for event_id in events[seen:]:
            event = work.rows.get(ExternalEvent, key_of(event_id))
            if event is not None and not event.claimed:
                yield event
        seen = len(events)
        if limit is None or seen < limit:
            return


def _row_key(event: ExternalEvent) -> Key:
    path, name, guid = key_of(event.id)
    return (path, name, event.created_at.ToMilliseconds(), guid)
