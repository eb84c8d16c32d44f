"""Compares two runs of the benchmarks: `python -m bench.compare OLD NEW`, two files of results or two folders of them.

Two tables for each claim that both have:
* figures, with new divided by old and the spread of both: `!` marks those whose spreads do not touch, `?` those of
  which a spread is not known;
* ratios of Millpond to each rival, which say more than figures, since machines differ. Above 1 Millpond is ahead.

It exits with 1 when a ratio fell by more than `--bound`, a quarter if nothing else is given, and with 2 when the runs
have no ratio in common. Runs of other sizes are shown and not judged; other machines and versions are named.

    python -m bench.compare bench/results build/bench
    python -m bench.compare bench/results/get.json build/bench/get.json --bound 0.1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench._figures import text_of, times
from bench._results import Figure, Result, ratio, read_result, read_results

__all__ = ("Change", "changes", "compare", "main")

BOUND = 0.25


@dataclass(frozen=True)
class Change:
    """A ratio of Millpond to a rival in two runs, each with the least and the most that its repetitions allow."""

    name: str
    old: float
    new: float
    old_span: tuple[float, float]
    new_span: tuple[float, float]
    noise_known: bool

    @property
    def mark(self) -> str:
        """`!` when the spans do not touch, `?` when one is not known."""
        return _mark(self.old_span, self.new_span, known=self.noise_known)

    def worse(self, bound: float) -> bool:
        """True when the ratio fell by more than a share of it."""
        return self.new < self.old * (1 - bound)


def compare(old: Result, new: Result) -> tuple[list[str], list[Change]]:
    """The lines to print for a claim, and its ratios."""
    lines = [f"## {new.claim}: {_origin(old)} → {_origin(new)}", *_differences(old, new), ""]
    lines += ["| figure | old | new | new / old | |", "|---|---|---|---|---|"]
    before = {figure.key: figure for figure in old.figures}
    for figure in new.figures:
        if earlier := before.get(figure.key):
            share = figure.median / earlier.median
            mark = _mark(earlier.span, figure.span, known=earlier.spread_known and figure.spread_known)
            cells = (_name(figure), _spread(earlier), _spread(figure), f"{share:.2f}", mark)
            lines.append(f"| {' | '.join(cells)} |")
    found = list(changes(old, new))
    lines += ["", "| ratio | old | new | new / old | |", "|---|---|---|---|---|"]
    for change in found:
        cells = (change.name, times(change.old), times(change.new), f"{change.new / change.old:.2f}", change.mark)
        lines.append(f"| {' | '.join(cells)} |")
    gone = [figure for key, figure in before.items() if key not in {figure.key for figure in new.figures}]
    lines += ["", *(f"not in the new run: {_name(figure)}" for figure in gone)]
    return lines, found


def changes(old: Result, new: Result) -> Iterator[Change]:
    """The ratios that both runs have."""
    before = {figure.key: figure for figure in old.figures}
    for theirs in new.figures:
        ours = new.ours(theirs.task, theirs.size)
        if theirs.ours or ours is None or theirs.key not in before or ours.key not in before:
            continue
        ours_before, theirs_before = before[ours.key], before[theirs.key]
        yield Change(
            _name(theirs), ratio(ours_before, theirs_before), ratio(ours, theirs),
            _ratio_span(ours_before, theirs_before), _ratio_span(ours, theirs),
            all(figure.spread_known for figure in (ours_before, theirs_before, ours, theirs)),
        )  # fmt: skip


def _ratio_span(ours: Figure, theirs: Figure) -> tuple[float, float]:
    """The least and the most that a ratio may be."""
    better, worse = (ours, theirs) if ours.unit == "/s" else (theirs, ours)
    return better.span[0] / worse.span[1], better.span[1] / worse.span[0]


def _mark(one: tuple[float, float], other: tuple[float, float], *, known: bool) -> str:
    if not known:
        return "?"
    return "" if one[0] <= other[1] and other[0] <= one[1] else "!"


def _differences(old: Result, new: Result) -> Iterator[str]:
    """Lines for all that makes the runs hard to compare."""
    if old.sizes != new.sizes:
        yield f"sizes differ, so ratios are not judged: {old.sizes} and {new.sizes}"
    if old.machine != new.machine:
        yield f"machines differ: {old.machine} and {new.machine}"
    versions = {rival.name: rival.version for rival in old.rivals}
    for rival in new.rivals:
        before = versions.get(rival.name, rival.version)
        if not f"{rival.version}.".startswith(f"{before}."):  # 2.1 may be 2.1.0
            yield f"{rival.name} differs: {before} and {rival.version}"


def _origin(result: Result) -> str:
    load = f", load {result.load.start}" if result.load else ""
    return f"{result.commit} of {result.date}{load}"


def _name(figure: Figure) -> str:
    return ", ".join(filter(None, (figure.task, figure.size, figure.way)))


def _spread(figure: Figure) -> str:
    """The median, and the least and the most where they are known."""
    median = text_of(figure.median, figure.unit)
    if figure.min is None or figure.max is None:
        return median
    return f"{median} ({text_of(figure.min, figure.unit)} … {text_of(figure.max, figure.unit)})"


def _read(place: Path) -> dict[str, Result]:
    if place.is_dir():
        return read_results(place)
    result = read_result(place)
    return {result.claim: result}


def main(arguments: list[str]) -> int:
    """Print the comparison; the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--bound", type=float, default=BOUND, help="the share by which a ratio may fall (%(default)s)")
    given = parser.parse_args(arguments)
    old, new = _read(given.old), _read(given.new)
    found: list[tuple[str, Change]] = []
    for claim in sorted(old.keys() & new.keys()):
        lines, ratios = compare(old[claim], new[claim])
        print("\n".join(lines))
        if old[claim].sizes == new[claim].sizes:
            found += [(claim, change) for change in ratios]
    worse = [(claim, change) for claim, change in found if change.worse(given.bound)]
    for claim, change in worse:
        noise = {"!": "beyond the noise", "?": "noise not known", "": "within the noise"}[change.mark]
        print(f"WORSE: {claim}: {change.name}: {times(change.old)} → {times(change.new)}, {noise}")
    print(f"{len(found)} ratios compared, {len(worse)} worse by more than {given.bound:.0%}")
    return 1 if worse else 0 if found else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
