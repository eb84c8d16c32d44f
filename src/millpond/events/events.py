"""The front door: the streams of a pond, as their user sees them. Ids are texts here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from millpond.argument_types import need_list, need_type
from millpond.clock import Clock
from millpond.events.age_settings import AgeSettings, StoredAges, ages_in
from millpond.events.appender import LINGER, Appender
from millpond.events.days import DAY_MS, day_of
from millpond.events.deletion import delete_job
from millpond.events.event import Appended, Event, EventBatch, NewEvent
from millpond.events.export import Exporting
from millpond.events.filters import Filters, filter_of
from millpond.events.index import StreamIndex
from millpond.events.keyspaces import CLOCK
from millpond.events.maintenance import EventMaintenance, MaintenanceReport, MaintenanceRules
from millpond.events.many_watch import ManyWatch, Streams, positions_of
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.events.protocol import Believing, StreamRules, StreamStore, Work
from millpond.events.selection import no_such_stream
from millpond.events.starts import start_position
from millpond.events.volumes import Volumes
from millpond.events.watchers import FETCH_BYTES, Watch, Watchers
from millpond.events.witness import ClockWitness, Doubt
from millpond.kernel.listed import Listed
from millpond.kernel.page import all_behind
from millpond.kernel.space import Space
from millpond.times.durations import parse_duration

__all__ = ("CountedAppends", "Events")

_PAGE_STREAMS = 1_000


class Events(Exporting):
    """The streams of a pond. `store` is their backend."""

    def __init__(
        self,
        store: StreamStore,
        clock: Clock,
        rules: StreamRules | None = None,
        *,
        space: Space | None = None,
        forget: Callable[[str, str | None], object] = lambda *_job: None,
    ) -> None:
        self.store = store
        self._clock = clock
        self.watchers = Watchers(store, clock)
        self.append_batches = CountedAppends(store, clock, lambda: MaintenanceRules().retention_ms)
        self.volumes = Volumes(self.append_batches)
        self._witness = None if space is None else ClockWitness(space, CLOCK.pack(), store.now_ms, clock)
        self._forget_ms = (rules or StreamRules()).forget_ms
        self.settings: AgeSettings = StoredAges(store)
        self._forget = forget

    def __repr__(self) -> str:
        return f"Events({type(self.store).__name__})"

    def doubt(self) -> Doubt | None:
        """Look at the clock of the streams; None when it is believed, or no space remembers it."""
        doubt = None if self._witness is None else self._witness.look()
        if self._witness is not None and doubt is None and isinstance(self.store, Believing):
            self.store.believe(self.store.now_ms())
        return doubt

    def append(
        self, queue: str, job_set: str, events: Iterable[NewEvent | bytes], *, source: str = "",
        positions: Sequence[int] = (),
    ) -> Appended:  # fmt: skip
        """Append events to the stream of a queue and a job set: all of them, or none. Bytes are a payload of now.

        With a `source` and the position of each event in it, what was stored before is left out. The outcome counts
        the events that are `past_retention`: a node drops them with its next maintenance.

        Raises:
            Invalid: a name, an event or a position is not acceptable.
            Uncertain: the events may be stored. With a source, append them again; they are stored once.
        """
        need_type("events", events, Iterable)
        now_ms = self._clock.now_ms()
        new = [NewEvent(now_ms, event) if isinstance(event, bytes) else event for event in events]
        batch = EventBatch(StreamName(queue, job_set), new, source, positions)
        return self.append_batches([batch])[0]

    def appender(self, linger: str | int = LINGER) -> Appender:
        """An appender of single events: those of so long a time are appended together. Close it after use.

        Raises:
            Invalid: the duration is not understood.
        """
        return Appender(self.append_batches, self._clock, parse_duration(linger))

    def read(self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None) -> Iterator[Event]:
        """The events after an id, up to the newest one when the last page is read.

        `after` may also be a time, such as `2026-11-24T10:00:00Z`: the events that were appended since; or `newest`.
        With `filters`, such as `{"kind": ["failed", "cancelled"], "job": "7", "header.team": "etl"}`, those that match.

        Raises:
            Invalid: `after` is none of them, or a filter is not understood.
            Corrupt: what is stored is damaged.
        """
        stream, matching = StreamName(queue, job_set).check(), filter_of(filters)
        position = self._position(stream, after)
        more = True
        while more:
            page = self.store.read(stream, position, bytes_max=FETCH_BYTES)
            yield from matching.select(page.events)
            position, more = page.after, page.more

    def watch(self, queue: str, job_set: str, after: str = "", *, filters: Filters | None = None) -> Watch:
        """The events after an id, and then those to come: `for event in watch`, or `async for`. Close it after use.

        Any number of watches of a stream share one reader. A watch goes on from the `after` of another; or it begins
        at a time, or at `newest`, as `read`. With `filters`, as `read`, its place moves on over what does not match.

        Raises:
            Invalid: `after` or a filter is not understood. Unavailable: there are too many watchers.
        """
        stream, matching = StreamName(queue, job_set).check(), filter_of(filters)
        return self.watchers.watch(stream, self._position(stream, after), matching)

    def _position(self, stream: StreamName, after: str) -> int:
        return start_position(after, lambda: self.store.index(stream))

    def watch_many(self, streams: Streams, *, filters: Filters | None = None) -> ManyWatch:
        """The events of several streams, as `watch`: `for stream, event in watch`. The filters are for all of them.

        A mapping gives the places at which to begin, as `watch` takes them; the `after` of a watch is one.

        Raises: as `watch`. `Invalid`: there is no stream, or more than 1,000.
        """
        matching = filter_of(filters)
        return ManyWatch(self.watchers, positions_of(streams, self._position), matching)

    def index(self, queue: str, job_set: str) -> StreamIndex | None:
        """The days of a stream, with their states; None when there is no such stream."""
        return self.store.index(StreamName(queue, job_set).check())

    def indexes(self, queue: str | None = None) -> Iterator[StreamIndex]:
        """The indexes of the streams of a queue, or of all.

        Raises: as `streams`.
        """
        for stream in self.streams(queue):
            index = self.store.index(stream)
            if index is not None:  # it is forgotten meanwhile
                yield index

    def compress(
        self, after: str | int = "2d", *, bytes_per_second: int = 0, stopping: threading.Event | None = None
    ) -> MaintenanceReport:
        """Compress the days that ended so long ago: a duration, or milliseconds. Ids and events stay as they are.

        Job sets with a rule in `settings` are compressed at its age instead; with an `after` of 0, only these.

        Raises:
            Invalid: the duration is not understood. `Unavailable`: the store cannot be written to.
        """
        rules = MaintenanceRules(compress_after_ms=parse_duration(after), bytes_per_second=bytes_per_second)
        return self._maintenance(rules).compress(stopping)

    def expire(self, after: str | int = "14d", *, stopping: threading.Event | None = None) -> MaintenanceReport:
        """Drop the days that ended so long ago, whole, with their index entries.

        Raises: as `compress`.
        """
        return self._maintenance(MaintenanceRules(retention_ms=parse_duration(after))).expire(stopping)

    def _maintenance(self, rules: MaintenanceRules) -> EventMaintenance:
        return EventMaintenance(self.store, self._clock, rules, self._forget_ms, doubt=self.doubt())

    def delete(self, queue: str, job_set: str, *, job: str | None = None) -> int:
        """Delete the events of a job set, or those of one job of it; how many.

        Every reader finds all of a day, or none. The stream goes on with greater ids, watchers of a job set get a gap,
        and sources do not store anew what was stored once. To delete a job compresses the days that have its events.
        When it is interrupted, maintenance ends it.

        Raises:
            NotFound: there is no such stream, or it has no event of the job.
            Unavailable, Uncertain: the store is out of reach, or its answer was lost.
        """
        stream = StreamName(queue, job_set).check()
        if self.store.index(stream) is None:
            raise no_such_stream(queue, job_set)
        count = self.store.delete(stream) if job is None else delete_job(self.store, stream, job)
        if queue == OWN_QUEUE:
            self._forget(job_set, job)
        return count

    def close(self) -> None:
        """End all watches, and let go of the backend."""
        self.watchers.close()
        self.store.close()

    def streams(self, queue: str | None = None) -> Iterator[StreamName]:
        """The streams of a queue, or all.

        Raises:
            Invalid: the name of the queue is not understood.
        """
        if queue is not None:
            StreamName(queue, "").check()
        streams = all_behind(lambda after: self.store.streams(queue, after, limit=_PAGE_STREAMS))
        return Listed("streams of events" if queue is None else f"streams of {queue}", streams)


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
        need_list("batches", batches, EventBatch)
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
