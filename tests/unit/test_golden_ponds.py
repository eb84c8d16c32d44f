"""Ponds as they were written, once by each format: opened, verified, read row by row, merged into, frozen."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict, Invalid, Unavailable
from millpond.kernel.steps import listening
from millpond.maps.loads.pond_folder import FOLDERS, OLDEST_FORMAT, POND_FORMAT
from millpond.maps.log.ownership import OwnerLock
from millpond.maps.model.definition import Kind
from millpond.maps.snapshots.manifest import ROLLED_UP_FORMAT
from millpond.pond import open_pond
from millpond.stores.lmdb.space import LmdbSpace
from millpond.workflows.keyspaces import TIMER_TIME
from tests.data import make_layers, make_pond

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.pond import Pond

pytestmark = pytest.mark.sample(3, of="file")

STORED = sorted(make_pond.FOLDER.glob("pond-*.zip"))
PARTS = sorted(make_pond.FOLDER.glob("parts-*.zip"))
LAYERS = sorted(make_pond.FOLDER.glob("layers-*.zip"))


def check_lookups(pond: Pond) -> None:
    """A lookup answers with the row that a scan shows."""
    for opened in pond.maps():
        if opened.kind in (Kind.STATE, Kind.TEMPORAL_STATE):
            rows = opened.scan().read_all()
            times = rows["effective_time"].combine_chunks() if opened.kind.timed else None
            struct = rows.drop_columns(["key", "effective_time"] if opened.kind.timed else ["key"]).to_pylist()
            values = rows["value"].to_pylist() if "value" in rows.column_names else struct
            assert opened.lookup(rows["key"].combine_chunks(), times).to_pylist() == values, opened.name


def check(folder: Path, rows: dict[str, list[Any]] | None) -> None:
    """A pond of the present format holds these rows, in every map and for every reader, and takes more."""
    with open_pond(folder, clock=ManualClock(now=make_pond.NOW_MS + 1, ids=20_000)) as pond:
        assert {problem.subject for problem in pond.verify(full=True).problems} == {"quarantine"}
        assert [part.map for part in pond.parts.list(state="quarantined")] == ["quarantined"]
        assert not pond.parts.list(state="queued"), "what waited was merged when the pond was opened"
        assert pond.map("queued").get("a") == 1
        found = make_pond.rows_of(pond)
        assert rows is None or found == rows
        check_lookups(pond)
        again = {name: columns for name, (_, [*_, columns]) in make_pond.maps().items()}
        for name, columns in again.items():
            opened = pond.map(name)
            opened.load(make_pond._table(columns), again=True)
            assert len(opened.scan().read_all()) == len(found[name]), "the same addresses came again"
            assert opened.freeze().groups
        assert {problem.subject for problem in pond.verify(full=True).problems} == {"quarantine"}


@pytest.mark.usefixtures("process")
def test_the_pond_of_the_script_is_read_as_it_was_packed(tmp_path: Path) -> None:
    make_pond.build(tmp_path / "pond")
    make_pond.pack(tmp_path / "pond", tmp_path / "pond.zip")
    assert (tmp_path / "pond.zip").stat().st_size < 300 << 10
    check(make_pond.unpack(tmp_path / "pond.zip", tmp_path / "copy"), None)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("archive", sorted(STORED), ids=lambda path: path.stem)
def test_a_stored_pond_is_read_or_refused_by_its_number(tmp_path: Path, archive: Path) -> None:
    folder = make_pond.unpack(archive, tmp_path / "pond")
    if format_of(archive) >= OLDEST_FORMAT:
        check(folder, json.loads(archive.with_suffix(".json").read_text(encoding="utf-8")))
        assert json.loads((folder / "pond.json").read_bytes()) == {"format": POND_FORMAT}
        return
    with pytest.raises(Invalid) as caught:
        open_pond(folder)
    assert caught.value.kind == "pond_format"
    assert caught.value.values["found"] == format_of(archive)


def format_of(archive: Path) -> int:
    return int(archive.stem.rpartition("-")[2])


def test_each_format_that_is_opened_has_its_ponds() -> None:
    formats = list(range(OLDEST_FORMAT, POND_FORMAT + 1))
    assert [format_of(archive) for archive in PARTS] == formats
    assert [format_of(archive) for archive in STORED if format_of(archive) >= OLDEST_FORMAT] == formats


# -- layered maps -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("archive", LAYERS, ids=lambda path: path.stem)
def test_layered_maps_of_a_stored_pond_are_read_and_go_on(tmp_path: Path, archive: Path) -> None:
    """On `main`, on a branch and in the past: as they were stored, and after they are folded and merged."""
    folder = make_pond.unpack(archive, tmp_path / "pond")
    stored = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
    clock = ManualClock(now=make_pond.NOW_MS + 3 * make_layers.MINUTE, ids=20_000)
    with open_pond(folder, clock=clock, events_reports=False) as pond:
        assert pond.verify(full=True).ok
        assert make_layers.states_of(pond) == stored
        check_lookups(pond)
        for opened in pond.maps():
            opened.compact()
        assert make_layers.states_of(pond) == stored
        pond.branch("open").commit("what was staged")
        pond.branch("open").merge("main")
        merged = make_pond.rows_of(pond)
        for name, rows in stored["open"].items():
            assert all(row in merged[name] for row in rows), name
        assert pond.verify(full=True).ok


def test_the_newest_format_of_manifests_has_its_pond() -> None:
    assert format_of(LAYERS[-1]) == ROLLED_UP_FORMAT


# -- all parts ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("archive", PARTS, ids=lambda path: path.stem)
def test_all_parts_of_a_stored_pond_go_on(tmp_path: Path, archive: Path) -> None:
    folder, clock = make_pond.unpack(archive, tmp_path / "pond"), ManualClock(now=make_pond.NOW_MS, ids=20_000)
    for name in FOLDERS:  # an archive has no empty folders
        (folder / name).mkdir(exist_ok=True)
    assert timer_bytes(folder) == {8 if format_of(archive) == 3 else 16}
    with open_pond(folder, clock=clock, events_reports=False) as pond:
        check_parts(pond, clock)
    assert timer_bytes(folder) <= {16}


def timer_bytes(folder: Path) -> set[int]:
    """The lengths of the rows of timers."""
    with closing(LmdbSpace(folder / "space")) as space, space.read() as tx:
        return {len(row) for _, row in tx.scan(TIMER_TIME.range())}


def check_parts(pond: Pond, clock: ManualClock) -> None:
    """A pond holds what `make_parts` put into its parts, and each goes on."""
    make_parts = pytest.importorskip("tests.data.make_parts")
    report = pond.verify()
    assert report.ok and {"run", "stream"} <= {kind for kind, _ in report.counts}
    assert pond.map("m").get("a") == 1
    branch = pond.repositories.get("flights").branch("main")
    assert (branch.get("day/1"), branch.get("day/2")) == (b"committed", b"staged")
    branch.commit("the next day", committer="nobody")
    assert [event.payload for event in pond.events.read("etl", "nightly")] == [b"payload"]
    pond.events.append("etl", "nightly", [b"more"])
    with make_parts.processing(pond, clock) as processor:
        for hours, status in ((0, "RUNNING"), (1, "COMPLETED")):
            clock.advance(hours * 3_600_000)
            while processor.turn():
                pass
            assert make_parts.status(pond, processor, "sleeps") == status
        assert make_parts.status(pond, processor, "works") == "RUNNING"
    assert pond.verify().ok


def test_a_migration_that_was_cut_off_is_ended_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_pond.unpack(PARTS[0], tmp_path / "pond")

    def cut(at: str) -> None:
        if at == "pond.rows_migrated":
            raise Unavailable("the machine is gone", kind="disk_full")

    with listening(cut), pytest.raises(Unavailable):
        open_pond(folder)
    assert json.loads((folder / "pond.json").read_bytes()) == {"format": 3}
    open_pond(folder).close()
    assert json.loads((folder / "pond.json").read_bytes()) == {"format": POND_FORMAT}


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("joined", [1, 30, 54])
def test_parts_that_become_files_are_all_there_whenever_it_is_cut_off(tmp_path: Path, joined: int) -> None:
    [archive] = (archive for archive in STORED if format_of(archive) == 4)
    folder = make_pond.unpack(archive, tmp_path / "pond")
    steps: list[str] = []

    def cut(at: str) -> None:
        steps.append(at)
        if steps.count("pond.part_joined") == joined:
            raise Unavailable("the machine is gone", kind="disk_full")

    with listening(cut), pytest.raises(Unavailable):
        open_pond(folder)
    assert any(place.is_dir() for place in [*(folder / "parts").iterdir(), *(folder / "quarantine").iterdir()])
    check(folder, json.loads(archive.with_suffix(".json").read_text(encoding="utf-8")))
    assert not [place for parts in ("parts", "quarantine") for place in (folder / parts).iterdir() if place.is_dir()]


def test_a_pond_that_a_node_serves_is_not_migrated_by_others(tmp_path: Path) -> None:
    folder = make_pond.unpack(PARTS[0], tmp_path / "pond")
    lock = OwnerLock(folder)
    lock.serve()
    try:
        with pytest.raises(Conflict, match="serves"):
            open_pond(folder)
    finally:
        lock.close()
    open_pond(folder, serve=True).close()
    assert json.loads((folder / "pond.json").read_bytes()) == {"format": POND_FORMAT}
