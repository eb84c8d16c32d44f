"""Writing a DataFrame into a map: `frame.write.format("millpond")`.

Spark calls a writer in different processes: the constructor and `commit` or `abort` in Python processes on the
driver's machine, `write` once per attempt of a task on the executors. They share the place for parts
(`staging.py`) and the commit messages, nothing else. What holds is in `write_jobs.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from millpond.arrays.deferred_pandas import defer_pandas
from millpond.arrays.warming import load_ahead
from millpond.clock import SystemClock
from millpond.errors import Conflict
from millpond.kernel.job_reports import JobReports
from millpond.maps.loads.load import load_job_set, note_result
from millpond.maps.model.definition import MapDefinition
from millpond.spark.attempts import TaskParts
from millpond.spark.locations import Location, opened
from millpond.spark.short_errors import short_errors
from millpond.spark.write_jobs import LoadSettings, adopt, begin_job, load_partition

__all__ = ("MapWriter",)


@short_errors
class MapWriter(DataSourceArrowWriter):
    """One job that writes a DataFrame into one map."""

    def __init__(self, location: Location, definition: MapDefinition, settings: LoadSettings) -> None:
        self.location = location
        self.definition = definition
        self.settings = settings
        # This process may end before the job does; its parent serves the whole Spark application.
        owner = os.getppid()
        self.staging_dir = begin_job(location, SystemClock(), owner)
        self.job_set, self.job_id = load_job_set([definition.name]), self.staging_dir.job_id
        with location.reports() as reports:
            reports.begin(self.job_set, self.job_id, owner, by="spark")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskParts:
        """Seal the rows of one partition, on an executor; one of them reports the rows of all while it is at work."""
        defer_pandas()
        load_ahead()
        with ExitStack() as stack:
            reports: list[JobReports] = []

            def noted(folder: Path) -> None:
                if rows := self.staging_dir.rows(folder):
                    if not reports:
                        reports.append(stack.enter_context(self.location.reports()))
                    reports[0].rows(self.job_set, self.job_id, rows)

            return load_partition(iterator, self.staging_dir, self.definition, self.settings, noted)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Enter the parts of all tasks as one load.

        Raises: as `write_jobs.adopt`; then Spark calls `abort`.
        """
        defer_pandas()
        load_ahead()
        with opened(None, self.location) as pond, pond.reports.resume(self.job_set, self.job_id) as job:
            note_result(job, adopt(pond, self.staging_dir, _tasks(messages), self.settings))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove whatever the job's attempts wrote, or uploaded."""
        self.staging_dir.give_up([part for task in _tasks(messages) for part in task.parts])
        given_up = Conflict("Spark gave the load up: a task failed", kind="spark_gave_up", map=self.definition.name)
        with self.location.reports() as reports, suppress(Conflict), reports.resume(self.job_set, self.job_id):
            raise given_up


def _tasks(messages: list[WriterCommitMessage | None]) -> list[TaskParts]:
    return [message for message in messages if isinstance(message, TaskParts)]
