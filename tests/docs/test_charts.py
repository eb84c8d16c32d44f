"""The charts of docs/benchmarks.md show the figures of its tables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from bench._chart import Bar, Group, bar_chart

from tests.docs.snippets import ROOT
from tools import charts

CHARTS = charts.charts()
PAGE = charts.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_up_to_date_and_shown(name: str) -> None:
    assert (charts.FOLDER / name).read_text(encoding="utf-8") == CHARTS[name], "run `make docs`"
    assert f"](charts/{name})" in PAGE


def test_every_chart_that_is_shown_is_made() -> None:
    assert set(re.findall(r"\]\(charts/(.*?)\)", PAGE)) == set(CHARTS)
    assert {path.name for path in charts.FOLDER.iterdir()} == set(CHARTS)


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_of_ours_stands_in_the_table(name: str) -> None:
    figures = re.findall(r'<text class="ours".*?>(.*?)</text>', CHARTS[name])
    assert figures
    for figure in figures:
        assert figure.split()[0] in PAGE, figure


def test_a_chart_is_well_formed_and_its_bars_keep_their_ratio() -> None:
    groups = [
        Group("a & b", [Bar("ours", 4.0, "4 s", ours=True), Bar("rival", 2.0, "2 s")]),
        Group("", [Bar("x", 1.0, "1 s")]),
    ]
    for scales, last in (("one", 0.25), ("each", 1.0)):
        drawn = ElementTree.fromstring(
            bar_chart("<title>", "note", groups, scales="one" if scales == "one" else "each")
        )
        first, second, third = (float(bar.get("width", "0")) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect"))
        assert second / first == pytest.approx(0.5, abs=0.01)
        assert third / first == pytest.approx(last, abs=0.01)


def test_tables_are_found_below_their_benchmarks() -> None:
    assert (ROOT / "bench" / "lookup.py").is_file()
    assert charts.tables("## Speed: `bench/x.py`\n\n| a | b |\n|---|---|\n| **1** | `2` |\n") == {
        "bench/x.py": [[["1", "2"]]]
    }
    assert charts.number("2.5\u20133.5 s") == 3.0
