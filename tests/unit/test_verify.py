"""Findings of `verify`: nothing in a sound pond, and each kind of damage in its place."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Internal
from millpond.kernel.verify import Problem, Report, checked, problem
from millpond.maps.model.keyspaces import LOG, QUEUE, SNAPSHOT
from millpond.maps.model.snapshot_pointer import Current, move_pointer
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.harness.part_pieces import PIECES, flip_piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.kernel.space import Transaction
    from millpond.pond import Pond

DAY = 86_400_000
CLOCK = ManualClock(now=1000 * DAY)
MAPS = {
    "weather": ("temporal_state", "double", "auto"),
    "owner": ("state", None, "hash"),
    "country": ("ranged_state", "string", "auto"),
    "tariff": ("temporal_ranged_state", "long", "lookup"),
    "flight": ("session", None, "hash"),
}
ROWS = {
    "weather": [{"key": f"k{n % 50}", "effective_time": n * DAY, "value": float(n)} for n in range(500)],
    "owner": [{"key": f"o{n}" * (1 + n % 90), "value": "x" * (n % 600)} for n in range(300)],
    "country": [{"key_start": n * 10, "key_end": n * 10 + 30, "value": f"c{n}"} for n in range(200)],
    "tariff": [{"key_start": 0, "key_end": 9, "effective_time": n * DAY, "value": n} for n in range(100)],
    "flight": [{"key": f"f{n % 7}", "start": n * DAY, "end": n * DAY + 3600_000} for n in range(100)],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pond with every kind of map, loaded and frozen, to be copied."""
    folder = tmp_path_factory.mktemp("whole") / "pond"
    with millpond.open(folder, clock=CLOCK) as opened:
        for name, (kind, value, scheme) in MAPS.items():
            made = opened.create_map(name, kind=kind, value=value, scheme=scheme)
            made.load(ROWS[name], time_unit="ms")
            made.freeze()
    return folder


@pytest.fixture
def loaded(whole: Path, tmp_path: Path) -> Iterator[Pond]:
    shutil.copytree(whole, tmp_path / "pond")
    with millpond.open(tmp_path / "pond", clock=CLOCK) as opened:
        yield opened


def only_problem(report: Report) -> Problem:
    (found,) = report.problems
    return found


def damage(file: Path) -> None:
    """Change a byte in the middle of a file, as a failing disk would."""
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 0xFF]))


def wait(pond: Pond, name: str) -> Path:
    """Enter a load of one part, and leave it queued; the file of the part."""
    writer = pond.part_writer(name, source="a.csv")
    writer.write(next(iter(pond.map(name).shard.read_rows())).slice(0, 10))
    [part] = writer.finish()
    pond.loads.commit([part], "a.csv")
    return pond.loads.places.part(part.manifest.id)


def test_reports_add_up() -> None:
    total = checked("part", 2) + problem("part", "a", "is damaged", "load it again") + checked("row", 0)
    assert total.counts == (("part", 3),)
    assert total.checked == 3
    assert not total.ok
    assert str(total.problems[0]) == "part a: is damaged (load it again)"
    assert Report().ok


@pytest.mark.usefixtures("process")
def test_an_empty_pond_is_sound(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        assert pond.verify().problems == ()
        pond.create_map("empty", kind="state")
        assert pond.verify().problems == ()


@pytest.mark.usefixtures("process")
@pytest.mark.sample(1)
@pytest.mark.parametrize("full", [False, True])
def test_a_sound_pond_is_read_whole(loaded: Pond, full: bool) -> None:
    wait(loaded, "weather")
    report = loaded.verify(full=full)
    assert report.problems == ()
    counts = dict(report.counts)
    assert counts["row"] == sum(map(len, ROWS.values()))
    assert counts["map"] == counts["shard"] == counts["snapshot"] == len(MAPS)
    assert counts["part"] == counts["queue"] == 1
    assert counts["snapshot file"] >= 3 * len(MAPS) - 3


@pytest.mark.usefixtures("process")
@pytest.mark.sample(1)
@pytest.mark.parametrize("piece", PIECES)
def test_a_damaged_part_is_quarantined_with_its_reason(loaded: Pond, piece: str) -> None:
    place = wait(loaded, "weather")
    flip_piece(place, piece, 0.5)
    found = only_problem(loaded.verify())
    assert found.subject == "part"
    assert "a.csv" in found.remedy
    assert not place.exists()
    assert Path(f"{found.place}.json").exists()
    # It stays reported, as long as it lies there, and blocks nobody.
    assert only_problem(loaded.verify()).subject == "quarantine"
    other = wait(loaded, "weather")
    assert dict(loaded.verify().counts)["part"] == 1
    loaded.merge()
    assert not other.exists()


@pytest.mark.usefixtures("process")
def test_a_part_that_vanished_is_reported(loaded: Pond) -> None:
    wait(loaded, "owner").rename(loaded.folder / "elsewhere")
    found = only_problem(loaded.verify())
    assert found.subject == "part"
    assert "missing" in found.found


@pytest.mark.usefixtures("process")
@pytest.mark.sample(1)
@pytest.mark.parametrize("content", [b"\x00" * 8192, b"\xff" * 4096], ids=["zeros", "ones"])
def test_a_damaged_shard_is_named_and_left_as_it_is(loaded: Pond, content: bytes) -> None:
    shard = loaded.map("owner").shard
    loaded.map("owner").close()
    file = shard.folder / "000001" / "data.mdb"
    before = bytearray(file.read_bytes())
    for at in range(3 * 4096, len(before) - 8192, 4 * 4096):
        before[at : at + len(content)] = content
    file.write_bytes(before)
    found = only_problem(loaded.verify())
    assert found.subject == "shard"
    assert str(shard.folder) in found.place
    assert file.read_bytes() == bytes(before)


@pytest.mark.usefixtures("process")
def test_a_damaged_snapshot_is_quarantined_and_frozen_anew(loaded: Pond) -> None:
    weather = loaded.map("weather")
    wanted = weather.lookup(pa.array(["k7", "none"]), at="1970-02-27T00:00Z").to_pylist()
    weather.close()
    for file in (weather.objects.local_path("ranges"), weather.objects.local_path("indexes")):
        assert file is not None
        for path in file.iterdir():
            damage(path)
            found = only_problem(loaded.verify())
            assert found.subject == "snapshot file"
            assert Path(found.place).exists()
            assert loaded.map("weather").lookup(pa.array(["k7", "none"]), at="1970-02-27T00:00Z").to_pylist() == wanted
            assert loaded.verify().problems == ()
            weather.close()


@pytest.mark.usefixtures("process")
def test_a_snapshot_whose_manifest_is_gone_is_frozen_anew(loaded: Pond) -> None:
    country = loaded.map("country")
    wanted = country.lookup(pa.array([5, 1234])).to_pylist()
    country.close()
    file = country.objects.local_path(f"manifests/{country.freeze().id}.json")
    assert file is not None
    file.unlink()
    assert only_problem(loaded.verify()).subject == "snapshot file"
    assert country.lookup(pa.array([5, 1234])).to_pylist() == wanted


@pytest.mark.usefixtures("process")
def test_rows_of_maps_that_do_not_exist_are_reported(loaded: Pond) -> None:
    loaded.space.write(lambda tx: tx.put(SNAPSHOT.pack("gone"), b"x"))
    assert "gone" in only_problem(loaded.verify()).place


@pytest.mark.usefixtures("process")
def test_an_inconsistent_queue_is_reported(loaded: Pond) -> None:
    wait(loaded, "weather")
    (queued,) = loaded.loads.queue.parts()

    def renumber(tx: object) -> None:
        value = tx.get(QUEUE.pack("weather", queued.number))
        tx.put(QUEUE.pack("weather", queued.number + 100), value)

    loaded.space.write(renumber)
    assert "queue" in {found.subject for found in loaded.verify().problems}


@pytest.mark.usefixtures("process")
def test_folders_of_no_map_are_reported(loaded: Pond) -> None:
    (loaded.folder / "shards" / "old.0123").mkdir()
    found = only_problem(loaded.verify())
    assert found.place.endswith("old.0123")
    assert found.remedy.startswith("delete")


def test_an_older_snapshot_never_replaces_a_newer_one(loaded: Pond) -> None:
    manifest = loaded.map("weather").freeze()
    older = Current(manifest.id, manifest.incarnation, manifest.shard_version - 1)
    with pytest.raises(Internal):
        loaded.space.write(lambda tx: move_pointer(tx, "weather", older))


@pytest.mark.usefixtures("process")
def test_a_shard_that_was_restored_from_a_copy_is_frozen_anew(loaded: Pond, tmp_path: Path) -> None:
    weather = loaded.map("weather")
    keys = pa.array(["k7", "new"])
    wanted = weather.lookup(keys, at=900 * DAY).to_pylist()
    weather.close()
    shutil.copytree(weather.shard.folder, tmp_path / "copy")
    weather.load([{"key": "new", "effective_time": 0, "value": 1.0}])
    assert weather.lookup(keys, at=900 * DAY).to_pylist() != wanted
    weather.close()
    shutil.rmtree(weather.shard.folder)
    shutil.copytree(tmp_path / "copy", weather.shard.folder)
    assert loaded.map("weather").lookup(keys, at=900 * DAY).to_pylist() == wanted
    assert loaded.verify().problems == ()


def put(key: bytes, value: bytes, tx: Transaction) -> None:
    tx.put(key, value)


@pytest.mark.usefixtures("process")
def test_a_log_that_was_tampered_with_is_named(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", maps_part_retention="1d") as pond:
        for name in ("one", "two", "three"):
            pond.create_map(name, kind="state", value="long")
        pond.map("one").load({"key": ["a"], "value": [1]})
        assert pond.verify(full=True).ok
        with pond.space.read() as read:
            row = read.get(LOG.pack(2)) or b""
        for changed in (row.replace(b"two", b"tow"), row.replace(b"create", b"crated"), row[:20]):
            pond.space.write(partial(put, LOG.pack(2), changed))
            assert {problem.subject for problem in pond.verify().problems} == {"log"}
        pond.space.write(lambda tx: tx.put(LOG.pack(2), row))
        assert pond.verify().ok
        pond.space.write(lambda tx: tx.delete(LOG.pack(3)))
        assert "the next entry is 4" in str(pond.verify().problems[0])


@pytest.mark.usefixtures("process")
def test_a_retained_part_that_is_damaged_is_named_and_its_rows_are_there(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", maps_part_retention="1d") as pond:
        pond.create_map("one", kind="state", value="long").load({"key": ["a"], "value": [1]})
        [part] = pond.parts.list()
        flip_byte(pond.folder / "parts" / part.part, 6000)
        assert pond.verify().ok, "without `full` the files are not read"
        assert only_problem(pond.verify(full=True)).subject == "kept part"
        (pond.folder / "parts" / part.part).unlink()
        assert only_problem(pond.verify()).subject == "kept part"
        assert pond.map("one").get("a") == 1


@pytest.mark.usefixtures("process")
def test_a_copy_without_empty_folders_is_whole(tmp_path: Path) -> None:
    """As of a tool that copies files alone, such as one for buckets."""
    with open_pond(tmp_path / "pond") as pond:
        pond.create_map("one", kind="state", value="long").load({"key": ["a"], "value": [1]})
    for folder in list((tmp_path / "pond").rglob("*")):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    assert not (tmp_path / "pond" / "snapshots").exists()
    with open_pond(tmp_path / "pond") as pond:
        assert pond.verify().ok and pond.map("one").get("a") == 1
