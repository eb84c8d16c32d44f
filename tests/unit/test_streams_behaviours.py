"""Behaviours of Armada's event store, by the numbers and names of its tests, as far as they concern the store here.

Conversion of its internal events (9, 17-25), its gRPC service (12, 14-16) and its ingester (26-34) are not the store's:
events are stored as they are read, and each has an id of its own.
"""

from __future__ import annotations

import pytest

from millpond.errors import Fenced, Invalid
from millpond.events.codec import BATCH_PLAIN_BYTES
from millpond.events.compress import batches_of, compress_stream
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.ids import ID_MAX, START, first_id, format_id, parse_id
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore
from millpond.stores.memory import MemorySpace
from tests.contracts.test_streams import EmbeddedSite
from tests.harness.contracts.stream_site import (
    NOON,
    STREAM,
    TODAY,
    append,
    delivered,
    events_of,
    everything,
    index_of,
    payloads_of,
)  # fmt: skip


@pytest.fixture
def site() -> EmbeddedSite:
    return EmbeddedSite(MemorySpace())


@pytest.fixture
def store(site: EmbeddedSite) -> StreamStore:
    return site.open()


def test_1_ids_parse_and_anything_else_fails() -> None:
    assert parse_id("") == START == 0
    assert parse_id("0000000000000001") == 1 and parse_id("7" + "f" * 15) == ID_MAX
    for wrong in ("foo", "1", "1:1:1", ":::", "1:2:3:0", "8" + "0" * 15, "F" * 16, "0" * 17, " ", "0x00000000000001"):
        with pytest.raises(Invalid):
            parse_id(wrong)


def test_2_3_ids_print_back_exactly() -> None:
    for number in (0, 1, (1 << 20) - 1, 1 << 20, 1_700_000_000_000 << 20, ID_MAX):
        assert parse_id(format_id(number)) == number


def test_4_the_place_before_an_id_is_never_negative(store: StreamStore) -> None:
    append(store, "a", "b")
    first, second = everything(store)
    assert everything(store, after=first.number - 1) == [first, second] and first.number >= 1


def test_5_ids_are_ordered_as_numbers_and_as_texts() -> None:
    numbers = [0, 1, 255, 256, (1 << 20) + 5, 1 << 40, ID_MAX]
    assert sorted(map(format_id, numbers)) == [format_id(number) for number in numbers]


def test_6_two_events_of_one_batch_are_read_in_order(store: StreamStore) -> None:
    done = append(store, "a", "b")
    page = store.read(STREAM)
    assert [event.payload for event in page.events] == [b"a", b"b"] and page.after == done.last_id


def test_7_a_reader_resumes_in_the_middle_of_a_batch(store: StreamStore) -> None:
    append(store, "a", "b")
    first = everything(store)[0]
    assert payloads_of(store, after=first.number) == ["b"]


def test_8_a_reader_that_has_everything_gets_nothing(store: StreamStore) -> None:
    done = append(store, "a", "b")
    page = store.read(STREAM, done.last_id)
    assert (page.events, page.after) == ([], done.last_id)


def test_10_11_the_last_id_and_the_existence_of_a_stream(store: StreamStore) -> None:
    assert store.index(STREAM) is None and store.read(STREAM).after == START
    done = append(store, "a")
    assert index_of(store).last_id == done.last_id


def test_13_reading_an_unknown_job_set_ends_without_events(store: StreamStore) -> None:
    append(store, "a")
    assert store.read(StreamName(STREAM.queue, "unknown")).events == []


def test_35_ids_grow_across_days_and_are_the_same_after_compression(site: EmbeddedSite, store: StreamStore) -> None:
    for day in range(4):
        append(store, f"{day} a", f"{day} b", time_ms=NOON + day * DAY_MS)
        site.clock.now += DAY_MS
    before = everything(store)
    assert [event.number for event in before] == sorted({event.number for event in before})
    compress_stream(store, STREAM, TODAY + 3)
    assert everything(store) == before


def test_36_resume_from_every_id_gives_the_exact_suffix(site: EmbeddedSite, store: StreamStore) -> None:
    for day in range(3):
        for part in range(3):
            append(store, *(f"{day} {part} {number}" for number in range(3)), time_ms=NOON + day * DAY_MS)
        site.clock.now += DAY_MS
    compress_stream(store, STREAM, TODAY + 1)
    events = everything(store)
    for place, event in enumerate(events):
        for bytes_max in (1, 1000):
            assert everything(store, STREAM, event.number, bytes_max) == events[place + 1 :]


def test_37_a_reader_across_a_switch_loses_and_repeats_nothing(store: StreamStore) -> None:
    for number in range(9):
        append(store, str(number))
    before = everything(store)
    for place in range(9):
        page = store.read(STREAM, before[place].number, bytes_max=1)
        if place == 4:
            compress_stream(store, STREAM, TODAY)
        assert page.events + everything(store, after=page.after) == before[place + 1 :]


def test_38_an_expired_day_is_no_endless_poll(store: StreamStore) -> None:
    append(store, "a", "b")
    first = everything(store)[0]
    store.expire(STREAM, TODAY)
    page = store.read(STREAM, first.number)
    assert page.events == [] and page.gap and page.after > first.number
    assert not store.read(STREAM, page.after).gap


def test_39_redelivery_of_any_suffix_changes_nothing(store: StreamStore) -> None:
    store.append([delivered("abcdef")])
    before = everything(store)
    for start in range(6):
        for stop in range(start, 7):
            store.append([delivered("abcdef"[start:stop], first=start + 1)])
    assert everything(store) == before


def test_40_times_that_go_back_over_midnight_keep_the_order(site: EmbeddedSite, store: StreamStore) -> None:
    site.clock.now += DAY_MS
    midnight = (TODAY + 1) * DAY_MS
    times = [midnight - 1, midnight, midnight - 2, midnight + 1, midnight - DAY_MS]
    store.append([EventBatch(STREAM, [NewEvent(time_ms, b"%d" % place) for place, time_ms in enumerate(times)])])
    assert payloads_of(store) == list("01234")
    assert [day.count for day, _ in index_of(store).days()] == [1, 4]


def test_41_two_compressors_never_both_commit(store: StreamStore) -> None:
    append(store, "a", "b")
    store.close_day(STREAM, TODAY)
    seen = index_of(store).segments
    batches = list(batches_of(store, STREAM, seen[0].last_id, 0))
    store.switch(STREAM, seen, lambda _: batches)
    with pytest.raises(Fenced):
        store.switch(STREAM, seen, lambda _: batches)
    assert payloads_of(store) == ["a", "b"]


def test_42_a_day_expires_with_its_index_entry_also_of_an_active_job_set(
    site: EmbeddedSite, store: StreamStore
) -> None:
    append(store, "old")
    site.clock.now += DAY_MS
    append(store, "new", time_ms=site.clock.now)
    store.expire(STREAM, TODAY)
    assert payloads_of(store) == ["new"] and len(index_of(store).days()) == 1


def test_43_a_reader_over_midnight_without_traffic_gets_the_next_event(site: EmbeddedSite, store: StreamStore) -> None:
    last = append(store, "before").last_id
    site.clock.now += 2 * DAY_MS
    assert store.follow({STREAM: last}, 0.0) == set()
    append(store, "after", time_ms=site.clock.now)
    assert store.follow({STREAM: last}, 0.0) == {STREAM}
    assert payloads_of(store, after=last) == ["after"]


def test_44_an_event_larger_than_a_batch(store: StreamStore) -> None:
    store.append([EventBatch(STREAM, [*events_of("a"), NewEvent(NOON, bytes(BATCH_PLAIN_BYTES + 9)), *events_of("b")])])
    before = everything(store)
    compress_stream(store, STREAM, TODAY)
    assert everything(store) == before and [len(event.payload) for event in before] == [1, BATCH_PLAIN_BYTES + 9, 1]


def test_45_names_never_collide(store: StreamStore) -> None:
    names = [StreamName("a_b", "c"), StreamName("a", "b_c"), StreamName("a:b", "c"), StreamName("a", "b:c")]
    names += [
        StreamName("a", "x"),
        StreamName("a", "x_compressed"),
        StreamName("a", "x_streams"),
        StreamName("", "x" * 1023),
    ]
    for place, name in enumerate(names):
        append(store, str(place), stream=name)
    assert [payloads_of(store, name) for name in names] == [[str(place)] for place in range(len(names))]


@pytest.mark.usefixtures("processor")
def test_46_a_read_returns_everything_present(store: StreamStore) -> None:
    for number in range(1_500):
        append(store, str(number))
    assert payloads_of(store) == [str(number) for number in range(1_500)]


def test_ids_that_are_used_up_are_an_error_not_a_repeat() -> None:
    assert first_id(ID_MAX - 1, 0, 1) == ID_MAX
    with pytest.raises(Exception, match="no more ids"):
        first_id(ID_MAX, 0, 1)
    assert first_id(0, 1 << 60, 1) < ID_MAX
