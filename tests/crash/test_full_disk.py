"""A disk that is full: a clear error, nothing lost, and everything works again once there is space."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Unavailable
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond import Map, Pond

DISK_BYTES = 24 << 20
BLOB = bytes(range(256)) * 256
LARGE_RANGE = """
import sys
import pyarrow as pa
from millpond.errors import Unavailable
from millpond.ranges import Boundaries, write
from millpond.stores.objects import FolderObjects

batch = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([bytes(8 << 20)], pa.binary())})
try:
    write(FolderObjects(sys.argv[1]), [batch], Boundaries(bytes_max=1 << 20), bytes_at_once=1 << 20)
except Unavailable as error:
    print(error.kind)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(params=[None, "7d"], ids=["not-retained", "retained"])
def pond(disk: Path, request: pytest.FixtureRequest) -> Iterator[Pond]:
    with millpond.open(disk / "pond", clock=ManualClock(now=1), maps_part_retention=request.param) as opened:
        opened.create_map("m", kind="state", value="binary").load({"key": ["first"], "value": [b"retained"]})
        opened.map("m").lookup(["first"])
        yield opened


def fill(disk: Path, leaving: int = 0) -> Path:
    """Fill the disk up but for so many bytes, with a file."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        free = os.statvfs(disk)
        left = free.f_bavail * free.f_frsize - leaving
        while left > 0:
            left -= file.write(b"x" * min(left, 1 << 20))
    return ballast


def table(number: int, blobs: int) -> pa.Table:
    keys = [f"{number} {blob}" for blob in range(blobs)]
    return pa.table({"key": keys, "value": pa.array([BLOB + key.encode() for key in keys], pa.binary())})


def check(target: Map, loads: dict[int, int]) -> None:
    """Every row of these loads and no other."""
    expected = {f"{number} {blob}" for number, blobs in loads.items() for blob in range(blobs)}
    rows = target.scan().read_all()
    assert set(rows.column("key").to_pylist()) == expected | {"first"}
    for key in expected:
        assert target.get(key) == BLOB + key.encode()
    assert target.get("first") == b"retained"


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(Unavailable) as caught:
        act()
    assert caught.value.kind == "disk_full"
    return str(caught.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("leaving", [0, 64 << 10, 1 << 20, 3 << 20, 5 << 20])
def test_a_load_that_does_not_fit_is_refused_or_waits_and_nothing_is_lost(pond: Pond, disk: Path, leaving: int) -> None:
    """It runs out of space while the part is written, handed over, or merged, by how much is left."""
    target = pond.map("m")
    target.load(table(0, 4))
    ballast = fill(disk, leaving)
    refused(lambda: target.load(table(1, 40)))
    assert target.get("0 1") == BLOB + b"0 1"
    entered = target.info()["parts_queued"] == 1
    ballast.unlink()
    pond.merge()
    check(target, {0: 4, 1: 40} if entered else {0: 4})
    target.load(table(1, 40))
    check(target, {0: 4, 1: 40})
    assert target.lookup(["1 39", "first"]).to_pylist() == [BLOB + b"1 39", b"retained"]
    assert pond.verify().ok


def test_a_load_that_waits_for_space_is_merged_when_the_pond_is_opened_again(disk: Path) -> None:
    with millpond.open(disk / "pond", clock=ManualClock(now=1)) as pond:
        pond.create_map("m", kind="state", value="binary").load({"key": ["first"], "value": [b"retained"]})
        writer = pond.part_writer("m")
        definition = pond.map("m").definition
        writer.write(canonical_of(definition, [((key,), BLOB + key.encode()) for key in numbered_keys(60)]))
        parts = writer.finish()
        ballast = fill(disk, 256 << 10)
        refused(lambda: pond.commit_load(parts))
        assert pond.map("m").info()["parts_queued"] == 1
        with millpond.open(disk / "pond", clock=ManualClock(now=1, ids=100)) as other:
            assert other.map("m").get("first") == b"retained"
    ballast.unlink()
    with millpond.open(disk / "pond", clock=ManualClock(now=1, ids=200)) as pond:
        check(pond.map("m"), {1: 60})
        assert pond.verify().ok


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: a full disk for those who may not mount one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.sample(1)
@pytest.mark.parametrize("mib", [1, 3, 4, 6])
def test_files_that_may_not_grow_are_reported_like_a_full_disk(tmp_path: Path, mib: int) -> None:
    """With little room the part cannot be written, with more it cannot be merged."""
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        target = pond.create_map("m", kind="state", value="binary")
        target.load({"key": ["first"], "value": [b"retained"]})
        target.load(table(0, 60))
        with files_up_to(mib << 20):
            refused(lambda: target.load(table(1, 40)))
            assert target.get("0 59") == BLOB + b"0 59"
        assert target.info()["parts_queued"] == int(mib > 2)
        pond.merge()
        check(target, {0: 60, 1: 40} if mib > 2 else {0: 60})
        target.load(table(1, 40))
        check(target, {0: 60, 1: 40})
        assert target.lookup(["1 39", "first"]).to_pylist() == [BLOB + b"1 39", b"retained"]
        assert pond.verify().ok


def numbered_keys(count: int) -> list[str]:
    return [f"1 {blob}" for blob in range(count)]


def test_a_snapshot_that_does_not_fit_leaves_the_one_before(pond: Pond, disk: Path) -> None:
    target = pond.map("m")
    before = target.snapshot()
    target.load(table(1, 60))
    ballast = fill(disk)
    refused(target.freeze)
    assert before.lookup(["first"]).to_pylist() == [b"retained"]
    assert target.get("1 3") == BLOB + b"1 3"
    ballast.unlink()
    assert target.lookup(["1 3"]).to_pylist() == [BLOB + b"1 3"]
    assert pond.verify().ok


def test_a_large_range_that_does_not_fit_is_refused_and_no_signal_ends_the_process(disk: Path) -> None:
    """Its file is mapped before it is written: in a child, for a signal would end all tests."""
    fill(disk, leaving=4 << 20)
    command = [sys.executable, "-c", LARGE_RANGE, str(disk / "objects")]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout.strip()) == (0, "disk_full"), child.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("act", ["condense", "retain", "compact"])
def test_maintenance_that_does_not_fit_changes_nothing_and_works_later(pond: Pond, disk: Path, act: str) -> None:
    target = pond.create_map("t", kind="temporal_state", value="string")
    model = MapModel(target.kind)
    model.put([((f"k{key}", at), "same") for key in range(300) for at in range(40)])
    writer = pond.part_writer("t")
    writer.write(canonical_of(target.definition, model.scan()))
    pond.commit_load(writer.finish())

    def tend() -> None:
        if act == "compact":
            target.compact()
        else:
            getattr(target, act)(before=20)

    ballast = fill(disk)
    refused(tend)
    assert target.get("k7", at=39) == "same"
    assert target.info()["rows"] == len(model.rows)
    ballast.unlink()
    tend()
    if act != "compact":
        getattr(model, act)(20)
    assert target.info()["rows"] == len(model.rows)
    assert pond.verify().ok


def test_a_map_cannot_be_made_on_a_full_disk_and_can_be_later(pond: Pond, disk: Path) -> None:
    ballast = fill(disk)
    with suppress(Unavailable):
        pond.create_map("n", kind="state")
    ballast.unlink()
    pond.create_map("n", kind="state", exist_ok=True).load({"key": ["a"], "value": [1]})
    assert pond.map("n").get("a") == 1
