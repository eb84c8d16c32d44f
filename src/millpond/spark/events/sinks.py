"""Appending rows to streams: `frame.write` and `frame.writeStream` with `format("millpond.events")`.

Tasks sort their rows into runs (`runs.py`); the driver merges those of all tasks that count, and appends. An event's
source position is that of its message, where rows have one, else (query, epoch, its rank in the epoch), and is stored
in the same write as the event. So an epoch that is run again, after a crash at any point, appends what is missing, and
so does an epoch whose writer died half-way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millpond.clock import SystemClock
from millpond.kernel.steps import step
from millpond.spark.attempts import task_numbers
from millpond.spark.epochs import this_epoch
from millpond.spark.events.columns import RowForm
from millpond.spark.events.locations import EventsLocation, PondEvents
from millpond.spark.events.runs import EventLog, append_runs, write_runs
from millpond.spark.short_errors import short_errors
from millpond.spark.staging import StagingDir, job_over

__all__ = ("EventsEpochWriter", "EventsWriter", "TaskRuns")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskRuns(WriterCommitMessage):
    """The runs of one attempt, the query whose epoch it worked on, and the folder that the runs are in."""

    runs: tuple[str | bytes, ...]
    query: str = ""
    staging_dir: StagingDir | None = None


def _write_task(
    batches: Iterator[pa.RecordBatch], form: RowForm, staging_dir: StagingDir | None
) -> tuple[str | bytes, ...]:
    if staging_dir is None:
        return write_runs(batches, form, None)
    partition, task = task_numbers()
    folder = staging_dir.attempt(partition, task)
    try:
        runs = write_runs(batches, form, folder)
    except BaseException:
        staging_dir.leave(folder)
        raise
    if staging_dir.over(folder):
        staging_dir.leave(folder)
        raise job_over(partition)
    return runs


def _append(location: EventsLocation, tasks: Sequence[TaskRuns], log: EventLog) -> None:
    runs = [run for task in tasks for run in task.runs]
    if runs:
        with location.appending() as append:
            done = append_runs(append, runs, log)
        if done.past_retention:
            _LOG.warning(
                "%d of %d new events are older than the retention: the next maintenance drops them",
                done.past_retention, done.events,
            )  # fmt: skip


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[TaskRuns]:
    return [message for message in messages if isinstance(message, TaskRuns)]


@short_errors
class EventsWriter(DataSourceArrowWriter):
    """One job that appends a DataFrame; with a name for its source, the same rows again change nothing."""

    def __init__(self, location: EventsLocation, form: RowForm, source: str) -> None:
        self.location, self.form, self.log = location, form, EventLog(source)
        self.staging_dir = _staging_dir(location, lasting=True)
        if self.staging_dir is not None:
            self.staging_dir.begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRuns:
        """Sort the rows of one partition, on an executor."""
        return TaskRuns(_write_task(iterator, self.form, self.staging_dir))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows of all tasks."""
        _append(self.location, _tasks(messages), self.log)
        self._end()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the runs."""
        self._end()

    def _end(self) -> None:
        if self.staging_dir is not None:
            self.staging_dir.end()


@short_errors
class EventsEpochWriter(DataSourceStreamArrowWriter):
    """Appends the epochs of a query."""

    def __init__(self, location: EventsLocation, form: RowForm) -> None:
        self.location, self.form = location, form
        self.staging_dir = _staging_dir(location, lasting=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRuns:
        """Sort the rows of one partition of an epoch, on an executor."""
        query, _ = this_epoch()
        runs = _write_task(iterator, self.form, self.staging_dir)
        step("events.task_done")
        return TaskRuns(runs, query, self.staging_dir)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append the rows of all tasks of the epoch; those that are stored already are left out.

        Raises: as `StreamStore.append`; then the query fails, and begins with this epoch when it is started again.
        """
        tasks = _tasks(messages)
        if not tasks:
            return
        step("events.tasks_done")
        _append(self.location, tasks, EventLog(f"spark:{tasks[0].query}", batchId))
        step("events.epoch_appended")
        self._end(tasks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove the runs of the epoch."""
        self._end(_tasks(messages))

    def _end(self, tasks: Sequence[TaskRuns]) -> None:
        for staging_dir in {task.staging_dir for task in tasks}:
            if staging_dir is not None:
                staging_dir.end()


def _staging_dir(location: EventsLocation, *, lasting: bool) -> StagingDir | None:
    """A folder below the pond's; elsewhere runs travel with the messages. It outlives this process."""
    if not isinstance(location, PondEvents):
        return None
    return location.location.staging_dir(SystemClock(), os.getppid(), lasting=lasting)
