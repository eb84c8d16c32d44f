"""Events that add up: an aggregate beside DuckDB's `GROUP BY`, its join, and Delta Lake's `MERGE`.

    python bench/aggregate.py [--short] [--events N] [--keys N] [--spark] [--deltalake PYTHON] [--python PYTHON]

Events of keys at random seconds of some days, with a number each, are counted, summed, and their greatest kept, by key
and hour. In turn, the median of the runs:

* **group**: all events into a new map, to where lookups answer; DuckDB: into a table of a file, by `GROUP BY`;
* **group by Spark**, with `--spark`: five times the events; Spark: `groupBy().agg()`, written as Parquet;
* **add 100,000 events** into the groups that are there; Delta Lake: a `MERGE` that adds, by an environment with
  `deltalake[pyarrow]`, `--deltalake`, and by Spark's, `--python` as in `merge_delta.py`;
* **alerts**: processor time of such loads with rules that none crosses; two are out of their reach, one is looked up;
* **one bucket, 24 buckets**: a million lookups, on one core; DuckDB: a join with its table, in memory, on two.

All answers are compared. The bytes of a group are those of the folded map, beside the row that Plan B has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import functions as sf

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, program_version, version
from millpond import spark as mp

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
RULES = {
    "Millpond, no alert": "", "Millpond, a rule out of reach": "orders > 1000000 and most > 60",
    "Millpond, a rule of null": "most is null", "Millpond, a rule that is looked up": "total = 1500.5",
}  # fmt: skip
FILES = 8
DELTAS = {"Delta Lake, MERGE": "_deltalake_merge.py", "Delta Lake by Spark, MERGE": "_delta_merge.py"}
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
    """Such loads with rules and without one, in another order each time; those that fold layers are done again."""
    contest, loads = Contest("add 100,000 events, processor time", MORE, clock=time.process_time), []
    contest.seconds = {way: [] for way in RULES}
    for number in range(2 * len(runs)):
        random = np.random.default_rng(1_000 + number)
        for way in random.permutation([*RULES]).tolist():
            if RULES[way]:
                sales.alerts.add(RULES[way], name="never")
            while len(contest.seconds[way]) <= number:
                layers, more = len(sales.freeze().layers), events_of(MORE, keys, random)
                contest.run(way, lambda rows=more: sales.load(rows))
                loads.append(more)
                if len(sales.freeze().layers) <= layers:
                    contest.seconds[way].pop()
            if RULES[way]:
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


def delta(contest: Contest, way: str, folder: Path, python: str, expected: list[float]) -> None:
    """Note how long `MERGE` adds the same events, grouped before, and compare what it comes to."""
    script = Path(__file__).with_name(DELTAS[way])
    places = [str(folder / name) for name in ("groups.parquet", "changed", script.stem)]
    command = [python, str(script), *places, *ADD]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"Delta Lake did not run: {' '.join(command)}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    contest.seconds[way] = [line["seconds"] for line in lines if line["work"] == "merge"]
    assert lines[-1]["totals"] == expected, way


def spark(events: int, keys: int, folder: Path) -> Contest:
    """Events in Parquet files into a map, and grouped into Parquet files."""
    contest = Contest("group by Spark", events)
    (folder / "events").mkdir()
    for number in range(FILES):
        some = events_of(events // FILES, keys, np.random.default_rng(number))
        parquet.write_table(some, folder / "events" / f"{number}.parquet")
    settings = {"spark.local.dir": str(folder / "local"), "spark.sql.session.timeZone": "UTC"}
    session = mp.start("local[2]", app="bench", memory="4g", settings=settings)
    frame = session.read.parquet(str(folder / "events"))
    hour = sf.date_trunc("hour", "time").alias("time")
    sums = [sf.count("*").alias("orders"), sf.sum("total").alias("total"), sf.max("most").alias("most")]
    with millpond.open(folder / "spark") as pond:
        for name in ("warm", "sales"):
            sales = pond.create_map(name, kind="aggregate", value=VALUE, resolution="1 hour")
            rows = frame.limit(MORE) if name == "warm" else frame
            task = Contest(name, events)
            task.run("Millpond", lambda rows=rows, name=name: mp.load(rows, pond, name))
            out, groups = str(folder / f"{name}.parquet"), rows.groupBy("key", hour).agg(*sums)
            task.run("Spark, groupBy().agg()", lambda groups=groups, out=out: groups.write.parquet(out))
        contest.seconds = task.seconds
        assert total_of(sales.scan().read_all()) == total_of(parquet.read_table(out))
    session.stop()
    return contest


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
            ("24 buckets", BUCKETS, lambda: snapshot.lookup(key, between=(since, until))),
        ):
            contest = Contest(task, count)
            for _ in runs:
                contest.run("Millpond", act)
                contest.run("DuckDB, join", lambda text=query: connection.sql(text).to_arrow_table())
            assert total_of(act()) == total_of(connection.sql(query).to_arrow_table()), task
            contests.append(contest)
    return contests


def measure(
    events: int, keys: int, count: int, runs: range, pythons: dict[str, str] | None = None
) -> tuple[list[Contest], float]:  # fmt: skip
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
            parquet.write_table(grouped(some), folder / "groups.parquet")
            for way, python in (pythons or {}).items():
                delta(second, way, folder, python, total_of(grouped(pa.concat_tables([some, *loads]))))
            looked = lookups(sales, groups, keys, count, runs)
            sales.compact()
            size = sales.freeze().size / len(groups)
        return [first, second, third, *looked], size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", "--quick", action="store_true", help="a tenth of all, and three runs")
    parser.add_argument("--events", type=int)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--spark", action="store_true", help="five times the events by Spark, too")
    parser.add_argument("--deltalake", help="the Python of an environment with deltalake[pyarrow]")
    parser.add_argument("--python", help="the Python of an environment with the pyspark of Delta Lake")
    options = parser.parse_args()
    events = options.events or (1_000_000 if options.short else 10_000_000)
    keys, count = options.keys or events // 100, 100_000 if options.short else 1_000_000
    pythons = dict(zip(DELTAS, (options.deltalake, options.python), strict=True))
    pythons = {way: python for way, python in pythons.items() if python is not None}
    measure(10_000, 100, 1_000, range(1))  # every kernel is compiled, so that no run pays for it
    run = Run("aggregate")
    contests, size = measure(events, keys, count, rounds(options.short), pythons)
    if options.spark:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
            contests.append(spark(5 * events, keys, Path(name)))
    print_table(contests)
    print(f"\nbytes of a group: {size:.1f}; Plan B's row has {PLAN_B_ROW / size:.0f} times as many")
    note_contests(run, contests)
    run.note("bytes of a group", "Millpond", size, unit="B")
    run.cite("bytes of a group", "Plan B, a row of a histogram", PLAN_B_ROW, unit="B")
    rivals = {"DuckDB": version("duckdb")} | ({"Spark": version("pyspark")} if options.spark else {})
    for way, python in pythons.items():
        module = "deltalake" if way == next(iter(DELTAS)) else "pyspark"
        rivals[way] = program_version(python, "-c", f"import {module}; print({module}.__version__)")
    whole = len(pythons) == len(DELTAS) and options.spark and not (options.short or options.events or options.keys)
    run.write(rivals, whole=whole, events=events, keys=keys, lookups=count, more=MORE)


if __name__ == "__main__":
    main()
