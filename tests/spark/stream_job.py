"""The job that `test_stream_kills.py` runs: a query from a folder of files into a map, all of whose processes die at
a step.

    stream_job.py <folder with pond/, source/, checkpoint/> [<step to die at>[:<occurrence>]] [<branch>]

`MILLPOND_STEPS_LOG` names a file that takes the steps of Spark's Python workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource

from millpond import spark as mp
from millpond.kernel import steps
from millpond.spark.locations import Rights, SparkFolder
from millpond.spark.sources import MapSource

T = TypeVar("T", bound=DataSource)


def arm(scratch: Path, kill_at: str) -> None:
    """Count the steps of this worker, log them, and at the chosen one kill the application and then this process."""
    if steps._listeners:
        return
    name, _, count = kill_at.partition(":")
    seen: Counter[str] = Counter()
    log = os.environ.get("MILLPOND_STEPS_LOG")

    def listen(step: str) -> None:
        seen[step] += 1
        if log:
            with Path(log).open("a", encoding="ascii") as file:
                file.write(f"{step}\n")
        if step == name and seen[step] == int(count or 1):
            for process in (scratch / "processes").read_text().split():
                os.kill(int(process), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    steps._listeners.append(listen)


def armed_source(source: type[T], scratch: Path, kill_at: str) -> type[T]:
    """A data source of the pond in the folder, which arms each worker that it comes to."""

    def stream_writer(self: T, schema: Any, overwrite: bool) -> Any:
        arm(scratch, kill_at)
        writer = source.streamWriter(self, schema, overwrite)
        write = writer.write

        def armed(iterator: Any) -> Any:
            arm(scratch, kill_at)
            return write(iterator)

        writer.write = armed  # type: ignore[method-assign]
        return writer

    place = SparkFolder(str(scratch / "pond"))
    return type("Armed", (source,), {"default": place, "rights": Rights(), "streamWriter": stream_writer})


def run(source: type[DataSource], schema: str, folder: str, kill_at: str = "", **options: str) -> None:
    """Run a query from the files of a folder, whose rows have a schema, into the pond there, by a data source."""
    scratch = Path(folder)
    settings = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(scratch / "local")}
    session = mp.start("local[2]", memory="600m", settings=settings)
    java = session._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (scratch / "processes").write_text(f"{java} {os.getpid()}")
    session.dataSource.register(armed_source(source, scratch, kill_at))
    files = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    # Where rows come to is a matter of chance, so an epoch that is run again has other partitions.
    rows = files.json(str(scratch / "source")).repartition(2)
    query = rows.writeStream.format(source.name()).options(**options).trigger(availableNow=True)
    query.option("checkpointLocation", str(scratch / "checkpoint")).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    folder, kill_at, branch = [*sys.argv[1:], "", ""][:3]
    run(MapSource, "key string, value long", folder, kill_at, map="numbers", branch=branch or "main")
