"""Writing the ranges of a layer by tasks: those of a load, each a stretch of the shares of all hashes; or those of a
fold, each a stretch of the keys of all layers.

Rows lie in files below the folder of the pond, or in its bucket, which all tasks see; they do not pass through Spark. A
task that is tried again, or twice at once, writes the same ranges under the same names.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond.spark.private_api import is_connect

if TYPE_CHECKING:
    from millpond.maps.snapshots.stretches import StretchWriter, Written

__all__ = ("write_by_tasks",)

TASKS_AT_ONCE = 8
"""The guess where Spark does not say how many tasks run at once: over Spark Connect."""


def write_by_tasks(session: SparkSession, writer: StretchWriter[Any, Written]) -> list[Written]:
    """Have the ranges of a layer written by tasks, or here when they are few.

    Raises: as `StretchWriter.write`, where it is done here; else the error of the stage.
    """
    cut = writer.cut(TASKS_AT_ONCE if is_connect(session) else session.sparkContext.defaultParallelism)
    if len(cut) == 1:
        return list(writer.write_here())

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                written = pickle.dumps((number, writer.write(cut[number])))
                yield pa.RecordBatch.from_pydict({"message": [written]})

    numbers = session.range(0, len(cut), 1, len(cut))
    messages = numbers.mapInArrow(write, "message binary").collect()
    written = dict(pickle.loads(row.message) for row in messages)
    return [written[number] for number in range(len(cut))]
