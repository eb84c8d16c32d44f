"""Streams against a model: any interleaving of appends, redeliveries, clock jumps, compressions, expiries, deletions
and reads gives every reader exactly the model's sequence.

    class TestMine(machine_of(open_site)): ...      # `open_site()`: an empty `StreamSite` with a `close`

The model knows one list of events for each stream, their days by the rule, and the days that were dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.errors import Fenced, NotFound, Unavailable
from millpond.events.compress import compress_stream, plan
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.index import DaySegment, State, forget_day
from millpond.events.names import StreamName
from millpond.events.protocol import Due, StreamStore, Work
from tests.harness.contracts.stream_site import RULES, TODAY, StreamSite, batches_of, events_up_to, everything

__all__ = ("ClosingSite", "StreamMachine", "machine_case")

STREAMS = (StreamName("q", "a"), StreamName("q", "b"))
SOURCES = ("kafka:0", "kafka:1")
_streams, _sources = st.sampled_from(STREAMS), st.sampled_from(SOURCES)
_days = st.integers(-3, 3)
_jobs = st.sampled_from(["1", "2"])
_sizes = st.sampled_from([0, 1, 30_000, 70_000])
_Act: TypeAlias = tuple[str, dict[str, Any]]
_MEANWHILE: Sequence[_Act | None] = (
    None, ("compress", {"ago": 0}), ("_compress_partly", {"ago": 0, "parts": 1, "act": None}), ("expire", {"ago": 0}),
    ("_delete_stream", {}), ("_delete_job", {"job": "1"}), ("append", {"days": [(0, "1"), (1, "2")], "size": 1}),
)  # fmt: skip
"""Acts in the midst of a switch; with none of them it ends there."""


class ClosingSite(StreamSite, Protocol):
    """A site that a machine opens, and closes at its end."""

    def close(self) -> None:
        """Close the stores, and remove the place."""


@dataclass
class _Known:
    """An event of the model: its id and its day."""

    number: int
    day: int
    time_ms: int
    payload: bytes
    job: str


@dataclass
class _ModelStream:
    """A stream as the rules say: all events ever, up to which of them the days were dropped, its last day."""

    events: list[_Known] = field(default_factory=list)
    last_id: int = 0
    last_day: int = -1
    last_closed: bool = False
    dropped_id: int = 0
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # and the day on which it came, or its own

    def left(self, after: int = 0) -> list[_Known]:
        """The events after an id whose days were not dropped."""
        return [event for event in self.events if event.number > max(after, self.dropped_id)]


@dataclass
class _Reader:
    """A reader in mid-stream: its place, and what it must have seen."""

    stream: StreamName
    after: int


@dataclass
class _Stale:
    """A compressor that was paused between reading and switching."""

    stream: StreamName
    seen: Sequence[DaySegment]
    events: list[Event]


class StreamMachine(RuleBasedStateMachine):
    """A store and its model. `open_site` opens the site."""

    open_site: Callable[[], ClosingSite]

    def __init__(self) -> None:
        super().__init__()
        self.site = type(self).open_site()
        self.stores = [self.site.open(), self.site.open()]
        self.model = {stream: _ModelStream() for stream in STREAMS}
        self.readers: list[_Reader] = []
        self.stale: list[_Stale] = []

    def teardown(self) -> None:
        self.site.close()

    def _other(self) -> StreamStore:
        """The stores take turns."""
        self.stores.reverse()
        return self.stores[0]

    def _note(self, stream: StreamName, new: Sequence[NewEvent], first_id: int, last_id: int) -> None:
        """Append to the model."""
        model, now_ms = self.model[stream], self.site.clock.now
        assert first_id > model.last_id and last_id - first_id + 1 == len(new), "ids grow, and are dense in a batch"
        day = model.last_day
        if model.last_closed:
            day = max(day + 1, now_ms // DAY_MS)
        for number, event in enumerate(new, first_id):
            day = max(day, max(min(event.time_ms, now_ms + RULES.ahead_ms), 0) // DAY_MS)
            model.events.append(_Known(number, day, event.time_ms, event.payload, event.headers.get("job_id", "")))
        model.last_id, model.last_day, model.last_closed = last_id, day, False

    # --- acts

    @rule(stream=_streams, days=st.lists(st.tuples(_days, _jobs), max_size=4), size=_sizes)
    def append(self, stream: StreamName, days: list[tuple[int, str]], size: int) -> None:
        new = [
            NewEvent(self.site.clock.now + day * DAY_MS, bytes(size) + bytes([day + 9]), "k", {"job_id": job})
            for day, job in days
        ]
        outcome = self._other().append([EventBatch(stream, new)])[0]
        assert (outcome.count, outcome.repeated) == (len(new), 0)
        if new:
            self._note(stream, new, outcome.first_id, outcome.last_id)

    @rule(stream=_streams, source=_sources, back=st.integers(0, 4), count=st.integers(1, 5))
    def deliver(self, stream: StreamName, source: str, back: int, count: int) -> None:
        """Deliver messages of a source, from some that were delivered before."""
        model = self.model[stream]
        stored = model.positions.get(source, (0, 0))[0]
        start = max(stored + 1 - back, 1)
        positions = range(start, start + count)
        new = [NewEvent(position * DAY_MS // 7, f"{source} {position}".encode()) for position in positions]
        outcome = self._other().append([EventBatch(stream, new, source, positions)])[0]
        fresh = [event for event, position in zip(new, positions, strict=True) if position > stored]
        assert (outcome.count, outcome.repeated) == (len(fresh), count - len(fresh))
        if fresh:
            self._note(stream, fresh, outcome.first_id, outcome.last_id)
            model.positions[source] = positions[-1], max(model.last_day, self.site.clock.now // DAY_MS)

    @rule(ms=st.sampled_from([1, 3_600_000, DAY_MS, 3 * DAY_MS, -1, -2 * DAY_MS]))
    def jump(self, ms: int) -> None:
        self.site.clock.now += ms

    @rule(stream=_streams, ago=st.integers(0, 3))
    def compress(self, stream: StreamName, ago: int) -> None:
        day = self.site.clock.now // DAY_MS - ago
        compress_stream(self._other(), stream, day)
        self._closed(stream, day)
        index = self.stores[0].index(stream)
        assert index is None or not plan(index, day), "nothing is left to do"

    @rule(stream=_streams, ago=st.integers(0, 3))
    def begin_compressing(self, stream: StreamName, ago: int) -> None:
        store, day = self._other(), self.site.clock.now // DAY_MS - ago
        store.close_day(stream, day)
        self._closed(stream, day)
        index = store.index(stream)
        for seen in () if index is None else plan(index, day):
            self.stale.append(_Stale(stream, seen, events_up_to(store, stream, seen)))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def end_compressing(self, data: st.DataObject) -> None:
        """Switch what was read some time ago: it is still there, or the switch is fenced."""
        stale = self.stale.pop(data.draw(st.integers(0, len(self.stale) - 1)))
        store = self._other()
        index = store.index(stale.stream)
        there = index is not None and set(stale.seen) <= set(index.segments)
        try:
            store.switch(stale.stream, stale.seen, lambda after: batches_of(_behind(stale.events, after)))
        except Fenced:
            assert not there
        else:
            assert there

    @rule(stream=_streams, ago=st.integers(0, 3), parts=st.integers(1, 3), act=st.sampled_from(_MEANWHILE))
    def _compress_partly(
        self, stream: StreamName, ago: int, parts: int, act: tuple[str, dict[str, Any]] | None
    ) -> None:
        """Switch the first days that are due in batches of two events; after some of them the compressor dies, or
        something else happens to the stream."""
        store, day = self._other(), self.site.clock.now // DAY_MS - ago
        store.close_day(stream, day)
        self._closed(stream, day)
        index = store.index(stream)
        for seen in [] if index is None else plan(index, day)[:1]:
            events, size = events_up_to(store, stream, seen), 2 if len(seen) == 1 else 1000

            def batches(after: int, events: list[Event] = events, size: int = size) -> Iterator[bytes]:
                for number, batch in enumerate(batches_of(_behind(events, after), size)):
                    if number == parts:
                        if act is None:
                            raise Unavailable("the compressor died")
                        getattr(self, act[0])(stream=stream, **act[1])
                    yield batch

            with suppress(Fenced, Unavailable):
                store.switch(stream, seen, batches)

    def _closed(self, stream: StreamName, day: int) -> None:
        model = self.model[stream]
        model.last_closed = model.last_closed or (-1 < model.last_day <= day)

    @rule(stream=_streams, ago=st.integers(0, 4))
    def expire(self, stream: StreamName, ago: int) -> None:
        model, day = self.model[stream], self.site.clock.now // DAY_MS - ago
        due = [event for event in model.left() if event.day <= day]
        assert self._other().expire(stream, day) == len(due)
        model.dropped_id = due[-1].number if due else model.dropped_id
        self._closed(stream, day)
        grace = min(day, (self.site.clock.now - RULES.forget_ms) // DAY_MS - 1)
        model.positions = {source: known for source, known in model.positions.items() if known[1] > grace}
        if model.last_id and not model.left() and self._forgotten(model):
            self.model[stream] = _ModelStream()

    @rule(stream=_streams)
    def _delete_stream(self, stream: StreamName) -> None:
        """Delete a stream: it has a new last id, no events, and the positions of its sources."""
        model, store = self.model[stream], self._other()
        left = model.left()
        assert store.delete(stream) == len(left)
        if not left:
            return
        index = store.index(stream)
        assert index is not None and index.dropped_id == index.last_id > model.last_id and not index.segments
        model.last_id = model.dropped_id = index.last_id
        model.last_day = max(min(model.last_day, self.site.clock.now // DAY_MS - 1), 0)
        model.last_closed = True

    @rule(stream=_streams, job=_jobs)
    def _delete_job(self, stream: StreamName, job: str) -> None:
        """Delete the events of a job: the days up to the last of them are compressed, and ids stay."""
        model, store = self.model[stream], self._other()
        gone = [known for known in model.left() if known.job == job]
        if not gone:
            with pytest.raises(NotFound):
                delete_job(store, stream, job)
            return
        assert delete_job(store, stream, job) == len(gone)
        model.events = [known for known in model.events if known.job != job]
        self._closed(stream, gone[-1].day)
        index = store.index(stream)
        assert index is not None and not plan(index, gone[-1].day)

    def _forgotten(self, model: _ModelStream) -> bool:
        """True when a stream without events was appended to so long ago that nothing of it is remembered."""
        last_day = max(model.last_day, (model.last_id >> 20) // DAY_MS)
        return (last_day + 1) * DAY_MS <= self.site.clock.now - RULES.forget_ms

    @rule(stream=_streams, data=st.data())
    def start_reader(self, stream: StreamName, data: st.DataObject) -> None:
        ids = [event.number for event in self.model[stream].events]
        self.readers.append(_Reader(stream, data.draw(st.sampled_from([0, *ids])) if ids else 0))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), bytes_max=st.sampled_from([1, 50_000, 1 << 22]))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        model = self.model[reader.stream]
        page = self._other().read(reader.stream, reader.after, bytes_max=bytes_max)
        expected = model.left(reader.after)
        assert [_seen(event) for event in page.events] == [_known(known) for known in expected[: len(page.events)]]
        assert bool(page.events) == bool(expected) and page.more == (len(page.events) < len(expected))
        assert page.gap == (0 < reader.after < model.dropped_id)
        assert page.after == (page.events[-1].number if page.events else max(model.last_id, reader.after))
        reader.after = page.after

    # --- what always holds

    @invariant()
    def streams_are_the_models(self) -> None:
        for stream, model in self.model.items():
            assert [_seen(event) for event in everything(self.stores[0], stream)] == [
                _known(known) for known in model.left()
            ]
            index = self.stores[1].index(stream)
            assert (index is None) == (not model.last_id)
            if index is None:
                continue
            counts: dict[int, int] = {}
            for known in model.left():
                counts[known.day] = counts.get(known.day, 0) + 1
            assert {day.day: day.count for day, _ in index.days()} == counts
            assert (index.last_id, index.last_day) == (model.last_id, model.last_day)
            opened = [day.day for day, state in index.days() if state is State.OPEN]
            assert opened == ([model.last_day] if not model.last_closed else [])

    @invariant()
    def the_registry_lists_what_is_due(self) -> None:
        compress: list[Due] = []
        expire: list[Due] = []
        forget: list[Due] = []
        for stream in STREAMS:
            index = self.stores[0].index(stream)
            days = [] if index is None else index.days()
            raw = [day.day for day, state in days if state in (State.OPEN, State.CLOSED)]
            compress += [Due(raw[0], stream)] if raw else []
            expire += [Due(days[0][0].day, stream)] if days else []
            forget += [Due(forget_day(index.last_id, index.last_day), stream)] if index is not None and not days else []
        for work, due in ((Work.COMPRESS, compress), (Work.EXPIRE, expire), (Work.FORGET, forget)):
            assert self.stores[1].due(work, TODAY + 10_000, limit=99) == sorted(due)


def _behind(events: Sequence[Event], after: int) -> list[Event]:
    return [event for event in events if event.number > after]


def _seen(event: Any) -> tuple[int, int, bytes]:
    return event.number, event.time_ms, event.payload


def _known(known: _Known) -> tuple[int, int, bytes]:
    return known.number, known.time_ms, known.payload


def machine_case(open_site: Callable[[], ClosingSite], **options: Any) -> Any:
    """The machine over sites, as a test case; `options` are those of Hypothesis."""
    machine = type("Machine", (StreamMachine,), {"open_site": staticmethod(open_site)})
    machine.TestCase.settings = settings(deadline=None, **options)  # type: ignore[attr-defined]
    return machine.TestCase  # type: ignore[attr-defined]
