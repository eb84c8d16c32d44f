"""A stream into a map, from the end of a micro-batch until its values can be read by `get`.

Each epoch is a file of rows; a thread asks `get` for its last key, as fast as it can, until it gets the epoch's
value. Two times are reported for each epoch, in milliseconds:

* after the rows: since all tasks have sealed (or uploaded) their last row, which is when Spark calls the sink's
  `commit`;
* after the file: since the file was there, with all that Spark does for a micro-batch.

Into a folder's pond, and into nodes on this machine. The rivals, for the time after the file, with the same rows:
* Spark alone: a sink that drops the rows; the micro-batch's own end counts;
* tasks that write to Redis by `foreachBatch`, in pipelines, and `GET` there; nothing is exactly once in this.

    PYTHONPATH=. python bench/stream.py            60 epochs of 10,000 rows
    PYTHONPATH=. python bench/stream.py --quick    15 epochs of 1,000 rows
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import redis
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

import millpond
from _results import Run, program_version, version
from _servers import redis_server
from millpond import spark as mp
from millpond.kernel import steps
from millpond.spark.locations import Rights, SparkFolder
from millpond.spark.sources import MapSource
from tests.harness.cluster import Cluster, free_port

LAST = "last"
"""The key that every epoch ends with; its value is the number of the epoch."""
WARM = 5
"""Epochs that are not counted: Python workers start with the first."""

Get = Callable[[], object]


class Feed:
    """A folder that files are put into, each an epoch."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows, self.count = folder, rows, 0
        folder.mkdir()
        self._keys = [f"device-{number:08d}" for number in range(rows - 1)]

    def put(self) -> int:
        """The next file; its number, from 1."""
        self.count += 1
        values = np.full(self.rows, self.count)
        table = pa.table({"key": [*self._keys, LAST], "value": values})
        hidden = self.folder / f".{self.count}"
        parquet.write_table(table, hidden)
        hidden.rename(self.folder / f"{self.count:06d}.parquet")
        return self.count

    def frame(self, session: SparkSession) -> DataFrame:
        files = session.readStream.schema("key string, value long").option("maxFilesPerTrigger", 1)
        return files.parquet(str(self.folder))


def timed_source(ends: Path) -> type[MapSource]:
    """The data source, whose workers note when the tasks of an epoch are done."""

    class Timed(MapSource):
        default = SparkFolder("")
        rights = Rights()

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
            def note(step: str) -> None:
                if step == "epoch.tasks_done":
                    with ends.open("a") as file:
                        file.write(f"{time.time_ns()}\n")

            steps._listeners[:] = [note]  # noqa: SLF001 - a worker serves one query after another
            return super().streamWriter(schema, overwrite)

    return Timed


def watch(feed: Feed, get: Get, epochs: int) -> tuple[list[int], list[int]]:
    """Put files one after another; when each was there, and when its value was read."""
    put, read = [], []
    for _ in range(epochs):
        number = feed.put()
        put.append(time.time_ns())
        while get() != number:
            time.sleep(0)
        read.append(time.time_ns())
    return put, read


def report(run: Run, way: str, after_rows: list[float] | None, after_file: list[float]) -> str:
    name = f"Millpond, {way}" if after_rows else way

    def cell(times: list[float] | None) -> str:
        if times is None:
            return "      –      "
        counted = times[WARM:]
        task = "after the rows" if times is after_rows else "after the file"
        run.note(task, name, [ms / 1e3 for ms in counted])
        run.note(f"{task}, 99 %", name, float(np.percentile(counted, 99)) / 1e3)
        return f"{statistics.median(counted):6.0f} / {np.percentile(counted, 99):5.0f}"

    return f"| {way:42} | {cell(after_rows)} | {cell(after_file)} |"


def into_map(
    run: Run, session: SparkSession, folder: Path, way: str, pond: Any, where: str, arguments: argparse.Namespace
) -> str:
    target = pond.create_map("numbers", kind="state", value="long")
    feed, ends = Feed(folder / "source", arguments.rows), folder / "ends"
    session.dataSource.register(timed_source(ends))
    stream = feed.frame(session).writeStream.format("millpond").option("pond", where).option("map", "numbers")
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
    put, read = watch(feed, lambda: target.get(LAST), arguments.epochs)
    query.stop()
    done = [int(line) for line in ends.read_text().split()]
    return report(run, way, [(b - a) / 1e6 for a, b in zip(done, read, strict=False)],
                  [(b - a) / 1e6 for a, b in zip(put, read, strict=True)])  # fmt: skip


def into_redis(run: Run, session: SparkSession, folder: Path, port: int, arguments: argparse.Namespace) -> str:
    feed, client = Feed(folder / "source", arguments.rows), redis.Redis(port=port)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with redis.Redis(port=port) as there:
            for batch in batches:
                there.mset(dict(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)))
        yield pa.record_batch({"done": [True]})

    def write(frame: DataFrame, _epoch: int) -> None:
        frame.mapInArrow(send, "done boolean").collect()

    stream = feed.frame(session).writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
    put, read = watch(feed, lambda: int(client.get(LAST) or 0), arguments.epochs)  # type: ignore[arg-type]
    query.stop()
    client.close()
    return report(run, "Redis, by foreachBatch", None, [(b - a) / 1e6 for a, b in zip(put, read, strict=True)])


def into_nothing(run: Run, session: SparkSession, folder: Path, arguments: argparse.Namespace) -> str:
    feed = Feed(folder / "source", arguments.rows)
    stream = feed.frame(session).writeStream.format("noop")
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()

    def done() -> int:
        progress = query.lastProgress
        return -1 if progress is None or not progress["numInputRows"] else int(progress["batchId"]) + 1

    put, read = watch(feed, done, arguments.epochs)
    query.stop()
    return report(run, "Spark alone, rows dropped", None, [(b - a) / 1e6 for a, b in zip(put, read, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="15 epochs of 1,000 rows")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes, besides the runs with one (0: none)")
    arguments = parser.parse_args()
    arguments.epochs, arguments.rows = (15 + WARM, 1_000) if arguments.quick else (60 + WARM, 10_000)
    with tempfile.TemporaryDirectory(prefix="millpond-stream-", dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        os.environ["MILLPOND_CLIENT_CACHE"] = f"{folder}/cache"
        session = mp.start("local[2]", app="stream", settings={"spark.local.dir": f"{folder}/local"})
        lines, run = [], Run("stream")

        def scratch(way: str) -> Path:
            (folder / way).mkdir()
            return folder / way

        with millpond.open(folder / "pond") as pond:
            lines.append(
                into_map(run, session, scratch("folder"), "a folder's pond", pond, str(pond.folder), arguments)
            )
        for count in sorted({1, arguments.nodes} if arguments.nodes else ()):
            with Cluster(scratch(f"cluster{count}"), count) as cluster, millpond.open(cluster.url) as there:
                way = f"{count} node{'s' if count > 1 else ''}, get from the first"
                lines.append(into_map(run, session, scratch(f"nodes{count}"), way, there, cluster.url, arguments))
        with redis_server(free_port()) as port:
            if port is not None:
                lines.append(into_redis(run, session, scratch("redis"), port, arguments))
        lines.append(into_nothing(run, session, scratch("nothing"), arguments))
        session.stop()
    print(f"\n{arguments.epochs - WARM} epochs of {arguments.rows:,} rows; milliseconds, median / 99 %\n")
    print(f"| {'into':42} | after the rows | after the file |")
    print(f"|{'-' * 44}|---------------|---------------|")
    print("\n".join(lines))
    rivals = {"Spark": version("pyspark"), "Redis": program_version("redis-server", "--version")}
    whole = not arguments.quick and arguments.nodes == 3
    run.write(rivals, whole=whole, epochs=arguments.epochs - WARM, rows=arguments.rows)


if __name__ == "__main__":
    threading.current_thread().name = "bench"
    main()
