"""Backups of all parts of a pond: repositories, streams of events and runs, beside the maps and in step with them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from millpond.clock import ManualClock
from millpond.errors import Corrupt
from millpond.events.event import NewEvent
from millpond.kernel.steps import listening
from millpond.nodes.backups.layout import file_name, find_backup, stored_objects
from millpond.nodes.backups.prune import check_backup, prune
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.data.make_pond import NOW_MS
from tests.nodes.test_backups import Place, fill, folder_pond, peer_of, rows_of, tables
from tests.unit.test_golden_ponds import check_parts


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("of", ["node", "folder"])
def test_a_backup_holds_all_parts(of: str, tmp_path: Path, place: Place, request: pytest.FixtureRequest) -> None:
    """Repositories, streams and runs come back, from a node and from a folder; the next backup sends what is new."""
    make_parts = pytest.importorskip("tests.data.make_parts")
    with ExitStack() as opened:
        if of == "node":
            served = request.getfixturevalue("node")
            pond, source = served.node.pond, peer_of(served)
        else:
            pond, source = opened.enter_context(folder_pond(tmp_path / "pond"))
        clock = ManualClock(now=NOW_MS)
        make_parts.fill(pond, clock)
        first, _ = place.create(source)
        assert first.own is not None
        assert first.own.kinds == ("repositories", "streams of events", "runs of workflows")
        assert not first.left_out and first.own.objects_bytes
        again, nothing = place.create(source)
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


def test_a_backup_says_what_it_leaves_out(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        pond.repositories.create("flights", str(tmp_path / "elsewhere"))
        (pond.folder / "workflows").mkdir()
        created, _ = place.create(source)
    assert created.left_out == ("objects of repositories in other places", "runs of workflows in RocksDB")
    assert find_backup(place.objects, created.id) == created


def test_a_backup_of_an_earlier_release_is_restored(tmp_path: Path, place: Place) -> None:
    with folder_pond(tmp_path / "pond") as (pond, source):
        fill(pond, 1)
        backup, _ = place.create(source)
        expected = rows_of(pond)
    name = f"backups/{backup.id}.json"
    row = json.loads(place.objects.get(name).to_pybytes())
    del row["own"]
    place.objects.put(name, json.dumps(row | {"format": 1}).encode())
    with open_pond(place.restore().folder) as restored:
        assert rows_of(restored) == expected
