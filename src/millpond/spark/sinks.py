"""Writing a DataFrame into a map: `frame.write.format("millpond")`.

Spark calls a writer in different processes: the constructor and `commit` or `abort` in Python processes on the
driver's machine, `write` once per attempt of a task on the executors. They share the pond's folder and the commit
messages, nothing else. What is promised, and how, is in `jobs.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from millpond.clock import SystemClock
from millpond.maps.kinds import MapDefinition
from millpond.spark.attempts import TaskParts
from millpond.spark.jobs import LoadSettings, adopt, begin_job, load_partition
from millpond.spark.ponds import opened
from millpond.stores.files import remove_tree

__all__ = ("MapWriter",)


class MapWriter(DataSourceArrowWriter):
    """One job that writes a DataFrame into one map."""

    def __init__(self, pond: Path, definition: MapDefinition, settings: LoadSettings) -> None:
        self.pond = pond
        self.definition = definition
        self.settings = settings
        # This process may end before the job does; its parent serves the whole Spark application.
        self.job = begin_job(pond, SystemClock(), os.getppid())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskParts:
        """Seal the rows of one partition, on an executor."""
        return load_partition(iterator, self.job, self.definition, self.settings)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Adopt the parts of all tasks as one load.

        Raises: as `jobs.adopt`; then Spark calls `abort`.
        """
        tasks = [each for each in messages if isinstance(each, TaskParts)]
        with opened(self.pond) as pond:
            adopt(pond, self.job, tasks, self.settings)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove whatever the job's attempts wrote."""
        remove_tree(self.job)
