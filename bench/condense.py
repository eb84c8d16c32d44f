"""Condensing: every second row repeats the row before it, or every second session touches it; all of them go.

    python bench/condense.py [--quick] [--keys N] [--rows N] [--key-bytes N] [--kind KIND …] [--scheme SCHEME …]

For each kind and scheme, over the same rows, in turn, the median of the runs:

* **millpond**: `condense` of a shard: rows read, decided, deleted and synced change by change, readers undisturbed.
* **LMDB deletes**: the bare bound: a cursor's deletes (and puts, for sessions) of just those rows, known beforehand, in
  a copy of that shard's file, in transactions as large. What is read and decided costs nothing there.
* **DuckDB**, **Polars**: the same rows of a table in memory without the repeats, as another Parquet file: what one does
  where files are rewritten. They read no store and keep no order of changes.

Rates are rows looked at, of which half go. The processor time of ours is printed too: it says more on a busy machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import lmdb
import numpy as np
import polars as pl
import pyarrow as pa

from _measure import Contest, note_contests, print_table, rounds
from _results import Run, version
from millpond.clock import SystemClock
from millpond.maps.maintenance.maintenance import ROWS_PER_CHANGE, condense
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.shard.shard import Shard

KINDS = (Kind.TEMPORAL_STATE, Kind.TEMPORAL_RANGED_STATE, Kind.SESSION)
SCHEMES = {
    "auto": (Scheme.AUTO, 8), "direct": (Scheme.DIRECT, 8), "hash 8": (Scheme.HASH, 8), "hash 4": (Scheme.HASH, 4),
    "lookup": (Scheme.LOOKUP, 8),
}  # fmt: skip
BEFORE = 1 << 60
ROWS_PER_PUT = 500_000


def definition_of(kind: Kind, scheme: str) -> MapDefinition:
    named, width = SCHEMES[scheme]
    value = None if kind is Kind.SESSION else parse_value_type("string")
    return MapDefinition(name="m", kind=kind, incarnation="0", scheme=named, hash_bytes=width, value=value)


def rows_of(definition: MapDefinition, numbers: np.ndarray, rows: int, key_bytes: int) -> pa.RecordBatch:
    """`rows` rows for each number: values in pairs, sessions that touch in pairs."""
    kind, count = definition.kind, len(numbers)
    times = np.tile(np.arange(rows) * 1000, count)
    columns: list[pa.Array] = []
    if kind.keyed:
        names = [f"{number * 2654435761 % (1 << 32):010d}".ljust(key_bytes, "x") for number in numbers.tolist()]
        columns.append(pa.array(sorted(names), pa.binary()).take(pa.array(np.repeat(np.arange(count), rows))))
    else:
        columns += [pa.array(np.repeat(numbers * 10, rows)), pa.array(np.repeat(numbers * 10 + 9, rows))]
    columns.append(pa.array(times))
    if kind is Kind.SESSION:
        columns.append(pa.array(times + np.where(np.arange(len(times)) % 2, 500, 1000)))
    else:
        values = pa.array([f"value-{number:05d}" for number in range(1000)])
        columns.append(values.take(pa.array(np.tile(np.arange(rows) // 2, count) % 1000)))
    return pa.RecordBatch.from_arrays(columns, schema=canonical_schema(definition))


def fill(folder: Path, definition: MapDefinition, keys: int, rows: int, key_bytes: int) -> pa.Table:
    """A shard of these rows; the rows as a table."""
    batches = []
    shard = Shard(folder, definition)
    for first in range(0, keys, ROWS_PER_PUT // rows):
        batch = rows_of(definition, np.arange(first, min(keys, first + ROWS_PER_PUT // rows)), rows, key_bytes)
        shard.change(lambda tx, batch=batch: shard.put_rows(tx, batch, 0, overwrite=True), None, longest=1000)
        batches.append(batch)
    shard.close()
    return pa.Table.from_batches(batches)


def run_ours(folder: Path, definition: MapDefinition, removed: int) -> None:
    shard = Shard(folder, definition)
    report = condense(shard, definition, BEFORE, clock=SystemClock())
    shard.close()
    assert report.rows_removed == removed, report


Pairs = list[tuple[bytes, bytes]]
Changes = dict[bytes, tuple[Pairs, Pairs]]


def changes_of(before: Path, after: Path) -> Changes:
    """By table: the rows that condensing deleted, and those it put."""
    found: Changes = {}
    with open_file(before) as one, open_file(after) as other, one.begin() as old, other.begin() as new:
        for name in (b"direct", b"hashed", b"overflow", b"ranges", b"rows"):
            if old.get(name) is None:
                continue
            was = list(old.cursor(db=one.open_db(name, txn=old, create=False)))
            now = list(new.cursor(db=other.open_db(name, txn=new, create=False)))
            left, known = set(now), set(was)
            found[name] = [row for row in was if row not in left], [row for row in now if row not in known]
    return found


def open_file(folder: Path) -> lmdb.Environment:
    return lmdb.open(str(folder / "000001"), map_size=1 << 36, max_dbs=16)


def run_deletes(folder: Path, changes: Changes) -> None:
    with open_file(folder) as env:
        for name, (deleted, put) in changes.items():
            table = env.open_db(name, create=False)
            for first in range(0, len(deleted), ROWS_PER_CHANGE // 2):
                with env.begin(write=True) as tx:
                    for key, value in deleted[first : first + ROWS_PER_CHANGE // 2]:
                        tx.delete(key, value, table)
            for first in range(0, len(put), ROWS_PER_CHANGE // 2):
                with env.begin(write=True) as tx:
                    tx.cursor(db=table).putmulti(put[first : first + ROWS_PER_CHANGE // 2])


def duckdb_query(kind: Kind) -> str:
    if kind is Kind.SESSION:
        return """
            select key, min(start) as start, max("end") as "end" from (
                select *, sum(fresh) over (partition by key order by start, "end") as run from (
                    select *, case when start <= max("end") over (partition by key order by start, "end"
                        rows between unbounded preceding and 1 preceding) then 0 else 1 end as fresh from state_rows))
            group by key, run"""
    group = "key" if kind is Kind.TEMPORAL_STATE else "key_start, key_end"
    return f"""select * from state_rows qualify value is distinct from
        lag(value) over (partition by {group} order by effective_time)"""


def run_duckdb(table: pa.Table, kind: Kind, target: Path, removed: int) -> None:
    with duckdb.connect() as connection:
        connection.register("state_rows", table)
        connection.execute(f"copy ({duckdb_query(kind)}) to '{target}' (format parquet)")
        left = connection.execute(f"select count(*) from '{target}'").fetchone()
    assert left == (table.num_rows - removed,), left


def run_polars(table: pa.Table, kind: Kind, target: Path, removed: int) -> None:
    frame = pl.from_arrow(table).lazy()
    if kind is Kind.SESSION:
        reach = pl.col("end").cum_max().shift(1).over("key")
        fresh = (reach.is_null() | (pl.col("start") > reach)).alias("fresh")
        run = pl.col("fresh").cast(pl.Int64).cum_sum().over("key").alias("run")
        frame = frame.sort("key", "start", "end").with_columns(fresh).with_columns(run)
        found = frame.group_by("key", "run").agg(pl.col("start").min(), pl.col("end").max()).collect()
    else:
        group = ["key"] if kind is Kind.TEMPORAL_STATE else ["key_start", "key_end"]
        earlier = pl.col("value").shift(1).over(group)
        found = frame.sort(*group, "effective_time").filter(pl.col("value").ne_missing(earlier)).collect()
    assert found.height == table.num_rows - removed, found.height
    found.write_parquet(target)


def measure(
    kind: Kind, scheme: str, keys: int, rows: int, key_bytes: int, runs: range, scratch: Path
) -> tuple[Contest, list[float]]:
    definition, removed = definition_of(kind, scheme), keys * rows // 2
    table = fill(scratch / "template", definition, keys, rows, key_bytes)
    contest = Contest(f"{kind}, {scheme}", table.num_rows)
    known: Changes | None = None
    spent: list[float] = []
    for _ in runs:
        ours, bare = scratch / "ours", scratch / "bare"
        shutil.copytree(scratch / "template", ours)
        shutil.copytree(scratch / "template", bare)
        began = time.process_time()
        contest.run("Millpond", lambda folder=ours: run_ours(folder, definition, removed))
        spent.append(time.process_time() - began)
        changes = known = known or changes_of(bare, ours)
        contest.run("LMDB, its deletes alone", lambda folder=bare, changes=changes: run_deletes(folder, changes))
        contest.run("DuckDB, to a Parquet file", lambda: run_duckdb(table, kind, scratch / "duckdb.parquet", removed))
        contest.run("Polars, to a Parquet file", lambda: run_polars(table, kind, scratch / "polars.parquet", removed))
        shutil.rmtree(ours)
        shutil.rmtree(bare)
    return contest, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="300,000 rows and three runs")
    parser.add_argument("--keys", type=int)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--key-bytes", type=int, default=200)
    parser.add_argument("--kind", type=Kind, choices=KINDS, action="append")
    parser.add_argument("--scheme", choices=SCHEMES, action="append")
    given = parser.parse_args()
    keys = given.keys or (30_000 if given.quick else 200_000)
    contests, run = [], Run("condense")
    for kind in given.kind or KINDS:
        for scheme in given.scheme or SCHEMES:
            if not kind.keyed and scheme in ("direct", "hash 4"):
                continue  # ranges have no keys to hash or to store directly
            with tempfile.TemporaryDirectory(prefix="millpond-bench-") as scratch:
                # Every kernel is compiled over a small map, so that no run pays for it.
                measure(kind, scheme, 100, given.rows, given.key_bytes, range(1), Path(scratch, "first"))
                size = (keys, given.rows, given.key_bytes, rounds(given.quick))
                contest, spent = measure(kind, scheme, *size, Path(scratch, "measured"))
            rate = contest.rows / statistics.median(spent)
            print(f"{contest.task}: {rate:,.0f} rows a second of Millpond's processor time", file=sys.stderr)
            contests.append(contest)
            run.note(f"{contest.task}, processor", "Millpond", spent)
    print_table(contests)
    note_contests(run, contests)
    rivals = {"py-lmdb": version("lmdb"), "DuckDB": version("duckdb"), "Polars": version("polars")}
    whole = not any((given.quick, given.keys, given.kind, given.scheme))
    run.write(rivals, whole=whole, keys=keys, rows_per_key=given.rows, key_bytes=given.key_bytes)


if __name__ == "__main__":
    main()
