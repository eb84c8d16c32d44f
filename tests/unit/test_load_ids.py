"""Load ids: each is of one load, of its maps on main or a branch; rows for others are refused under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict
from millpond.pond import open_pond

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from millpond import Pond


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=86_400_000)) as opened:
        yield opened


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_a_load_id_is_of_the_maps_of_its_load(pond: Pond, tmp_path: Path, store: str) -> None:
    one, other = (pond.create_map(name, kind="state", value="long", store=store) for name in ("one", "other"))
    file = tmp_path / "rows.csv"
    file.write_text("key,value\na,1\n")
    first = pond.load_files(file, "one", load_id="job-1")
    position = pond.log.position()[0]
    cases: list[Callable[[], object]] = [
        lambda: pond.load_files(file, "other", load_id="job-1"),
        lambda: pond.load_files([file, file], "other", load_id="job-1"),
    ]
    for again in cases:
        with pytest.raises(Conflict) as refused:
            again()
        assert refused.value.kind == "load_taken"
        assert (refused.value.values["load"], refused.value.values["entered"]) == ("job-1", "one on main")
        assert refused.value.values["maps"] == "other on main"
    assert pond.log.position()[0] == position and other.get("a") is None
    file.write_text("key,value\na,3\n")
    assert pond.load_files(file, "one", load_id="job-1").position == first.position
    pond.loading.void("job-2")
    assert pond.load_files(file, "other", load_id="job-2").rows == 0, "it was voided: it is of no map"
    assert (one.get("a"), other.get("a")) == (1, None)


def test_a_load_id_is_of_its_branch(pond: Pond, tmp_path: Path) -> None:
    for name in ("one", "other"):
        pond.create_map(name, kind="state", value="long", store="layers")
    fix, wap = pond.branch("fix", source="main"), pond.branch("wap", source="main")
    file = tmp_path / "rows.csv"
    file.write_text("key,value\na,1\n")
    first = fix.load_files(file, "one", load_id="job-1")
    cases: list[tuple[Any, str]] = [
        (pond, "one on main"),
        (wap, "one on wap"),
        (wap, "other on wap"),
        (fix, "other on fix"),
    ]
    for target, maps in cases:
        with pytest.raises(Conflict) as refused:
            target.load_files(file, maps.split()[0], load_id="job-1")
        assert refused.value.kind == "load_taken"
        assert (refused.value.values["maps"], refused.value.values["entered"]) == (maps, "one on fix")
    with pytest.raises(Conflict, match="other maps"):
        wap.map("other").load([{"key": "a", "value": 1}], load_id="job-1")
    assert fix.load_files(file, "one", load_id="job-1").commit == first.commit
