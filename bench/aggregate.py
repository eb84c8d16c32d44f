"""Events that add up: an aggregate beside DuckDB's `GROUP BY`, its join, and Delta Lake's `MERGE`.

    python bench/aggregate.py [--quick] [--events N] [--keys N] [--python ENVIRONMENT/bin/python]

Events of keys at random seconds of some days, with a number each, are counted, summed, and their greatest kept, by key
and hour. In turn, the median of the runs:

* **group**: all events into a new map, to where lookups answer; DuckDB: into a table of a file, by `GROUP BY`;
* **add 100,000 events** into the groups that are there; Delta Lake: a `MERGE` that adds, with `--python` as in
  `merge_delta.py`; the same with an alert that each load meets and none crosses;
* **one bucket, 24 buckets**: a million lookups, on one core; DuckDB: a join with its table, in memory, on two.

All answers are compared. The bytes of a group are those of the folded map, beside the row that Plan B has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

import millpond
from _delta_merge import DELTA
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, program_version, version

BEGAN, HOUR, DAYS = 1_704_067_200_000, 3_600_000, 30
MORE = 100_000
PLAN_B_ROW = 7_202
INSTANT = pa.timestamp("ms", "UTC")
VALUE = "orders long count, total double sum, most double max"
GROUPS = """
    select key, time_bucket(interval 1 hour, time) as time, count(*) as orders, sum(total) as total, max(most) as most
    from events group by all
"""
BUCKET = """
    select q.number, s.orders, s.total, s.most from questions q join sales s
    on s.key = q.key and s.time = time_bucket(interval 1 hour, q.at)
"""
BUCKETS = """
    select q.number, sum(s.orders) as orders, sum(s.total) as total, max(s.most) as most from questions q join sales s
    on s.key = q.key and s.time >= q.since and s.time < q.until group by q.number
"""
ADD = (
    "t.key = c.key and t.time = c.time",
    "t.orders = t.orders + c.orders, t.total = t.total + c.total, t.most = greatest(t.most, c.most)",
)


def names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def events_of(count: int, keys: int, random: np.random.Generator) -> pa.Table:
    """Events whose totals are whole, so that their sums are the same in any order."""
    totals = pa.array(random.integers(0, 1000, count).astype(np.float64))
    times = BEGAN + random.integers(0, DAYS * 24 * 3600, count) * 1000
    return pa.table({"key": names(random.integers(0, keys, count)), "time": pa.array(times, INSTANT), "total": totals,
                     "most": totals})  # fmt: skip


def connect(file: str = ":memory:", **tables: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(file, config={"threads": 2})
    connection.execute("set timezone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def grouped(events: pa.Table) -> pa.Table:
    with connect(events=events) as connection:
        return connection.sql(GROUPS).to_arrow_table()


def total_of(rows: pa.Table | pa.StructArray) -> list[float]:
    """A summary of rows in any order."""
    columns = [
        rows.field(name) if isinstance(rows, pa.StructArray) else rows[name] for name in ("orders", "total", "most")
    ]
    return [float(pc.sum(column).as_py() or 0) for column in columns] + [len(columns[0]) - columns[0].null_count]


def group(events: pa.Table, folder: Path, runs: range) -> tuple[Contest, millpond.Pond]:
    contest, ponds = Contest("group", len(events)), []
    expected = total_of(grouped(events))
    for number in runs:
        pond = millpond.open(folder / f"pond-{number}")
        sales = pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")
        contest.run("Millpond", lambda target=sales: target.load(events))
        with connect(str(folder / f"{number}.duckdb"), events=events) as connection:
            contest.run("DuckDB, GROUP BY", lambda it=connection: it.execute(f"create table sales as {GROUPS}"))
        assert total_of(sales.scan().read_all()) == expected
        ponds.append(pond)
    return contest, ponds[-1]


def alerted(sales: millpond.Map, keys: int, runs: range) -> tuple[Contest, list[pa.Table]]:
    """Such loads with an alert and without one, in turn."""
    contest, loads = Contest("add 100,000 events, with an alert", MORE), []
    for number in runs:
        for name, rule in (("Millpond, no alert", False), ("Millpond", True)):
            if rule:
                sales.alerts.add("orders > 1000000 and most > 60", name="never")
            more = events_of(MORE, keys, np.random.default_rng(1_000 + 2 * number + rule))
            contest.run(name, lambda rows=more: sales.load(rows))
            loads.append(more)
            if rule:
                sales.alerts.remove("never")
    return contest, loads


def add(sales: millpond.Map, keys: int, runs: range, folder: Path) -> tuple[Contest, list[pa.Table]]:
    contest, loads = Contest("add 100,000 events", MORE), []
    for number in runs:
        more = events_of(MORE, keys, np.random.default_rng(100 + number))
        contest.run("Millpond", lambda rows=more: sales.load(rows))
        loads.append(more)
        parquet.write_table(grouped(more), folder / f"{number}.parquet")
    return contest, loads


def delta(contest: Contest, groups: pa.Table, changed: Path, folder: Path, python: str) -> None:
    """Note how long `MERGE` adds the same events, grouped before."""
    parquet.write_table(groups, folder / "groups.parquet")
    script = Path(__file__).with_name("_delta_merge.py")
    command = [python, str(script), str(folder / "groups.parquet"), str(changed), str(folder / "delta"), *ADD]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"Delta Lake did not run: {' '.join(command)}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    contest.seconds["Delta Lake, MERGE"] = [line["seconds"] for line in lines if line["work"] == "merge"]


def lookups(sales: millpond.Map, groups: pa.Table, keys: int, count: int, runs: range) -> list[Contest]:
    random = np.random.default_rng(7)
    key = names(random.integers(0, keys, count))
    at = pa.array(BEGAN + random.integers(0, DAYS * 24 * 3600, count) * 1000, INSTANT)
    since = pa.array(BEGAN + random.integers(0, (DAYS - 1) * 24, count) * HOUR, INSTANT)
    until = pa.array(since.cast(pa.int64()).to_numpy() + 24 * HOUR, INSTANT)
    questions = pa.table({"number": np.arange(count), "key": key, "at": at, "since": since, "until": until})
    snapshot, contests = sales.snapshot(), []
    with connect(groups=groups, asked=questions) as connection:
        connection.execute("create table sales as from groups; create table questions as from asked")
        for task, query, act in (
            ("one bucket", BUCKET, lambda: snapshot.lookup(key, at)),
            ("24 buckets", BUCKETS, lambda: snapshot.lookup_between(key, (since, until))),
        ):
            contest = Contest(task, count)
            for _ in runs:
                contest.run("Millpond", act)
                contest.run("DuckDB, join", lambda text=query: connection.sql(text).to_arrow_table())
            assert total_of(act()) == total_of(connection.sql(query).to_arrow_table()), task
            contests.append(contest)
    return contests


def measure(events: int, keys: int, count: int, runs: range, python: str | None = None) -> tuple[list[Contest], float]:
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        folder = Path(name)
        changed = folder / "changed"
        changed.mkdir()
        some = events_of(events, keys, np.random.default_rng(0))
        first, pond = group(some, folder, runs)
        with pond:
            sales = pond.map("sales")
            second, loads = add(sales, keys, runs, changed)
            third, more = alerted(sales, keys, runs)
            groups = grouped(pa.concat_tables([some, *loads, *more]))
            assert total_of(sales.scan().read_all()) == total_of(groups)
            if python is not None:
                delta(second, grouped(some), changed, folder, python)
            looked = lookups(sales, groups, keys, count, runs)
            sales.compact()
            size = sales.freeze().size / len(groups)
        return [first, second, third, *looked], size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the events and lookups, and three runs")
    parser.add_argument("--events", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--python", help="the Python of an environment with the pyspark of Delta Lake")
    options = parser.parse_args()
    events = options.events or (1_000_000 if options.quick else 10_000_000)
    keys, count = options.keys or events // 100, 100_000 if options.quick else 1_000_000
    measure(10_000, 100, 1_000, range(1))  # every kernel is compiled, so that no run pays for it
    run = Run("aggregate")
    contests, size = measure(events, keys, count, rounds(options.quick), options.python)
    print_table(contests)
    print(f"\nbytes of a group: {size:.1f}; Plan B's row has {PLAN_B_ROW / size:.0f} times as many")
    note_contests(run, contests)
    run.note("bytes of a group", "Millpond", size, unit="B")
    run.cite("bytes of a group", "Plan B, a row of a histogram", PLAN_B_ROW, unit="B")
    rivals = {"DuckDB": version("duckdb")}
    if options.python is not None:
        spark = program_version(options.python, "-c", "import pyspark; print(pyspark.__version__)")
        rivals |= {"Delta Lake": DELTA.rpartition(":")[2], "Spark": spark}
    whole = options.python is not None and not (options.quick or options.events or options.keys)
    run.write(rivals, whole=whole, events=events, keys=keys, lookups=count, more=MORE)


if __name__ == "__main__":
    main()
