"""Ponds as they were written, once by each format: opened, verified, read row by row, merged into, frozen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.maps.loads.pond_folder import POND_FORMAT
from millpond.maps.model.definition import Kind
from millpond.pond import open_pond
from tests.data import make_pond

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.pond import Pond

STORED = sorted(make_pond.FOLDER.glob("pond-*.zip"))
PRESENT = [path for path in STORED if path.stem == f"pond-{POND_FORMAT}"]


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
    if archive in PRESENT:
        check(folder, json.loads(archive.with_suffix(".json").read_text(encoding="utf-8")))
        return
    with pytest.raises(Invalid) as caught:
        open_pond(folder)
    assert caught.value.kind == "pond_format"
    assert caught.value.values["found"] == int(archive.stem.removeprefix("pond-"))
