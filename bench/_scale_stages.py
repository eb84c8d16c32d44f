"""The stages of `scale.py`, each a process of its own: `python bench/_scale_stages.py STAGE FOLDER ROWS`.

A stage prints lines of JSON: `{"work": …, "way": …, "seconds": …}`. The rows are those of devices: ten times for each
key, the keys in random order over the files.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import millpond

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("STAGES",)

ROWS_PER_KEY = 10
FILE_ROWS = 1_000_000
CHANGED = 1_000_000
QUERIES = 1_000_000
EVENTS = 5_000_000
STEP_MS = 1_000
LOADED_AGAIN_ROWS_MAX = 10_000_000
PARQUET = "Spark writes Parquet"


def say(work: str, way: str, seconds: float, **more: Any) -> None:
    print(json.dumps({"work": work, "way": way, "seconds": seconds, **more}), flush=True)


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = act()
    return time.perf_counter() - began, found


def names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")
    return pc.binary_join_element_wise(pa.scalar("device-"), digits, "")


def instants(ms: np.ndarray) -> pa.Array:
    return pa.array(ms.astype(np.int64) * 1000, pa.timestamp("us", tz="UTC"))


def rows_of(rows: int, count: int, seed: int) -> pa.Table:
    """Some rows of random keys and times: of all that there may be, each as likely."""
    random = np.random.default_rng(seed)
    place = random.integers(0, rows, count)
    return table_of(place, random.random(count))


def table_of(place: np.ndarray, value: np.ndarray) -> pa.Table:
    key, step = np.divmod(place, ROWS_PER_KEY)
    return pa.table({"key": names(key), "effective_time": instants((step + 1) * STEP_MS), "value": value})


def input_files(folder: Path, rows: int) -> Path:
    """Parquet files with each row once, in random order within a file; the keys of a file are spread over all."""
    where = folder / "input"
    where.mkdir(exist_ok=True)
    files = max(1, rows // FILE_ROWS)
    for number in range(files):
        file = where / f"{number}.parquet"
        if not file.exists():
            random = np.random.default_rng(number)
            place = random.permutation(np.arange(number, rows, files))
            parquet.write_table(table_of(place, random.random(len(place))), file)
    return where


# -- stages -------------------------------------------------------------------------------------------------


def load(folder: Path, rows: int) -> None:
    """Spark: files, a DataFrame with a computed column, and a write into a map; and the same into Parquet files."""
    from pyspark.sql import functions as f

    from millpond import spark as mp

    where, output = input_files(folder, rows), folder / "output"
    session = mp.start("local[2]", app="millpond bench", memory="4g")
    mp.register(session, pond=str(folder / "pond"))
    frame = session.read.parquet(str(where))
    computed = frame.withColumn("value", f.col("value") * 1.8 + 32)
    last = 3 if rows <= LOADED_AGAIN_ROWS_MAX else 1
    with millpond.open(folder / "pond") as pond:
        ways: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
            (", df.write", lambda: saved(frame, "devices"), lambda: parquet_of(frame, output)),
            (", a computed column", lambda: mp.load(computed, pond, "devices"), lambda: parquet_of(computed, output)),
            (", from files", lambda: mp.load(where, pond, "devices"), lambda: parquet_of(frame, output)),
        ]
        for name, ours, rival in ways:
            for number in range(last + 1):
                target = pond.create_map("devices", kind="temporal_state", value="double")
                seconds = timed(ours)[0], timed(rival)[0]
                assert target.info()["rows"] == rows
                if number:  # the first warms both
                    say(f"load by Spark{name}", "Millpond", seconds[0])
                    say(f"load by Spark{name}", PARQUET, seconds[1])
                if (name, number) != (ways[-1][0], last):
                    pond.drop_map("devices")
    session.stop()
    shutil.rmtree(output)


def parquet_of(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder))


def saved(frame: DataFrame, name: str) -> None:
    frame.write.format("millpond").option("map", name).mode("append").save()


def merge(folder: Path, rows: int) -> None:
    """A million rows, changed and new ones, into the map."""
    with millpond.open(folder / "pond") as pond:
        target = pond.map("devices")
        for seed in range(5):
            changed = rows_of(rows * 11 // 10, CHANGED, 1000 + seed)
            say("merge 1 M rows", "Millpond", timed(lambda changed=changed: target.load(changed))[0])


def merge_duckdb(folder: Path, rows: int) -> None:
    """The same as `INSERT … ON CONFLICT DO UPDATE` into a table with a primary key."""
    import duckdb

    where = input_files(folder, rows)
    connection = duckdb.connect(str(folder / "rivals.duckdb"))
    connection.execute("set threads = 2")
    connection.execute("create table devices (key text, instant timestamptz, value double, primary key (key, instant))")
    connection.execute(f"insert into devices select * from '{where}/*.parquet'")
    for seed in range(3):
        changed = rows_of(rows * 11 // 10, CHANGED, 1000 + seed)
        changed = changed.group_by(["key", "effective_time"], use_threads=False).aggregate([("value", "last")])
        connection.register("changed", changed.select(["key", "effective_time", "value_last"]))
        query = "insert into devices select * from changed on conflict do update set value = excluded.value"
        say("merge 1 M rows", "DuckDB upsert", timed(lambda query=query: connection.execute(query))[0])
    connection.close()
    (folder / "rivals.duckdb").unlink()


def merge_rocksdb(folder: Path, rows: int) -> None:
    """The same as batches of puts into RocksDB, by `rocksdict`."""
    from rocksdict import Options, Rdict, WriteBatch

    where, options = input_files(folder, rows), Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(folder / "rocksdb"), options)

    def put(changed: pa.Table) -> None:
        for batch in changed.to_batches(max_chunksize=1 << 16):
            pairs = WriteBatch(raw_mode=True)
            for key, value in pairs_of(batch):
                pairs.put(key, value)
            database.write(pairs)

    for file in sorted(where.glob("*.parquet")):
        put(parquet.read_table(file))
    database.flush()
    for seed in range(3):
        changed = rows_of(rows * 11 // 10, CHANGED, 1000 + seed)

        def act(changed: pa.Table = changed) -> None:
            put(changed)
            database.flush()

        say("merge 1 M rows", "RocksDB", timed(act)[0])
    database.close()
    shutil.rmtree(folder / "rocksdb")


def pairs_of(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    keys, times, values = (batch.column(number) for number in range(3))
    for key, at, value in zip(keys.to_pylist(), times.cast(pa.int64()).to_pylist(), values.to_pylist(), strict=True):
        yield key.encode() + struct.pack(">q", at), struct.pack("<d", value)


def lookups(folder: Path, rows: int) -> None:
    """A million lookups as of a time, with the files out of the cache of pages and in it; `get`; opening."""
    random = np.random.default_rng(7)
    wanted = names(random.integers(0, rows // ROWS_PER_KEY, QUERIES))
    at = instants(random.integers(STEP_MS, (ROWS_PER_KEY + 1) * STEP_MS, QUERIES))
    cold = drop_cache()
    with millpond.open(folder / "pond") as pond:
        target = pond.map("devices")
        snapshot = target.snapshot()
        snapshot.lookup(wanted[:1000], at[:1000])
        seconds, found = timed(lambda: snapshot.lookup(wanted, at))
        assert found.null_count == 0
        say("1 M lookups, cold" if cold else "1 M lookups, first", "Millpond", seconds)
        for _ in range(5):
            say("1 M lookups", "Millpond", timed(lambda: snapshot.lookup(wanted, at))[0])
        keys = names(random.integers(0, rows // ROWS_PER_KEY, 10_000)).to_pylist()
        gets = [timed(lambda key=key: target.get(key, at="2024-01-01T00:00:00Z"))[0] for key in keys]
        say("get, median", "Millpond", float(np.median(gets)))
    seconds = [timed(lambda: _open_and_get(folder, keys[0]))[0] for _ in range(5)]
    say("open and first get", "Millpond", float(np.median(seconds)))


def _open_and_get(folder: Path, key: str) -> None:
    with millpond.open(folder / "pond", create=False) as pond:
        pond.map("devices").get(key, at="2024-01-01T00:00:00Z")


def drop_cache() -> bool:
    """Let the system forget the pages of files; False for whoever may not."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def lookups_rivals(folder: Path, rows: int) -> None:
    """The same lookups by Polars and DuckDB, over all rows in memory, sorted as they like them."""
    import duckdb
    import polars as pl

    random = np.random.default_rng(7)
    numbers = random.integers(0, rows // ROWS_PER_KEY, QUERIES)
    at = instants(random.integers(STEP_MS, (ROWS_PER_KEY + 1) * STEP_MS, QUERIES))
    questions = pl.DataFrame({"key": pl.from_arrow(names(numbers)), "at": pl.from_arrow(at)}).sort("key", "at")
    mine = pl.read_parquet(str(input_files(folder, rows) / "*.parquet")).rename({"effective_time": "at"})
    mine = mine.sort("key", "at")
    join = partial(questions.join_asof, mine, on="at", by="key", check_sortedness=False)
    for _ in range(3):
        say("1 M lookups", "Polars join_asof", timed(join)[0])
    connection = duckdb.connect()
    connection.execute("set threads = 2")
    given = questions.to_arrow()
    connection.register("given", given)
    connection.execute("create table questions as select * from given")
    stored = mine.to_arrow()
    connection.register("stored", stored)
    connection.execute("create table devices as select * from stored")
    del join, mine, stored
    query = "select value from questions q asof left join devices r on q.key = r.key and q.at >= r.at"
    for _ in range(3):
        say("1 M lookups", "DuckDB ASOF JOIN", timed(lambda: connection.sql(query).to_arrow_table())[0])


def enrich(folder: Path, rows: int) -> None:
    """Spark: five million events with what the map knows; the events passed through Python, and alone."""
    from pyspark.sql import functions as f

    from millpond import spark as mp

    events, keys = folder / "events", rows // ROWS_PER_KEY
    events.mkdir(exist_ok=True)
    random = np.random.default_rng(9)
    for number in range(EVENTS // FILE_ROWS):
        at = instants(random.integers(STEP_MS, (ROWS_PER_KEY + 1) * STEP_MS, FILE_ROWS))
        table = pa.table({"device": names(random.integers(0, keys, FILE_ROWS)), "at": at,
                          "amount": random.random(FILE_ROWS)})  # fmt: skip
        parquet.write_table(table, events / f"{number}.parquet")
    session = mp.start("local[2]", app="millpond bench", memory="4g")
    mp.register(session, pond=str(folder / "pond"))
    frame = session.read.parquet(str(events))
    with_state = partial(mp.enrich, frame, map="devices", key="device", at="at", into="state")

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def write(wanted: Any) -> Callable[[], None]:
        return lambda: wanted.write.mode("overwrite").format("noop").save()

    ways = {
        "Millpond": with_state(), 'Millpond, partition="key"': with_state(partition="key"),
        "Spark, mapInArrow, rows passed through": frame.mapInArrow(through, frame.schema),
        "Spark, the events alone": frame.withColumn("state", f.col("amount")),
    }  # fmt: skip
    for way in (*ways, *ways, *ways):
        say("enrich 5 M events", way, timed(write(ways[way]))[0])
    session.stop()
    shutil.rmtree(events)


STAGES: dict[str, Callable[[Path, int], None]] = {
    "load": load, "merge": merge, "merge-duckdb": merge_duckdb, "merge-rocksdb": merge_rocksdb, "lookups": lookups,
    "lookups-rivals": lookups_rivals, "enrich": enrich,
}  # fmt: skip

if __name__ == "__main__":
    STAGES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
