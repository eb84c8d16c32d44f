"""The power goes at each sync of a load, and what was not synced is lost: a load is there as a whole, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.kernel.steps import listening
from millpond.pond import open_pond
from millpond.stores.shared_sync import SharedSync
from millpond.testing import power_cut

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.testing.power_cut import PowerCut

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

    with open_pond(tmp_path / "pond", clock=ManualClock(), part_retention=retention) as pond:
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
    assert len(outcomes) == 4 + 1 + 3 + 1, (
        "at each sync of the part, of its folder and of three commits, and at the end"
    )


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
