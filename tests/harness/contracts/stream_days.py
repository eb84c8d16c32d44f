"""The contract of streams: days, and how they are switched and dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from millpond.errors import Fenced, Invalid, Unavailable
from millpond.events.codec import encode
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.index import State
from millpond.events.names import StreamName
from millpond.events.protocol import Due, StreamStore, Work
from tests.harness.contracts.stream_site import (
    NOON,
    RULES,
    STREAM,
    TODAY,
    StreamSite,
    append,
    batches_of,
    compress,
    days,
    delivered,
    everything,
    index_of,
    payloads_of,
)

__all__ = ("DayContract",)


class DayContract:
    """Days, switches, expiry."""

    # --- days

    def test_days_follow_the_times_of_events_and_never_go_back(self, store: StreamStore) -> None:
        times = [NOON - 2 * DAY_MS, NOON - DAY_MS, NOON - 2 * DAY_MS, NOON, NOON - DAY_MS]
        store.append([EventBatch(STREAM, [NewEvent(time_ms, b"") for time_ms in times])])
        assert days(store) == [(-2, "closed", 1), (-1, "closed", 2), (0, "open", 2)]
        assert [event.time_ms for event in everything(store)] == times

    def test_a_producer_far_ahead_takes_the_stream_no_further_than_the_allowance(self, store: StreamStore) -> None:
        append(store, "a", time_ms=NOON + 400 * DAY_MS)
        append(store, "b")
        assert days(store) == [(0, "open", 2)]
        assert everything(store)[0].time_ms == NOON + 400 * DAY_MS

    def test_events_just_after_midnight_of_a_fast_clock_begin_the_next_day(
        self, site: StreamSite, store: StreamStore
    ) -> None:
        midnight = (TODAY + 1) * DAY_MS
        site.clock.now = midnight - RULES.ahead_ms
        append(store, "a", time_ms=midnight)
        assert days(store) == [(1, "open", 1)]

    def test_late_events_go_to_the_open_day(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "a")
        site.clock.now += 3 * DAY_MS
        assert store.close_day(STREAM, TODAY) and not store.close_day(STREAM, TODAY)
        append(store, "late")
        assert days(store) == [(0, "closed", 1), (3, "open", 1)]
        assert payloads_of(store) == ["a", "late"]

    def test_late_events_never_recreate_a_day_though_the_clock_went_back(
        self, site: StreamSite, store: StreamStore
    ) -> None:
        append(store, "a")
        store.close_day(STREAM, TODAY)
        index = index_of(store)
        compress(store, STREAM, index.segments)
        site.clock.now -= 5 * DAY_MS
        append(store, "late", time_ms=NOON - 5 * DAY_MS)
        assert days(store) == [(0, "compressed", 1), (1, "open", 1)]

    def test_a_later_day_is_not_closed(self, store: StreamStore) -> None:
        append(store, "a")
        assert not store.close_day(STREAM, TODAY - 1)
        assert not store.close_day(StreamName("no", "stream"), TODAY)
        assert days(store) == [(0, "open", 1)]

    # --- switch

    @pytest.mark.usefixtures("processor")
    def test_events_and_ids_are_the_same_after_compression(self, store: StreamStore) -> None:
        for number in range(20):
            store.append([EventBatch(STREAM, [NewEvent(NOON, b"p%d" % number, "k", {"n": str(number)})] * 7)])
        store.close_day(STREAM, TODAY)
        before, index = everything(store), index_of(store)
        output = compress(store, STREAM, index.segments, events_max=9)
        assert (output.count, output.state) == (140, State.COMPRESSED)
        assert everything(store) == before
        for place in range(0, 140, 13):
            assert everything(store, after=before[place].number) == before[place + 1 :]

    def test_a_reader_in_mid_stream_loses_nothing_and_sees_nothing_twice(self, store: StreamStore) -> None:
        for letter in "abcdefgh":
            append(store, letter)
        store.close_day(STREAM, TODAY)
        before, index = everything(store), index_of(store)
        page = store.read(STREAM, bytes_max=1)
        compress(store, STREAM, index.segments, events_max=3)
        assert page.events + everything(store, after=page.after) == before

    def test_neighbours_are_folded_into_one_segment(self, site: StreamSite, store: StreamStore) -> None:
        for day in range(4):
            append(store, str(day), time_ms=NOON + day * DAY_MS)
            site.clock.now += DAY_MS
        index = index_of(store)
        before = everything(store)
        compress(store, STREAM, index.segments[:1])
        folded = index_of(store)
        compress(store, STREAM, folded.segments[:3])
        folded = index_of(store)
        assert [len(segment.days) for segment in folded.segments] == [3, 1]
        assert days(store) == [(0, "compressed", 1), (1, "compressed", 1), (2, "compressed", 1), (3, "open", 1)]
        assert everything(store) == before

    def test_a_switch_is_fenced(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "a", "b")
        site.clock.now += DAY_MS
        append(store, "c", time_ms=NOON + DAY_MS)
        store.close_day(STREAM, TODAY + 1)
        index = index_of(store)
        before = everything(store)
        first, second = index.segments[:1], index.segments[1:]
        output = compress(store, STREAM, first)
        for seen in (first, index.segments):
            with pytest.raises(Fenced):
                compress(store, STREAM, seen)
        compress(site.open(), STREAM, [output, *second])
        with pytest.raises(Fenced):
            compress(store, STREAM, [output])
        assert everything(store) == before

    def test_a_switch_to_other_events_is_refused(self, store: StreamStore) -> None:
        append(store, "a")
        append(store, "b", "c", "d")
        store.close_day(STREAM, TODAY)
        events = everything(store)
        for wrong in ([], events[1:], events[2:3], events[:3:2], events[::3], events[:3], events[:2], events[2:]):
            with pytest.raises(Invalid):
                store.switch(STREAM, index_of(store).segments, partial(_batches_after, wrong))
            assert everything(store) == events
        with pytest.raises(Invalid):
            store.switch(STREAM, [], lambda _: [encode(events)])

    def test_an_open_day_is_not_switched(self, store: StreamStore) -> None:
        append(store, "a")
        index = index_of(store)
        with pytest.raises(Invalid):
            compress(store, STREAM, index.segments)

    def test_a_switch_that_ends_half_way_leaves_a_readable_stream(self, store: StreamStore) -> None:
        for payloads in ("a", "b", "cdef", "g", "hi"):
            append(store, *payloads)
        store.close_day(STREAM, TODAY)
        before, index = everything(store), index_of(store)

        def half(after: int) -> Iterator[bytes]:
            left = [event for event in before if event.number > after]
            yield from batches_of(left[:2])
            yield from batches_of(left[2:3])
            raise Unavailable("the compressor was stopped")

        for _ in range(2):
            with pytest.raises(Unavailable):
                store.switch(STREAM, index_of(store).segments, half)
            for bytes_max in (1, 1 << 20):
                for place, event in enumerate(before):
                    assert everything(store, after=event.number, bytes_max=bytes_max) == before[place + 1 :]
                assert everything(store, bytes_max=bytes_max) == before
            assert index_of(store).days() == index.days()
            assert store.due(Work.COMPRESS, TODAY, limit=9) == [Due(TODAY, STREAM)]
        output = compress(store, STREAM, index_of(store).segments, events_max=2)
        assert everything(store) == before and days(store) == [(0, "compressed", 9)]
        assert index_of(store).segments == (output,)

    @pytest.mark.parametrize("act", ["expire", "delete", "pull_back", "erase", "fold"])
    def test_a_day_that_is_partly_compressed_is_treated_as_others(
        self, site: StreamSite, store: StreamStore, act: str
    ) -> None:
        site.clock.now += 400 * DAY_MS
        events = [NewEvent(site.clock.now, b"%d" % number, "", {"job_id": str(number % 2)}) for number in range(9)]
        store.append([EventBatch(STREAM, events)])
        store.close_day(STREAM, TODAY + 400)
        append(store, "next", time_ms=site.clock.now)
        before, seen = everything(store), index_of(store).segments[:1]

        def half(_: int) -> Iterator[bytes]:
            yield from batches_of(before[:4])
            raise Unavailable("the compressor was stopped")

        with pytest.raises(Unavailable):
            store.switch(STREAM, seen, half)
        if act == "expire":
            assert store.expire(STREAM, TODAY + 400) == 9
        elif act == "delete":
            assert store.delete(STREAM) == 10
        elif act == "pull_back":
            site.clock.now = NOON
            assert store.pull_back(STREAM, TODAY + 1)
            assert [day.day - TODAY for day, _ in index_of(store).days()] == [0, 1]
        elif act == "erase":
            assert delete_job(store, STREAM, "1") == 4
        else:
            store.close_day(STREAM, TODAY + 401)
            compress(store, STREAM, index_of(store).segments)
            assert len(index_of(store).segments) == 1
        left = {"expire": before[9:], "delete": [], "erase": [*before[:8:2], *before[8:]]}.get(act, before)
        assert everything(store) == left
        compress_stream(store, STREAM, TODAY + 401)
        assert everything(store) == left
        assert {state for _, state, _ in days(store)} <= {"compressed"}

    def test_a_day_is_compressed_before_an_older_one(self, site: StreamSite, store: StreamStore) -> None:
        for letter in "abcdef":
            append(store, letter, time_ms=site.clock.now)
            site.clock.now += DAY_MS // 3
        store.close_day(STREAM, TODAY + 9)
        before = everything(store)
        for place in (1, 2, 0):
            compress(store, STREAM, [index_of(store).segments[place]], events_max=1)
            assert everything(store) == before
        assert {state for _, state, _ in days(store)} == {"compressed"}

    # --- expiry

    def test_expired_days_leave_the_index_and_the_readers(self, site: StreamSite, store: StreamStore) -> None:
        for day in range(3):
            append(store, str(day), time_ms=NOON + day * DAY_MS)
            site.clock.now += DAY_MS
        events = everything(store)
        assert store.expire(STREAM, TODAY) == 1
        assert days(store) == [(1, "closed", 1), (2, "open", 1)] and everything(store) == events[1:]
        assert store.expire(STREAM, TODAY) == 0
        assert store.expire(STREAM, TODAY + 9) == 2 and everything(store) == []

    def test_positions_go_a_grace_after_their_last_day(self, site: StreamSite, store: StreamStore) -> None:
        def deliver(source: str) -> int:
            event = NewEvent(site.clock.now, source.encode())
            return store.append([EventBatch(STREAM, [event], source, [1])])[0].count

        grace = RULES.forget_ms // DAY_MS
        assert deliver("old") == 1
        for _ in range(grace):
            append(store, "endless", time_ms=site.clock.now)
            site.clock.now += DAY_MS
        assert deliver("new") == 1
        store.expire(STREAM, TODAY + grace - 2)
        assert deliver("old") == 0, "the grace is over when the day ended so long ago"
        site.clock.now += DAY_MS
        store.expire(STREAM, TODAY + grace - 1)
        assert deliver("old") == 1 and deliver("new") == 0

    def test_positions_of_history_go_a_grace_after_it_was_delivered(self, site: StreamSite, store: StreamStore) -> None:
        old = EventBatch(STREAM, [NewEvent(0, b"from 1970")], "topic", [1])
        assert store.append([old])[0].count == 1
        store.expire(STREAM, TODAY - 1)
        assert store.append([old])[0].repeated == 1

    def test_days_that_a_clock_far_ahead_made_are_pulled_back(self, site: StreamSite, store: StreamStore) -> None:
        append(store, "old", time_ms=NOON - 3 * DAY_MS)
        store.close_day(STREAM, TODAY)
        compress(store, STREAM, index_of(store).segments)
        for ahead in (399, 400):
            site.clock.now = NOON + ahead * DAY_MS
            append(store, str(ahead), time_ms=site.clock.now)
        site.clock.now = NOON
        append(store, "now")
        assert store.due(Work.COMPRESS, TODAY + 1, limit=9) == []
        assert store.pull_back(STREAM, TODAY + 1) and not store.pull_back(STREAM, TODAY + 1)
        assert [day.day for day, _ in index_of(store).days()] == [TODAY - 3, TODAY, TODAY + 1]
        assert store.due(Work.COMPRESS, TODAY, limit=9) == [Due(TODAY, STREAM)]
        append(store, "tomorrow", time_ms=NOON + DAY_MS)
        assert compress_stream(store, STREAM, TODAY + 1).days == 2
        assert payloads_of(store) == ["old", "399", "400", "now", "tomorrow"]
        site.clock.now += 2 * DAY_MS
        append(store, "later", time_ms=site.clock.now)
        assert store.expire(STREAM, TODAY + 1) == 5 and payloads_of(store) == ["later"]

    def test_a_stream_whose_days_in_the_future_are_gone_comes_back(self, site: StreamSite, store: StreamStore) -> None:
        site.clock.now += 400 * DAY_MS
        append(store, "far", time_ms=site.clock.now)
        store.expire(STREAM, TODAY + 400)
        site.clock.now = NOON
        append(store, "now")
        assert store.pull_back(STREAM, TODAY + 1)
        assert [day.day for day, _ in index_of(store).days()] == [TODAY + 1] and payloads_of(store) == ["now"]
        assert not store.pull_back(StreamName("no", "stream"), TODAY)

    def test_a_page_says_that_events_between_have_expired(self, site: StreamSite, store: StreamStore) -> None:
        for day in range(2):
            append(store, str(day), "more", time_ms=NOON + day * DAY_MS)
            site.clock.now += DAY_MS
        events = everything(store)
        store.expire(STREAM, TODAY)
        assert [store.read(STREAM, after).gap for after in (0, *(event.number for event in events))] == [
            False, True, False, False, False,
        ]  # fmt: skip

    def test_a_stream_that_never_ends_loses_its_old_days(self, site: StreamSite, store: StreamStore) -> None:
        for day in range(20):
            append(store, str(day), time_ms=site.clock.now)
            store.expire(STREAM, TODAY + day - 3)
            site.clock.now += DAY_MS
        assert payloads_of(store) == ["17", "18", "19"]
        assert len(days(store)) == 3

    def test_small_days_that_share_a_segment_expire_one_by_one(self, site: StreamSite, store: StreamStore) -> None:
        for day in range(3):
            append(store, str(day), time_ms=NOON + day * DAY_MS)
            site.clock.now += DAY_MS
        store.close_day(STREAM, TODAY + 2)
        events, index = everything(store), index_of(store)
        compress(store, STREAM, index.segments)
        for day in range(3):
            assert store.expire(STREAM, TODAY + day) == 1
            assert everything(store) == events[day + 1 :]
        assert days(store) == []

    def test_ids_grow_after_everything_expired(self, site: StreamSite, store: StreamStore) -> None:
        last = append(store, "a").last_id
        store.expire(STREAM, TODAY)
        site.clock.now -= DAY_MS
        assert append(store, "b").first_id > last
        assert payloads_of(store, after=last) == ["b"]

    def test_a_stream_without_events_is_forgotten_in_time(self, site: StreamSite, store: StreamStore) -> None:
        store.append([delivered("a")])
        last = everything(store)[-1].number
        site.clock.now += 2 * DAY_MS
        store.expire(STREAM, TODAY)
        assert store.streams(limit=9) == [STREAM]
        assert [due.stream for due in store.due(Work.FORGET, TODAY, limit=9)] == [STREAM]
        site.clock.now += RULES.forget_ms
        store.expire(STREAM, TODAY)
        assert store.streams(limit=9) == [] and store.index(STREAM) is None
        assert store.due(Work.FORGET, TODAY + 99, limit=9) == []
        assert append(store, "b").first_id > last

    def test_a_switch_of_days_that_expired_is_fenced(self, store: StreamStore) -> None:
        append(store, "a")
        store.close_day(STREAM, TODAY)
        index = index_of(store)
        batches = [encode(everything(store))]
        store.expire(STREAM, TODAY)
        with pytest.raises(Fenced):
            store.switch(STREAM, index.segments, lambda _: batches)
        assert everything(store) == [] and days(store) == []


def _batches_after(events: Sequence[Event], _after: int) -> Iterator[bytes]:
    return batches_of(events)
