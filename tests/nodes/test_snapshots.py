"""Reading snapshots of nodes: when a node is asked, what is fetched, what is shown meanwhile, and what is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millpond.clock import SystemClock
from millpond.errors import Corrupt, Denied, Invalid, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.nodes.snapshots import SnapshotCache, SnapshotReader
from millpond.stores.objects import FolderObjects
from millpond.stores.ranges import verify
from millpond.testing.faults import KILL_AT, STEPS_LOG, flip_byte, occurrences
from tests.nodes.staged import KEYS, MINUTE, Stage

WAIT = 30.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, nodes=3)
    yield made
    for node in made.nodes:
        if node.held is not None:
            node.held.set()
    made.close()


def value(reader: SnapshotReader, key: int = 0) -> int:
    told: int = reader.snapshot().lookup([f"k{key:05d}"]).to_pylist()[0]
    return told


def settle(reader: SnapshotReader) -> None:
    """Wait for the refresh that is on its way, if there is one."""
    running = reader._running
    if running is not None:
        assert running.done.wait(WAIT)


# -- when a node is asked -----------------------------------------------------------------------------


def test_nothing_is_fetched_before_the_first_read(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert stage.nodes[0].asked == []
    assert value(reader, KEYS - 1) == 0
    assert stage.nodes[0].manifests == 1


def test_a_snapshot_is_shown_without_asking_until_it_is_due(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    asked = len(stage.nodes[0].asked)
    stage.later(10 * MINUTE - 1)
    assert value(reader) == 0
    assert len(stage.nodes[0].asked) == asked


def test_one_refresh_runs_while_the_old_one_is_shown(stage: Stage) -> None:
    reader, first = stage.cache().reader("m"), stage.nodes[0]
    assert value(reader) == 0
    stage.changed(7)
    stage.later(10 * MINUTE)
    first.held = threading.Event()
    asked = first.manifests
    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(lambda _: value(reader), range(20))) == [0] * 20
    first.held.set()
    settle(reader)
    assert first.manifests == asked + 1
    assert value(reader) == 7


def test_the_same_snapshot_again_confirms_it(stage: Stage) -> None:
    reader, first = stage.cache().reader("m"), stage.nodes[0]
    assert value(reader) == 0
    files = len(first.files)
    for _ in range(3):
        stage.later(10 * MINUTE)
        assert value(reader) == 0
        settle(reader)
        asked = first.manifests
        stage.later(MINUTE)
        assert value(reader) == 0
        assert first.manifests == asked
    assert len(first.files) == files


def test_a_failed_refresh_keeps_showing_and_is_not_repeated_at_once(stage: Stage) -> None:
    reader, first = stage.cache(stage.nodes[0]).reader("m"), stage.nodes[0]
    assert value(reader) == 0
    first.down = "connection refused"
    stage.later(11 * MINUTE)
    asked = first.manifests
    for _ in range(5):
        assert value(reader) == 0
        settle(reader)
    assert first.manifests == asked + 1
    stage.later(MINUTE)
    assert value(reader) == 0
    settle(reader)
    assert first.manifests == asked + 2
    # However long they stay away.
    stage.later(1000 * MINUTE)
    assert value(reader) == 0
    assert first.manifests == asked + 3


def test_with_nothing_to_show_it_fails_at_once_with_the_cause(stage: Stage) -> None:
    first = stage.nodes[0]
    reader = stage.cache(first).reader("m")
    first.down = "connection refused"
    for _ in range(5):
        with pytest.raises(Unavailable, match=r"node=http://n1:1 reason=connection refused"):
            reader.snapshot()
    assert len(first.asked) <= 1
    first.down = None
    stage.later(MINUTE)
    assert value(reader) == 0


def test_a_fetch_that_hangs_times_out_once_and_then_fails_at_once(stage: Stage) -> None:
    first = stage.nodes[0]
    first.held = threading.Event()
    reader = stage.cache(first, snapshot_fetch_timeout="100ms").reader("m")
    clock = SystemClock()
    with pytest.raises(Unavailable) as slow:
        reader.snapshot()
    assert slow.value.kind == "snapshot_fetch_slow"
    before = clock.monotonic()
    for _ in range(5):
        with pytest.raises(Unavailable):
            reader.snapshot()
    assert clock.monotonic() - before < 0.1
    # What comes late is welcome.
    first.held.set()
    settle(reader)
    assert value(reader) == 0


def test_one_that_is_too_old_is_refreshed_before_it_is_shown(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(reader) == 7


def test_a_clock_that_was_set_back_is_no_confirmation(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.changed(7)
    stage.clock.now -= 5 * MINUTE
    assert value(reader) == 7


def test_who_must_see_the_last_change_waits_for_it(stage: Stage) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.changed(7)
    assert value(reader) == 0
    assert reader.at_hand
    cache.outdate("m")
    assert not reader.at_hand
    assert value(reader) == 7
    stage.changed(8)
    assert reader.snapshot(fresh=True).lookup(["k00000"]).to_pylist() == [8]


def test_a_map_that_was_changed_before_it_was_read_is_read_fresh(stage: Stage) -> None:
    assert value(stage.cache().reader("m")) == 0
    stage.changed(7)
    cache = stage.cache()
    cache.outdate("m")
    assert value(cache.reader("m")) == 7


# -- which node ---------------------------------------------------------------------------------------


def test_the_next_node_is_asked_when_one_cannot_be_reached(stage: Stage) -> None:
    stage.nodes[0].down = "no route to host"
    assert value(stage.cache().reader("m")) == 0
    assert stage.nodes[1].manifests == 1
    assert stage.nodes[2].asked == []


def test_any_answer_is_final(stage: Stage) -> None:
    stage.nodes[0].refuses = NotFound("there is no such map", kind="map_not_found", map="m")
    cache = stage.cache()
    cache.fetch.store.know_pond(cache.fetch.nodes.urls, stage.pond.id)
    with pytest.raises(NotFound, match="no such map"):
        cache.reader("m").snapshot()
    assert stage.nodes[1].asked == []


def test_when_none_can_be_reached_all_are_named_with_their_reasons(stage: Stage) -> None:
    cache = stage.cache()
    assert value(cache.reader("m")) == 0
    for number, node in enumerate(stage.nodes):
        node.down = f"reason {number}"
    stage.later(100 * MINUTE)
    with pytest.raises(Unavailable) as failed:
        cache.reader("m").snapshot(fresh=True)
    for number, node in enumerate(stage.nodes):
        assert f"{node.url}: reason {number}" in str(failed.value)
    assert failed.value.kind == "node_unreachable"


@pytest.mark.parametrize("error", [NotFound("gone", kind="map_not_found"), Denied("no", kind="right_missing")])
def test_what_may_not_be_read_any_more_is_not_shown_any_more(stage: Stage, error: NotFound | Denied) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.nodes[0].refuses = error
    stage.later(10 * MINUTE)
    reader.snapshot()
    settle(reader)
    with pytest.raises(type(error)):
        reader.snapshot()
    with pytest.raises(type(error)):
        stage.cache().reader("m").snapshot()


def test_a_map_made_again_is_fetched_again(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    assert value(reader) == 0
    stage.pond.drop_map("m")
    stage.map = stage.pond.create_map("m", kind="state", value="long")
    stage.load([0], 5)
    stage.later(20 * MINUTE)
    assert value(reader) == 5


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
    asked = len(first.asked)
    assert value(stage.cache().reader("m")) == 0
    assert len(first.asked) == asked


def test_what_another_process_refreshed_is_taken_over(stage: Stage) -> None:
    mine, other = stage.cache().reader("m"), stage.cache().reader("m")
    assert (value(mine), value(other)) == (0, 0)
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(other) == 7
    asked = len(stage.nodes[0].asked)
    assert value(mine) == 7
    assert len(stage.nodes[0].asked) == asked


def test_a_copy_that_was_damaged_here_is_fetched_again(stage: Stage) -> None:
    assert value(stage.cache().reader("m")) == 0
    for file in (stage.folder / "machine").rglob("ranges/*.arrow"):
        file.write_bytes(file.read_bytes()[:100])
    cache = stage.cache()
    assert cache.reader("m").snapshot().lookup([f"k{key:05d}" for key in range(KEYS)]).to_pylist() == [0] * KEYS


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_file_is_asked_of_the_next_node(stage: Stage, how: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_line_that_breaks_in_between_goes_on_at_the_next_node(stage: Stage) -> None:
    first = stage.nodes[0]

    def spoil(file: str, data: bytes) -> bytes:
        if len([each for each in first.files if each.startswith("ranges/")]) >= 2:
            first.down = "cut"
        return data

    first.spoil = spoil
    assert value(stage.cache().reader("m"), KEYS - 1) == 0
    assert stage.nodes[1].files
    assert len(first.files) + len(stage.nodes[1].files) < 40


def test_a_snapshot_replaced_while_it_is_fetched_is_asked_for_anew(stage: Stage) -> None:
    first = stage.nodes[0]

    def spoil(file: str, data: bytes) -> bytes:
        if file.startswith("indexes/"):
            first.spoil = None
            raise NotFound("there is no such file", kind="snapshot_not_found", object=file)
        return data

    first.spoil = spoil
    assert value(stage.cache(first).reader("m")) == 0
    assert first.manifests == 2


# -- what is kept -------------------------------------------------------------------------------------


def manifests(stage: Stage) -> int:
    return len(list((stage.folder / "machine").rglob("manifests/*.json")))


def test_an_idle_reader_lets_go_and_comes_back_without_a_node(stage: Stage) -> None:
    cache = stage.cache()
    reader = cache.reader("m")
    assert value(reader) == 0
    stage.later(MINUTE - 1)
    cache.tend()
    assert reader._held is not None
    stage.later(MINUTE)
    cache.tend()
    assert reader._held is None
    asked = len(stage.nodes[0].asked)
    assert value(reader) == 0
    assert len(stage.nodes[0].asked) == asked


def test_an_old_snapshot_goes_when_its_last_reader_lets_go(stage: Stage) -> None:
    here, there = stage.cache(), stage.cache()  # two processes of one machine
    mine = here.reader("m").snapshot()
    other = there.reader("m").snapshot()
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(here.reader("m")) == 7
    here.tend()
    assert manifests(stage) == 2  # both are read: one here, one there
    assert other.lookup(["k00000"]).to_pylist() == [0]
    del mine
    here.tend()
    assert manifests(stage) == 2
    del other
    assert value(there.reader("m")) == 7
    there.tend()
    assert manifests(stage) == 1
    assert value(here.reader("m"), KEYS - 1) == 0


def test_a_thread_tends_by_itself(stage: Stage) -> None:
    cache = stage.cache(tending=True)
    collected = threading.Event()
    held = cache.reader("m").snapshot()
    stage.changed(7)
    stage.later(20 * MINUTE)
    assert value(cache.reader("m")) == 7
    with listening(lambda name: collected.set() if name == "collect.manifests_removed" else None):
        del held
        assert collected.wait(WAIT)
    tender = cache._tender
    cache.close()
    assert tender is not None
    tender.join(WAIT)
    assert not tender.is_alive()


def test_closing_what_was_given_out_does_not_close_the_reader(stage: Stage) -> None:
    reader = stage.cache().reader("m")
    reader.snapshot().close()
    assert value(reader) == 0


def test_copies_that_nobody_wants_any_more_are_removed(stage: Stage) -> None:
    cache = stage.cache()
    held = cache.reader("m").snapshot()
    stage.pond.create_map("other", kind="state")
    cache.reader("other").snapshot()
    store = cache.fetch.store
    assert store.sweep(stage.clock.now_ms()) == 0
    stage.later(8 * 24 * 60 * MINUTE)
    cache.close()
    assert store.sweep(stage.clock.now_ms()) == 1
    assert held.lookup(["k00000"]).to_pylist() == [0]
    assert manifests(stage) == 1
    del held
    assert store.sweep(stage.clock.now_ms()) == 1
    assert manifests(stage) == 0


# -- narrowed -----------------------------------------------------------------------------------------


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
from tests.nodes.staged import Stage, StagedNode, StagedNodes, settings
from millpond.clock import ManualClock
from millpond.nodes.snapshots import SnapshotCache
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


def child(stage: Stage, machine: str, **told: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", CHILD, str(stage.folder), str(stage.clock.now), machine]
    return subprocess.run(argv, env={**os.environ, **told}, capture_output=True, text=True, check=False)


def check_whole(folder: Path) -> None:
    """Whoever can see an index can read all of it."""
    for place in folder.glob("*/m.*"):
        objects = FolderObjects(place)
        for found in objects.list("indexes"):
            assert verify(objects, Path(found.name).stem).ok


def test_a_fetch_that_is_killed_is_gone_on_with(stage: Stage) -> None:
    done = child(stage, "pilot", **{STEPS_LOG: str(stage.folder / "log")})
    assert done.returncode == 0, done.stderr
    steps = occurrences(stage.folder / "log")
    kinds = {each.partition(":")[0] for each in steps}
    assert {"ranges.one_fetched", "ranges.fetched", "snapshot.files_fetched", "snapshot.confirmed"} <= kinds
    chosen = [each for each in steps if not each.startswith("ranges.one_fetched")] + ["ranges.one_fetched:3"]
    for number, step in enumerate(chosen):
        machine = f"killed{number}"
        assert child(stage, machine, **{KILL_AT: step}).returncode < 0, step
        check_whole(stage.folder / machine)
        brought = len(list((stage.folder / machine).rglob("ranges/*.arrow")))
        node = stage.nodes[0]
        node.asked.clear()
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
