"""A pond whose opening fails holds on to nothing: the next one to open it in the process finds it as it was."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict, Corrupt
from millpond.maps.log.clone import CLONE_FORMAT, Clone
from millpond.pond import open_pond


def mapped(folder: Path) -> list[str]:
    """The files of a folder that this process has in its memory, or open."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines()
    found = [line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6]
    handles = [str(handle.resolve()) for handle in Path("/proc/self/fd").iterdir()]
    return [name for name in (*found, *handles) if name.startswith(str(folder))]


@pytest.mark.parametrize("serve", [False, True])
def test_a_failed_open_lets_go_of_everything(tmp_path: Path, serve: bool) -> None:
    folder = tmp_path / "pond"
    with open_pond(folder, clock=ManualClock(1)) as pond:
        pond.create_map("m", kind="state", value="long").load(pa.table({"key": ["a"], "value": [1]}))
        about = Clone("c", pond.log.pond_id, 1, ())
    assert mapped(folder) == []
    gathered = folder / "clone"
    gathered.mkdir()
    (gathered / "state.arrow").write_bytes(b"no Arrow")
    (gathered / "ready.json").write_text(json.dumps(asdict(about) | {"format": CLONE_FORMAT}), encoding="ascii")
    for _ in range(2):
        with pytest.raises(Corrupt):
            open_pond(folder, clock=ManualClock(1), serve=serve)
        assert mapped(folder) == []
    (gathered / "ready.json").unlink()
    with open_pond(folder, clock=ManualClock(1), serve=serve) as pond:
        assert pond.map("m").get("a") == 1
    assert mapped(folder) == []


def test_a_pond_that_is_served_is_refused_and_nothing_is_held(tmp_path: Path) -> None:
    folder = tmp_path / "pond"
    with open_pond(folder, clock=ManualClock(1), serve=True):
        before = sorted(mapped(folder))
        with pytest.raises(Conflict):
            open_pond(folder, clock=ManualClock(1), serve=True)
        assert sorted(mapped(folder)) == before
    assert mapped(folder) == []


def test_what_a_pond_holds_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with open_pond(str(tmp_path / "made" / "pond")) as pond:
            pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    finally:
        os.umask(before)
    folder = tmp_path / "made" / "pond"
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder.parent, folder)] == [0o755, 0o700]
    rows = [*(folder / "space").iterdir()]
    assert len(rows) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in rows} == {0o600}
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)
    open_pond(str(tmp_path / "shared")).close()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o750, "a folder that is there keeps its mode"
