"""Writing the layer of a load by tasks of a second stage: each sorts a stretch of the shares of all hashes.

The rows lie in files below the folder of the pond (`layered/row_files.py`), which all tasks see; they do not pass
through Spark. A task that is tried again, or twice at once, writes the same ranges under the same names.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond.maps.layered.share_ranges import ShareRanges, ShareWriter, stretches, write_here
from millpond.spark.private_api import is_connect

__all__ = ("write_by_tasks",)

TASK_ROWS_MIN = 500_000
"""Fewer rows are sorted in less time than a task takes to begin."""
TASK_ROWS_MAX = 4_000_000
TASKS_AT_ONCE = 8
"""The guess where Spark does not say how many tasks run at once: over Spark Connect."""


def write_by_tasks(session: SparkSession, writer: ShareWriter) -> list[ShareRanges]:
    """Have the ranges of a layer written by tasks, or here when they are few.

    Raises: as `ShareWriter.write`, where it is done here; else the error of the stage.
    """
    rows = sum(file.rows for file in writer.files)
    at_once = TASKS_AT_ONCE if is_connect(session) else session.sparkContext.defaultParallelism
    cut = stretches(writer.files, rows_max=max(TASK_ROWS_MIN, min(TASK_ROWS_MAX, -(-rows // at_once))))
    if len(cut) == 1:
        return write_here(writer)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                written = pickle.dumps((number, writer.write(cut[number])))
                yield pa.RecordBatch.from_pydict({"message": [written]})

    numbers = session.range(0, len(cut), 1, len(cut))
    messages = numbers.mapInArrow(write, "message binary").collect()
    written = dict(pickle.loads(row.message) for row in messages)
    return [written[number] for number in range(len(cut))]
