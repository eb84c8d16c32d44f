"""Maintenance of a pond's own streams where no node does it: days are compressed and dropped, users' streams stay."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.days import DAY_MS
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.index import State, StreamIndex
from millpond.events.local_maintenance import OwnMaintenance
from millpond.events.maintenance import MaintenanceRules
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.events.protocol import StreamRules
from millpond.events.witness import Doubt
from millpond.stores.memory import MemorySpace
from millpond.testing.passing_time import until

RULES = MaintenanceRules(compress_after_ms=2 * DAY_MS, retention_ms=10 * DAY_MS, bytes_per_second=0)
OWN, USER = StreamName(OWN_QUEUE, "load/a"), StreamName("etl", "a")
WAIT_SECONDS = 60.0


class Counting(EmbeddedStore):
    """A store that counts what is asked of it; it fails when that is wanted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemorySpace(), clock, StreamRules(forget_ms=20 * DAY_MS))
        self.writes, self.looks, self.fails = 0, 0, False

    def close_day(self, stream: StreamName, day: int) -> bool:
        self.writes += 1
        return super().close_day(stream, day)

    def expire(self, stream: StreamName, day: int) -> int:
        self.writes += 1
        return super().expire(stream, day)

    def index(self, stream: StreamName) -> StreamIndex | None:
        self.looks += 1
        if self.fails:
            raise Unavailable("the disk is full", kind="disk_full")
        return super().index(stream)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=100 * DAY_MS)


@pytest.fixture
def store(clock: ManualClock) -> Counting:
    return Counting(clock)


def maintenance(store: Counting, clock: ManualClock, rules: MaintenanceRules | None = RULES) -> OwnMaintenance:
    return OwnMaintenance(store, clock, OWN_QUEUE, lambda: rules, 20 * DAY_MS)


def put(store: Counting, clock: ManualClock, days: int) -> None:
    for _ in range(days):
        store.append([EventBatch(stream, [NewEvent(clock.now, b"x" * 100)] * 50) for stream in (OWN, USER)])
        clock.now += DAY_MS


def run(work: OwnMaintenance) -> None:
    work.begin()
    work.wait(WAIT_SECONDS)


def states(store: Counting, stream: StreamName) -> list[State]:
    index = store.index(stream)
    return [] if index is None else [state for _, state in index.days()]


def test_own_days_are_compressed_and_dropped_and_those_of_users_stay(store: Counting, clock: ManualClock) -> None:
    put(store, clock, 15)
    before = [event for event in store.read(OWN).events if event.time_ms >= clock.now - 10 * DAY_MS]
    run(maintenance(store, clock))
    assert states(store, OWN) == [State.COMPRESSED] * 8 + [State.CLOSED, State.OPEN]
    assert store.read(OWN).events == before
    assert set(states(store, USER)) == {State.CLOSED, State.OPEN} and len(states(store, USER)) == 15
    clock.now += 40 * DAY_MS
    run(maintenance(store, clock))
    run(maintenance(store, clock))
    assert store.index(OWN) is None, "it is forgotten when nothing was appended for long"


def test_a_clock_that_is_not_believed_drops_nothing(
    store: Counting, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, clock, 15)
    doubts: list[Doubt | None] = [Doubt(2 * DAY_MS, DAY_MS), None]
    for dropped in (False, True):
        run(OwnMaintenance(store, clock, OWN_QUEUE, lambda: RULES, 20 * DAY_MS, lambda: doubts.pop(0)))
        assert (len(states(store, OWN)) < 15) == dropped
    assert "old events are kept: the clock is 48.0 hours ahead" in caplog.text


def test_once_a_day_and_nothing_is_written_where_nothing_is_due(store: Counting, clock: ManualClock) -> None:
    put(store, clock, 1)
    work = maintenance(store, clock)
    run(work)
    looks = store.looks
    assert looks and not store.writes
    for _ in range(3):
        run(work)
    assert store.looks == looks, "the same day"
    clock.now += 3 * DAY_MS
    run(work)
    assert states(store, OWN) == [State.COMPRESSED]


def test_ages_that_are_off_and_a_pond_that_a_node_maintains_change_nothing(store: Counting, clock: ManualClock) -> None:
    put(store, clock, 5)
    run(maintenance(store, clock, None))
    run(maintenance(store, clock, MaintenanceRules(compress_after_ms=0, retention_ms=0)))
    assert not store.writes and State.COMPRESSED not in states(store, OWN)


def test_two_at_once_lose_nothing(store: Counting, clock: ManualClock) -> None:
    put(store, clock, 9)
    before = store.read(OWN).events
    works = [maintenance(store, clock) for _ in range(4)]
    for work in works:
        work.begin()
    for work in works:
        work.wait(WAIT_SECONDS)
    assert store.read(OWN).events == before
    assert states(store, OWN) == [State.COMPRESSED] * 7 + [State.CLOSED, State.OPEN]


def test_it_ends_when_the_pond_is_closed_and_another_goes_on(store: Counting, clock: ManualClock) -> None:
    put(store, clock, 5)
    work = maintenance(store, clock)
    work.stop()
    run(work)
    assert not store.looks
    entered, stopped = threading.Event(), threading.Event()

    def rules() -> MaintenanceRules:
        entered.set()
        stopped.wait(WAIT_SECONDS)
        return RULES

    late = OwnMaintenance(store, clock, OWN_QUEUE, rules, 20 * DAY_MS)
    late.begin()
    assert entered.wait(WAIT_SECONDS)
    late.stop()
    stopped.set()
    late.wait(WAIT_SECONDS)
    assert not store.writes
    run(maintenance(store, clock))
    assert states(store, OWN).count(State.COMPRESSED) == 3


def test_a_fault_is_logged_and_goes_no_further(
    store: Counting, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, clock, 5)
    store.fails = True
    with caplog.at_level(logging.WARNING):
        run(maintenance(store, clock))
    assert "the disk is full" in caplog.text


@pytest.mark.usefixtures("processor")
def test_a_pond_in_a_folder_maintains_its_own_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_EVENTS_RETENTION", "5d")
    clock, rows = ManualClock(now=100 * DAY_MS), pa.table({"key": ["a"], "value": [1.0]})
    for _ in range(8):
        with millpond.open(tmp_path / "pond", clock=clock, events_reports=True) as pond:
            pond.create_map("weather", kind="state", value="double", exist_ok=True).load(rows)
            pond.events.append("etl", "a", [b"an event"])
            own = pond.reports._maintenance  # type: ignore[attr-defined]
            until(clock, lambda own=own: own._thread is not None and not own._thread.is_alive())
        clock.now += DAY_MS
    with millpond.open(tmp_path / "pond", clock=clock) as pond:
        story, user = pond.events.index(OWN_QUEUE, "load/weather"), pond.events.index("etl", "a")
    assert story is not None and user is not None
    assert [state for _, state in story.days()] == [State.COMPRESSED] * 3 + [State.CLOSED, State.CLOSED, State.OPEN]
    assert len(user.days()) == 8 and not any(state is State.COMPRESSED for _, state in user.days())
