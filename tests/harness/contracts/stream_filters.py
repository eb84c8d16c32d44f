"""The contract of filters: every reader gives what a look at each event would pick, and its place moves on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.events import watchers
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.events import Events
from millpond.events.ids import format_id
from millpond.events.names import StreamName
from tests.harness.contracts.stream_site import NOON, TODAY, StreamSite, compress, everything, index_of
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond.events.interface import EventsLike
    from millpond.events.protocol import StreamStore

__all__ = ("APPENDS", "EXAMPLES", "FILTERS", "FilterContract", "Filters", "check_readers", "picked")

EXAMPLES = examples(12, 40)
TEXTS = ("", "a", "A", "b", "a&b=c", "é ")
HEADERS = ("job_id", "team", "", "a.b&", "Team")

Filters = dict[str, list[str]]

_EVENTS = st.builds(
    NewEvent, st.just(NOON), st.sampled_from((b"", b"x" * 3_000)), st.sampled_from(TEXTS),
    st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(TEXTS), max_size=3),
)  # fmt: skip
APPENDS = st.lists(st.lists(_EVENTS, min_size=1, max_size=6), max_size=6)
FILTERS: st.SearchStrategy[Filters] = st.dictionaries(
    st.sampled_from(["kind", "job", *(f"header.{name}" for name in HEADERS)]),
    st.lists(st.sampled_from([*TEXTS, "none"]), min_size=1, max_size=3), max_size=3,
)  # fmt: skip
_numbers = itertools.count()


def picked(events: list[Event], filters: Filters) -> list[Event]:
    """The model: a look at each event."""

    def value(event: Event, name: str) -> str | None:
        return event.kind if name == "kind" else event.headers.get("job_id" if name == "job" else name[7:])

    return [event for event in events if all(value(event, name) in values for name, values in filters.items())]


def check_readers(events: EventsLike, stream: StreamName, there: list[Event], filters: Filters, start: int) -> None:
    """Compare all readers of a stream that holds `there` with the model, from behind the event at `start` on."""
    after = there[start - 1].id if start else ""
    wanted = picked(there[start:], filters)
    assert list(events.read(*stream, after, filters=filters)) == wanted
    with events.watch(*stream, after, filters=filters) as watch:
        found: list[Event] = []
        while not watch.caught_up:
            found += watch.next_batch(None)
        assert found == wanted and watch.after == (there[-1].id if there else format_id(0))
    with events.watch_many({stream: after}, filters=filters) as many:
        found = []
        while not many.caught_up:
            found += [one.event for one in many.next_batch(None)]
        assert found == wanted and many.after[stream] == watch.after
    assert list(_resumed(events, stream, after, filters)) == wanted


def _resumed(events: EventsLike, stream: StreamName, after: str, filters: Filters) -> Iterator[Event]:
    """The events of watches, each of which goes on where the one before it was left after a batch."""
    caught_up = False
    while not caught_up:
        with events.watch(*stream, after, filters=filters) as watch:
            yield from watch.next_batch(0.0)
            after, caught_up = watch.after, watch.caught_up


class FilterContract:
    """Readers with filters."""

    @pytest.mark.usefixtures("processor")
    @settings(max_examples=EXAMPLES, suppress_health_check=[*HealthCheck], deadline=None)
    @given(
        appends=APPENDS, filters=FILTERS, start=st.integers(0, 40), compressed=st.booleans(),
        fetch=st.sampled_from([1, 9_000, 1 << 19]), held=st.sampled_from([1, 4_000, 1 << 28]),
    )  # fmt: skip
    def test_every_reader_gives_what_the_model_picks(
        self, site: StreamSite, store: StreamStore, appends: list[list[NewEvent]], filters: Filters, start: int,
        compressed: bool, fetch: int, held: int,
    ) -> None:  # fmt: skip
        stream = StreamName("filtered", f"{next(_numbers)}")
        for some in appends:
            store.append([EventBatch(stream, some)])
        if compressed and appends:
            store.close_day(stream, TODAY)
            compress(store, stream, index_of(store, stream).segments, events_max=4)
        there = everything(store, stream)
        events = Events(store, site.clock)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watchers, "FETCH_BYTES", fetch)
            patch.setattr(watchers, "HELD_BYTES", held)
            try:
                check_readers(events, stream, there, filters, min(start, len(there)))
            finally:
                events.watchers.close()

    def test_a_follower_with_a_filter_gets_what_comes_and_its_place_moves_on(
        self, site: StreamSite, store: StreamStore
    ) -> None:
        stream = StreamName("filtered", "live")
        events = Events(store, site.clock)
        try:
            with events.watch(*stream, filters={"kind": "failed"}) as watch:
                assert watch.next_batch(None) == [] and watch.caught_up
                for kinds in (["running"] * 5, ["running", "failed"], ["running"]):
                    done = store.append([EventBatch(stream, [NewEvent(NOON, b"", kind) for kind in kinds])])[0]
                    if "failed" in kinds:
                        assert [event.number for event in watch.next_batch(None)] == [done.last_id]
                while watch.number < done.last_id:
                    assert watch.next_batch(site.clock.monotonic()) == []
        finally:
            events.watchers.close()
