"""History: events that are older than the retention when they are appended, and go with the next maintenance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.events.age_settings import StoredAges
from millpond.events.days import DAY_MAX, day_of, latest_due_day

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.events.event import Appended, EventBatch
    from millpond.events.protocol import StreamStore

__all__ = ("with_history",)


def with_history(
    batch: EventBatch, done: Appended, store: StreamStore, now_ms: int, retention_ms: Callable[[], int]
) -> Appended:
    """The outcome of a batch, with the number of its new events whose days are due to be dropped.

    `retention_ms` is the pond's own, asked for where days may be due; a rule for the stream goes before it. A late
    event of a stream that has newer ones goes to a later day, and is not one of them.
    """
    oldest = day_of(min(batch.columns(done.repeated).times)) if done.count else DAY_MAX
    if oldest >= day_of(now_ms):
        return done  # its day has not ended
    rule = StoredAges(store).holding(*batch.stream).retention_ms
    after_ms = retention_ms() if rule is None else rule
    due = latest_due_day(now_ms, after_ms) if after_ms else -1
    if oldest > due:
        return done
    index = store.index(batch.stream)
    days = () if index is None else (day for day, _ in index.days() if day.day <= due)
    # The ids of a batch are consecutive, and so are those of a day within it.
    past = sum(max(min(day.last_id, done.last_id) - max(day.first_id, done.first_id) + 1, 0) for day in days)
    return replace(done, past_retention=past)
