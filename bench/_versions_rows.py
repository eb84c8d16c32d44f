"""The rows of the tables of `bench/versions.py`: times of each way, as text and as results."""

from __future__ import annotations

import gc
import re
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from _results import Run, Unit, version
from _servers import postgres_version
from _versions_spaces import Rate

__all__ = ("LAKEFS_TOMBSTONES", "OURS", "Row", "seconds_text", "write_results")

Clock = tuple[float, float]
OURS, LAKEFS, LAKEFS_VERSION = "Millpond", "lakeFS", "1.84"
LAKEFS_UNITS: dict[str, tuple[Unit, float]] = {"/s": ("/s", 1.0), " s": ("s", 1.0), " ms": ("s", 1e-3)}
LAKEFS_TOMBSTONES = {1_000: (7, 60, 60), 10_000: (26, 1_100, 600), 100_000: (293, 8_800, 6_800)}
"""Milliseconds of a listing, an uncommitted difference, and a merge that is refused as dirty, by the deletions."""


@dataclass
class Row:
    """One line of the table: the times of each way, and what others reach."""

    task: str
    rows: int = 0
    wanted: str = ""
    lakefs: str = ""
    times: dict[str, list[Clock]] = field(default_factory=dict)
    figure: str = ""
    rate: float = 0.0
    """The acts of a second, where that is the figure."""

    @contextmanager
    def run(self, way: str) -> Iterator[None]:
        """Note how long it takes."""
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self.times.setdefault(way, []).append((time.perf_counter() - began, time.process_time() - cpu))

    def text(self, way: str) -> str:
        """The median of a way."""
        if way not in self.times:
            return ""
        wall, cpu = (statistics.median(clock[at] for clock in self.times[way]) for at in range(2))
        rate = f", {self.rows / wall / 1e3:,.0f} k/s" if self.rows else ""
        return f"{seconds_text(wall)} / {seconds_text(cpu)}{rate}"


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def write_results(
    count: int, measured: list[Row], deletions: dict[tuple[str, str, int], Row], spaces: list[Rate], *, whole: bool,
    quick: bool,
) -> None:  # fmt: skip
    """Write the results: those of deletions and of other stores of rows are claims of their own."""
    rows, behind, stores = Run("versions"), Run("versions_deletions"), Run("versions_spaces")
    for row in measured:
        for way, times in row.times.items():
            rows.note(row.task, way, [elapsed for elapsed, _ in times], things=row.rows or None)
            rows.note(f"{row.task}, processor", way, [spent for _, spent in times])
        if row.rate:
            rows.note(row.task, OURS, row.rate, unit="/s")
        if found := re.match(r"([\d.]+)(/s| s| ms)", row.lakefs):
            unit, scale = LAKEFS_UNITS[found[2]]
            rows.cite(row.task, LAKEFS, float(found[1]) * scale, unit=unit)
    for (task, way, deleted), row in deletions.items():
        behind.note(task, way, [elapsed for elapsed, _ in row.times[OURS]], size=f"{deleted:,} deletions")
        for place, name in enumerate(("list one object", "the same, all as Arrow", "dirty check of a merge")):
            if (task, way) == (name, OURS) and (theirs := LAKEFS_TOMBSTONES.get(deleted)):
                behind.cite(task, LAKEFS, theirs[place] / 1e3, size=f"{deleted:,} deletions")
    for task, way, rate in spaces:
        stores.note(task, way if way.startswith("bare") else f"Millpond, {way}", rate, unit="/s")
    rivals = {"py-lmdb": version("lmdb"), "DuckDB": version("duckdb"), "SQLite": sqlite3.sqlite_version}
    rivals[LAKEFS] = LAKEFS_VERSION
    rows.write(rivals, whole=whole, entries=count)
    behind.write({"py-lmdb": rivals["py-lmdb"], "SQLite": rivals["SQLite"], LAKEFS: LAKEFS_VERSION}, whole=not quick)
    stores.write({"PostgreSQL": postgres_version()}, whole=not quick)
