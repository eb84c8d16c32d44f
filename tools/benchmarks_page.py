"""Makes docs/benchmarks.md from bench/results/ and bench/_claims.py: `make docs`. A test compares the two.

PYTHONPATH=. python tools/benchmarks_page.py            prints the page
PYTHONPATH=. python tools/benchmarks_page.py --write    writes it
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench._claims import ALONE, CLAIMS, Claim
from bench._figures import text_of, times
from bench._results import Figure, Machine, Result, ratio, read_results

from tools.charts import CHARTS

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
WAYS_MAX = 4
"""The most ways that are columns; more are rows."""

OPENING = """\
# Benchmarks

Every claim about speed is a script in `bench/`, which runs its rivals in the same run on the same data and writes
[its results](../bench/results). This page and its charts are made from those files.

```sh
make bench                                              # every claim that needs no other environment
PYTHONPATH=. .venv/bin/python bench/get.py --quick      # one, small: into build/bench/
.venv/bin/python -m bench.compare bench/results build/bench
```

* Figures are medians. `3\u00d7` behind a rival's figure: Millpond is three times better; `0.5\u00d7`: half as good.
* The comparison looks at ratios, since machines differ. It marks what is beyond the spread of the repetitions, and
  fails where a ratio became worse by more than a quarter.
* {machine}
* Runs marked *page* were taken over from an earlier page, without spread or load; their commit is that of the page.
* lakeFS 1.84 was measured by itself, over HTTP, on such a machine; it is not run again.
"""


def page() -> str:
    """The whole page."""
    results = read_results()
    there = [claim for claim in CLAIMS if claim.name in results]  # one that was not run whole yet has none
    parts = [OPENING.format(machine=_machines([results[claim.name] for claim in there]))]
    for name in dict.fromkeys(claim.part for claim in there):
        claims = [claim for claim in there if claim.part == name]
        parts.append(f"## {name}\n")
        if name == ALONE:
            parts.append(_alone(claims, results))
        else:
            parts += [_section(claim, results[claim.name]) for claim in claims]
    return "\n".join(parts).rstrip() + "\n"


def _machines(results: Sequence[Result]) -> str:
    """The machine of most runs; others are named where they are."""
    [(most, count)] = Counter(result.machine for result in results).most_common(1)
    others = "" if count == len(results) else f" {len(results) - count} runs name another."
    return f"The machine: {_machine(most)}.{others} The files have the versions of all rivals."


def _machine(machine: Machine) -> str:
    return (
        f"{machine.cores} cores of an {machine.processor}, {machine.memory_gib} GiB, {machine.system},"
        f" Python {machine.python}"
    )


def _section(claim: Claim, result: Result) -> str:
    lines = [f"### {claim.title}\n", f"{claim.sentence}\n"]
    lines += [f"![{chart.title}](charts/{chart.name})\n" for chart in CHARTS if chart.claim == claim.name]
    lines += [*_table(_shown(claim, result), result), "", f"{claim.limits} {_run(claim, result)}\n"]
    return "\n".join(lines)


def _run(claim: Claim, result: Result) -> str:
    """The command that repeats the claim, and the run that is shown."""
    origin = " (page)" if result.recorded == "migrated from the page" else ""
    load = f", load {result.load.start}" if result.load else ""
    note = f" {result.note}" if result.note else ""
    return f"{_command(claim)}, {result.date}, {result.commit[:8]}{load}{origin}.{note}"


def _command(claim: Claim) -> str:
    return f"`python {claim.command}`"


def _shown(claim: Claim, result: Result) -> list[Figure]:
    """The figures of the tasks that a claim shows.

    Raises: `KeyError` for a task that its results do not have.
    """
    if missing := set(claim.shown) - {figure.task for figure in result.figures}:
        raise KeyError(f"{claim.name}: {sorted(missing)}")
    return [figure for figure in result.figures if not claim.shown or figure.task in claim.shown]


# -- tables --------------------------------------------------------------------------------------------------


def _table(figures: list[Figure], result: Result) -> list[str]:
    tasks = {(figure.task, figure.size) for figure in figures}
    if len(tasks) > len({task for task, _ in tasks}):
        return _by_size(figures, result)
    ways = list(dict.fromkeys(figure.way for figure in sorted(figures, key=lambda figure: not figure.ours)))
    return _by_way(figures, ways, result) if len(ways) <= WAYS_MAX else _by_rival(figures, result)


def _by_size(figures: list[Figure], result: Result) -> list[str]:
    """A row for each task and way, a column for each size."""
    sizes = list(dict.fromkeys(figure.size for figure in figures))
    found = {figure.key: figure for figure in figures}
    rows, above = [], ""
    for task, way in dict.fromkeys((figure.task, figure.way) for figure in figures):
        cells = [_cell(found.get((task, size, way)), result) for size in sizes]
        rows.append([task if task != above else "", way, *cells])
        above = task
    return _markdown(["task", "way", *sizes], rows)


def _by_way(figures: list[Figure], ways: list[str], result: Result) -> list[str]:
    """A row for each task, a column for each way."""
    found = {figure.key: figure for figure in figures}
    rows = [
        [_named(task, size), *(_cell(found.get((task, size, way)), result) for way in ways)]
        for task, size in dict.fromkeys((figure.task, figure.size) for figure in figures)
    ]
    return _markdown(["task", *ways], rows)


def _by_rival(figures: list[Figure], result: Result) -> list[str]:
    """A row for each task and way."""
    rows, above = [], ""
    for figure in figures:
        name = _named(figure.task, figure.size)
        rows.append([name if name != above else "", figure.way, _cell(figure, result)])
        above = name
    return _markdown(["task", "way", "figure"], rows)


def _named(task: str, size: str) -> str:
    return f"{task}, {size}" if size else task


def _cell(figure: Figure | None, result: Result) -> str:
    """A figure; behind that of a rival the ratio."""
    if figure is None:
        return ""
    ours = result.ours(figure.task, figure.size)
    if figure.ours or ours is None:
        return text_of(figure.median, figure.unit)
    return f"{text_of(figure.median, figure.unit)}, **{times(ratio(ours, figure))}**"


def _alone(claims: list[Claim], results: dict[str, Result]) -> str:
    """A row for each claim that has no rival."""
    rows = []
    for claim in claims:
        result = results[claim.name]
        cells: dict[str, list[str]] = {}
        for figure in _shown(claim, result):
            way = figure.way.removeprefix("Millpond").removeprefix(", ")
            said = " ".join(filter(None, (figure.size, way, text_of(figure.median, figure.unit))))
            cells.setdefault(figure.task, []).append(said)
        figures = "; ".join(f"{task}: {', '.join(said)}" for task, said in cells.items())
        rows.append([claim.title, figures, _run(claim, result).removesuffix(".")])
    return "\n".join(_markdown(["claim", "figures", "run"], rows))


def _markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["|" + "|".join(line) + "|" for line in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
