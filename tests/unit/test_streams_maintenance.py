"""Maintenance of streams: the plan, folding, the pace, several at once, faults of one stream."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.events.codec import BATCH_PLAIN_BYTES, read_header
from millpond.events.compress import FOLD_BYTES, batches_of, compress_stream, plan
from millpond.events.days import DAY_MS
from millpond.events.embedded.check import check_streams
from millpond.events.embedded.rows import keys_of
from millpond.events.event import EventBatch, NewEvent
from millpond.events.events import Events
from millpond.events.index import Day, DaySegment, State, StreamIndex
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore, Work
from millpond.events.witness import ClockWitness
from millpond.stores.memory import MemorySpace
from millpond.testing.passing_time import while_time_passes
from tests.contracts.test_streams import EmbeddedSite
from tests.harness.contracts.stream_site import (
    NOON,
    RULES,
    STREAM,
    TODAY,
    append,
    days,
    everything,
    index_of,
    payloads_of,
)


@pytest.fixture
def site() -> EmbeddedSite:
    return EmbeddedSite(MemorySpace())


@pytest.fixture
def store(site: EmbeddedSite) -> StreamStore:
    return site.open()


def maintenance(site: EmbeddedSite, **rules: int) -> EventMaintenance:
    rules = {"bytes_per_second": 0} | rules
    return EventMaintenance(site.open(), site.clock, MaintenanceRules(**rules), RULES.forget_ms)


def days_of_one_event(site: EmbeddedSite, store: StreamStore, days: int) -> None:
    for day in range(days):
        append(store, f"event of day {day}", time_ms=site.clock.now)
        site.clock.now += DAY_MS


def rows(site: EmbeddedSite, stream: StreamName = STREAM) -> list[bytes]:
    with site.space.read() as tx:
        return [row for _, row in tx.scan(keys_of(stream).batches.range())]


def test_days_of_one_event_are_folded_into_one_batch(site: EmbeddedSite, store: StreamStore) -> None:
    days_of_one_event(site, store, 14)
    before = everything(store)
    report = maintenance(site, compress_after_ms=1).compress()
    assert (report.streams, report.days, report.failed) == (1, 14, 0)
    assert len(rows(site)) == 1 and len(index_of(store).segments) == 1 and len(index_of(store).days()) == 14
    assert everything(store) == before
    assert len(rows(site)[0]) < 2 * sum(len(event.payload) for event in before)


def test_a_job_set_without_end_has_few_rows_and_loses_its_past(site: EmbeddedSite, store: StreamStore) -> None:
    worker = maintenance(site, compress_after_ms=2 * DAY_MS, retention_ms=10 * DAY_MS)
    for _ in range(60):
        append(store, "an event", time_ms=site.clock.now)
        site.clock.now += DAY_MS
        assert worker.compress().failed == worker.expire().failed == 0
        assert len(rows(site)) <= 4 and len(index_of(store).days()) <= 12
    assert len(payloads_of(store)) == 10
    assert check_streams(site.space).ok


@given(
    sizes=st.lists(st.integers(1, FOLD_BYTES * 2), max_size=12), compressed=st.integers(0, 12), due=st.integers(0, 12)
)
def test_a_plan_covers_every_closed_day_once_in_runs_of_neighbours(sizes: list[int], compressed: int, due: int) -> None:
    segments = tuple(
        DaySegment(
            State.COMPRESSED if day < compressed else State.CLOSED,
            (Day(day, day + 1, day + 1, 1, size),), size,
        )
        for day, size in enumerate(sizes)
    )  # fmt: skip
    runs = plan(StreamIndex(STREAM, segments, len(sizes), len(sizes) - 1, 0), due)
    planned = [segment for run in runs for segment in run]
    assert [s for s in planned if s.state is State.CLOSED] == [
        s for s in segments if s.state is State.CLOSED and s.days[0].day <= due
    ]
    for run in runs:
        places = [segments.index(segment) for segment in run]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(run) == 1 or sum(segment.bytes for segment in run) <= FOLD_BYTES


def test_batches_hold_up_to_their_limit_and_a_larger_event_has_its_own(store: StreamStore) -> None:
    sizes = [200_000, 200_000, 200_000, 9_000_000, 10, 10]
    for size in sizes:
        store.append([EventBatch(STREAM, [NewEvent(NOON, bytes(size))])])
    store.close_day(STREAM, TODAY)
    (segment,) = index_of(store).segments
    headers = [read_header(batch) for batch in batches_of(store, STREAM, segment.last_id, 0)]
    assert [header.events for header in headers] == [2, 1, 1, 2]
    assert max(header.plain_bytes for header in headers if header.events > 1) < BATCH_PLAIN_BYTES
    before = everything(store)
    compress_stream(store, STREAM, TODAY)
    assert everything(store) == before


def test_batches_of_events_without_payload_hold_a_bounded_number(store: StreamStore) -> None:
    store.append([EventBatch(STREAM, [NewEvent(NOON, b"")] * 10_000)])
    store.close_day(STREAM, TODAY)
    (segment,) = index_of(store).segments
    headers = [read_header(batch) for batch in batches_of(store, STREAM, segment.last_id, 0)]
    assert len(headers) > 1 and max(header.plain_bytes for header in headers) < BATCH_PLAIN_BYTES
    assert sum(header.events for header in headers) == 10_000


def test_an_event_that_does_not_compress_costs_no_more_than_before(site: EmbeddedSite, store: StreamStore) -> None:
    append(store, "x")
    before = len(rows(site)[0])
    compress_stream(store, STREAM, TODAY)
    assert len(rows(site)[0]) <= before


def test_only_days_that_are_old_enough_are_compressed(site: EmbeddedSite, store: StreamStore) -> None:
    days_of_one_event(site, store, 5)
    maintenance(site, compress_after_ms=2 * DAY_MS).compress()
    assert [state.value for _, state in index_of(store).days()] == ["compressed"] * 3 + ["closed", "open"]
    assert maintenance(site, compress_after_ms=0).compress().streams == 0
    assert maintenance(site, retention_ms=0).expire().streams == 0


def test_a_pace_is_held_and_a_stop_ends_the_work(site: EmbeddedSite, store: StreamStore) -> None:
    names = [StreamName("q", str(number)) for number in range(4)]
    for name in names:
        append(store, "x" * 100, stream=name)
    size = sum(len(rows(site, name)[0]) for name in names)
    site.clock.now += 9 * DAY_MS
    began = site.clock.monotonic()
    worker = maintenance(site, compress_after_ms=DAY_MS, bytes_per_second=10)
    assert while_time_passes(site.clock, worker.compress).days == 4
    assert site.clock.monotonic() - began >= size / 10 * 0.3  # all but the last one were waited for
    append(store, "y", stream=names[0])
    site.clock.now += 9 * DAY_MS
    stopping = threading.Event()
    stopping.set()
    assert maintenance(site, compress_after_ms=DAY_MS).compress(stopping).streams == 0


def test_two_at_once_do_all_of_it_and_nothing_twice(site: EmbeddedSite, store: StreamStore) -> None:
    names = [StreamName("q", str(number)) for number in range(30)]
    for name in names:
        append(store, "x" * 1000, "y", "z", stream=name)
    before = {name: everything(store, name) for name in names}
    site.clock.now += 9 * DAY_MS
    with ThreadPoolExecutor(3) as pool:
        workers = [maintenance(site, compress_after_ms=1) for _ in range(3)]
        reports = [pending.result() for pending in [pool.submit(worker.compress) for worker in workers]]
    assert sum(report.days for report in reports) == 30 and not any(report.failed for report in reports)
    assert {name: everything(store, name) for name in names} == before
    assert check_streams(site.space).ok


def test_a_damaged_stream_is_reported_and_the_others_are_done(site: EmbeddedSite, store: StreamStore) -> None:
    for name in "abc":
        append(store, name * 50, stream=StreamName("q", name))
    site.damage(StreamName("q", "b"))
    site.clock.now += 9 * DAY_MS
    report = maintenance(site, compress_after_ms=1).compress()
    assert (report.streams, report.days, report.failed) == (2, 2, 1)
    assert "damaged" in report.faults[0] and "'b'" in report.faults[0]
    assert [due.stream.job_set for due in store.due(Work.COMPRESS, TODAY, limit=9)] == ["b"]


def test_streams_without_events_are_forgotten_by_maintenance(site: EmbeddedSite, store: StreamStore) -> None:
    append(store, "a")
    worker = maintenance(site, retention_ms=DAY_MS)
    site.clock.now += 5 * DAY_MS
    assert worker.expire().events == 1 and store.index(STREAM) is not None
    site.clock.now += RULES.forget_ms
    worker.expire()
    assert store.index(STREAM) is None


def test_a_large_day_is_dropped_in_several_writes(
    site: EmbeddedSite, store: StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.events.embedded.expire.ROWS_PER_WRITE", 3)
    for _ in range(10):
        append(store, "a")
    reader = store.read(STREAM, bytes_max=1)
    append_later = NewEvent(NOON + DAY_MS, b"b")
    site.clock.now += DAY_MS
    store.append([EventBatch(STREAM, [append_later])])
    assert store.expire(STREAM, TODAY) == 10
    page = store.read(STREAM, reader.after)
    assert [event.payload for event in page.events] == [b"b"] and page.gap
    assert check_streams(site.space).ok


@pytest.mark.parametrize("jump", [-2 * DAY_MS, 2 * DAY_MS, 400 * DAY_MS])
def test_a_clock_that_jumped_for_a_moment_delays_no_maintenance(
    site: EmbeddedSite, store: StreamStore, jump: int
) -> None:
    other = StreamName("etl", "other")
    append(store, "before", time_ms=NOON)
    site.clock.now = NOON + jump
    append(store, "jumped", time_ms=site.clock.now)
    append(store, "begun", stream=other, time_ms=site.clock.now)
    site.clock.now = NOON
    for day in range(6):
        append(store, str(day), time_ms=site.clock.now)
        maintenance(site).compress()
        assert len([one for one, state in index_of(store).days() if state is not State.COMPRESSED]) <= 4
        site.clock.now += DAY_MS
    site.clock.now += 16 * DAY_MS
    maintenance(site).expire()
    assert everything(store) == everything(store, other) == []
    assert check_streams(site.space).problems == ()


def test_a_clock_that_is_behind_for_a_moment_pulls_nothing_back(site: EmbeddedSite, store: StreamStore) -> None:
    append(store, "a", time_ms=NOON)
    doubt = ClockWitness(site.space, b"clock", store.now_ms, site.clock).look
    for jump in (0, -400 * DAY_MS, 400 * DAY_MS):
        site.clock.now += jump
        believed = doubt()
        worker = EventMaintenance(store, site.clock, MaintenanceRules(), RULES.forget_ms, doubt=believed)
        worker.compress()
        if believed is None:
            worker.expire()
    assert index_of(store).last_day == TODAY
    assert payloads_of(store) == ["a"]


def test_a_stream_that_begins_while_the_clock_is_far_behind_begins_on_a_day_of_the_present(
    site: EmbeddedSite, store: StreamStore
) -> None:
    events = Events(store, site.clock, space=site.space)
    for jump in (0, -400 * DAY_MS, 400 * DAY_MS):
        site.clock.now += jump
        if events.doubt() is not None:
            append(store, "a", time_ms=NOON)
    append(store, "b", time_ms=NOON)
    assert maintenance(site).expire().events == 0
    assert days(store) == [(0, "open", 2)] and payloads_of(store) == ["a", "b"]


@pytest.mark.usefixtures("processor")
def test_many_streams_share_writes_and_a_large_or_damaged_one_has_its_own(
    site: EmbeddedSite, store: StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [StreamName("etl", f"{number:03}") for number in range(300)]
    large, damaged = StreamName("etl", "large"), StreamName("etl", "damaged")
    for stream in (*streams, damaged):
        append(store, "a", "b", stream=stream)
    store.append([EventBatch(large, [NewEvent(NOON, bytes(50_000), "")] * 10)])
    site.damage(damaged)
    before = {stream: everything(store, stream) for stream in (*streams, large)}
    writes: list[object] = []
    write = site.space.write
    monkeypatch.setattr(site.space, "write", lambda change: writes.append(change) or write(change))
    site.clock.now += 4 * DAY_MS
    report = maintenance(site).compress()
    assert (report.streams, report.days, report.failed) == (301, 301, 1)
    assert {stream: everything(store, stream) for stream in before} == before
    assert all(index.segments[-1].state is State.COMPRESSED for name in before if (index := store.index(name)))
    monkeypatch.undo()
    assert len(writes) < 300


def test_days_of_many_streams_are_dropped_in_few_writes(
    site: EmbeddedSite, store: StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        append(store, *"abcdefgh", stream=StreamName("etl", str(number)))
    site.clock.now += 20 * DAY_MS
    writes: list[object] = []
    write = site.space.write
    monkeypatch.setattr(site.space, "write", lambda change: writes.append(change) or write(change))
    report = maintenance(site).expire()
    assert (report.streams, report.events, report.failed) == (300, 2400, 0) and len(writes) <= 4
    assert check_streams(site.space).problems == ()
