"""Fetching snapshots from nodes: only what is missing, checked, once for a machine; also when it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millpond.client.snapshots.reader import SnapshotCache
from millpond.errors import Corrupt, Invalid, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.ranges import verify
from millpond.stores.objects import FolderObjects
from millpond.testing.faults import KILL_AT, STEPS_LOG, flip_byte, occurrences
from tests.nodes.staged import KEYS, MINUTE, Stage, value

pytestmark = pytest.mark.sample(3, of="file")

WAIT = 30.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, nodes=3)
    yield made
    made.close()


# -- what is fetched ----------------------------------------------------------------------------------


def test_only_what_is_missing_is_fetched(stage: Stage) -> None:
    reader, first = stage.cache().reader("m"), stage.nodes[0]
    assert value(reader) == 0
    before = [file for file in first.files if file.startswith("ranges/")]
    assert len(before) > 3
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(reader) == 7
    after = [file for file in first.files if file.startswith("ranges/")]
    assert len(after) == len(before) + 1


def test_processes_of_a_machine_share_one_copy(stage: Stage) -> None:
    first = stage.nodes[0]
    caches = [stage.cache() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda cache: value(cache.reader("m")), caches)) == [0] * 6
    assert len(first.files) == len(set(first.files))
    # Who comes later asks no node at all, also when there is none.
    first.down = "down"
    requests_before = len(first.requests)
    assert value(stage.cache().reader("m")) == 0
    assert len(first.requests) == requests_before


def test_what_another_process_refreshed_is_taken_over(stage: Stage) -> None:
    mine, other = stage.cache().reader("m"), stage.cache().reader("m")
    assert (value(mine), value(other)) == (0, 0)
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(other) == 7
    requests_before = len(stage.nodes[0].requests)
    assert value(mine) == 7
    assert len(stage.nodes[0].requests) == requests_before


def test_a_copy_that_was_damaged_here_is_fetched_again(stage: Stage) -> None:
    assert value(stage.cache().reader("m")) == 0
    for file in (stage.folder / "machine").rglob("ranges/*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    cache = stage.cache()
    assert cache.reader("m").snapshot().lookup([f"k{key:05d}" for key in range(KEYS)]).to_pylist() == [0] * KEYS


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_file_is_fetched_from_the_next_node(stage: Stage, how: str, caplog: pytest.LogCaptureFixture) -> None:
    first, second = stage.nodes[:2]
    spoilt: list[str] = []

    def spoil(file: str, data: bytes) -> bytes:
        if not file.startswith("ranges/") or (spoilt and file not in spoilt):
            return data
        spoilt.append(file)
        return data[:-7] if how == "cut" else bytes([data[0] ^ 1]) + data[1:]

    first.spoil = spoil
    reader = stage.cache().reader("m")
    assert reader.snapshot().lookup([f"k{key:05d}" for key in range(KEYS)]).to_pylist() == [0] * KEYS
    assert second.files == spoilt[:1]
    assert any(spoilt[0] in said and first.url in said for said in caplog.messages)


def test_a_file_that_nobody_has_whole_is_refused(stage: Stage) -> None:
    for node in stage.nodes:
        node.spoil = lambda file, data: data[:50] if file.startswith("ranges/") else data
    reader = stage.cache().reader("m")
    with pytest.raises(Corrupt) as refused:
        reader.snapshot()
    assert all(node.url in str(refused.value) for node in stage.nodes)
    assert "ranges/" in str(refused.value)
    assert not list((stage.folder / "machine").rglob("ranges/*.arrow"))
    # And the next try succeeds when one is whole again.
    stage.nodes[2].spoil = None
    stage.later(MINUTE)
    assert value(reader) == 0


def test_a_lost_connection_goes_on_at_the_next_node(stage: Stage) -> None:
    first = stage.nodes[0]

    def spoil(file: str, data: bytes) -> bytes:
        if len([file for file in first.files if file.startswith("ranges/")]) >= 2:
            first.down = "cut"
        return data

    first.spoil = spoil
    assert value(stage.cache().reader("m"), KEYS - 1) == 0
    assert stage.nodes[1].files
    assert len(first.files) + len(stage.nodes[1].files) < 40


def test_a_node_without_room_to_freeze_is_passed_over(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    stage.later(20 * MINUTE)
    full = Unavailable("no space is left on the node's disk", kind="disk_full", hint="free some space there")
    stage.nodes[0].refuses = stage.nodes[1].refuses = full
    assert value(reader) == 7
    assert stage.nodes[2].manifests == 1


def test_a_snapshot_replaced_while_it_is_fetched_is_requested_anew(stage: Stage) -> None:
    first = stage.nodes[0]

    def spoil(file: str, data: bytes) -> bytes:
        if file.startswith("indexes/"):
            first.spoil = None
            raise NotFound("there is no such file", kind="snapshot_not_found", object=file)
        return data

    first.spoil = spoil
    assert value(stage.cache(first).reader("m")) == 0
    assert first.manifests == 2


# -- subsets ------------------------------------------------------------------------------------------


def test_a_reader_of_some_keys_fetches_only_those(stage: Stage) -> None:
    cache = stage.cache()
    reader = cache.reader("m", keys=("k00100", "k00200"))
    assert value(reader, 150) == 0
    size = sum(file.stat().st_size for file in (stage.folder / "machine").rglob("ranges/*"))
    assert size < 30_000
    with pytest.raises(Invalid, match="lower=k00100 upper=k00200"):
        value(reader, 200)
    assert value(cache.reader("m"), 200) == 0
    stage.load([150], 9)
    stage.later(20 * MINUTE)
    assert value(reader, 150) == 9
    assert reader is cache.reader("m", keys=("k00100", "k00200"))


@pytest.mark.parametrize("spoilt", ["", "current/m.lock"])
def test_a_cache_that_cannot_be_used_is_named(stage: Stage, spoilt: str) -> None:
    place = stage.folder / "machine"
    if spoilt:
        (place / stage.pond.log.pond_id / spoilt).mkdir(parents=True)
    else:
        place.write_text("no folder")
    with pytest.raises(Unavailable, match=r"folder=.*machine .*name another folder: client.cache") as error:
        stage.cache().reader("m").snapshot()
    assert error.value.kind == "snapshot_cache"


def test_bounds_the_map_cannot_have_are_refused_by_the_node(stage: Stage) -> None:
    with pytest.raises(Invalid, match="no times"):
        stage.cache().reader("m", window=(1, 2)).snapshot()
    with pytest.raises(Invalid, match="pair"):
        stage.cache().reader("m", keys="ab")


# -- kills --------------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from millpond.testing import faults
from tests.nodes.staged import StagedNode, StagedNodes, settings
from millpond.clock import ManualClock
from millpond.client.snapshots.reader import SnapshotCache
from millpond.pond import Pond

folder, now = Path(sys.argv[1]), int(sys.argv[2])
clock = ManualClock(now)
with Pond(folder / "pond", create=False, clock=clock) as pond:
    pond.map("m").freeze()
    nodes = StagedNodes(StagedNode("http://n1:1", pond))
    armed = faults.arm()
    cache = SnapshotCache(folder / sys.argv[3], nodes, settings(folder / sys.argv[3]), clock, tending=False)
    print(cache.reader("m").snapshot().lookup(["k00000"]).to_pylist()[0])
    cache.tend()
"""


def child(stage: Stage, machine: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", CHILD, str(stage.folder), str(stage.clock.now), machine]
    return subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def check_whole(folder: Path) -> None:
    """A visible index can be read in full."""
    for place in folder.glob("*/m.*"):
        objects = FolderObjects(place)
        for found in objects.list("indexes"):
            assert verify(objects, Path(found.name).stem).ok


def test_a_fetch_that_is_killed_is_gone_on_with(stage: Stage) -> None:
    done = child(stage, "pilot", **{STEPS_LOG: str(stage.folder / "log")})
    assert done.returncode == 0, done.stderr
    steps = occurrences(stage.folder / "log")
    kinds = {step.partition(":")[0] for step in steps}
    assert {"ranges.one_fetched", "ranges.fetched", "publish.files_copied", "snapshot.confirmed"} <= kinds
    chosen = [step for step in steps if not step.startswith("ranges.one_fetched")] + ["ranges.one_fetched:3"]
    for number, step in enumerate(chosen):
        machine = f"killed{number}"
        assert child(stage, machine, **{KILL_AT: step}).returncode < 0, step
        check_whole(stage.folder / machine)
        brought = len(list((stage.folder / machine).rglob("ranges/*.arrow")))
        node = stage.nodes[0]
        node.requests.clear()
        assert value(stage.cache(node, machine=machine).reader("m"), KEYS - 1) == 0
        ranges = [file for file in node.files if file.startswith("ranges/")]
        whole = len(list((stage.folder / machine).rglob("ranges/*.arrow")))
        assert len(ranges) == whole - brought, step


def test_a_lock_of_one_who_died_is_no_lock(stage: Stage) -> None:
    assert child(stage, "machine", **{KILL_AT: "ranges.one_fetched:2"}).returncode < 0
    assert value(stage.cache().reader("m")) == 0


def test_two_processes_at_once_fetch_once(stage: Stage) -> None:
    steps: list[str] = []
    both: Callable[[SnapshotCache], int] = lambda cache: value(cache.reader("m"))  # noqa: E731
    with listening(steps.append), ThreadPoolExecutor(2) as threads:
        assert list(threads.map(both, [stage.cache(), stage.cache()])) == [0, 0]
    assert steps.count("snapshot.confirmed") == 1


def test_a_flipped_byte_in_the_cache_is_found_by_who_looks(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    reader.snapshot()
    file = next((stage.folder / "machine").rglob("ranges/*.arrow"))
    flip_byte(file, file.stat().st_size // 2)
    place = file.parent.parent
    index = next(FolderObjects(place).list("indexes")).name
    assert not verify(FolderObjects(place), Path(index).stem).ok
