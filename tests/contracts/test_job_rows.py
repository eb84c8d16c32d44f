"""The rows of jobs, in a space and in Redis: a model of dictionaries; and what retention collects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.events.days import DAY_MS
from millpond.events.embedded import jobs as embedded_jobs
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.job_ids import draw_job_id, is_job_id, job_id_day
from millpond.events.job_index import collect_jobs
from millpond.events.jobs.submissions import NewJob, Submissions
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.redis import jobs as redis_jobs
from millpond.events.redis.store import RedisStore
from millpond.events.shared_jobs import JobLocation, JobRows
from millpond.stores.memory import MemorySpace
from tests.redis_servers import new_place, server
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("process", "redis_server")

BEGIN = 1_700_000_000_000
Store = EmbeddedStore | RedisStore


def embedded(clock: ManualClock) -> Store:
    return EmbeddedStore(MemorySpace(), clock)


def redis(clock: ManualClock) -> Store:
    return RedisStore(server().url(new_place()), clock)


@pytest.fixture(params=[embedded, redis])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[ManualClock], Store]]:
    stores: list[Store] = []

    def make(clock: ManualClock) -> Store:
        stores.append(request.param(clock))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


PLACES = st.builds(
    JobLocation, st.sampled_from(("etl", "a/ü", "x" * 200)), st.sampled_from(("night", "b%")), st.integers(0, 9),
    st.integers(BEGIN // DAY_MS, BEGIN // DAY_MS + 9), st.sampled_from(("", "uri", "dag/task")),
)  # fmt: skip


@pytest.mark.parametrize("made", [embedded, redis])
@settings(max_examples=examples(5, 15))
@given(places=st.lists(PLACES, max_size=12), data=st.data())
def test_they_are_a_dictionary(
    made: Callable[[ManualClock], Store], places: list[JobLocation], data: st.DataObject
) -> None:
    clock = ManualClock(BEGIN)
    with closing(made(clock)) as store:
        rows: JobRows = store.job_rows.jobs
        model: dict[str, JobLocation] = {}
        for drawn in places:
            place = replace(drawn, day=max(drawn.day, clock.now_ms() // DAY_MS))
            job_id = draw_job_id(clock)
            assert is_job_id(job_id) and job_id_day(job_id) == clock.now_ms() // DAY_MS
            rows.note({job_id: place})
            model[job_id] = place
            clock.advance(data.draw(st.sampled_from((1, DAY_MS))))
        deleted = data.draw(st.sets(st.sampled_from(sorted(model)))) if model else set()
        rows.delete({job_id: model.pop(job_id) for job_id in deleted})
        limit, gone = BEGIN // DAY_MS + data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
        collected = {job_id for job_id, place in model.items() if place.day < limit and place.after < gone}
        assert rows.collect(limit, lambda place: place.after < gone) == len(collected)
        model = {job_id: place for job_id, place in model.items() if job_id not in collected}
        assert rows.find([*model, *deleted, *collected, "nobody"]) == model
        for place in places:
            expected = [
                job_id for job_id, other in model.items() if other.stream == place.stream and other.uri == "uri"
            ]
            assert rows.named(place.stream, "uri") == sorted(expected)


def test_the_row_of_a_job_leaves_with_its_day(
    opened: Callable[[ManualClock], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_jobs, "_COLLECTED_AT_ONCE", 2)
    monkeypatch.setattr(redis_jobs, "_COLLECTED_AT_ONCE", 2)
    clock = ManualClock(BEGIN)
    store = opened(clock)
    submissions = Submissions(store.job_rows, store, clock)
    streams = [StreamName("etl", name) for name in ("a", "b", "c")]
    ids: dict[int, list[str]] = {}
    for day in range(6):
        for stream in streams:
            ids.setdefault(day, []).extend(submissions.submit(stream, [NewJob(_first, uri="u")] * 2))
        clock.advance(DAY_MS)
    rules = MaintenanceRules(compress_after_ms=0, retention_ms=3 * DAY_MS)
    EventMaintenance(store, clock, rules, DAY_MS).expire()
    there = store.job_rows.jobs.find([job_id for day in ids.values() for job_id in day])
    with_events = {event.headers["job_id"] for stream in streams for event in store.read(stream).events}
    assert with_events <= set(there), "a job with events has its row"
    assert {day for day, jobs in ids.items() if set(jobs) & set(there)} - {
        day for day, jobs in ids.items() if set(jobs) & with_events
    } <= {max(day for day, jobs in ids.items() if not set(jobs) & with_events)}, (
        "but for a day that clocks may disagree about"
    )
    clock.advance(20 * DAY_MS)
    EventMaintenance(store, clock, rules, DAY_MS).expire()
    assert not store.job_rows.jobs.find(there) and not store.job_rows.jobs.named(streams[0], "u")
    assert collect_jobs(store) == 0


def _first(job_id: str) -> list[NewEvent]:
    return [NewEvent(BEGIN, b"", "submitted", {"job_id": job_id})]


def test_a_stream_that_goes_on_keeps_its_rows(opened: Callable[[ManualClock], Store]) -> None:
    clock = ManualClock(BEGIN)
    store, stream = opened(clock), StreamName("etl", "long")
    (job_id,) = Submissions(store.job_rows, store, clock).submit(stream, [NewJob(_first)])
    clock.advance(30 * DAY_MS)
    store.append([EventBatch(stream, [NewEvent(BEGIN, b"", "running", {"job_id": job_id})])])
    assert collect_jobs(store) == 0
    assert job_id in store.job_rows.jobs.find([job_id])
