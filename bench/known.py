"""Questions as known at moments: events that each ask a layered map as it was when they were decided.

    python bench/known.py [--quick] [--keys N] [--commits N] [--events N]

A map of a time series per key, corrected by many small loads, each a commit. Over the same events, in turn, the median
of the runs:

* **millpond**: `lookup` with a column `at` and a column `known_at`, spread over all commits;
* **without known_at**: the same of the present state: what the second time costs;
* **DuckDB**, **Polars**: a table of all rows with the time of their commit; of each key's rows that were committed and
  effective by then, the latest. Their tables are in memory, and sorted in no way.

All answers are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, version
from millpond.clock import ManualClock

BEGAN, STEP, VALUES = 1_700_000_000_000, 60_000, 5
INSTANT = pa.timestamp("ms", "UTC")
DUCKDB = """
    select event, arg_max(value, (effective_time, committed)) as value
    from events join history on history.key = events.key and effective_time <= "at" and committed <= known_at
    group by event
"""


def rows_of(numbers: np.ndarray, times: np.ndarray, values: np.ndarray) -> pa.Table:
    keys = pa.array(np.char.add("key-", numbers.astype(str)))
    return pa.table({"key": keys, "effective_time": pa.array(times, INSTANT), "value": pa.array(values, pa.int64())})


def loads_of(keys: int, commits: int, random: np.random.Generator) -> list[pa.Table]:
    """All series, then corrections of a thousandth of the rows each."""
    numbers, times = np.repeat(np.arange(keys), VALUES), np.tile(np.arange(VALUES) * STEP, keys)
    loads = [rows_of(numbers, BEGAN - 10 * STEP + times, np.arange(len(numbers)))]
    for commit in range(1, commits):
        some = random.choice(keys, max(1, keys * VALUES // 1000), replace=False)
        at = random.integers(0, VALUES, len(some)) * STEP
        loads.append(rows_of(some, BEGAN - 10 * STEP + at, commit * 100_000_000 + some))
    return loads


def questions_of(keys: int, commits: int, events: int, random: np.random.Generator) -> pa.Table:
    queried = random.integers(0, keys, events)
    return pa.table({
        "event": np.arange(events), "key": np.char.add("key-", queried.astype(str)),
        "at": pa.array(BEGAN - 10 * STEP + random.integers(0, VALUES * STEP, events), INSTANT),
        "known_at": pa.array(BEGAN + random.integers(STEP, (commits + 1) * STEP, events), INSTANT),
    })  # fmt: skip


def by_duckdb(rows: pa.Table, events: pa.Table) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("history", rows)
        connection.register("events", events)
        return connection.sql(DUCKDB).to_arrow_table()


def by_polars(rows: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    joined = events.lazy().join(rows.lazy(), on="key")
    able = joined.filter((pl.col("effective_time") <= pl.col("at")) & (pl.col("committed") <= pl.col("known_at")))
    latest = pl.col("value").sort_by("effective_time", "committed").last()
    return able.group_by("event").agg(latest).collect()


def values_of(answers: pa.Table | pl.DataFrame, events: int) -> np.ndarray:
    values = np.full(events, -1)
    values[answers["event"].to_numpy()] = answers["value"].to_numpy()
    return values


def measure(keys: int, commits: int, events: int, runs: range) -> Contest:
    random, clock = np.random.default_rng(0), ManualClock(now=BEGAN)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder, millpond.open(folder, clock=clock) as pond:
        series = pond.create_map("series", kind="temporal_state", value="long", store="layers")
        tables = []
        for load in loads_of(keys, commits, random):
            clock.advance(STEP)
            series.load(load)
            tables.append(load.append_column("committed", pa.array([clock.now_ms()] * len(load), INSTANT)))
        rows, queried = pa.concat_tables(tables), questions_of(keys, commits, events, random)
        frame, questions = pl.from_arrow(rows), pl.from_arrow(queried)
        contest = Contest("as known", events, f"{commits} commits")
        key, at, known_at = (queried[name].combine_chunks() for name in ("key", "at", "known_at"))
        for _ in runs:
            answers = series.lookup(key, at, known_at=known_at).fill_null(-1).to_numpy()
            contest.run("Millpond", lambda: series.lookup(key, at, known_at=known_at))
            contest.run("Millpond, without known_at", lambda: series.lookup(key, at))
            contest.run("DuckDB, join", lambda: by_duckdb(rows, queried))
            contest.run("Polars, join", lambda: by_polars(frame, questions))
        for theirs in (by_duckdb(rows, queried), by_polars(frame, questions)):
            assert np.array_equal(values_of(theirs, events), answers)
        layers = len(series.freeze().layers)
        print(f"layers of the last manifest: {layers}", file=sys.stderr)
        return contest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="100,000 keys, 200,000 events and three runs")
    parser.add_argument("--keys", type=int)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--events", type=int)
    options = parser.parse_args()
    keys = options.keys or (100_000 if options.quick else 1_000_000)
    events = options.events or (200_000 if options.quick else 1_000_000)
    measure(1_000, 3, 10_000, range(1))  # every kernel is compiled, so that no run pays for it
    contest, run = measure(keys, options.commits, events, rounds(options.quick)), Run("known")
    print_table([contest])
    note_contests(run, [contest])
    rivals = {"DuckDB": version("duckdb"), "Polars": version("polars")}
    whole = not any((options.quick, options.keys, options.events, options.commits != 100))
    run.write(rivals, whole=whole, keys=keys, values_per_key=VALUES, events=events, commits=options.commits)


if __name__ == "__main__":
    main()
