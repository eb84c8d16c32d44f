"""Measuring: medians of several runs, rivals in turn so that the machine's moods hit all alike, and a table."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _results import Run

__all__ = ("Contest", "note_contests", "print_table", "rounds")


@dataclass
class Contest:
    """One task done in several ways; the first way is ours."""

    task: str
    rows: int
    size: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def run(self, way: str, act: Callable[[], object]) -> None:
        """Do it once and note how long it took."""
        gc.collect()
        began = self.clock()
        act()
        self.seconds.setdefault(way, []).append(self.clock() - began)

    def median(self, way: str) -> float:
        """The median of the runs of a way, in seconds."""
        return statistics.median(self.seconds[way])

    def table(self) -> list[list[str]]:
        """A line for each way: its time, rows a second, and how much faster ours is than it."""
        ours = self.median(next(iter(self.seconds)))
        task = f"{self.task}, {self.size}" if self.size else self.task
        return [
            [task, way, f"{self.median(way):.3f} s", f"{self.rows / self.median(way) / 1e6:.2f} M/s",
             f"{self.median(way) / ours:.2f}×"]
            for way in self.seconds
        ]  # fmt: skip


def note_contests(run: Run, contests: Sequence[Contest]) -> None:
    """Note the seconds of all ways."""
    for contest in contests:
        for way, seconds in contest.seconds.items():
            run.note(contest.task, way, seconds, size=contest.size, things=contest.rows)


def rounds(quick: bool) -> range:
    """The number of rounds of everything."""
    return range(3 if quick else 5)


def print_table(contests: Sequence[Contest]) -> None:
    """All contests as a Markdown table: the last column says how many times faster ours is."""
    lines = [["task", "way", "median", "rows", "ours is faster by"]]
    for contest in contests:
        lines += contest.table()
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for number, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
