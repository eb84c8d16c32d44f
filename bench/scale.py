"""One map as it grows: load, merge, look up and enrich at 1 M, 10 M and 100 M rows, beside rivals.

Each stage is a process of its own, whose private memory (that of its Python processes, not of Java) is sampled. A
stage that fails, or takes more than `--seconds`, leaves the others as they are.

    python bench/scale.py                        1 M and 10 M rows
    python bench/scale.py --rows 100000000       a hundred million: 60 GB of disk, an hour
    python bench/scale.py --only lookups         one stage of it
    python bench/scale.py --only load            loads by Spark alone: a claim of its own
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from _results import Run, version
from _scale_stages import CHANGED, EVENTS, QUERIES, STAGES

PROGRAM = Path(__file__).with_name("_scale_stages.py")
MEMORY_SECONDS = 0.1
PUBLISHED_ROWS_MIN = 1_000_000
RIVALS = ("merge-duckdb", "merge-rocksdb", "lookups-rivals")


@dataclass
class Figures:
    """The seconds of each work and way at each size, and the most private memory of a process of a stage."""

    seconds: dict[tuple[str, str], dict[int, list[float]]] = field(default_factory=dict)
    memory: dict[str, dict[int, int]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def note(self, rows: int, line: str) -> None:
        """Note a line of a stage."""
        found = json.loads(line)
        self.seconds.setdefault((found["work"], found["way"]), {}).setdefault(rows, []).append(found["seconds"])


def run(stage: str, folder: Path, rows: int, figures: Figures, limit: float) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), stage, str(folder), str(rows)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    over, most = threading.Event(), [0]
    watching = threading.Thread(target=_watch, args=(process.pid, over, most))
    watching.start()
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        out, err = process.communicate()
        err = f"more than {limit:.0f} s"
    over.set()
    watching.join()
    for line in out.splitlines():
        if line.startswith("{"):
            figures.note(rows, line)
    figures.memory.setdefault(stage, {})[rows] = most[0]
    if process.returncode:
        figures.failed.append(f"{stage} at {rows:,}: {err.strip().splitlines()[-1] if err.strip() else 'killed'}")
    print(f"{stage}, {rows:,} rows: {out.strip()}", file=sys.stderr, flush=True)


def _watch(pid: int, over: threading.Event, most: list[int]) -> None:
    """The most private memory of one Python process of a tree, in bytes."""
    while not over.is_set():
        with suppress(psutil.Error):
            parent = psutil.Process(pid)
            for process in [parent, *parent.children(recursive=True)]:
                with suppress(psutil.Error, OSError):
                    if "java" not in process.name():
                        most[0] = max(most[0], private_bytes(process.pid))
        time.sleep(MEMORY_SECONDS)


def private_bytes(pid: int) -> int:
    """The memory of a process that is no file's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def print_tables(figures: Figures, sizes: list[int]) -> None:
    """The medians, and the memory, a column for each size."""
    head = " | ".join(f"{size:,} rows" for size in sizes)
    print(f"| work | way | {head} |\n|---|---|{'---|' * len(sizes)}")
    for (work, way), found in figures.seconds.items():
        cells = [_shown(statistics.median(found[size])) if size in found else "" for size in sizes]
        print(f"| {work} | {way} | {' | '.join(cells)} |")
    print(f"\n| private memory of a Python process | {head} |\n|---|{'---|' * len(sizes)}")
    for stage, memory in figures.memory.items():
        print(f"| {stage} | {' | '.join(f'{memory.get(size, 0) >> 20:,} MB' for size in sizes)} |")
    for line in figures.failed:
        print(f"\nnot measured: {line}")


def note(figures: Figures, loads: Run, others: Run) -> None:
    """Note all figures: loads by Spark are a claim of their own."""
    for (work, way), found in figures.seconds.items():
        for rows, seconds in found.items():
            (loads if work.startswith("load by Spark") else others).note(work, way, seconds, size=size_name(rows))
    for stage, memory in figures.memory.items():
        for rows, most in memory.items():
            way = stage if stage in RIVALS else "Millpond"
            run = loads if stage == "load" else others
            run.note(f"private memory, {stage}", way, most, unit="B", size=size_name(rows))


def size_name(rows: int) -> str:
    return f"{rows / 1_000_000:g} M rows"


def _shown(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="a number of rows; again for more")
    parser.add_argument("--only", help=f"stages, by commas: {', '.join(STAGES)}; what they need comes before them")
    parser.add_argument("--folder", type=Path, help="where the data lies; it is kept, and used again")
    parser.add_argument("--seconds", type=float, default=3600.0, help="the time that one stage may take")
    given = parser.parse_args()
    sizes = given.rows or [1_000_000, 10_000_000]
    wanted = given.only.split(",") if given.only else list(STAGES)
    figures, loads, others = Figures(), Run("load_spark"), Run("scale")
    for rows in sizes:
        folder = (given.folder or Path(tempfile.mkdtemp(prefix="millpond-scale-"))) / str(rows)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if "load" not in wanted and not (folder / "pond").exists():
                run("load", folder, rows, Figures(), given.seconds)
            for stage in wanted:
                run(stage, folder, rows, figures, given.seconds)
        finally:
            if given.folder is None:
                shutil.rmtree(folder.parent)
    print_tables(figures, sizes)
    note(figures, loads, others)
    published = min(sizes) >= PUBLISHED_ROWS_MIN
    rivals = {name: version(name.lower()) for name in ("PySpark", "DuckDB", "Polars", "rocksdict")}
    loads.write({"PySpark": rivals["PySpark"]}, whole=published and "load" in wanted)
    others.write(rivals, whole=published and given.only is None, merged_rows=CHANGED, queries=QUERIES, events=EVENTS)


if __name__ == "__main__":
    main()
