"""Backups of nodes and folders that work meanwhile: whole, at one position, small when little changed, restorable."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millpond.client.transport import Connection
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.nodes.backups.create import BackupReport, create_backup
from millpond.nodes.backups.layout import BACKUP_FORMAT, Backup, find_backup, list_backups
from millpond.nodes.backups.prune import check_backup, prune
from millpond.nodes.backups.restore import Restored, restore_backup
from millpond.nodes.backups.source import FolderSource
from millpond.nodes.replication.peer import Peer
from millpond.nodes.replication.source import BackupSource
from millpond.pond import Pond, open_pond
from millpond.settings import load_settings
from millpond.stores.objects import FolderObjects, ObjectStore
from millpond.testing.faults import flip_byte, occurrences
from tests.harness.interleaving.stores import PassingClock
from tests.nodes.backup_child import Story

if TYPE_CHECKING:
    from tests.nodes.conftest import Served

pytestmark = pytest.mark.sample(2, of="file")

ROOT = Path(__file__).resolve().parents[2]
MAPS: dict[str, dict[str, Any]] = {
    "weather": {"kind": "temporal_state", "value": "double"},
    "owners": {"kind": "state", "value": "string", "scheme": "hash"},
    "tags": {"kind": "state", "scheme": "lookup"},
    "nets": {"kind": "ranged_state", "value": "long"},
    "seen": {"kind": "session"},
    "aged": {"kind": "state", "value": "long", "retain": "1000y"},
    "empty": {"kind": "state", "value": "long"},
}


LAYERED = ("weather", "owners", "tags", "nets", "seen")


@pytest.fixture
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of most maps: `shard`, or `layers`."""
    for name in LAYERED:
        timed = {"retain": "1000y"} if (name, request.param) == ("owners", "layers") else {}
        monkeypatch.setitem(MAPS, name, {**MAPS[name], "store": request.param, **timed})
    return str(request.param)


in_both_stores = pytest.mark.parametrize("stores", ["shard", "layers"], indirect=True)


def instants(*ms: int) -> pa.Array:
    return pa.array(ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def tables(number: int) -> dict[str, pa.Table]:
    """The tables of one round of loads, by map."""
    keys = [f"k{number + n}" for n in range(20)]
    return {
        "weather": pa.table({"key": keys, "effective_time": instants(*range(number, number + 20)),
                             "value": [n * 0.5 for n in range(20)]}),
        "owners": pa.table({"key": [key * 200 for key in keys], "value": [f"v{number}"] * 20}),
        "tags": pa.table({"key": keys, "value": [number, *[number + 1] * 19]}),
        "nets": pa.table({"key_start": [10 * number], "key_end": [10 * number + 50], "value": [number]}),
        "seen": pa.table({"key": ["k"], "start": instants(number), "end": instants(number + 2)}),
        "aged": pa.table({"key": keys, "value": [number] * 20}),
    }  # fmt: skip


def fill(pond: Pond, *rounds: int, layered: Sequence[str] = ()) -> None:
    for name, settings in MAPS.items():
        store = {"store": "layers"} if name in layered else {}
        pond.create_map(name, **settings | store, exist_ok=True)
    for number in rounds:
        for name, table in tables(number).items():
            pond.map(name).load(table)


def rows_of(pond: Pond) -> dict[str, list[dict[str, Any]]]:
    """All rows of all maps, in an order of their own."""
    return {
        pond_map.name: sorted((row for batch in pond_map.scan() for row in batch.to_pylist()), key=repr)
        for pond_map in pond.maps()
    }


class Place:
    """A place for backups, and what is done with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, PassingClock(now=1_700_000_000_000)
        self.objects: ObjectStore = FolderObjects(folder / "place")
        self._count = 0

    def scratch(self) -> Path:
        self._count += 1
        scratch = self.folder / f"scratch{self._count}"
        scratch.mkdir()
        return scratch

    def create(self, source: BackupSource, *, full: bool = False) -> tuple[Backup, BackupReport]:
        self.clock.advance(1000)
        report = create_backup(source, self.objects, self.scratch(), self.clock, full=full)
        assert report.backup is not None
        return report.backup, report

    def restore(self, backup: Backup | None = None, position: int | None = None) -> Restored:
        self._count += 1
        found = backup or find_backup(self.objects, None)
        folder = self.folder / f"restored{self._count}"
        return restore_backup(self.objects, found, folder, self.clock, position=position)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def folder_pond(folder: Path, part_retention: str | None = "1d") -> Iterator[tuple[Pond, FolderSource]]:
    clock = ManualClock(now=1_600_000_000_000)
    opened = open_pond(folder, maps_part_retention=part_retention, clock=clock)
    with opened as pond, closing(FolderSource(pond, clock)) as source:
        yield pond, source


def peer_of(node: Served) -> Peer:
    return Peer(Connection(node.url, load_settings()))


@in_both_stores
def test_a_backup_of_a_node_is_restored(node: Served, place: Place, stores: str) -> None:
    fill(node.pond, 1, 2)
    backup, report = place.create(peer_of(node))
    assert backup.position == node.pond.log.position()[0]
    assert report.files
    assert not report.files_reused or stores == "layers", "the snapshots of a map share files"
    restored = place.restore()
    with open_pond(restored.folder) as pond:
        assert rows_of(pond) == rows_of(node.pond)
        assert pond.log.position() == node.pond.log.position()
        assert pond.log.pond_id == node.pond.log.pond_id
        assert pond.verify(full=True).ok
        fill(pond, 3)
        fill(node.pond, 3)
        assert rows_of(pond) == rows_of(node.pond)


def test_the_next_backup_brings_the_log_and_its_parts_only(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 400, 20))
        first, _ = place.create(source)
        pond.map("nets").load(tables(7)["nets"])
        second, report = place.create(source)
        third, nothing = place.create(source)
        assert second.base == third.base == first.id
        assert report.files == 2, "a part, and the entry that brings it"
        assert report.bytes < 100_000
        assert not nothing.files and third.position == second.position
        expected = rows_of(pond)
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected
    assert [backup.id for backup in list_backups(place.objects)] == [first.id, second.id, third.id]


def test_a_backup_is_restored_as_of_any_of_its_positions(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 100, 20))
        first, _ = place.create(source)
        moments = {first.position: rows_of(pond)}
        for number in range(5):
            pond.map("tags").load(tables(number)["tags"])
            moments[pond.log.position()[0]] = rows_of(pond)
        second, _ = place.create(source)
    assert second.base == first.id
    for position, rows in moments.items():
        with open_pond(place.restore(second, position).folder) as restored:
            assert rows_of(restored) == rows
            assert restored.log.position()[0] == position
    for position in (first.position - 1, second.position + 1):
        with pytest.raises(Invalid, match="does not reach"):
            place.restore(second, position)


def test_a_new_base_shares_the_shards_of_maps_that_nothing_changed(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 200, 20))
        first, _ = place.create(source)
        pond.map("tags").load(tables(3)["tags"])
        second, _ = place.create(source, full=True)
        expected = rows_of(pond)
    shards = {shard.map: shard.file for shard in first.shards}
    assert {shard.map for shard in second.shards if shard.file != shards[shard.map]} == {"tags"}
    assert second.base == second.id and second.earliest == second.position
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected


def test_parts_that_outgrow_the_shards_bring_a_new_base(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        place.create(source)
        fill(pond, *range(20, 200, 20))
        backup, report = place.create(source)
    assert backup.base == backup.id
    assert any("half of its shards" in reason for reason in report.reasons)


@in_both_stores
@pytest.mark.usefixtures("stores")
def test_a_pond_that_retains_no_parts_brings_a_base_each_time(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond", part_retention="off") as (pond, source):
        fill(pond, 1)
        place.create(source)
        fill(pond, 2)
        backup, report = place.create(source)
        assert backup.base == backup.id and report.reasons
        expected = rows_of(pond)
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected


@in_both_stores
@pytest.mark.usefixtures("stores")
def test_a_backup_while_loads_come_is_of_one_position(node: Served, place: Place) -> None:
    fill(node.pond, 0)
    stop = threading.Event()

    def load() -> None:
        number = 1
        while not stop.is_set():
            for name, table in tables(number).items():
                node.pond.map(name).load(table)
            number += 1

    loading = threading.Thread(target=load)
    loading.start()
    try:
        backups = [place.create(peer_of(node), full=full)[0] for full in (True, False, True)]
    finally:
        stop.set()
        loading.join()
    for backup in backups:
        restored = place.restore(backup)
        assert restored.position == backup.position
        with open_pond(restored.folder) as pond:
            _assert_rounds(pond)


def _assert_rounds(pond: Pond) -> None:
    """The loads of a round were made in order: no map is more than one round behind the one before it."""
    last = [max((row["value"] for row in pond.map(name).scan().read_all().to_pylist()), default=-1)
            for name in ("nets", "aged")]  # fmt: skip
    assert 0 <= last[0] - last[1] <= 1


@in_both_stores
@pytest.mark.usefixtures("stores")
def test_maps_that_were_dropped_and_made_anew(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 200, 20))
        place.create(source)
        pond.drop_map("tags")
        pond.create_map("tags", kind="state", value="long")
        pond.map("tags").load(pa.table({"key": ["a"], "value": [1]}))
        pond.drop_map("seen")
        place.create(source)
        expected = rows_of(pond)
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected
        assert "seen" not in expected


def test_damage_is_found_and_named(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 100, 20))
        place.create(source)
        pond.map("tags").load(tables(3)["tags"])
        backup, _ = place.create(source)
    assert not check_backup(place.objects, backup, place.scratch())
    shard = next(shard for shard in backup.shards if shard.map == "weather")
    damaged = [tmp_path / "place" / "files" / shard.file.checksum, next((tmp_path / "place" / "parts").iterdir())]
    for file in damaged:
        file.chmod(0o600)
        flip_byte(file, file.stat().st_size // 2)
    problems = check_backup(place.objects, backup, place.scratch())
    assert len(problems) == 2
    assert all(any(file.stem in problem for problem in problems) for file in damaged)
    with pytest.raises(Corrupt, match="not what was stored"):
        place.restore()
    assert not [left for left in tmp_path.iterdir() if left.name.startswith("restored") and "." not in left.name]


def test_a_backup_of_another_format_is_refused(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        backup, _ = place.create(source)
    file = tmp_path / "place" / "backups" / f"{backup.id}.json"
    later = file.read_bytes().replace(f'"format":{BACKUP_FORMAT}'.encode(), b'"format":99')
    place.objects.put(f"backups/{backup.id}.json", later)
    with pytest.raises(Invalid, match="format"):
        list_backups(place.objects)
    place.objects.put(f"backups/{backup.id}.json", b"[]")
    with pytest.raises(Corrupt, match="cannot be read"):
        find_backup(place.objects, backup.id)


@in_both_stores
@pytest.mark.usefixtures("stores")
def test_old_backups_are_pruned_with_what_only_they_need(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        for number in range(0, 100, 20):
            fill(pond, number)
            place.create(source, full=number % 40 == 0)
        expected = rows_of(pond)
        before = list_backups(place.objects)
        pruned = prune(place.objects, 2, place.scratch(), place.clock)
    assert pruned.backups == tuple(backup.id for backup in before[:-2])
    assert pruned.objects
    for backup in list_backups(place.objects):
        assert not check_backup(place.objects, backup, place.scratch())
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected
    assert not prune(place.objects, 2, place.scratch(), place.clock).objects
    with pytest.raises(Invalid):
        prune(place.objects, 0, place.scratch(), place.clock)


def test_a_restore_spares_what_is_there(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        backup, _ = place.create(source)
    with pytest.raises(Invalid, match="holds something"):
        restore_backup(place.objects, backup, tmp_path / "pond", place.clock)
    with pytest.raises(NotFound):
        find_backup(place.objects, "20010101T000000Z-1")


# -- killed -------------------------------------------------------------------------------------------


PREPARED: dict[str, tuple[str | int, ...]] = {
    "create": (0,),
    "full": (0, "create", 20),
    "continue": (0, 20, 40, 60, 80, 100, "create", 7),
    "prune": (0, "create", 20, "full"),
    "restore": (0, 20, 40, 60, 80, 100, "create", 7, "create"),
}
"""The rounds that are loaded, and the tasks that are done, before the task that is killed."""
OWN = ("backup.", "prune.", "restore.", "clone.shards", "clone.space")


@pytest.fixture(scope="module")
def do() -> Iterator[Callable[..., int]]:
    """Do a task in a folder, in a child that may be killed; its exit code."""
    command = [sys.executable, "-m", "tests.nodes.backup_child"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(folder: Path, task: str, kill_at: str = "") -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            name = "create" if task == "continue" else task
            line = {"folder": str(folder), "task": name, "log": str(folder / "log"), "kill_at": kill_at or None}
            process.stdin.write(f"{json.dumps(line)}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def _prepared(folder: Path, what: str, do: Callable[..., int]) -> list[str]:
    """A folder in which a task can be begun, and the steps it takes, each a moment to be killed at."""
    story = Story(folder)
    for act in PREPARED[what]:
        if isinstance(act, int):
            story.load(act)
        else:
            assert do(folder, act) == 0
    rehearsal = folder.with_name("rehearsal")
    shutil.copytree(folder, rehearsal)
    (rehearsal / "log").unlink(missing_ok=True)
    assert do(rehearsal, what) == 0
    return occurrences(rehearsal / "log")


def _killed(prepared: Path, what: str, at: str, do: Callable[..., int]) -> None:
    """Kill a task at a step: what is listed is whole, and the same task succeeds when it is run again."""
    folder = prepared.with_name(at.replace(":", "-"))
    shutil.copytree(prepared, folder)
    assert do(folder, what, at) == -signal.SIGKILL
    place = FolderObjects(folder / "place")
    for backup in list_backups(place):
        assert not check_backup(place, backup, folder / "check"), at
    assert do(folder, what) == 0, at
    backup = find_backup(place, None)
    restored = restore_backup(place, backup, folder / "verified", ManualClock())
    assert restored.position == backup.position
    with open_pond(restored.folder, events_reports=False) as pond:
        rounds = [act for act in PREPARED[what] if isinstance(act, int)]
        main, events = pond.repositories.get("flights").branch("main"), pond.events.read("etl", "nightly")
        assert {main.get(f"day/{number}") for number in rounds} == {event.payload for event in events}
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.full if what == "restore" else ()) for what in PREPARED]
)
def test_killed_at_each_kind_of_step(tmp_path: Path, what: str, do: Callable[..., int]) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    kinds = [at for at in _prepared(prepared, what, do) if at.endswith(":1") and at.startswith(OWN)]
    assert kinds
    for at in kinds:
        _killed(prepared, what, at, do)


@pytest.mark.full
@pytest.mark.parametrize("what", PREPARED)
def test_killed_at_every_step(tmp_path: Path, what: str, do: Callable[..., int]) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    for at in _prepared(prepared, what, do):
        _killed(prepared, what, at, do)


def test_a_bucket_is_a_place(tmp_path: Path, bucket: ObjectStore, place: Place) -> None:
    place.objects = bucket
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, *range(0, 100, 20))
        first, _ = place.create(source)
        pond.map("tags").load(tables(3)["tags"])
        second, _ = place.create(source)
        expected = rows_of(pond)
    assert second.base == first.id
    assert not check_backup(bucket, second, place.scratch())
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected
    assert prune(bucket, 1, place.scratch(), place.clock).backups == (first.id,)
