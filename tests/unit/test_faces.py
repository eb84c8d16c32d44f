"""Ponds, maps and results as people meet them at a prompt and in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.kernel.verify import checked
from millpond.maps.protocols import MapLike, PondLike

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond


@pytest.fixture
def pond(tmp_path: Path) -> Pond:
    return millpond.open(tmp_path / "a <pond>")


def test_a_pond_says_where_it_lies_and_shows_its_maps(pond: Pond, tmp_path: Path) -> None:
    assert repr(pond) == f"Pond({str(tmp_path / 'a <pond>')!r})"
    for number in range(51):
        pond.create_map(f"m{number:02}", kind="state", value="`<b>` double")
    shown = pond._repr_html_()
    assert shown is not None
    assert html.escape(repr(pond)) + ": 51 maps, the first 50" in shown
    assert shown.count("<td>`&lt;b&gt;` double</td>") == 50
    pond.close()
    assert repr(pond)
    assert pond._repr_html_() is None


def test_a_map_its_snapshot_and_its_results_are_shown(pond: Pond) -> None:
    held = pond.create_map("m", kind="state", value="long")
    result = held.load({"key": ["a"], "value": [1]})
    assert "<tr><td>rows</td><td>1</td></tr>" in result._repr_html_()
    assert "quarantined" not in result._repr_html_()
    assert "<tr><td>rows</td><td>1</td></tr>" in str(held._repr_html_())
    assert "<tr><td>rows_after</td><td>1</td></tr>" in held.retain(before=0)._repr_html_()
    assert "(&#x27;map&#x27;, 1)" in checked("map", 1)._repr_html_()
    snapshot = held.snapshot()
    assert repr(snapshot).startswith("Snapshot('m', kind='state', value='long'")
    snapshot.close()
    assert repr(snapshot).endswith("closed)")
    pond.drop_map("m")
    assert held._repr_html_() is None


def test_dir_lists_the_interface_and_nothing_that_keeps_it(pond: Pond) -> None:
    def public(thing: object) -> list[str]:
        return [name for name in dir(thing) if not name.startswith("_")]

    assert public(pond) == sorted([*public(PondLike), "at", "branch", "history", "refs"])
    assert public(pond.create_map("m", kind="state")) == public(MapLike)
    assert dir(millpond) == sorted(millpond.__all__)
