"""The power goes at each sync of a load, and what was not synced is lost: a load is there as a whole, or not at all."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.kernel.steps import listening
from millpond.maps.loads.load import seal_data
from millpond.maps.parts.stream import PartStream, split_streams
from millpond.nodes.backups.create import create_backup
from millpond.nodes.backups.restore import restore_backup
from millpond.nodes.backups.source import FolderSource
from millpond.nodes.limits import LIMITS
from millpond.nodes.tokens import ANYBODY
from millpond.nodes.uploads.commit import LoadCommit
from millpond.nodes.uploads.receiver import Receiver
from millpond.pond import open_pond
from millpond.stores.objects import FolderObjects
from millpond.stores.shared_sync import SharedSync
from tests.harness import power_cut

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.power_cut import PowerCut

BEFORE, AFTER = {"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}


def load(pond: Any, rows: dict[str, int]) -> None:
    pond.map("m").load({"key": list(rows), "value": list(rows.values())})


def rows_of(folder: Path) -> dict[str, int]:
    """The rows of a pond that is opened after a crash: what is queued is merged first."""
    with open_pond(folder, clock=ManualClock()) as pond:
        pond.merge()
        assert not pond.parts.quarantined()
        return {row["key"]: row["value"] for row in pond.map("m").scan().read_all().to_pylist()}


@pytest.mark.parametrize("names_survive", [False, True], ids=["nothing-more", "names-survive"])
@pytest.mark.parametrize("retention", [None, "7d"], ids=["not-retained", "retained"])
def test_a_load_is_there_as_a_whole_or_not_at_all_after_a_power_cut(
    tmp_path: Path, retention: str | None, names_survive: bool
) -> None:
    restored: list[tuple[Path, bool]] = []
    committed: list[str] = []

    def cut(image: PowerCut) -> None:
        place = image.restore(tmp_path / f"restored-{len(restored)}", names_survive=names_survive)
        restored.append((place, bool(committed)))

    def note(step: str) -> None:
        if step == "load.committed":
            committed.append(step)

    with open_pond(tmp_path / "pond", clock=ManualClock(), maps_part_retention=retention) as pond:
        pond.create_map("m", kind="state", value="long")
        load(pond, BEFORE)
        with power_cut.watched(tmp_path / "pond", cut) as image, listening(note):
            load(pond, {"b": 3, "c": 4})
        cut(image)
    outcomes = [rows_of(place) for place, _ in restored]
    assert outcomes[0] == BEFORE
    assert outcomes[-1] == AFTER
    for outcome, (_, was_committed) in zip(outcomes, restored, strict=True):
        assert outcome == AFTER if was_committed else outcome in (BEFORE, AFTER)
    assert len(outcomes) == 1 + 1 + 3 + 1, (
        "at each sync of the part, of its folder and of three commits, and at the end"
    )


@pytest.mark.parametrize("names_survive", [False, True], ids=["nothing-more", "names-survive"])
def test_a_load_with_its_parts_is_there_as_a_whole_or_not_at_all_after_a_power_cut(
    tmp_path: Path, names_survive: bool
) -> None:
    """Its files are synced at the same time, in any order, and before the load is entered."""
    restored: list[tuple[Path, bool]] = []
    committed: list[str] = []

    def cut(image: PowerCut) -> None:
        place = image.restore(tmp_path / f"restored-{len(restored)}", names_survive=names_survive)
        restored.append((place, bool(committed)))

    def note(step: str) -> None:
        if step == "load.committed":
            committed.append(step)

    with open_pond(tmp_path / "pond", clock=ManualClock(), serve=True, maps_part_retention="7d") as pond:
        definition = pond.create_map("m", kind="state", value="long").definition
        commit = LoadCommit(pond, Receiver(pond, LIMITS, ManualClock(), decides=lambda: True))
        bodies = [body_of(definition, tmp_path / str(n), rows) for n, rows in enumerate((BEFORE, {"b": 3, "c": 4}))]
        bring(commit, "before", bodies[0])
        pond.merge()
        with power_cut.watched(tmp_path / "pond", cut) as image, listening(note):
            bring(commit, "after", bodies[1])
        cut(image)
    outcomes = [rows_of(place) for place, _ in restored]
    assert outcomes[0] == BEFORE
    assert outcomes[-1] == AFTER
    for outcome, (_, was_committed) in zip(outcomes, restored, strict=True):
        assert outcome == AFTER if was_committed else outcome in (BEFORE, AFTER)
    assert len(outcomes) == 1 + 1 + 1 + 1, "at each sync of files and folders, of the commit, and at the end"


def body_of(definition: MapDefinition, folder: Path, rows: dict[str, int]) -> memoryview:
    """The stream of a part of these rows."""
    [part], _ = seal_data(definition, {"key": list(rows), "value": list(rows.values())}, folder)
    return memoryview(b"".join(PartStream(part.file).chunks()))


def bring(commit: LoadCommit, load: str, body: memoryview) -> None:
    commit.bring(load, split_streams(body), source="", rejected=0, stream=None, caller=ANYBODY)


def test_what_was_restored_from_a_backup_is_there_after_a_power_cut(tmp_path: Path) -> None:
    clock, place = ManualClock(), FolderObjects(tmp_path / "place")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "ponds").mkdir()
    with open_pond(tmp_path / "pond", clock=clock) as pond, closing(FolderSource(pond, clock)) as source:
        pond.create_map("m", kind="state", value="long")
        load(pond, BEFORE)
        main = pond.repositories.create("files").branch("main")
        for number in range(9):
            main.put(f"data/{number}", bytes([number]) * 1000)
        backup = create_backup(source, place, tmp_path / "scratch", clock).backup
    assert backup is not None
    with power_cut.watched(tmp_path / "ponds") as image:
        restore_backup(place, backup, tmp_path / "ponds" / "restored", clock)
        image.restore(tmp_path / "after", names_survive=True)
    assert rows_of(tmp_path / "after" / "restored") == BEFORE
    with open_pond(tmp_path / "after" / "restored", clock=clock) as pond:
        main = pond.repositories.get("files").branch("main")
        assert [main.get(f"data/{number}") for number in range(9)] == [bytes([number]) * 1000 for number in range(9)]


def test_a_sync_that_is_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        pond.create_map("m", kind="state", value="long")
        load(pond, BEFORE)
        restored: list[Path] = []

        def note(step: str) -> None:
            if step == "load.committed":
                restored.append(image.restore(tmp_path / "restored"))

        monkeypatch.setattr(SharedSync, "run", lambda _: None)
        with power_cut.watched(tmp_path / "pond") as image, listening(note):
            load(pond, {"b": 3, "c": 4})
    with open_pond(restored[0], clock=ManualClock()) as pond:
        pond.merge()
        [quarantined] = pond.parts.quarantined()
        assert "missing" in quarantined.reason
