"""The job that `test_event_kills.py` runs: a query from a folder of files into streams of events, all of whose
processes die at a step.

    events_job.py <folder with pond/, source/, checkpoint/> [<step to die at>[:<occurrence>]]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from millpond import spark as mp
from millpond.spark.events import EventsSource, runs
from millpond.spark.places import FolderPlace, Rights
from tests.spark.stream_job import arm

SCHEMA = "queue string, job_set string, time timestamp, payload string"


def armed_source(scratch: Path, kill_at: str) -> type[EventsSource]:
    """The data source, which arms each worker that it comes to, and appends an epoch in many writes."""

    class Armed(EventsSource):
        default = FolderPlace(str(scratch / "pond"))
        rights = Rights()

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            arm(scratch, kill_at)
            runs.APPEND_EVENTS = 6
            writer = super().streamWriter(schema, overwrite)
            write = writer.write

            def armed(iterator: Any) -> Any:
                arm(scratch, kill_at)
                return write(iterator)

            writer.write = armed  # type: ignore[method-assign]
            return writer

    return Armed


def main(folder: str, kill_at: str = "") -> None:
    scratch = Path(folder)
    settings = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(scratch / "local")}
    session = mp.start("local[2]", memory="600m", settings=settings)
    java = session._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (scratch / "processes").write_text(f"{java} {os.getpid()}")
    session.dataSource.register(armed_source(scratch, kill_at))
    files = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    # Where rows come to is a matter of chance, so an epoch that is run again has other partitions.
    rows = files.json(str(scratch / "source")).repartition(2)
    query = rows.writeStream.format("millpond.events").trigger(availableNow=True)
    query.option("checkpointLocation", str(scratch / "checkpoint")).start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
