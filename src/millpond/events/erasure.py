"""Days without the events of a job: pure, the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millpond.events.codec import size_of
from millpond.events.event import Event
from millpond.events.filters import JOB_HEADER
from millpond.events.index import Day, DaySegment

__all__ = ("Remains", "is_erased")


def is_erased(event: Event, job_id: str, last_id: int) -> bool:
    """True for an event of the job up to that id."""
    return event.number <= last_id and event.headers.get(JOB_HEADER) == job_id


@dataclass(slots=True)
class Remains:
    """The days of a segment without the events of a job up to an id; events are given in their order.

    `erased`: the events of the job so far.
    """

    segment: DaySegment
    job_id: str
    last_id: int
    erased: int = 0
    erased_bytes: int = 0
    seen: int = 0
    _days: dict[int, list[int]] = field(default_factory=dict)  # first id, last id, count, bytes
    _position: int = 0

    def rest(self, events: Sequence[Event]) -> list[Event]:
        """Those of the next events that stay."""
        stay = [event for event in events if not is_erased(event, self.job_id, self.last_id)]
        if len(stay) < len(events):
            self.erased_bytes += sum(map(size_of, events)) - sum(map(size_of, stay))
        self.seen += len(events)
        self.erased += len(events) - len(stay)
        days = self.segment.days
        for event in stay:
            while self._position < len(days) - 1 and event.number > days[self._position].last_id:
                self._position += 1
            row = self._days.setdefault(days[self._position].day, [event.number, 0, 0, 0])
            row[1:] = event.number, row[2] + 1, row[3] + size_of(event)
        return stay

    def days_before(self, first_id: int) -> tuple[Day, ...]:
        """The day of a segment of one, while events from an id on are as they were; those before it were given."""
        (day,) = self.segment.days
        first_id = self._days.get(day.day, [first_id])[0]
        return (Day(day.day, first_id, day.last_id, day.count - self.erased, day.bytes - self.erased_bytes),)

    @property
    def days(self) -> tuple[Day, ...]:
        """The days that still have events, as they are now."""
        assert self.seen == self.segment.count, "every event of the segment was given"
        return tuple(Day(day, *row) for day, row in self._days.items())
