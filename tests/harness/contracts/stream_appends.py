"""The contract of streams: what is appended is read, once, in order, from every place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millpond.errors import Corrupt, Invalid
from millpond.events.days import DAY_MS
from millpond.events.event import Appended, EventBatch, NewEvent
from millpond.events.names import JOB_SET_CHARS_MAX, QUEUE_CHARS_MAX, StreamName
from millpond.events.protocol import StreamStore
from tests.harness.contracts.stream_site import (
    NOON,
    STREAM,
    TODAY,
    StreamSite,
    append,
    compress,
    delivered,
    events_of,
    everything,
    index_of,
    payloads_of,
)

__all__ = ("AppendContract",)

ODD: Any = [b"etl", ["nightly"]]
"""Values of other types than are asked for."""


class AppendContract:
    """Appends, pages, source positions."""

    # --- append and read

    def test_events_are_read_as_they_were_appended(self, store: StreamStore) -> None:
        new = [
            NewEvent(NOON, b"", "submitted"), NewEvent(NOON - 1, b"\x00\xff" * 50, "", {"job_id": "7", "é": "日"}),
            NewEvent(-5, b"x" * 70_000, "running"), NewEvent(1 << 50, b"y", "running"),
        ]  # fmt: skip
        appended = store.append([EventBatch(STREAM, new)])[0]
        events = everything(store)
        assert [(e.time_ms, e.payload, e.kind, dict(e.headers)) for e in events] == [
            (e.time_ms, e.payload, e.kind, dict(e.headers)) for e in new
        ]
        assert (appended.count, appended.repeated) == (4, 0)
        assert (appended.first_id, appended.last_id) == (events[0].number, events[-1].number)

    def test_ids_grow_whatever_the_clock_does(self, site: StreamSite, store: StreamStore) -> None:
        for move in (0, 5, -DAY_MS, 10 * DAY_MS, 0):
            site.clock.now += move
            append(store, "a", "b", "c")
        ids = [event.number for event in everything(store)]
        assert ids == sorted(set(ids)) and len(ids) == 15 and ids[0] > 0
        texts = [event.id for event in everything(store)]
        assert texts == sorted(texts)

    def test_reading_goes_on_after_every_id(self, store: StreamStore) -> None:
        for payloads in ("abc", "d", "efgh"):
            append(store, *payloads)
        events = everything(store)
        for place, event in enumerate(events):
            assert everything(store, after=event.number) == events[place + 1 :]

    def test_a_stream_that_is_not_there_is_empty(self, store: StreamStore) -> None:
        page = store.read(STREAM, 7)
        assert (page.events, page.after, page.more, page.gap) == ([], 7, False, False)
        assert store.index(STREAM) is None
        append(store, "a")
        assert store.index(STREAM) is not None

    def test_a_place_behind_the_end_is_a_gap_and_goes_back(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "long ago")
        site.clock.now += 600_000
        last = append(store, "a", "b").last_id
        page = store.read(STREAM, last + 1)
        assert [event.payload for event in page.events] == [b"a", b"b"]
        assert (page.after, page.more, page.gap) == (last, False, True)
        assert store.follow({STREAM: last + 1}, None) == {STREAM}
        far = store.read(STREAM, last + (600_000 << 20))
        assert (far.events, far.after, far.gap) == ([], last, True)

    def test_an_empty_batch_is_nothing(self, store: StreamStore) -> None:
        assert store.append([EventBatch(STREAM, [])]) == [Appended(0, 0, 0, 0)]
        assert store.append([]) == []
        assert store.index(STREAM) is None and store.streams(limit=9) == []

    def test_a_page_is_bounded_by_bytes_and_reads_on(self, store: StreamStore) -> None:
        for letter in "abcdef":
            append(store, letter * 50_000)
        page = store.read(STREAM, bytes_max=120_000)
        assert [event.payload[:1] for event in page.events] == [b"a", b"b"] and page.more
        assert "".join(text[0] for text in payloads_of(store)) == "abcdef"

    def test_several_streams_are_appended_at_once(self, store: StreamStore) -> None:
        other = StreamName("etl", "hourly")
        batches = [
            EventBatch(STREAM, events_of("a")),
            EventBatch(other, events_of("b")),
            EventBatch(STREAM, events_of("c")),
        ]
        assert [outcome.count for outcome in store.append(batches)] == [1, 1, 1]
        assert (payloads_of(store), payloads_of(store, other)) == (["a", "c"], ["b"])

    def test_a_batch_that_expects_an_id_is_stored_only_behind_it(self, store: StreamStore) -> None:
        def expecting(expected_id: int, *payloads: str) -> EventBatch:
            return EventBatch(STREAM, events_of(*payloads), expected_id=expected_id)

        assert store.append([expecting(7, "early")]) == [Appended(0, 0, 0, 0)]
        assert store.index(STREAM) is None, "a batch that is fenced makes no stream"
        (first,) = store.append([expecting(0, "a", "b")])
        assert store.append([expecting(0, "c")]) == [Appended(0, 0, 0, first.last_id)]
        second = append(store, "d")
        outcomes = store.append(
            [expecting(first.last_id, "e"), expecting(second.last_id, "f"), EventBatch(STREAM, events_of("g"))]
        )
        assert [done.count for done in outcomes] == [0, 1, 1] and outcomes[0].last_id == second.last_id
        assert payloads_of(store) == ["a", "b", "d", "f", "g"]
        with pytest.raises(Invalid):
            store.append([replace(delivered("h"), expected_id=outcomes[2].last_id)])

    def test_other_stores_read_what_one_appended(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "a")
        assert payloads_of(site.open()) == ["a"]

    @pytest.mark.parametrize(
        "batch",
        [
            EventBatch(StreamName("q" * (QUEUE_CHARS_MAX + 1), ""), events_of("a")),
            EventBatch(StreamName("", "j" * (JOB_SET_CHARS_MAX + 1)), events_of("a")),
            EventBatch(StreamName("", "\ud800"), events_of("a")),
            EventBatch(STREAM, [NewEvent(NOON, b"", "k" * 256)]),
            EventBatch(STREAM, [NewEvent(1 << 60, b"")]),
            EventBatch(STREAM, events_of("a"), "kafka", ()),
            EventBatch(STREAM, events_of("a"), "", (1,)),
            EventBatch(STREAM, events_of("a", "b"), "kafka", (2, 1)),
            EventBatch(STREAM, events_of("a"), "kafka", (-1,)),
            EventBatch(StreamName(*ODD), events_of("a")),
            EventBatch(STREAM, [*events_of("a"), *ODD]),
            EventBatch(STREAM, ODD),
            EventBatch(STREAM, [NewEvent(NOON, b"", kind) for kind in ODD]),
            EventBatch(STREAM, [NewEvent(NOON, b"", "", headers) for headers in ODD]),
            EventBatch(STREAM, events_of("a"), ODD[0], (1,)),
        ],
        ids=[
            "queue", "job set", "surrogate", "kind", "time", "no position", "no source", "falling", "negative",
            "bytes as a queue", "a text among events", "bytes", "kinds", "headers", "source",
        ],
    )  # fmt: skip
    def test_what_is_not_acceptable_is_refused_whole(self, store: StreamStore, batch: EventBatch) -> None:
        with pytest.raises(Invalid):
            store.append([EventBatch(STREAM, events_of("good")), batch])
        assert store.index(STREAM) is None

    def test_damaged_events_are_found(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "a" * 100)
        site.damage(STREAM)
        with pytest.raises((Corrupt, Invalid)):
            everything(store)

    # --- sources

    def test_what_is_delivered_again_changes_nothing(self, store: StreamStore) -> None:
        store.append([delivered("abc"), delivered("def", first=4)])
        before = everything(store)
        for start in range(1, 7):
            outcome = store.append([delivered("abcdef"[start - 1 :], first=start)])[0]
            assert (outcome.count, outcome.repeated, outcome.last_id) == (0, 7 - start, before[-1].number)
        assert everything(store) == before

    def test_a_suffix_that_goes_further_adds_what_is_new(self, store: StreamStore) -> None:
        store.append([delivered("abc")])
        outcome = store.append([delivered("bcde", first=2)])[0]
        assert (outcome.count, outcome.repeated) == (2, 2)
        assert payloads_of(store) == list("abcde")

    def test_sources_and_streams_have_positions_of_their_own(self, store: StreamStore) -> None:
        store.append([delivered("ab"), delivered("cd", source="kafka:jobs/1")])
        other = EventBatch(StreamName("etl", "x"), events_of("e"), "kafka:jobs/0", (1,))
        assert store.append([other, other])[0].count == 1
        assert payloads_of(store) == list("abcd") and payloads_of(store, StreamName("etl", "x")) == ["e"]

    def test_events_of_one_message_share_a_position(self, store: StreamStore) -> None:
        batch = EventBatch(STREAM, events_of("a", "b", "c"), "pulsar", (5, 5, (1 << 128) - 1))
        assert [outcome.count for outcome in store.append([batch, batch])] == [3, 0]

    def test_positions_outlive_compression_and_expiry(self, site: StreamSite, store: StreamStore) -> None:
        store.append([delivered("abc")])
        site.clock.now += 3 * DAY_MS
        store.close_day(STREAM, TODAY)
        index = index_of(store)
        compress(store, STREAM, index.segments)
        assert store.append([delivered("abc")])[0].count == 0
        store.expire(STREAM, TODAY)
        assert store.append([delivered("abc")])[0].count == 0
        assert payloads_of(store) == []
