"""Acts on one stream that are killed at their steps, in whatever store it is."""

from __future__ import annotations

from millpond.clock import ManualClock
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job
from millpond.events.event import EventBatch, NewEvent
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import NoteKind, StreamStore
from tests.harness.contracts.stream_site import NOON, RULES, TODAY, everything, index_of

__all__ = ("LATER", "STREAM", "compress", "delete", "delivered", "drop", "erase")

STREAM = StreamName("crash", "stream")
LATER = NOON + 4 * DAY_MS


def delivered(first: int, count: int, time_ms: int) -> EventBatch:
    """Messages of a source that grow with their position: some compressed days have several batches."""
    positions = range(first, first + count)
    events = [
        NewEvent(time_ms, b"%d" % position + bytes(position * 10_000), "", {} if position % 3 else {"job_id": "7"})
        for position in positions
    ]
    return EventBatch(STREAM, events, "kafka:jobs/0", positions)


def compress(store: StreamStore) -> None:
    compress_stream(store, STREAM, TODAY + 2)


def drop(store: StreamStore) -> None:
    store.expire(STREAM, TODAY + 1)


def delete(store: StreamStore) -> None:
    """Delete the stream; done again, it is ended by maintenance."""
    if index_of(store, STREAM).segments:
        store.delete(STREAM)
    maintain(store)


def erase(store: StreamStore) -> None:
    """Delete the events of a job, likewise."""
    if not store.notes.read(NoteKind.ERASURE) and any(event.headers for event in everything(store, STREAM)):
        delete_job(store, STREAM, "7")
    maintain(store)


def maintain(store: StreamStore) -> None:
    rules = MaintenanceRules(0, 0, 0)
    report = EventMaintenance(store, ManualClock(now=LATER), rules, RULES.forget_ms).expire()
    assert not report.failed, report.faults
