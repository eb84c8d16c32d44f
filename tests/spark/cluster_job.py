"""The job that `test_cluster.py` submits to a real cluster: loads and enriches, with a task that fails the first
time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millpond import spark as mp

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


def main(folder: str, answer: str) -> None:
    session = SparkSession.builder.getOrCreate()
    mp.register(session, folder)
    rows = session.range(0, 20_000, 1, 4).selectExpr(
        "concat('k', id % 1000) as key", "timestamp_millis(1357000000000 + id) as effective_time", "id as value"
    )
    failing = rows.mapInArrow(fail_once(Path(answer).with_suffix(".failed")), rows.schema)
    failing.write.format("millpond").option("map", "numbers").mode("append").save()

    events = session.range(0, 5_000, 1, 4).selectExpr(
        "concat('k', id % 1100) as key", "timestamp_millis(1357000000000 + id * 4) as at"
    )
    enriched = mp.enrich(events, map="numbers", key="key", at="at", into="number")
    enriched.createOrReplaceTempView("enriched")
    looked_up = session.sql("select *, get_state('numbers', key, at) as again from enriched")
    report: dict[str, Any] = {
        "executors": len(session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1,
        "rows": session.read.format("millpond").option("map", "numbers").load().count(),
        "answers": [[row.key, row.at.timestamp(), row.number, row.again] for row in looked_up.collect()],
    }
    Path(answer).write_text(json.dumps(report))
    session.stop()


def fail_once(marker: Path) -> Any:
    """A pass over batches that fails in partition 1, once it has handed all its rows on, the first time."""

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("the first attempt fails at its last row")

    return attempt


if __name__ == "__main__":
    main(*sys.argv[1:])
