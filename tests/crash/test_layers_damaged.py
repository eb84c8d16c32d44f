"""Layers that are damaged on the disk: readers refuse, and `verify` names the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("folder", ["ranges", "indexes", "manifests"])
def test_a_damaged_layer_is_refused_and_named(tmp_path: Path, folder: str) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        layered = pond.create_map("m", kind="state", value="long", store="layers")
        layered.load([{"key": "k", "value": 1}])
        (place,) = (pond.folder / "snapshots").glob(f"m.*/{folder}/*")
        place.write_bytes(place.read_bytes()[:-1])
        assert [problem.subject for problem in pond.verify().problems] == ["snapshot file"]
    with millpond.open(tmp_path / "pond") as pond:
        for ask in (lambda: pond.map("m").lookup(["k"]), lambda: pond.map("m").get("k")):
            with pytest.raises((Corrupt, NotFound)):
                ask()


def test_a_damaged_range_stays_damaged_in_quarantine_until_it_is_put_back(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "k", "value": 1}])
    (place,) = (tmp_path / "pond" / "snapshots").glob("m.*/ranges/*")
    whole = place.read_bytes()
    place.write_bytes(whole[:-1])
    with millpond.open(tmp_path / "pond") as pond:
        for moved in (False, True):
            for ask in (lambda: pond.map("m").get("k"), lambda: pond.map("m").lookup(["k"])):
                with pytest.raises(Corrupt) as refused:
                    ask()
                assert refused.value.kind == "range_damaged"
                assert ("is in quarantine" in str(refused.value)) is moved
            assert not pond.verify().ok
            assert place.exists() is False
        place.write_bytes(whole)
        assert pond.map("m").get("k") == 1
        assert pond.verify().ok
