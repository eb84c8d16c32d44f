"""Writes docs/charts/ from the results of the benchmarks: `make docs`. A test compares the two.

PYTHONPATH=. python tools/charts.py            names the charts
PYTHONPATH=. python tools/charts.py --write    writes docs/charts/*.svg
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench._chart import Bar, Group, bar_chart
from bench._figures import text_of, times
from bench._results import Figure, Result, ratio, read_results

FOLDER = Path(__file__).parents[1] / "docs" / "charts"


@dataclass(frozen=True)
class Chart:
    """A chart of tasks of one claim, a group each; `rates` draws what is done in a second."""

    name: str
    claim: str
    title: str
    note: str
    tasks: tuple[str, ...]
    scales: Literal["one", "each"] = "each"
    rates: bool = False


OWN = "Each task has its own scale."
CHARTS = (
    Chart(
        "readme-lookups.svg", "as_of", "A million lookups as of a time",
        "Shorter is better; \u00d7 says how many times as fast Millpond is.", ("temporal_state",),
    ),
    Chart(
        "readme-load.svg", "load_spark", "Loading a map by Spark, beside writing Parquet",
        "Shorter is better; \u00d7 says how many times as fast Millpond is. Parquet is not sorted by key.",
        ("load by Spark, from files", "load by Spark, a computed column"),
    ),
    Chart(
        "lookup.svg", "lookup", "A million lookups", f"Lookups a second; longer is better. {OWN}",
        ("state", "session", "ranged_state", "temporal_ranged_state"), rates=True,
    ),
    Chart(
        "get.svg", "get", "One key at a time", "Median time of one get; shorter is better.",
        ("state", "temporal_state", "session", "ranged_state"), scales="one",
    ),
    Chart(
        "enrich.svg", "enrich", "Enriching in Spark",
        "Time for 5 million events and 10 million rows of state; shorter is better.", ("enrich",),
    ),
    Chart(
        "load.svg", "load", "Sealing and merging a million rows", f"Time; shorter is better. {OWN}",
        ("seal a part, scheme auto", "seal a part, scheme hash", "merge, scheme auto", "merge, scheme hash"),
    ),
    Chart(
        "condense.svg", "condense", "Condensing two million rows", "Time; shorter is better.",
        ("temporal_state, hash 8", "temporal_ranged_state, hash 8", "session, hash 8"), scales="one",
    ),
    Chart(
        "remote.svg", "remote", "A hundred thousand keys from a node", "Keys a second; longer is better.",
        ("100,000 keys at once",), rates=True,
    ),
    Chart(
        "scale.svg", "scale", "One map as it grows", f"Time by the rows of the map; shorter is better. {OWN}",
        ("merge 1 M rows", "1 M lookups"),
    ),
    Chart(
        "tombstones.svg", "versions_deletions", "One object behind deletions",
        "Time to list the one object that is left; shorter is better.", ("list one object",),
    ),
)  # fmt: skip


def charts() -> dict[str, str]:
    """The charts by the names of their files."""
    results = read_results()
    return {chart.name: draw(chart, results[chart.claim]) for chart in CHARTS}


def draw(chart: Chart, result: Result) -> str:
    """A chart as SVG."""
    groups = []
    for task in chart.tasks:
        sizes = dict.fromkeys(figure.size for figure in result.figures if figure.task == task)
        for size in sizes:
            figures = [figure for figure in result.figures if (figure.task, figure.size) == (task, size)]
            heading = ", ".join(filter(None, (task.replace("_", " "), size)))
            groups.append(Group(heading, [_bar(figure, result, rate=chart.rates) for figure in figures]))
    return bar_chart(chart.title, chart.note, groups, scales=chart.scales)


def _bar(figure: Figure, result: Result, *, rate: bool) -> Bar:
    """The bar of a figure; behind the figure of a rival stands how many times better Millpond's is."""
    ours = result.ours(figure.task, figure.size)
    value, text = figure.median, text_of(figure.median, figure.unit)
    if rate:
        assert figure.things is not None, figure
        value = figure.things / figure.median
        text = text_of(value, "/s")
    if ours is not None and not figure.ours:
        text += f", {times(ratio(ours, figure))}"
    return Bar(figure.way, value, text, ours=figure.ours)


if __name__ == "__main__":
    for chart_name, svg in charts().items():
        if "--write" in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / chart_name).write_text(svg, encoding="utf-8")
        else:
            sys.stdout.write(f"{chart_name}\n")
