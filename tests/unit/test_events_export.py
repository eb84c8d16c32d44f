"""Exported events: what is in the file, for whom it can be read, its row groups, and what a killed export leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond
import millpond.events.export as export_of_events
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.events import rows
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.export import Exported
from millpond.events.names import StreamName
from millpond.events.rows import TABLE
from millpond.kernel.steps import listening

NOON = 20_000 * DAY_MS + DAY_MS // 2


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[millpond.Pond]:
    """Three days of two job sets of one queue, and one of another."""
    clock = ManualClock(now=NOON)
    with millpond.open(tmp_path / "pond", clock=clock) as opened:
        for kind in ("submitted", "running", "failed"):
            for job_set in ("nightly-a", "nightly-b"):
                events = [NewEvent(clock.now - 5, b"\xff" + job.encode(), kind, {"job_id": job}) for job in "xy"]
                opened.events.append("etl", job_set, events)
            clock.now += DAY_MS
        opened.events.append("ops", "é*", [NewEvent(clock.now, b"", "", {})])
        assert isinstance(opened, millpond.Pond)
        yield opened


def exported(pond: millpond.Pond, *names: Any, **more: Any) -> list[dict[str, Any]]:
    out = pond.folder.parent / "out.parquet"
    done = pond.events.export(out, *names, **more)
    table = pq.read_table(out)
    assert table.schema == TABLE
    assert (done.events, done.bytes) == (table.num_rows, out.stat().st_size)
    return list(table.to_pylist())


def test_everything_of_an_event_is_in_its_row(pond: millpond.Pond) -> None:
    found = exported(pond, "etl", "nightly-a")
    ids = [event.id for event in pond.events.read("etl", "nightly-a")]
    assert [row["id"] for row in found] == ids == sorted(ids)
    assert found[2] == {
        "queue": "etl", "job_set": "nightly-a", "id": ids[2], "day": date(2024, 10, 5),
        "appended": datetime(2024, 10, 5, 12, tzinfo=UTC), "time": datetime(2024, 10, 5, 11, 59, 59, 995_000, UTC),
        "kind": "running", "job": "x", "payload": b"\xffx", "headers": [("job_id", "x")],
    }  # fmt: skip
    (bare,) = exported(pond, "ops")
    assert (bare["job_set"], bare["kind"], bare["job"], bare["payload"], bare["headers"]) == ("é*", "", None, b"", [])


def test_streams_places_and_filters_choose_events(pond: millpond.Pond) -> None:
    assert len(exported(pond)) == 13
    assert {row["job_set"] for row in exported(pond, "etl")} == {"nightly-a", "nightly-b"}
    assert len(exported(pond, "etl", ["nightly-?", "nightly-a"])) == 12
    ids = [event.id for event in pond.events.read("etl", "nightly-a")]
    within = exported(pond, "etl", "nightly-a", after=ids[0], until=ids[3])
    assert [row["id"] for row in within] == ids[1:4]
    second = exported(pond, "etl", after="2024-10-05T12:00:00Z", until="2024-10-06T12:00:00Z")
    assert [row["kind"] for row in second] == ["running"] * 4, "from the one time on, before the other"
    assert exported(pond, after="newest") == []
    failed = exported(pond, filters={"kind": ["failed", "lost"], "job": "y"}, until="2030-01-01T00:00Z")
    assert [(row["job_set"], row["kind"], row["job"]) for row in failed] == [
        ("nightly-a", "failed", "y"), ("nightly-b", "failed", "y"),
    ]  # fmt: skip
    assert len(exported(pond, filters={"kind": "running"}, until="2024-10-06T00:00Z")) == 4
    pond.events.append("ops", "load[3]-x", [b"row"])
    assert [row["job_set"] for row in exported(pond, "ops", "load[3]-*")] == ["load[3]-x"], "signs are * and ? only"
    pond.events.compress("1d")
    pond.events.expire("1d")
    assert [row["kind"] for row in exported(pond, "etl", "nightly-a")] == ["failed"] * 2


def test_wrong_input_is_refused_before_any_file_is_made(pond: millpond.Pond, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_bytes(b"old")
    for wrong, kind in (
        ({"out": "out.csv"}, "output_format"), ({"out": tmp_path}, "output_format"), ({"until": "soon"}, "event_id"),
        ({"after": "-1"}, "event_id"), ({"filters": {"x": "y"}}, "event_filter"), ({"job_sets": "a"}, "stream_name"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as refused:
            pond.events.export(**({"out": out} | wrong))  # type: ignore[arg-type]
        assert refused.value.kind == kind
    odd: Any = [b"etl", None, ["nightly-a"], "ab"]
    for act in (
        lambda: pond.events.streams(odd[0]), lambda: pond.events.settings.set("etl", odd[2][:0], retention="9d"),
        lambda: next(pond.events.read("etl", "nightly-a", odd[1])), lambda: pond.events.watch_many(odd[3:]),
        lambda: pond.events.settings.holding("\udcff", "x"),
    ):  # fmt: skip
        with pytest.raises(Invalid):
            act()
    for names in (("none",), ("etl", "none"), ("etl", "none-*")):
        with pytest.raises(NotFound) as missing:
            pond.events.export(out, *names)
        assert missing.value.kind == "stream_not_found"
    with pytest.raises(NotFound):
        pond.events.export(tmp_path / "none" / "out.parquet")
    assert out.read_bytes() == b"old" and {file.name for file in tmp_path.iterdir()} == {"pond", "out.parquet"}


@pytest.mark.usefixtures("processor")
def test_row_groups_have_a_size_and_small_streams_share_them(
    pond: millpond.Pond, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [StreamName("many", f"{number:03}") for number in range(300)]
    pond.events.store.append([EventBatch(name, [NewEvent(NOON, name.job_set.encode())]) for name in streams])
    counts: list[int] = []
    out = pond.folder.parent / "out.parquet"
    assert pond.events.export(out, "many", advance=counts.append).streams == 300
    assert counts == [300] and pq.ParquetFile(out).num_row_groups == 1
    assert pq.read_table(out).column("payload").to_pylist() == [b"%03d" % number for number in range(300)]
    pond.events.append("large", "one", [NewEvent(NOON, b"%d" % number * 1000) for number in range(100)])
    monkeypatch.setattr(export_of_events, "ROW_GROUP_BYTES", 50_000)
    monkeypatch.setattr(rows, "BATCH_BYTES", 10_000)
    pond.events.export(out, "large")
    file = pq.ParquetFile(out)
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert len(sizes) > 2 and sum(sizes) == 100 and max(sizes) < 50


def test_others_read_the_file(pond: millpond.Pond) -> None:
    out = pond.folder.parent / "out.parquet"
    pond.events.export(out, "etl")
    with duckdb.connect() as connection:
        query = "select job_set, headers['job_id'], time from read_parquet(?) where kind = 'failed' order by all"
        row = connection.execute(query, [str(out)]).fetchall()[0]
    assert row[:2] == ("nightly-a", "x") and row[2] == datetime(2024, 10, 6, 11, 59, 59, 995_000, UTC)
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(out).filter(polars.col("job") == "x").height == 6
    frame = pq.read_table(out).to_pandas()
    assert frame["kind"].value_counts().to_dict() == {"submitted": 4, "running": 4, "failed": 4}


def test_a_failed_export_leaves_the_old_file(pond: millpond.Pond) -> None:
    out = pond.folder.parent / "out.parquet"
    pond.events.export(out, "ops")
    before = out.read_bytes()

    def fail(name: str) -> None:
        if name == "events.row_group_written":
            raise Unavailable("the disk is gone", kind="disk_full")

    with listening(fail), pytest.raises(Unavailable):
        pond.events.export(out)
    assert out.read_bytes() == before and not list(out.parent.glob(".out*"))


CHILD = """
import os, signal, sys, millpond
from millpond.kernel.steps import listening
def kill(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
with millpond.open("pond") as pond, listening(kill):
    pond.events.export(sys.argv[1])
"""


@pytest.mark.usefixtures("process")
def test_a_killed_export_leaves_no_half_file_and_the_next_one_removes_the_rest(pond: millpond.Pond) -> None:
    folder = pond.folder.parent
    for moment, there in (("events.row_group_written", False), ("events.exported", True)):
        child = [sys.executable, "-c", CHILD, f"{moment}.parquet", moment]
        assert subprocess.run(child, cwd=folder, env={**os.environ}).returncode == -signal.SIGKILL
        assert (folder / f"{moment}.parquet").exists() == there
        assert bool(list(folder.glob(f".{moment}*"))) != there
        assert pond.events.export(folder / f"{moment}.parquet").events == 13
        assert not list(folder.glob(f".{moment}*"))


def test_an_export_of_nothing_is_an_empty_file(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        done = pond.events.export(tmp_path / "out.parquet")
    assert done == Exported(0, 0, (tmp_path / "out.parquet").stat().st_size)
    assert pq.read_table(tmp_path / "out.parquet").equals(pa.Table.from_batches([], TABLE))
