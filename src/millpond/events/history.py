"""History: events that are older than the retention when they are appended, and go with the next maintenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from millpond.clock import Clock
from millpond.events.age_settings import ages_in
from millpond.events.days import DAY_MS, day_of
from millpond.events.event import Appended, EventBatch
from millpond.events.maintenance import MaintenanceRules
from millpond.events.protocol import StreamStore, Work

__all__ = ("CountedAppends",)


class CountedAppends:
    """The appends to a store, with the number of new events whose days are due to be dropped.

    `retention_ms` is the pond's own, asked for where days may be due; a rule for the stream goes before it. A late
    event of a stream that has newer ones goes to a later day, and is not one of them.
    """

    def __init__(self, store: StreamStore, clock: Clock, retention_ms: Callable[[], int]) -> None:
        self._store, self._clock = store, clock
        self.retention_ms = retention_ms

    def __call__(self, batches: Sequence[EventBatch]) -> list[Appended]:
        """As `StreamStore.append`."""
        outcomes = self._store.append(batches)
        now_ms = self._clock.now_ms()
        today_ms = day_of(now_ms) * DAY_MS
        old = [  # the days of the others have not ended
            number for number, (batch, done) in enumerate(zip(batches, outcomes, strict=True))
            if done.count and _oldest_ms(batch, done) < today_ms
        ]  # fmt: skip
        if old:
            ages = ages_in(self._store, MaintenanceRules(retention_ms=self.retention_ms()))
            for number in old:
                batch, done = batches[number], outcomes[number]
                due = ages.latest_day(Work.EXPIRE, batch.stream, now_ms)
                if day_of(_oldest_ms(batch, done)) <= due:
                    outcomes[number] = replace(done, past_retention=_events_of_days(self._store, batch, done, due))
        return outcomes


def _oldest_ms(batch: EventBatch, done: Appended) -> int:
    return batch.events[0][0] if len(batch.events) == 1 else min(batch.columns(done.repeated).times)


def _events_of_days(store: StreamStore, batch: EventBatch, done: Appended, due: int) -> int:
    """The new events that are in days up to the one that is due."""
    index = store.index(batch.stream)
    days = () if index is None else (day for day, _ in index.days() if day.day <= due)
    # The ids of a batch are consecutive, and so are those of a day within it.
    return sum(max(min(day.last_id, done.last_id) - max(day.first_id, done.first_id) + 1, 0) for day in days)
