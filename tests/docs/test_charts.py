"""The charts show figures of the results of benchmarks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from bench._chart import Bar, Group, bar_chart
from bench._figures import text_of
from bench._results import read_results

from tests.docs.snippets import ROOT
from tools import charts
from tools.benchmarks_page import PAGE

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = charts.charts()
RESULTS = read_results()


@pytest.mark.parametrize("name", DRAWN)
def test_a_chart_is_up_to_date(name: str) -> None:
    assert (charts.FOLDER / name).read_text(encoding="utf-8") == DRAWN[name], "run `make docs`"


def test_every_chart_that_is_shown_is_made() -> None:
    shown = {
        name
        for page in (PAGE, ROOT / "README.md")
        for name in re.findall(r"charts/([\w-]+\.svg)", page.read_text(encoding="utf-8"))
    }
    assert shown == set(DRAWN)
    assert {path.name for path in charts.FOLDER.iterdir()} == set(DRAWN)


@pytest.mark.parametrize("chart", charts.CHARTS, ids=lambda chart: chart.name)
def test_every_figure_of_ours_is_one_of_the_results(chart: charts.Chart) -> None:
    figures = re.findall(r'<text class="ours".*?>(.*?)</text>', DRAWN[chart.name])
    ours = [figure for figure in RESULTS[chart.claim].figures if figure.ours and figure.task in chart.tasks]
    assert sorted(figures) == sorted(
        text_of(figure.things / figure.median, "/s")
        if chart.rates and figure.things
        else text_of(figure.median, figure.unit)
        for figure in ours
    )


def test_a_chart_is_well_formed_and_its_bars_keep_their_ratio() -> None:
    groups = [
        Group("a & b", [Bar("ours", 4.0, "4 s", ours=True), Bar("rival", 2.0, "2 s")]),
        Group("", [Bar("x", 1.0, "1 s")]),
    ]
    for scales, last in (("one", 0.25), ("each", 1.0)):
        drawn = ElementTree.fromstring(
            bar_chart("<title>", "note", groups, scales="one" if scales == "one" else "each")
        )
        paper, *bars = drawn.iter(f"{SVG}rect")
        first, second, third = (float(bar.get("width", "0")) for bar in bars)
        assert second / first == pytest.approx(0.5, abs=0.01)
        assert third / first == pytest.approx(last, abs=0.01)
        assert (paper.get("width"), paper.get("height")) == (drawn.get("width"), drawn.get("height"))
