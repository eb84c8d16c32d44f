"""Looking keys up in bulk: from an Arrow array of keys to an Arrow array of values, hashing and verifying included.

Ours runs on one core, over a snapshot in files that are memory-mapped. The rivals have their inputs in memory, sorted
as they like them, and two cores:
* Polars: `join_asof` and `join`; for ranges and sessions `join_asof` on the start, then a filter on the end, which is
  right only because this data does not overlap.
* DuckDB: `ASOF JOIN`, `LEFT JOIN`, and a range join where the question is one.
* py-lmdb: a loop over the questions in order of key, one cursor, the rows in one file;
* Spark, for temporal states alone: `ASOF JOIN` over cached tables, `local[2]`.

Every rival's answers are compared with ours.

    python bench/lookup.py                          1 M keys, 10 rows each, 1 M questions
    python bench/lookup.py --quick                  a tenth of it
    python bench/lookup.py --only temporal_state    as of a time: a claim of its own
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import duckdb
import lmdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from _measure import Contest, note_contests, print_table, rounds
from _results import Run, version
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.stores.objects import open_objects

ROWS_PER_KEY = 10
STEP_MS = 1_000
GOALS = {"Polars join_asof": 4.0, "DuckDB ASOF JOIN": 6.0, "LMDB, a loop of py-lmdb": 3.0}
SPARK = "Spark ASOF JOIN"

Way = Callable[[], pa.Array]


@dataclass(frozen=True)
class Task:
    """One question of one kind: the rows, the questions in random order, and the ways to answer."""

    contest: Contest
    ways: dict[str, Way]
    answers: pa.Array

    def run(self, times: range) -> None:
        for name, way in self.ways.items():  # once, unmeasured: compile, warm up, and compare the answers
            assert _total(way()) == _total(self.answers), (self.contest.task, name)
        for _ in times:
            for name, way in self.ways.items():
                self.contest.run(name, way)


def _total(answers: pa.Array) -> tuple[int, int]:
    """A summary of answers in whatever order: their number, and their sum."""
    if pa.types.is_struct(answers.type):  # a session is identified by its start
        answers = answers.field("start").cast(pa.int64())
    return len(answers) - answers.null_count, pc.sum(answers).as_py() or 0


def names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def open_snapshot(folder: Path, kind: Kind, columns: list[pa.Array]) -> Snapshot:
    """The columns frozen as a map, and opened."""
    value = None if kind is Kind.SESSION else parse_value_type("long")
    definition = MapDefinition(name="bench", kind=kind, incarnation="0" * 16, value=value)
    schema = canonical_schema(definition)
    rows = pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    objects = open_objects(folder / str(kind))
    return Snapshot.open(objects, freeze(objects, definition, [rows], shard_version=1, created_ms=0))


class Duck:
    """Tables in DuckDB's own form, and queries over them."""

    def __init__(self, **tables: pa.Table) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("set threads = 2")
        for name, table in tables.items():
            self.connection.register("given", table)
            self.connection.execute(f"create table {name} as select * from given")
            self.connection.unregister("given")

    def ask(self, query: str) -> pa.Array:
        return self.connection.sql(query).to_arrow_table().column("value").combine_chunks()


def polars_value(frame: pl.DataFrame) -> pa.Array:
    return frame["value"].to_arrow()


# -- state --------------------------------------------------------------------------------------------


def state(folder: Path, keys: int, count: int) -> Task:
    random = np.random.default_rng(1)
    key, value = names(np.arange(keys)), pa.array(random.permutation(keys))
    wanted = names(random.integers(0, keys * 11 // 10, count))  # one in eleven is unknown
    snapshot = open_snapshot(folder, Kind.STATE, [key, value])
    rows, questions = pa.table({"key": key, "value": value}), pa.table({"key": wanted})
    mine, theirs = pl.from_arrow(rows), pl.from_arrow(questions)
    duck = Duck(rows=rows, questions=questions)
    env = lmdb_of(folder / "state.lmdb", key.to_pylist(), value.to_pylist())
    in_order = sorted(wanted.to_pylist())
    ways: dict[str, Way] = {
        "Millpond, one core": lambda: snapshot.lookup(wanted),
        "Polars join": lambda: polars_value(theirs.join(mine, on="key", how="left")),
        "DuckDB LEFT JOIN": lambda: duck.ask("select value from questions left join rows using (key)"),
        "LMDB, a loop of py-lmdb": lambda: lmdb_get(env, in_order),
    }
    return Task(Contest("state", count, f"{keys:,} keys"), ways, snapshot.lookup(wanted))


def lmdb_of(file: Path, keys: list[str], values: list[int]) -> lmdb.Environment:
    env = lmdb.open(str(file), map_size=8 << 30, sync=False)
    with env.begin(write=True) as tx, tx.cursor() as cursor:
        cursor.putmulti(
            ((key.encode(), value.to_bytes(8, "little")) for key, value in zip(keys, values, strict=True)), append=True
        )
    return env


def lmdb_get(env: lmdb.Environment, keys: list[str]) -> pa.Array:
    found: list[int | None] = []
    with env.begin(buffers=True) as tx, tx.cursor() as cursor:
        for key in keys:
            hit = cursor.set_key(key.encode())
            found.append(int.from_bytes(cursor.value(), "little") if hit else None)
    return pa.array(found, pa.int64())


# -- temporal state -----------------------------------------------------------------------------------


def temporal(folder: Path, keys: int, count: int) -> Task:
    random = np.random.default_rng(2)
    owner = np.repeat(np.arange(keys), ROWS_PER_KEY)
    key, value = names(owner), pa.array(random.permutation(len(owner)))
    time = pa.array(np.tile(np.arange(1, ROWS_PER_KEY + 1) * STEP_MS, keys))
    numbers, at = random.integers(0, keys, count), random.integers(0, (ROWS_PER_KEY + 1) * STEP_MS, count)
    wanted, instants = names(numbers), pa.array(at)
    snapshot = open_snapshot(folder, Kind.TEMPORAL_STATE, [key, time, value])
    order = np.lexsort((at, numbers))
    rows = pa.table({"key": key, "at": time, "value": value})
    questions = pa.table({"key": wanted.take(pa.array(order)), "at": instants.take(pa.array(order))})
    mine, theirs = pl.from_arrow(rows), pl.from_arrow(questions)
    duck = Duck(rows=rows, questions=questions)
    env = lmdb_as_of(folder / "temporal.lmdb", rows)
    in_order = list(zip(questions["key"].to_pylist(), questions["at"].to_pylist(), strict=True))
    ways: dict[str, Way] = {
        "Millpond, one core": lambda: snapshot.lookup(wanted, instants),
        "Polars join_asof": lambda: polars_value(theirs.join_asof(mine, on="at", by="key", check_sortedness=False)),
        "DuckDB ASOF JOIN": lambda: duck.ask(
            "select value from questions q asof left join rows r on q.key = r.key and q.at >= r.at"
        ),
        "LMDB, a loop of py-lmdb": lambda: lmdb_latest(env, in_order),
        SPARK: spark_as_of(folder, rows, questions),
    }
    task = Contest("temporal_state", count, f"{keys:,} keys × {ROWS_PER_KEY}")
    return Task(task, ways, snapshot.lookup(wanted, instants))


def spark_as_of(folder: Path, rows: pa.Table, questions: pa.Table) -> Way:
    """The same question of Spark, which runs until the benchmark ends."""
    from millpond import spark as mp

    settings = {"spark.local.dir": str(folder / "local"), "spark.sql.join.asofJoin.enabled": "true"}
    session = mp.start("local[2]", app="bench", memory="4g", settings=settings)
    for name, table in (("rows", rows), ("questions", questions)):
        parquet.write_table(table, folder / f"{name}.parquet", row_group_size=len(table) // 4)
        session.read.parquet(str(folder / f"{name}.parquet")).cache().createOrReplaceTempView(name)
        session.sql(f"select count(*) from {name}").collect()  # into the cache
    query = "select value from questions q left asof join rows r match_condition (q.at >= r.at) on q.key = r.key"
    return lambda: session.sql(query).toArrow().column("value").combine_chunks()


def lmdb_as_of(file: Path, rows: pa.Table) -> lmdb.Environment:
    env = lmdb.open(str(file), map_size=16 << 30, sync=False)
    with env.begin(write=True) as tx, tx.cursor() as cursor:
        for batch in rows.to_batches(max_chunksize=1 << 16):
            columns = (batch[name].to_pylist() for name in ("key", "at", "value"))
            pairs = (
                (key.encode() + struct.pack(">Q", at), value.to_bytes(8, "little"))
                for key, at, value in zip(*columns, strict=True)
            )
            cursor.putmulti(pairs, append=True)
    return env


def lmdb_latest(env: lmdb.Environment, questions: list[tuple[str, int]]) -> pa.Array:
    """The last row not after the time: the row before the first that is after it, when it is of the same key."""
    found: list[int | None] = []
    pack = struct.Struct(">Q").pack
    with env.begin() as tx, tx.cursor() as cursor:
        for text, at in questions:
            key = text.encode()
            there = cursor.prev() if cursor.set_range(key + pack(at + 1)) else cursor.last()
            hit = there and cursor.key().startswith(key)
            found.append(int.from_bytes(cursor.value(), "little") if hit else None)
    return pa.array(found, pa.int64())


# -- ranges -------------------------------------------------------------------------------------------


def ranged(folder: Path, ranges: int, count: int) -> Task:
    random = np.random.default_rng(3)
    widths, gaps = random.integers(1, 4_096, ranges), random.integers(0, 64, ranges)
    end = np.cumsum(widths + gaps) - 1
    start, value = end - widths + 1, random.permutation(ranges)
    number = random.integers(0, int(end[-1]) + 1, count)
    wanted = pa.array(number)
    snapshot = open_snapshot(folder, Kind.RANGED_STATE, [pa.array(start), pa.array(end), pa.array(value)])
    rows = pa.table({"start": start, "end": end, "value": value})
    questions = pa.table({"number": np.sort(number)})
    mine, theirs = pl.from_arrow(rows).set_sorted("start"), pl.from_arrow(questions).set_sorted("number")
    unsorted = pl.DataFrame({"id": np.arange(count), "number": number})
    duck = Duck(rows=rows, questions=questions)
    inside = pl.when(pl.col("number") <= pl.col("end")).then("value").alias("value")
    ways: dict[str, Way] = {
        "Millpond, one core": lambda: snapshot.lookup(wanted),
        "Polars join_asof, filter": lambda: polars_value(
            theirs.join_asof(mine, left_on="number", right_on="start").select(inside)
        ),
        "Polars, sorting included": lambda: polars_value(
            unsorted.sort("number").join_asof(mine, left_on="number", right_on="start").sort("id").select(inside)
        ),
        "DuckDB ASOF JOIN, filter": lambda: duck.ask(
            """select case when q.number <= r."end" then value end as value
            from questions q asof left join rows r on q.number >= r.start"""
        ),
        "DuckDB range join": lambda: duck.ask(
            """select value from questions q left join rows r on q.number >= r.start and q.number <= r."end" """
        ),
    }
    return Task(Contest("ranged_state", count, f"{ranges:,} ranges"), ways, snapshot.lookup(wanted))


def temporal_ranged(folder: Path, ranges: int, count: int) -> Task:
    random = np.random.default_rng(4)
    rows_per_range = 4
    widths = random.integers(1, 4_096, ranges)
    end = np.cumsum(widths) - 1
    start = end - widths + 1
    owner = np.repeat(np.arange(ranges), rows_per_range)
    time = np.tile(np.arange(1, rows_per_range + 1) * STEP_MS, ranges)
    value = random.permutation(len(owner))
    number, at = random.integers(0, int(end[-1]) + 1, count), random.integers(0, (rows_per_range + 1) * STEP_MS, count)
    columns = [pa.array(column) for column in (start[owner], end[owner], time, value)]
    snapshot = open_snapshot(folder, Kind.TEMPORAL_RANGED_STATE, columns)
    wanted, instants = pa.array(number), pa.array(at)
    rows = pa.table(columns, names=["start", "end", "at", "value"])
    questions = pa.table({"id": np.arange(count), "number": number, "at": at})
    duck = Duck(rows=rows, questions=questions)
    ways: dict[str, Way] = {
        "Millpond, one core": lambda: snapshot.lookup(wanted, instants),
        "DuckDB range join, latest": lambda: duck.ask(
            """select arg_max(r.value, r.at) as value from questions q join rows r
            on q.number >= r.start and q.number <= r."end" and r.at <= q.at group by q.id"""
        ),
    }
    task = Contest("temporal_ranged_state", count, f"{ranges:,} ranges × {rows_per_range}")
    return Task(task, ways, snapshot.lookup(wanted, instants))


# -- sessions -----------------------------------------------------------------------------------------


def session(folder: Path, keys: int, count: int) -> Task:
    random = np.random.default_rng(5)
    owner = np.repeat(np.arange(keys), ROWS_PER_KEY)
    start = np.tile(np.arange(ROWS_PER_KEY) * STEP_MS, keys) + random.integers(0, 100, len(owner))
    end = start + random.integers(0, STEP_MS - 100, len(owner))
    numbers, at = random.integers(0, keys, count), random.integers(0, ROWS_PER_KEY * STEP_MS, count)
    key, wanted, instants = names(owner), names(numbers), pa.array(at)
    snapshot = open_snapshot(folder, Kind.SESSION, [key, pa.array(start), pa.array(end)])
    order = pa.array(np.lexsort((at, numbers)))
    rows = pa.table({"key": key, "start": start, "end": end})
    questions = pa.table({"key": wanted.take(order), "at": instants.take(order)})
    mine, theirs = pl.from_arrow(rows), pl.from_arrow(questions)
    duck = Duck(rows=rows, questions=questions)
    inside = pl.when(pl.col("at") <= pl.col("end")).then("start").alias("value")
    ways: dict[str, Way] = {
        "Millpond, one core": lambda: snapshot.lookup(wanted, instants),
        "Polars join_asof, filter": lambda: polars_value(
            theirs.join_asof(mine, left_on="at", right_on="start", by="key", check_sortedness=False).select(inside)
        ),
        "DuckDB ASOF JOIN, filter": lambda: duck.ask(
            """select case when q.at <= r."end" then r.start end as value
            from questions q asof left join rows r on q.key = r.key and q.at >= r.start"""
        ),
        "DuckDB range join": lambda: duck.ask(
            """select r.start as value from questions q left join rows r
            on q.key = r.key and q.at >= r.start and q.at <= r."end" """
        ),
    }
    task = Contest("session", count, f"{keys:,} keys × {ROWS_PER_KEY}")
    return Task(task, ways, snapshot.lookup(wanted, instants))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--only", help="just this kind of map")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="polars")
    size = 100_000 if arguments.quick else 1_000_000
    makers: dict[str, tuple[Callable[[Path, int, int], Task], int]] = {
        "temporal_state": (temporal, size), "state": (state, size), "session": (session, size // 2),
        "ranged_state": (ranged, size // 2), "temporal_ranged_state": (temporal_ranged, size // 10),
    }  # fmt: skip
    contests, as_of, others = [], Run("as_of"), Run("lookup")
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, keys) in makers.items():
            if arguments.only and arguments.only != name:
                continue
            task = make(Path(folder), keys, size)
            task.run(rounds(arguments.quick))
            contests.append(task.contest)
            note_contests(as_of if name == "temporal_state" else others, [task.contest])
    print_table(contests)
    for contest in contests:
        if contest.task == "temporal_state":
            ours = contest.median("Millpond, one core")
            for rival, goal in GOALS.items():
                print(f"as-of against {rival}: {contest.median(rival) / ours:.1f}× (goal {goal:.0f}×)")
    rivals = {"Polars": version("polars"), "DuckDB": version("duckdb"), "py-lmdb": version("lmdb")}
    as_of.write({**rivals, "Spark": version("pyspark")}, whole=not arguments.quick, queries=size)
    others.write(rivals, whole=not (arguments.quick or arguments.only), queries=size)


if __name__ == "__main__":
    main()
