"""Files of layered maps that are put back from a copy, or from a backup."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import millpond
from millpond.clock import SystemClock
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.nodes.backups.create import create_backup
from millpond.nodes.backups.source import FolderSource
from millpond.stores.objects import FolderObjects
from millpond.testing.faults import KILL_AT, STEPS_LOG, flip_byte, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

pytestmark = pytest.mark.usefixtures("process")
FAULTS: dict[str, Callable[[Path], object]] = {
    "flipped": lambda file: flip_byte(file, file.stat().st_size // 2), "gone": Path.unlink,
}  # fmt: skip


@pytest.fixture
def pond(tmp_path: Path) -> Path:
    """A pond with two maps of two layers, and another layer on a branch."""
    with millpond.open(tmp_path / "pond") as opened:
        opened.create_map("weather", kind="state", value="temp double", store="layers")
        opened.create_map("costs", kind="ranged_state", value="double", store="layers")
        for temp in (1.0, 2.0):
            opened.map("weather").load([{"key": f"k{number}", "temp": temp + number} for number in range(200)])
            opened.map("costs").load([{"key_start": number, "key_end": number, "value": temp} for number in range(200)])
        opened.branch("try", source="main").map("weather").load([{"key": "k1", "temp": 99.0}])
    return tmp_path / "pond"


def copy_of(pond: Path) -> Path:
    millpond.copy(pond, target := pond.with_name("copy"))
    return target


def backup_of(pond: Path) -> Path:
    place = pond.with_name("backups")
    (scratch := pond.with_name("scratch")).mkdir()
    with millpond.open(pond) as opened:
        source = FolderSource(opened, SystemClock())
        create_backup(source, FolderObjects(str(place), 0o700), scratch, SystemClock())
    return place


def answers(pond: Path) -> tuple[object, object]:
    with millpond.open(pond) as opened:
        scans = [opened.map(name).scan().read_all().to_pylist() for name in ("weather", "costs")]
        return scans, opened.branch("try").map("weather").get("k1")


@pytest.mark.parametrize("source", [copy_of, backup_of])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["ranges", "indexes", "manifests", "intervals", "[!l]*"])
def test_what_is_damaged_or_missing_comes_back(
    pond: Path, source: Callable[[Path], Path], fault: str, kind: str
) -> None:
    expected, place = answers(pond), source(pond)
    for file in sorted((pond / "snapshots").glob(f"*/{kind}/*")):
        FAULTS[fault](file)
    assert kind != "ranges" or fault == "flipped" or raises(pond)
    report = millpond.repair(pond, place)
    assert report.files and not report.problems and answers(pond) == expected
    assert millpond.repair(pond, place).files == 0


def raises(pond: Path) -> bool:
    with pytest.raises((Corrupt, NotFound)):
        answers(pond)
    return True


def test_a_verify_looks_at_every_state_that_is_named_and_at_each_file_once(pond: Path) -> None:
    def ranges() -> set[Path]:
        return set((pond / "snapshots").glob("*/ranges/*"))

    before = ranges()
    with millpond.open(pond) as opened:
        opened.branch("other", source="main").map("weather").load([{"key": "k2", "temp": 98.0}])
        files = {file for file in (pond / "snapshots").glob("*/*/*") if file.parent.name != "leases"}
        report = opened.verify()
        assert report.ok and dict(report.counts)["snapshot file"] <= len(files)
    (own,) = ranges() - before
    flip_byte(own, own.stat().st_size // 2)
    with millpond.open(pond) as opened:
        (fault,) = opened.verify().problems
        assert fault.subject == "snapshot file" and "repair POND --from PLACE" in fault.remedy
        assert opened.map("weather").get("k2") == {"temp": 4.0}
        with pytest.raises((Corrupt, NotFound)):
            opened.branch("other").map("weather").get("k2")
        assert not opened.verify().ok  # also when it is in quarantine


def test_what_the_source_lacks_is_named_and_the_rest_comes(pond: Path) -> None:
    place = copy_of(pond)
    with millpond.open(pond) as opened:
        opened.map("weather").load([{"key": "new", "temp": 5.0}])
    for file in sorted((pond / "snapshots").glob("*/ranges/*")):
        file.unlink()
    report = millpond.repair(pond, place)
    assert report.files and report.problems and "range" in report.problems[0]


def test_places_that_cannot_be_are_refused(pond: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="nodes"):
        millpond.repair("http://localhost:1", pond)
    with pytest.raises(Invalid, match="folder or a bucket"):
        millpond.repair(pond, "http://localhost:1")
    with pytest.raises((NotFound, Invalid)):
        millpond.repair(pond, tmp_path / "nothing")


REPAIRING = """
import sys
import millpond
from millpond.testing import faults

with faults.arm():
    print(millpond.repair(*sys.argv[1:]).problems)
"""


@pytest.mark.parametrize("source", [copy_of, backup_of])
def test_a_repair_that_was_killed_at_any_step_is_ended_by_the_next(
    pond: Path, source: Callable[[Path], Path], tmp_path: Path
) -> None:
    expected, place, log = answers(pond), source(pond), tmp_path / "steps"

    def damage() -> None:
        for file in sorted((pond / "snapshots").glob("*/[!l]*/*")):
            flip_byte(file, file.stat().st_size // 2)

    damage()
    assert run_python("-c", REPAIRING, str(pond), str(place), **{STEPS_LOG: str(log)}).stdout == "()\n"
    moments = occurrences(log)
    assert any(moment.startswith("repair.") for moment in moments)
    for moment in drawn(moments, 4):
        damage()
        killed = run_python("-c", REPAIRING, str(pond), str(place), **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, moment
        assert millpond.repair(pond, place).problems == () and answers(pond) == expected, moment
