"""Streams of events in Spark, two cores: rows appended, and the history of one job set read.

The same rows, from the same Parquet files, go into a pond's folder, a node and a Redis; beside it Spark writes them as
Parquet, and as one bare `XADD` an event, pipelined, from each partition. Then one job set in twenty is read from each.

    PYTHONPATH=. python bench/events_spark.py            200,000 events
    PYTHONPATH=. python bench/events_spark.py --quick    a tenth of it
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import redis
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import millpond
from _measure import Contest, note_contests, print_table
from _results import Run, program_version, version
from _servers import redis_server
from events import payloads
from millpond import spark as mp
from tests.harness.cluster import Cluster, free_port

JOB_SETS, FILES = 20, 4
START_MS = 1_700_000_000_000
CHOSEN = "set 7"
PIPELINE = 500
ROUNDS = 3


def write_rows(folder: Path, events: int) -> None:
    """Events of jobs in Parquet files, as a load finds them."""
    folder.mkdir()
    made = payloads(events)
    for number in range(FILES):
        part = np.arange(number, events, FILES)
        table = pa.table({
            "queue": ["etl"] * len(part), "job_set": [f"set {row % JOB_SETS}" for row in part],
            "time": pa.array((START_MS + part) * 1000, pa.timestamp("us", tz="UTC")), "kind": ["running"] * len(part),
            "payload": pa.array([made[row] for row in part], pa.binary()),
        })  # fmt: skip
        parquet.write_table(table, folder / f"{number}.parquet")


def add_bare(port: int, place: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Append rows to streams of Redis, an entry an event."""

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = redis.Redis(port=port)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("job_set", "payload")]
            rows = list(zip(*columns, strict=True))
            for start in range(0, len(rows), PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for job_set, payload in rows[start : start + PIPELINE]:
                    pipeline.xadd(f"bare-{place}-{job_set}", {"e": payload})
                pipeline.execute()
            yield batch.slice(0, 0)

    return add


def read_bare(port: int, place: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Read a stream of Redis page by page."""

    def read(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client, after = redis.Redis(port=port), b"0"
        while page := client.xread({f"bare-{place}-{CHOSEN}": after}, count=PIPELINE):
            ((_, entries),) = page
            after = entries[-1][0]
            payloads_read = [entry[b"e"] for _, entry in entries]
            yield pa.RecordBatch.from_pydict({"payload": pa.array(payloads_read, pa.binary())})

    return read


def append(rows: DataFrame, url: str) -> None:
    rows.write.format("millpond.events").option("pond", url).mode("append").save()


def history(session: SparkSession, url: str) -> DataFrame:
    reader = session.read.format("millpond.events").option("pond", url)
    return reader.option("queue", "etl").option("job_set", CHOSEN).load()


def done(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(session: SparkSession, root: Path, node: str, port: int, events: int) -> list[Contest]:
    """Each round appends to fresh streams; what the last round appended is read."""
    rows = session.read.parquet(str(root / "rows"))
    appending = Contest("append", events)
    numbers = count()
    for _ in range(ROUNDS):
        number = next(numbers)
        folder, places = str(root / f"pond-{number}"), f"redis://127.0.0.1:{port}/0#bench-{number}"
        with millpond.open(folder):
            pass
        bare = rows.mapInArrow(add_bare(port, number), rows.schema)
        # All rounds share the node: its streams grow.
        ways: dict[str, Callable[[], object]] = {
            "Millpond, a folder": lambda folder=folder: append(rows, folder),
            "Millpond, a node": lambda: append(rows, node),
            "Millpond, Redis": lambda places=places: append(rows, places),
            "Spark's own Parquet": lambda number=number: rows.write.parquet(str(root / f"parquet-{number}")),
            "bare XADD, pipelined": lambda bare=bare: done(bare),
        }  # fmt: skip
        for way, act in ways.items():
            appending.run(way, act)
    reading = Contest("read one job set", events // JOB_SETS)
    stored = session.read.parquet(str(root / f"parquet-{number}")).where(f"job_set = '{CHOSEN}'")
    one = session.range(1, numPartitions=1).toDF("id")
    first = history(session, folder)
    assert first.count() == stored.count() == events // JOB_SETS
    assert history(session, places).count() == events // JOB_SETS
    reads: dict[str, DataFrame] = {
        "Millpond, a folder": first, "Millpond, Redis": history(session, places), "Spark's own Parquet": stored,
        "bare XREAD": one.mapInArrow(read_bare(port, number), "payload binary"),
    }  # fmt: skip
    for _ in range(ROUNDS):
        for way, frame in reads.items():
            reading.run(way, lambda frame=frame: done(frame))
    return [appending, reading]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    arguments = parser.parse_args()
    events, run = 200_000 // (10 if arguments.quick else 1), Run("events_spark")
    root = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        write_rows(root / "rows", events)
        with Cluster(root / "nodes", 1, armed=False) as cluster, redis_server(free_port()) as port:
            if port is None:
                raise SystemExit("this benchmark needs redis-server")
            session = mp.start("local[2]", app="bench", memory="2g", settings={"spark.local.dir": str(root / "local")})
            mp.register(session)
            contests = measure(session, root, cluster.urls[0], port, events)
            print_table(contests)
            note_contests(run, contests)
            session.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    rivals = {"Spark": version("pyspark"), "Redis": program_version("redis-server", "--version")}
    run.write(rivals, whole=not arguments.quick, events=events)


if __name__ == "__main__":
    main()
