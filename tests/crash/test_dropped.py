"""A map is dropped by another process, or by one that is killed: what handles and open snapshots of it say."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import NotFound
from millpond.maps.snapshots.leases import pin
from millpond.testing.faults import KILL_AT
from tests.harness.contracts.dropped import CALLS, rows
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Map, Pond

DROPPER = """
import sys
import millpond
from millpond.testing.faults import arm

with arm(), millpond.open(sys.argv[1]) as pond:
    pond.drop_map("m")
    if len(sys.argv) > 2:
        pond.create_map("m", kind="temporal_state", value=sys.argv[2])
"""
HOLDER = """
import sys
import millpond

with millpond.open(sys.argv[1]) as pond:
    snapshot = pond.map("m").snapshot()
    print("open", flush=True)
    sys.stdin.readline()
    print(snapshot.lookup(["a"], 5).to_pylist(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_000)) as opened:
        yield opened


@pytest.fixture
def held(pond: Pond) -> Map:
    made = pond.create_map("m", kind="temporal_state", value="string")
    made.load(rows("old"))
    assert made.get("a", at=5) == "old"
    assert made.lookup(["a"], at=5).to_pylist() == ["old"]
    return made


def drop_elsewhere(pond: Pond, *anew: str, **environment: str) -> int:
    return run_python("-c", DROPPER, str(pond.folder), *anew, **environment).returncode


def refused(held: Map, names: list[str] | None = None) -> None:
    for name in names or CALLS:
        with pytest.raises(NotFound) as caught:
            pytest.fail(f"{name} answered {CALLS[name](held)!r}")
        assert caught.value.kind == "map_dropped", name


def folders(pond: Pond, parent: str) -> list[str]:
    return [place.name for place in (pond.folder / parent).iterdir() if not place.name.startswith(".")]


@pytest.mark.parametrize("anew", [(), ("string",), ("long",)])
def test_a_handle_says_that_another_process_dropped_its_map(pond: Pond, held: Map, anew: tuple[str, ...]) -> None:
    assert drop_elsewhere(pond, *anew) == 0
    refused(held)
    assert len(folders(pond, "shards")) == 0, "no call brought the folder back"
    held.close()
    refused(held)
    if anew:
        made = pond.map("m")
        assert (made.get("a", at=5), made.lookup(["a"], at=5).to_pylist()) == (None, [None])
        refused(held)


def test_a_scan_that_was_begun_reads_to_its_end(pond: Pond, held: Map) -> None:
    begun, not_begun = held.scan(), held.scan()
    first = begun.read_next_batch()
    assert drop_elsewhere(pond) == 0
    assert first.num_rows + sum(batch.num_rows for batch in begun) == 1
    with pytest.raises(NotFound):
        not_begun.read_all()


def test_a_drop_that_was_killed_is_finished_when_the_pond_is_opened(pond: Pond, held: Map) -> None:
    assert drop_elsewhere(pond, **{KILL_AT: "drop.forgotten"}) < 0
    # The files are there still: only what looks at the catalogue knows.
    refused(held, ["lookup", "freeze", "snapshot", "condense", "retain", "info", "load"])
    with millpond.open(pond.folder):
        refused(held)


def test_the_files_of_a_snapshot_stay_while_it_is_open(pond: Pond, held: Map) -> None:
    snapshot = held.snapshot()
    assert drop_elsewhere(pond) == 0
    assert folders(pond, "shards") == []
    assert len(folders(pond, "snapshots")) == 1
    assert snapshot.lookup(["a"], 5).to_pylist() == ["old"]
    assert pond.verify().ok, "files that somebody reads are no harm"
    with pytest.raises(NotFound):
        held.lookup(["a"])
    snapshot.close()
    with millpond.open(pond.folder):
        assert folders(pond, "snapshots") == []


def test_another_process_reads_its_snapshot_to_the_end(pond: Pond, held: Map) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(pond.folder)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        held.close()
        pond.drop_map("m")
        assert len(folders(pond, "snapshots")) == 1
        other.stdin.write("ask\n")
        other.stdin.flush()
        assert other.stdout.readline() == "['old']\n"
        other.kill()
    with millpond.open(pond.folder):
        assert folders(pond, "snapshots") == []


def test_nothing_stays_of_a_map_that_nobody_reads(pond: Pond, held: Map) -> None:
    subset = held.snapshot(keys=["a", "b"])
    subset.close()
    pond.drop_map("m")
    gc.collect()
    assert (folders(pond, "shards"), folders(pond, "snapshots")) == ([], [])


def test_pinned_snapshots_and_subsets_outlive_their_map(pond: Pond, held: Map) -> None:
    clock = pond.clock
    assert isinstance(clock, ManualClock)
    subset = held.snapshot(keys=["a", "b"])
    pin(held.objects, held.snapshot().manifest.id, clock.now_ms() + 5_000)
    pond.drop_map("m")
    assert subset.lookup(["a"], 5).to_pylist() == ["old"]
    subset.close()
    with millpond.open(pond.folder, clock=clock):
        assert len(folders(pond, "snapshots")) == 1, "a job that was planned will come for it"
        assert pond.verify().ok
    clock.advance(5_000)
    with millpond.open(pond.folder, clock=clock):
        assert folders(pond, "snapshots") == []


def test_closing_a_pond_or_altering_a_map_closes_no_snapshot(pond: Pond, held: Map) -> None:
    snapshot = held.snapshot()
    altered = pond.alter_map("m", condense="1d")
    assert altered.snapshot() is not snapshot
    pond.close()
    assert snapshot.lookup(["a"], 5).to_pylist() == ["old"]
    snapshot.close()
