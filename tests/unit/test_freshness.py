"""An open handle answers from its snapshot without reading it again, and yet from all that is merged."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.errors import Closed
from millpond.maps.snapshots import refresh
from millpond.maps.snapshots.freshness import Freshness
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.stores.memory import MemorySpace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

LOADER = """
import sys
import millpond, pyarrow as pa

for line in sys.stdin:
    act, value = line.split()
    with millpond.open(sys.argv[1]) as pond:
        target = pond.map("m")
        if act == "load":
            target.load(pa.table({"key": ["k"], "value": [int(value)]}))
        elif act == "freeze":
            target.load(pa.table({"key": ["k"], "value": [int(value)]}))
            target.freeze()
        elif act == "alter":
            pond.alter_map("m", condense=value)
        elif act == "compact":
            target.compact()
        elif act == "elsewhere":
            other = pond.create_map("other", kind="state", value="long", exist_ok=True)
            other.load(pa.table({"key": ["k"], "value": [1]}))
    print("done", flush=True)
"""


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


@pytest.fixture
def target(pond: Pond) -> Map:
    made = pond.create_map("m", kind="state", value="long")
    put(made, 0)
    return made


def put(target: Map, value: int) -> None:
    target.load(pa.table({"key": ["k"], "value": [value]}))


def seen(target: Map) -> int:
    [value] = target.lookup(["k"]).to_pylist()
    assert isinstance(value, int)
    return value


@pytest.mark.usefixtures("processor")
def test_the_very_next_lookup_sees_what_this_process_merged(target: Map) -> None:
    for value in range(1, 20):
        put(target, value)
        assert seen(target) == value


@pytest.mark.usefixtures("process")
def test_the_very_next_lookup_sees_what_another_process_did(pond: Pond, target: Map) -> None:
    assert seen(target) == 0
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, str(pond.folder)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        expected = 0
        for number, act in enumerate(["load", "freeze", "compact", "load", "elsewhere", "alter", "load", "freeze"]):
            value = f"{number + 1}d" if act == "alter" else str(number + 1)
            other.stdin.write(f"{act} {value}\n")
            other.stdin.flush()
            assert other.stdout.readline() == "done\n"
            expected = number + 1 if act in ("load", "freeze") else expected
            assert seen(target) == expected, (number, act)
        other.stdin.close()
    assert other.returncode == 0


def test_an_unchanged_map_is_looked_up_without_reading_a_manifest(
    pond: Pond, target: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = target.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(refresh, "load_manifest", None)
        assert target.snapshot().finder is first.finder
        other = pond.create_map("other", kind="state", value="long")
        put(other, 1)  # writes into the same space
        assert target.snapshot().finder is first.finder
    put(target, 1)
    assert target.snapshot().finder is not first.finder
    assert first.lookup(["k"]).to_pylist() == [0]


def test_who_closes_a_snapshot_closes_it_for_no_other(target: Map) -> None:
    with target.snapshot() as one:
        with target.snapshot() as other:
            assert other.finder is one.finder
        with pytest.raises(Closed):
            other.lookup(["k"])
        with pytest.raises(Closed):
            other.another()
        assert one.lookup(["k"]).to_pylist() == [0]
    held = target._whole()  # as a lookup of another thread has it in hand
    target.snapshot().close()
    assert held.lookup(["k"]).to_pylist() == [seen(target)]


def test_the_files_of_a_snapshot_stay_for_its_last_holder(target: Map) -> None:
    one = target.snapshot()
    other, lease = one.another(), f"leases/{one.manifest.id}.lock"
    target.close()
    one.close()
    assert other.lookup(["k"]).to_pylist() == [0]
    path = target.objects.local_path(lease)
    assert path is not None
    with path.open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_space_that_does_not_count_is_read_every_time(target: Map) -> None:
    space = MemorySpace()
    freshness = Freshness(space, target.definition, target.shard)
    empty = freshness.stamp()
    assert empty == (None, None, target.shard.version)
    space.write(lambda tx: tx.put(freshness._pointer_key, b"x"))
    assert freshness.stamp() == (None, b"x", target.shard.version)


def test_the_version_of_a_shard_is_that_of_the_file(target: Map) -> None:
    for value in range(3):
        with target.shard.view() as view:
            assert target.shard.version == view.version
        put(target, value)
        target.compact()
    target.shard.close()
    with target.shard.view() as view:
        assert target.shard.version == view.version


@pytest.mark.parametrize("branch", [False, True], ids=["main", "branch"])
def test_a_snapshot_takes_over_the_files_that_the_one_before_it_has_open(pond: Pond, branch: bool) -> None:
    layered = pond.create_map("layered", kind="temporal_state", value="n long", store="layers")
    place = pond.branch("fix", source="main") if branch else pond
    layered = place.map("layered")
    keys = [f"k{number}" for number in range(3_000)]
    layered.load(pa.table({"key": keys, "effective_time": [0] * len(keys), "n": range(len(keys))}))
    before = layered.snapshot()
    assert before.lookup(["k7"], at=1).to_pylist() == [{"n": 7}]
    for number in range(3):  # on top, so the others are pieces of other numbers
        layered.load(pa.table({"key": ["k7", f"new{number}"], "effective_time": [number] * 2, "n": [number] * 2}))
        after = layered.snapshot()
        assert before.finder is not None and after.finder is not None
        assert {*map(id, before.finder.groups.batches)} < {*map(id, after.finder.groups.batches)}
        fresh = Snapshot.open(layered.objects, layered.freeze())
        keys_there = [*keys, "new0", "new1", "new2", "none"]
        assert after.lookup(keys_there, at=9).equals(fresh.lookup(keys_there, at=9))
        before = after
    place.alter_map("layered", rename={"n": "m"})
    assert place.map("layered").snapshot().lookup(["k7"], at=9).to_pylist() == [{"m": 2}]
