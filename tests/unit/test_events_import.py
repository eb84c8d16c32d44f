"""Events that are imported from files, and those that are older than the retention when they are appended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millpond
import millpond.events.importing as import_of_events
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.events.days import DAY_MS
from millpond.events.event import NewEvent
from millpond.events.importing import Imported, import_file

NOON = 20_000 * DAY_MS + DAY_MS // 2
OLDEST = NOON // DAY_MS - 14


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[millpond.Pond]:
    monkeypatch.chdir(tmp_path)
    with millpond.open("pond", clock=ManualClock(now=NOON)) as opened:
        assert isinstance(opened, millpond.Pond)
        yield opened


def at(day: int, payload: bytes = b"") -> NewEvent:
    return NewEvent(day * DAY_MS + 1, payload, "running", {"job_id": "7"})


def test_an_append_counts_the_events_that_retention_drops(pond: millpond.Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    history = [at(OLDEST - 3 + number) for number in range(5)]
    done = pond.events.append("etl", "old", history)
    assert (done.count, done.past_retention) == (5, 3)
    assert pond.events.expire("14d").events == 3, "it counts what the maintenance drops"
    assert pond.events.append("etl", "new", [at(OLDEST)]).past_retention == 0
    late = pond.events.append("etl", "new", history)
    assert late.past_retention == 0, "late events are of the newest day of their stream"
    again = {"source": "file:1", "positions": range(5)}
    assert pond.events.append("etl", "again", history[:2], source="file:1", positions=range(2)).past_retention == 2
    assert pond.events.append("etl", "again", history, **again).past_retention == 1  # type: ignore[arg-type]
    assert pond.events.append("etl", "again", history, **again).past_retention == 0  # type: ignore[arg-type]
    for retention, past in (("off", 0), ("20d", 0), ("1d", 5)):
        monkeypatch.setenv("MILLPOND_EVENTS_RETENTION", retention)
        assert pond.events.append("etl", f"for {retention}", history).past_retention == past
    monkeypatch.setenv("MILLPOND_EVENTS_RETENTION", "never heard of")
    assert pond.events.append("etl", "today", [NewEvent(NOON, b"")]).count == 1, "settings are read for history alone"


def test_an_exported_file_is_imported_once(pond: millpond.Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_of_events, "APPEND_BYTES", 30)
    for name in ("a", "b"):
        pond.events.append("etl", name, [at(OLDEST + number, b"%010d" % number) for number in range(9)])
        pond.events.append("etl", name, [NewEvent(NOON, b"\xff")])
    pond.events.export("etl.parquet")
    with millpond.open("other", clock=pond.clock) as other:
        counts: list[int] = []
        assert import_file(other.events, "etl.parquet", advance=counts.append) == Imported(events=20)
        assert sum(counts) == 20 and max(counts) < 10
        assert import_file(other.events, "etl.parquet") == Imported(repeated=20)
        for name in ("a", "b"):
            here, there = ([event[1:] for event in one.events.read("etl", name)] for one in (pond, other))
            assert here == there
        assert import_file(other.events, "etl.parquet", "all", "of it").events == 20
        assert import_file(other.events, "etl.parquet", job_set="of it").events == 20
        days = [str(day) for day, _ in other.events.index("all", "of it").days()]  # type: ignore[union-attr]
        assert len(days) == 10
    pq.write_table(pa.table({"time": pa.array([0], pa.timestamp("s", "Europe/Berlin")), "payload": ["é"]}), "x.parquet")
    assert import_file(pond.events, "x.parquet", "etl", "x") == Imported(events=1, past_retention=1)
    assert [event[1:] for event in pond.events.read("etl", "x")] == [(0, "é".encode(), "", {})]


def test_files_that_are_no_events_are_refused(pond: millpond.Pond) -> None:
    times = pa.array([0], pa.timestamp("ms", "UTC"))
    whole = {"queue": ["q"], "job_set": ["j"], "time": times, "payload": [b""]}
    for wrong, kind in (
        ({"time": pa.array([0], pa.timestamp("ms"))}, "event_column"), ({"payload": [1]}, "event_column"),
        ({"queue": pa.array([None], pa.string())}, "event_column_null"), ({"headers": ["x"]}, "event_column"),
        ({"payload": None}, "event_column"), ({"job_set": None}, "event_column"),
        ({"kind": pa.array([b"\xff"]).view(pa.string())}, "event_column"),
        ({"kind": ["k" * 300]}, "event_invalid"),
    ):  # fmt: skip
        pq.write_table(pa.table({name: column for name, column in (whole | wrong).items() if column}), "x.parquet")
        with pytest.raises(Invalid) as refused:
            import_file(pond.events, "x.parquet")
        assert refused.value.kind == kind
    Path("x.parquet").write_bytes(b"no Parquet")
    with pytest.raises(Invalid) as damaged:
        import_file(pond.events, "x.parquet")
    assert damaged.value.kind == "input_damaged"
    with pytest.raises(NotFound):
        import_file(pond.events, "none.parquet")
    assert not list(pond.events.streams())
