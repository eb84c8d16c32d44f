"""Writes docs/charts/ from the tables of docs/benchmarks.md: `make docs`. A test compares the two.

PYTHONPATH=. python tools/charts.py            names the charts
PYTHONPATH=. python tools/charts.py --write    writes docs/charts/*.svg
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bench._chart import Bar, Group, bar_chart

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FOLDER = DOCS / "benchmarks.md", DOCS / "charts"

Row = list[str]


def charts() -> dict[str, str]:
    """The charts by the names of their files."""
    found = tables(PAGE.read_text(encoding="utf-8"))
    return {
        "lookup.svg": _lookup(found["bench/lookup.py"][0]),
        "get.svg": _get(found["bench/get.py"][0]),
        "enrich.svg": _enrich(found["bench/enrich.py"][0]),
        "load.svg": _load(found["bench/load.py"][0]),
        "condense.svg": _condense(found["bench/condense.py"][1]),
        "remote.svg": _remote(found["bench/remote.py"][0]),
        "scale.svg": _scale(found["bench/scale.py"][0]),
        "tombstones.svg": _tombstones(found["bench/versions.py"][1]),
    }


def tables(text: str) -> dict[str, list[list[Row]]]:
    """The tables below each heading that names a benchmark; their first rows, the names of columns, are left out."""
    found: dict[str, list[list[Row]]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        named = re.search(r"`(bench/\w+\.py)`", section.split("\n")[0])
        for block in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE) if named else ():
            assert named is not None
            rows = [[_plain(cell) for cell in line.strip("|").split("|")] for line in block.splitlines()]
            found.setdefault(named[1], []).append(rows[2:])
    return found


def _plain(cell: str) -> str:
    return re.sub(r"[*`]", "", cell).strip()


def number(text: str) -> float:
    """The first figure of a cell; of a span such as `2.5–3.0 s` its middle.

    >>> number("0.110 s, 9.1 M/s"), number("2.5–3.0 s")
    (0.11, 2.75)
    """
    first, last = re.findall(r"([\d.]+)(?:\u2013([\d.]+))?", text)[0]
    return (float(first) + float(last or first)) / 2


def _filled(rows: list[Row]) -> Iterator[Row]:
    """Rows whose empty first cell means the one above."""
    above = ""
    for row in rows:
        above = row[0] or above
        yield [above, *row[1:]]


def _lookup(rows: list[Row]) -> str:
    groups: dict[str, list[Bar]] = {}
    for task, ours, rival, seconds, *_ in _filled(rows):
        bars = groups.setdefault(task, [])
        if not bars:
            rate = ours.partition(", ")[2]
            bars.append(Bar("Millpond, one core", number(rate), rate, ours=True))
        bars.append(Bar(rival, 1 / number(seconds), f"{1 / number(seconds):.1f} M/s"))
    note = "Million lookups per second; longer is better. Each task has its own scale. Polars and DuckDB use 2 cores."
    return bar_chart("A million lookups", note, [Group(task, bars) for task, bars in groups.items()], scales="each")


def _get(rows: list[Row]) -> str:
    bars = [Bar(f"Millpond, {task}", number(median), median, ours=True) for task, median, *_ in rows]
    rivals = [re.fullmatch(r"(.*?) ([\d.]+ µs)", beside) for *_, beside in rows]
    bars += [Bar(_short(found[1]), number(found[2]), found[2]) for found in rivals if found]
    return bar_chart("One key at a time", "Median microseconds for one get; shorter is better.", [Group("", bars)])


def _short(name: str) -> str:
    """A name that fits beside its bar."""
    names = {
        "Redis GET over a Unix socket": "Redis GET, Unix socket",
        "py-lmdb, transaction and seek and nothing else": "py-lmdb, transaction and seek",
    }
    return names.get(name, name)


def _enrich(rows: list[Row]) -> str:
    names = (
        "Millpond, mp.enrich",
        "mapInArrow, rows unchanged",
        "broadcast join, one row a key",
        "SQL, union and window",
    )
    bars = [Bar(name, number(row[1]), row[1], name is names[0]) for name, row in zip(names, rows, strict=True)]
    note = "Seconds for 5 million events and 10 million rows of state; shorter is better."
    return bar_chart("Enriching in Spark", note, [Group("", bars)])


def _load(rows: list[Row]) -> str:
    rivals = {"seal": "putmulti of sorted bytes", "merge": "cursor puts of sorted rows", "load": "Spark writes Parquet"}
    groups, act = [], ""
    for task, ours, _, seconds, *_ in rows:
        act = act if task.startswith("the same") else task.split()[0]
        heading = task if not task.startswith("the same") else f"{act}, {task.partition(', ')[2]}"
        bars = [
            Bar("Millpond", number(ours), ours.split(",")[0], ours=True),
            Bar(rivals[act], number(seconds), seconds),
        ]
        groups.append(Group(heading, bars))
    return bar_chart("Loading", "Seconds; shorter is better. Each task has its own scale.", groups, scales="each")


def _condense(rows: list[Row]) -> str:
    groups = []
    for task, ours, *others in rows:
        bars = [Bar("Millpond", number(ours), ours, ours=True)]
        names = ("LMDB, its deletes alone", "DuckDB, to a Parquet file", "Polars, to a Parquet file")
        bars += [Bar(name, number(cell), cell.split(",")[0]) for name, cell in zip(names, others, strict=True)]
        groups.append(Group(task, bars))
    return bar_chart("Condensing 150,000 rows", "Seconds, on a busy machine; shorter is better.", groups)


def _scale(rows: list[Row]) -> str:
    wanted = {
        "load by Spark, frozen at the end": "Load by Spark", "merge 1 M random rows": "Merge a million random rows",
        "1 M lookups as of a time, warm": "A million lookups",
    }  # fmt: skip
    groups = []
    for heading in wanted:
        bars = [
            Bar(f"{_short_way(way)}, {size}", number(cell), cell, way.startswith("Millpond"))
            for work, way, *cells in _filled(rows) if work == heading
            for size, cell in zip(("1 M rows", "10 M", "100 M"), cells, strict=True) if cell
        ]  # fmt: skip
        groups.append(Group(wanted[heading], bars))
    note = "Seconds by the rows of the map; shorter is better. Each task has its own scale."
    return bar_chart("One map as it grows", note, groups, scales="each")


def _short_way(way: str) -> str:
    return "Spark writes Parquet" if "Parquet" in way else way.split(",")[0]


def _tombstones(rows: list[Row]) -> str:
    groups = []
    for count, before, after, theirs, *_ in rows:
        cells = {"Millpond": before, "Millpond, after compaction": after, "lakeFS": theirs}
        bars = [Bar(name, number(cell), cell, name != "lakeFS") for name, cell in cells.items() if cell]
        groups.append(Group(f"{count} deletions", bars))
    note = "To list the one object that is left; shorter is better. Each number of deletions has its own scale."
    return bar_chart("One object behind deletions", note, groups, scales="each")


def _remote(rows: list[Row]) -> str:
    bars = [
        Bar(task.replace(", remote lookup", ""), number(rate), f"{number(rate):g} M/s", ours="Redis" not in task)
        for task, _, rate, *_ in rows
    ]
    bars[1] = Bar("Millpond, list to list", bars[1].value, bars[1].text, ours=True)
    note = "Million keys per second, 100,000 keys from a node; longer is better."
    return bar_chart("Remote lookups", note, [Group("", bars)])


if __name__ == "__main__":
    for chart_name, svg in charts().items():
        if "--write" in sys.argv:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / chart_name).write_text(svg, encoding="utf-8")
        else:
            sys.stdout.write(f"{chart_name}\n")
