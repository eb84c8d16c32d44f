"""The story of a pond's own work: complete when it goes well, when it fails, and when it is killed; harmless always."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Appended, Event, EventBatch, NewEvent
from millpond.events.events import Events
from millpond.events.names import OWN_QUEUE, StreamName
from millpond.reports.open_jobs import OpenJob, OpenJobs
from millpond.reports.reporter import EVENTS_MAX, JOBS_AT_ONCE, Reporter
from millpond.stores.memory import MemorySpace

ROWS = pa.table({"key": ["a", "b", "c"], "value": [1.0, 2.0, 3.0]})
WRONG = pa.table({"kez": ["a"], "value": [1.0]})


def story(folder: Path, job_set: str) -> list[Event]:
    """The events of a job set, as whoever opens the pond later reads them."""
    with millpond.open(folder) as pond:
        return list(pond.events.read(OWN_QUEUE, job_set))


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


def open_reported(folder: Path) -> millpond.Pond:
    return millpond.open(folder, events_reports=True)


def test_a_load_its_merge_a_commit_and_maintenance_are_told(tmp_path: Path) -> None:
    with open_reported(tmp_path / "pond") as pond:
        result = pond.create_map("weather", kind="state", value="double").load(ROWS)
        pond.map("weather").compact()
        pond.repositories.create("flights")
        branch = pond.repository("flights").branch("main")
        branch.put("a", b"1")
        commit = branch.commit("a secret message")
        names = {"load/weather", "merge/weather", "maintenance", "repository/flights/main"}
    with millpond.open(tmp_path / "pond") as pond:
        assert {stream.job_set for stream in pond.events.streams(OWN_QUEUE)} == names
    load = story(tmp_path / "pond", "load/weather")
    assert kinds(load) == ["submitted", "running", "progress", "succeeded"]
    assert len({event.headers["job_id"] for event in load}) == 1
    assert (load[2].headers["rows"], load[3].headers["rows"]) == ("3", "3")
    assert load[3].headers["load"] == result.load and load[3].headers["position"] == str(result.position)
    merge = story(tmp_path / "pond", "merge/weather")
    assert kinds(merge) == ["submitted", "running", "succeeded"] and merge[-1].headers["rows"] == "3"
    assert story(tmp_path / "pond", "maintenance")[0].headers["act"] == "compact"
    committed = story(tmp_path / "pond", "repository/flights/main")[-1]
    assert committed.headers["commit"] == commit.id and "secret" not in str(committed)
    assert not list((tmp_path / "pond" / "running").glob("*"))


def test_a_load_that_fails_says_why_without_paths_or_data(tmp_path: Path) -> None:
    with open_reported(tmp_path / "pond") as pond:
        weather = pond.create_map("weather", kind="state", value="double")
        with pytest.raises(Invalid):
            weather.load(WRONG)
        (tmp_path / "private.csv").write_text("key,value\na,no number\n")
        with pytest.raises(MillpondError):
            pond.load_files(tmp_path / "private.csv", "weather")
    events = story(tmp_path / "pond", "load/weather")
    assert kinds(events) == ["submitted", "running", "failed"] * 2
    assert events[2].headers["reason"] == "input has no such column. column=key"
    assert "rejected=1" in events[5].headers["reason"]
    assert "private" not in str(events) and "no number" not in str(events) and str(tmp_path) not in str(events)


def test_a_short_load_touches_no_stream_before_its_rows_are_in(tmp_path: Path) -> None:
    clock = ManualClock(now=1_000)
    with millpond.open(tmp_path / "pond", clock=clock, events_reports=True) as pond:
        weather = pond.create_map("weather", kind="state", value="double")
        listed: list[list[Any]] = []

        def batches() -> Iterator[pa.RecordBatch]:
            listed.append(list(pond.events.streams(OWN_QUEUE)))
            yield from ROWS.to_batches()
            listed.append(list(pond.events.streams(OWN_QUEUE)))

        weather.load(pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
        assert listed == [[], []]
    assert kinds(story(tmp_path / "pond", "load/weather")) == ["submitted", "running", "progress", "succeeded"]


def test_reports_are_off_by_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLPOND_EVENTS_REPORTS")
    for number, reported in enumerate((True, False)):
        with millpond.open(tmp_path / f"{number}", **({} if reported else {"events_reports": False})) as pond:
            pond.create_map("weather", kind="state", value="double").load(ROWS)
        assert bool(story(tmp_path / f"{number}", "load/weather")) is reported
    monkeypatch.setenv("MILLPOND_EVENTS_REPORTS", "off")
    with millpond.open(tmp_path / "off") as pond:
        pond.create_map("weather", kind="state", value="double").load(ROWS)
    assert not story(tmp_path / "off", "load/weather")


_KILLED = """
import os, signal, sys, threading
import pyarrow as pa
import millpond
from millpond.events.names import OWN_QUEUE

pond = millpond.open(sys.argv[1], events_reports=True)
weather = pond.create_map("weather", kind="state", value="double")

def batches():
    yield pa.record_batch({"key": ["a"], "value": [1.0]})
    with pond.events.watch(OWN_QUEUE, "load/weather") as watch:
        for event in watch:
            if event.kind == "progress":
                os.kill(os.getpid(), signal.SIGKILL)

schema = pa.schema({"key": pa.string(), "value": pa.float64()})
weather.load(pa.RecordBatchReader.from_batches(schema, batches()))
"""


@pytest.mark.usefixtures("process")
def test_a_load_that_was_killed_is_visible_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "pond"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(folder)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert kinds(story(folder, "load/weather")) == ["submitted", "running", "progress"], "nobody looked yet"
    for _ in range(2):
        with open_reported(folder):
            pass
    events = story(folder, "load/weather")
    assert kinds(events) == ["submitted", "running", "progress", "failed"], "once, however often it is opened"
    assert events[-1].headers["error"] == "process_ended"
    assert events[-1].headers["job_id"] == events[0].headers["job_id"]


@pytest.mark.parametrize("job", [None, "7"])
def test_a_killed_job_whose_story_was_deleted_is_not_told_of(tmp_path: Path, job: str | None) -> None:
    marks = OpenJobs(tmp_path / "running", "here", lambda name: "-1-" not in name)
    for mark, owner in ((OpenJob("load/m", "7"), 1), (OpenJob("load/m", "8"), 2), (OpenJob("load/n", "9"), 1)):
        marks.add(mark, owner)
    store = EmbeddedStore(MemorySpace(), ManualClock(now=1_000))
    events = Events(store, ManualClock(now=1_000), forget=marks.forget)
    events.append(OWN_QUEUE, "load/m", [NewEvent(1, b"", "running", {"job_id": "7"})])
    assert events.delete(OWN_QUEUE, "load/m", job=job) == 1
    assert [lost.job_id for _, lost in marks.lost()] == ["9"] and marks.has(OpenJob("load/m", "8"))


class Blocked:
    """A store whose appends fail, or wait, and that counts them."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store, self.going, self.fails, self.appends = store, threading.Event(), False, 0
        self.going.set()

    def append(self, batches: Sequence[EventBatch]) -> list[Appended]:
        self.going.wait()
        self.appends += 1
        if self.fails:
            raise Unavailable("the disk is full", kind="disk_full")
        return self.store.append(batches)


@pytest.fixture
def blocked() -> Blocked:
    return Blocked(EmbeddedStore(MemorySpace(), ManualClock(now=1_000)))


@pytest.fixture
def reporter(blocked: Blocked, tmp_path: Path) -> Iterator[Reporter]:
    made = Reporter(blocked, ManualClock(now=1_000), OpenJobs(tmp_path / "running", "here", lambda _: True))  # type: ignore[arg-type]
    yield made
    blocked.going.set()
    made.close()


def read(blocked: Blocked, job_set: str) -> list[Event]:
    return list(blocked.store.read(StreamName(OWN_QUEUE, job_set)).events)


def test_a_store_that_fails_or_waits_stops_no_work(blocked: Blocked, reporter: Reporter) -> None:
    blocked.going.clear()
    with reporter.job("load/a") as job:
        job.running()
    blocked.fails = True
    blocked.going.set()
    reporter.close()
    assert blocked.appends and not read(blocked, "load/a")
    with reporter.job("load/a"):
        pass  # after the end it is dropped


def test_many_jobs_are_left_out_and_counted_but_failures_stay(blocked: Blocked, reporter: Reporter) -> None:
    jobs = int(JOBS_AT_ONCE) + 50
    blocked.going.clear()
    for _ in range(jobs):
        with reporter.job("load/a"):
            pass
    with pytest.raises(Invalid), reporter.job("load/a"):
        raise Invalid("no", kind="no")
    blocked.going.set()
    reporter.close()
    events = read(blocked, "load/a")
    assert kinds(events).count("succeeded") == int(JOBS_AT_ONCE) and kinds(events).count("failed") == 1
    assert sum(int(event.headers["jobs"]) for event in events if event.kind == "omitted") == 51
    assert blocked.appends <= 3, "however many events, few appends"


def test_events_that_wait_are_bounded(blocked: Blocked, reporter: Reporter) -> None:
    blocked.going.clear()
    with reporter.job("load/a") as job:
        for _ in range(EVENTS_MAX + 100):
            job.running()
    assert len(reporter._pending) <= EVENTS_MAX


def test_a_pond_with_only_its_own_story_may_still_go_to_redis(tmp_path: Path) -> None:
    from millpond.events.location import open_streams

    space, clock = MemorySpace(), ManualClock(now=1_000)
    EmbeddedStore(space, clock).append([EventBatch(StreamName(OWN_QUEUE, "load/a"), [NewEvent(1, b"")])])
    open_streams(space, clock, "redis://127.0.0.1:1/0#pond").close()
    space = MemorySpace()
    EmbeddedStore(space, clock).append([EventBatch(StreamName("etl", "a"), [NewEvent(1, b"")])])
    with pytest.raises(Invalid, match="own folder"):
        open_streams(space, clock, "redis://127.0.0.1:1/0#pond")
