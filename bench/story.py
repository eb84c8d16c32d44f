"""The cost of a pond's own story: the same load, with reports of work and without, in turn.

A load of Arrow rows into a map of states in a fresh folder, in batches, merged and synced: the processor time of the
process and the elapsed time. The first pair warms everything up, and does not count. On a machine with other work the
pairs differ by more than the story costs, so the processor time of its threads is measured, too.

    python bench/story.py                 5 M rows, 5 pairs
    python bench/story.py --rows 1000000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import millpond
from _results import Run
from millpond.clock import thread_seconds
from millpond.events.local_maintenance import OwnMaintenance
from millpond.events.names import OWN_QUEUE
from millpond.reports.reporter import Reporter

THREADS: list[float] = []
"""The processor seconds of each thread of a story."""


def measured(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """A thread's work that leaves its processor seconds."""

    def act(thread: Any) -> None:
        run(thread)
        THREADS.append(thread_seconds())

    return act


def table_of(rows: int) -> pa.Table:
    """Keys that are drawn at random, and a value each."""
    draw = np.random.default_rng(1)
    keys = pa.array(draw.integers(0, 1 << 40, rows)).cast(pa.string())
    return pa.table({"key": keys, "value": draw.random(rows)})


def load(folder: Path, rows: pa.Table, *, reported: bool) -> tuple[float, float]:
    """Processor and elapsed seconds of a load, from opening the pond to closing it."""
    began, used = time.perf_counter(), time.process_time()
    with millpond.open(folder, events_reports=reported) as pond:
        pond.create_map("weather", kind="state", value="double").load(rows)
    seconds = time.process_time() - used, time.perf_counter() - began
    with millpond.open(folder, events_reports=False) as pond:
        assert bool(list(pond.events.read(OWN_QUEUE, "load/weather"))) is reported
    return seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--pairs", type=int, default=5)
    given = arguments.parse_args()
    rows, run = table_of(given.rows), Run("story")
    for owner in (Reporter, OwnMaintenance):
        owner._run = measured(owner._run)  # type: ignore[attr-defined, method-assign]  # noqa: SLF001
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="millpond-") as scratch:
        for turn in range(given.pairs + 1):
            for reported in (True, False) if turn % 2 else (False, True):
                seconds = load(Path(scratch) / f"{turn}-{reported}", rows, reported=reported)
                if turn:
                    found[reported].append(seconds)
                else:
                    THREADS.clear()
    print(f"{given.rows:,} rows, {given.pairs} pairs")
    for place, name in enumerate(("processor", "elapsed")):
        on, off = ([seconds[place] for seconds in found[reported]] for reported in (True, False))
        run.note(f"load, {name}", "Millpond, with its story", on)
        run.note(f"load, {name}", "Millpond, without", off)
        shares = [100 * (one / other - 1) for one, other in zip(on, off, strict=True)]
        print(
            f"  {name:9} with {statistics.median(on):.2f} s, without {statistics.median(off):.2f} s; "
            f"pairs differ by {statistics.median(shares):+.2f} % ({min(shares):+.1f} … {max(shares):+.1f})"
        )
    used = sum(THREADS) / given.pairs
    without = statistics.median(processor for processor, _ in found[False])
    run.note("threads of the story, processor", "Millpond", used)
    run.write(whole=(given.rows, given.pairs) == (5_000_000, 5), rows=given.rows)
    print(f"  threads of the story: {1e3 * used:.1f} ms of a processor a load: {100 * used / without:.2f} % of it")


if __name__ == "__main__":
    main()
