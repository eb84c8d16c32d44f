"""Backups of all parts of a pond: repositories, streams of events and runs, beside the maps and in step with them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from numpy.random import default_rng

from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid
from millpond.events.event import NewEvent
from millpond.kernel.steps import listening
from millpond.maps.log.clone import own_rows
from millpond.nodes.backups.holding import naming_backups
from millpond.nodes.backups.layout import (
    BACKUP_FORMAT,
    OLDEST_FORMAT,
    StoredFile,
    StoredObject,
    fetch_object,
    fetch_part,
    file_name,
    find_backup,
    stored_objects,
    write_objects,
)
from millpond.nodes.backups.prune import check_backup, prune
from millpond.nodes.backups.source import FolderSource
from millpond.nodes.replication.source import ShardFile
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.data.make_pond import NOW_MS
from tests.nodes.test_backups import Place, fill, folder_pond, peer_of, rows_of, tables
from tests.unit.test_golden_ponds import check_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.client.transfer import Fetched
    from millpond.nodes.backups.layout import Backup
    from millpond.nodes.replication.source import BackupSource, PondFile
    from millpond.pond import Pond
    from tests.nodes.conftest import Served


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def opened_source(of: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Pond, BackupSource]]:
    """A pond of a node or of a folder, and what a backup is made from."""
    if of == "node":
        served = request.getfixturevalue("node")
        yield served.node.pond, peer_of(served)
    else:
        with folder_pond(tmp_path / "pond") as opened:
            yield opened


def stored_rows(place: Place, backup: Backup) -> dict[bytes, bytes]:
    """The rows of a backup that only the folder has."""
    assert backup.own is not None
    files = [fetch_object(place.objects, file_name(piece), place.scratch() / "rows") for piece in backup.own.rows]
    return dict(row for file in files for row in own_rows(file))


@pytest.mark.sample(1)
@pytest.mark.parametrize("of", ["node", "folder"])
def test_a_backup_holds_all_parts(of: str, tmp_path: Path, place: Place, request: pytest.FixtureRequest) -> None:
    """Repositories, streams and runs come back, from a node and from a folder; the next backup sends what is new."""
    make_parts = pytest.importorskip("tests.data.make_parts")
    with opened_source(of, tmp_path, request) as (pond, source):
        clock = ManualClock(now=NOW_MS)
        make_parts.fill(pond, clock)
        first, _ = place.create(source)
        assert first.own is not None
        assert first.own.kinds == ("repositories", "streams of events", "runs of workflows")
        assert not first.left_out and first.own.objects_bytes
        again, nothing = place.create(source)
        assert stored_rows(place, again) == stored_rows(place, first)
        assert not nothing.files and again.own == first.own
        pond.repositories.get("flights").branch("main").put("day/3", b"later")
        second, more = place.create(source)
        assert more.files == 3, "an object, the list of objects, and a piece of rows"
    assert not check_backup(place.objects, second, place.scratch())
    with open_pond(place.restore(second).folder, clock=clock, events_reports=False) as restored:
        assert restored.repositories.get("flights").branch("main").get("day/3") == b"later"
    with open_pond(place.restore(first).folder, clock=clock, events_reports=False) as restored:
        check_parts(restored, clock)
    assert prune(place.objects, 1, place.scratch(), place.clock).objects
    assert not check_backup(place.objects, second, place.scratch())


class _Watched(FolderSource):
    """A folder that notes how many objects are on their way at once."""

    def __init__(self, pond: Pond, clock: ManualClock) -> None:
        super().__init__(pond, clock)
        self.under_way, self.most, self.lock, self.another = 0, 0, threading.Lock(), threading.Event()

    def fetch(self, source: PondFile, target: Path) -> Fetched:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.under_way > 1:
                self.another.set()
        self.another.wait(0.02)  # so that another one may come
        try:
            return super().fetch(source, target)
        finally:
            with self.lock:
                self.under_way -= 1


def test_small_objects_go_side_by_side_and_large_ones_one_at_a_time(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(now=NOW_MS)
    with open_pond(tmp_path / "pond", clock=clock) as pond:
        main = pond.repositories.create("files").branch("main")
        for number in range(20):
            main.put(str(number), bytes([number]) * 100)
        small, large = _Watched(pond, clock), _Watched(pond, clock)
        first, _ = place.create(small)
        assert 1 < small.most <= 4
        assert first.own is not None
        assert first.own.objects_bytes >= 2000
        monkeypatch.setattr("millpond.nodes.backups.create.SMALL_BYTES_MAX", 99)
        main.put("large", b"larger" * 100)
        main.put("larger", b"longer" * 100)
        place.create(large)
        assert large.most == 1
        for source in (small, large):
            source.close()
    assert not check_backup(place.objects, first, place.scratch())


def test_a_process_that_opens_no_pond_backs_up_what_only_the_node_has(node: Served, tmp_path: Path) -> None:
    """The command, as people run it: it knows the keyspaces of all parts, though it uses none of them."""
    assert node.node.pond.events.append("etl", "nightly", [NewEvent(NOW_MS, b"", "queued")]).count == 1
    made, restored = str(tmp_path / "place"), str(tmp_path / "restored")
    for words in (["backup", "create", made, "--pond", node.url], ["restore", made, restored]):
        ran = subprocess.run([sys.executable, "-m", "millpond", *words], capture_output=True, text=True, check=False)
        assert not ran.returncode, ran.stderr
    with open_pond(restored) as pond:
        assert [event.kind for event in pond.events.read("etl", "nightly")] == ["queued"]


def test_the_parts_of_a_backup_are_in_step_with_its_maps(tmp_path: Path, place: Place) -> None:
    """Rows of the folder are taken before the end of the log: what they tell of loads is there."""
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)

        def load(at: str) -> None:
            if at == "backup.rows_stored":
                pond.map("tags").load(tables(2)["tags"])
                pond.events.append("etl", "nightly", [NewEvent(0, b"tags are loaded")])

        with listening(load):
            backup, _ = place.create(source)
        expected = rows_of(pond)
    with open_pond(place.restore(backup).folder, events_reports=False) as restored:
        assert rows_of(restored) == expected
        assert restored.events.index("etl", "nightly") is None


def test_damage_to_an_object_of_a_repository_is_found(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        pond.repositories.create("flights").branch("main").put("day/1", b"a" * 5000)
        backup, _ = place.create(source)
    found = next(found for found in stored_objects(place.objects, backup, place.scratch()) if found.file.bytes == 5000)
    file = tmp_path / "place" / file_name(found.file)
    file.chmod(0o600)
    flip_byte(file, 17)
    assert file.name in check_backup(place.objects, backup, place.scratch())[0]
    with pytest.raises(Corrupt, match="not what was stored"):
        place.restore(backup)


def test_the_rules_of_alerts_are_those_of_the_backup(tmp_path: Path, place: Place) -> None:
    value = {"kind": "aggregate", "value": "orders long count", "resolution": "1 hour"}
    with folder_pond(tmp_path / "pond") as (pond, source):
        sales = pond.create_map("sales", **value)
        sales.alerts.add("orders > 1", name="gone")
        first, _ = place.create(source)
        sales.alerts.remove("gone")
        rule = sales.alerts.add("orders > 2", name="kept")
        pond.create_map("later", **value).alerts.add("orders > 3")
        second, _ = place.create(source)
    assert second.base == first.base
    for backup, position, names in (
        (first, None, {"sales": ["gone"]}), (second, None, {"sales": ["kept"], "later": ["alert_1"]}),
        (second, first.position, {"sales": ["kept"]}),
    ):  # fmt: skip
        with open_pond(place.restore(backup, position).folder) as restored:
            there = {own.name: [it.name for it in own.alerts.list()] for own in restored.maps()}
            assert there == names
            assert names["sales"] == ["gone"] or restored.map("sales").alerts.list() == (rule,)
            later = restored.create_map("later", **value, exist_ok=True)
            assert bool(later.alerts.list()) == ("later" in names)


def test_files_are_copied_where_scratch_files_lie_on_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the temporary files of a machine often do."""

    def no_link(target: Path, source: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    monkeypatch.setattr(Path, "hardlink_to", no_link)
    with open_pond(tmp_path / "pond", clock=ManualClock(now=NOW_MS)) as pond:
        made = pond.create_map("m", kind="state", value="long", store="shard")
        made.load([{"key": "a", "value": 1}])
        source = FolderSource(pond, pond.clock)
        fetched = source.fetch(ShardFile(made.definition), tmp_path / "copy")
    assert fetched.bytes == (tmp_path / "copy").stat().st_size > 0


def test_damage_to_a_layer_says_what_to_do(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1, layered=("owners",))
        backup, _ = place.create(source)
    [file, *_] = (tmp_path / "place" / "maps").rglob("ranges/*")
    file.chmod(0o600)
    flip_byte(file, file.stat().st_size // 2)
    with pytest.raises(Corrupt, match=rf"{file.name}.*restore another backup"):
        place.restore(backup)


@pytest.mark.parametrize("layered", [False, True], ids=["shard", "layers"])
def test_a_backup_leaves_no_row_behind_that_is_purged_later(layered: bool, tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1, layered=("owners",) if layered else ())
        place.create(source)
        owners, where = pond.map("owners"), "value = 'v1'"
        before = owners.delete(where, now=True)
        assert ("pinned" if layered else "copies/") in str(before.left)
        source.close()
        assert owners.delete(where, now=True).purged
        assert not (tmp_path / "pond" / "copies").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("layered", [False, True], ids=["shard", "layers"])
def test_a_purge_names_the_backups_that_have_the_rows(layered: bool, tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1, layered=("owners",) if layered else ())
        backup, _ = place.create(source)
        owners, where = pond.map("owners"), "value = 'v1'"
        report = owners.delete(where, now=True)
        assert report.rows_removed
        named = naming_backups(report, owners.definition, where, str(tmp_path / "place"))
        assert not named.purged and [backup.id in line for line in named.left[len(report.left) :]] == [True]
        place.create(source)
        if layered:
            prune(place.objects, 1, place.scratch(), place.clock)
            assert naming_backups(report, owners.definition, where, str(tmp_path / "place")) == report
        other = naming_backups(report, pond.map("tags").definition, "key = 'nobody'", str(tmp_path / "empty"))
        assert other == report


def test_a_backup_says_what_it_leaves_out(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        pond.repositories.create("flights", str(tmp_path / "elsewhere"))
        (pond.folder / "workflows").mkdir()
        created, _ = place.create(source)
    assert created.left_out == ("objects of repositories in other places", "runs of workflows in RocksDB")
    assert find_backup(place.objects, created.id) == created


@pytest.mark.sample(1)
@pytest.mark.parametrize("payload", [300, 30_000], ids=["small", "large"])
def test_one_event_more_stores_little_anew(payload: int, tmp_path: Path, place: Place) -> None:
    """Pieces are cut by bytes, whether rows are small or large; none is as large as what is there."""
    draw, count = default_rng(payload), 12_000_000 // payload
    with folder_pond(tmp_path / "pond") as (pond, source):
        for number in range(count // 40):
            events = [NewEvent(NOW_MS, draw.bytes(payload), "progress") for _ in range(40)]
            pond.events.append("etl", f"night-{number % 20}", events)
        first, report = place.create(source)
        assert first.own is not None
        pond.events.append("etl", "night-7", [NewEvent(NOW_MS, b"one more", "progress")])
        second, more = place.create(source)
        expected = [event.id for event in pond.events.read("etl", "night-7")]
    assert second.own is not None and second.own != first.own
    assert more.bytes < 8 << 20 and more.bytes < report.bytes / 2, (more.bytes, report.bytes)
    assert len({stored.checksum for stored in second.own.rows} - {stored.checksum for stored in first.own.rows}) <= 5
    with open_pond(place.restore(second).folder, events_reports=False) as restored:
        assert [event.id for event in restored.events.read("etl", "night-7")] == expected


def test_one_object_more_stores_little_of_the_list_anew(tmp_path: Path) -> None:
    objects = [StoredObject(f"data/{number:020}", StoredFile(f"{number:032x}", 1)) for number in range(50_000)]
    more = sorted([*objects, StoredObject(f"data/{20_000:020}x", StoredFile("f", 2))], key=lambda stored: stored.name)
    piece = tmp_path / "objects.gz"
    before, after = ({file.read_bytes() for file in write_objects(some, piece)} for some in (objects, more))
    assert len(before) > 3 and len(after - before) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("of", ["node", "folder"])
def test_maps_that_only_branches_and_tags_have_come_back(
    of: str, tmp_path: Path, place: Place, request: pytest.FixtureRequest
) -> None:
    with opened_source(of, tmp_path, request) as (pond, source):
        for name in ("stays", "unloaded", "dropped", "old", "sharded"):
            made = pond.create_map(name, kind="state", value="long", store="layers")
            if name != "unloaded":
                made.load([{"key": "a", "value": 1}])
        pond.repository("pond").create_tag("before", "main")
        fix = pond.branch("fix", source="main")
        fix.create_map("new", kind="state", value="long")
        for name in ("unloaded", "new"):
            fix.map(name).load([{"key": "a", "value": 2}])
        pond.drop_map("dropped")
        pond.catalogue.rename("old", "renamed")
        pond.alter_map("sharded", store="shard")
        backup, _ = place.create(source)
    assert not check_backup(place.objects, backup, place.scratch())
    with open_pond(place.restore(backup).folder, events_reports=False) as restored:
        tagged, branch = restored.at("before"), restored.branch("fix")
        assert [tagged.map(name).get("a") for name in ("stays", "dropped", "old", "sharded")] == [1] * 4
        assert [branch.map(name).get("a") for name in ("unloaded", "new", "old")] == [2, 2, 1]
        assert [restored.map(name).get("a") for name in ("unloaded", "renamed", "sharded")] == [None, 1, 1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(OLDEST_FORMAT, BACKUP_FORMAT))
def test_a_backup_of_an_earlier_release_is_restored(tmp_path: Path, place: Place, number: int) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        pond.repositories.create("flights").branch("main").put("day/1", b"an object")
        place.create(source)
        pond.map("tags").load(tables(2)["tags"])
        backup, _ = place.create(source)
        expected = rows_of(pond)
        later, report = place.create(source)
        assert not report.files, "a part that is there is not stored once more"
    write_as(place, backup, number)
    with open_pond(place.restore(backup).folder) as restored:
        assert rows_of(restored) == expected
    assert not check_backup(place.objects, later, place.scratch())


@pytest.mark.parametrize("number", range(1, OLDEST_FORMAT))
def test_a_backup_with_parts_as_zips_is_refused(tmp_path: Path, place: Place, number: int) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        backup, _ = place.create(source)
    write_as(place, backup, number)
    with pytest.raises(Invalid, match="the version of Millpond that wrote it") as caught:
        find_backup(place.objects, backup.id)
    assert (caught.value.kind, caught.value.values["found"]) == ("backup_format", number)


def test_a_stored_part_that_is_damaged_or_another_is_refused(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        place.create(source)
        pond.map("tags").load(tables(2)["tags"])
        place.create(source)
    [file, *_] = (tmp_path / "place" / "parts").iterdir()
    whole, there = file.read_bytes(), place.scratch() / "there"
    for part, data, kind in (
        (file.stem, whole[:-1], "part_stream"), (file.stem, whole[:-1] + b"x", "upload_damaged"),
        (file.stem, b"PK" + whole, "part_zipped"), ("0" * 32, whole, "part_other"),
    ):  # fmt: skip
        file.with_stem(part).write_bytes(data)
        with pytest.raises(Corrupt) as caught:
            fetch_part(place.objects, part, there)
        assert caught.value.kind == kind
        assert not there.exists()
    file.write_bytes(whole)
    with pytest.raises(Invalid, match="larger"):
        fetch_part(place.objects, file.stem, there, len(whole) - 1)
    assert fetch_part(place.objects, file.stem, there).id == file.stem


def write_as(place: Place, backup: Backup, number: int) -> None:
    """Let a backup be one of an earlier format."""
    name = f"backups/{backup.id}.json"
    row = json.loads(place.objects.get(name).to_pybytes())
    if number < 5 and row["own"]["objects"]:
        [row["own"]["objects"]] = row["own"]["objects"]
    place.objects.put(name, json.dumps(row | {"format": number}).encode())
