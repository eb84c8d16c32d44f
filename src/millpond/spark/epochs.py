"""Writing a stream into a map: `frame.writeStream.format("millpond")`, each epoch (micro-batch) exactly once.

Spark calls the writer of an epoch in different processes, as in `sinks.py`, and after a crash it runs the last epoch
again from its checkpoint: whether the first run got as far as the map, it does not know.

* The pond's log holds (query and map, epoch) with what was entered for it, in the same write. An epoch that is there is
  done: entering it again changes nothing, however its rows came in another order or in other partitions. So is any
  earlier epoch of the query, which fences the driver of a run that is thought dead and is not.
* The id of the query comes out of the checkpoint, and to the tasks with Spark's local properties; each message carries
  it to the driver.
* The parts of an epoch are salted with query, epoch and partition: what came in an earlier epoch comes again, and wins
  again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.kernel.steps import step
from millpond.maps.loads.load import load_job_set, note_result
from millpond.maps.model.definition import MapDefinition
from millpond.spark.attempts import TaskParts
from millpond.spark.locations import Location, opened
from millpond.spark.short_errors import short_errors
from millpond.spark.staging import StagingDir
from millpond.spark.write_jobs import QUERY, LoadSettings, adopt, epoch_of, load_partition, tell_rejects

__all__ = ("EpochParts", "EpochWriter", "epoch_rejects", "this_epoch")

_EPOCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class EpochParts(WriterCommitMessage):
    """The parts sealed by one attempt at a partition of an epoch, and their place."""

    query: str
    staging_dir: StagingDir
    task: TaskParts


@short_errors
class EpochWriter(DataSourceStreamArrowWriter):
    """Writes the epochs of a query into one map."""

    def __init__(self, location: Location, definition: MapDefinition, settings: LoadSettings) -> None:
        self.location = location
        self.definition = definition
        self.settings = settings
        # Spark makes a writer for the tasks of each epoch, and another to commit it, which lands nothing. The parent
        # of this process serves the whole Spark application.
        self.staging_dir = location.staging_dir(SystemClock(), os.getppid(), lasting=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> EpochParts:
        """Seal the rows of one partition of an epoch, on an executor."""
        query, epoch = this_epoch()
        settings = replace(self.settings, epoch=epoch_of(query, epoch, self.definition))
        task = load_partition(iterator, self.staging_dir, self.definition, settings)
        step("epoch.task_done")
        return EpochParts(query, self.staging_dir, task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Enter the parts of all tasks as the load of this epoch; nothing when it is there already.

        Raises: as `jobs.adopt`; then the query fails, and begins with this epoch when it is started again.
        """
        attempts = _sealed(messages)
        if not attempts:
            return
        step("epoch.tasks_done")
        staging_dir, tasks = attempts[0].staging_dir, [attempt.task for attempt in attempts]
        rejected = any(task.rejected for task in tasks)
        rejects = epoch_rejects(self.settings.rejects, batchId) if rejected else None
        settings = replace(self.settings, rejects=rejects, epoch=epoch_of(attempts[0].query, batchId, self.definition))
        if any(task.parts for task in tasks):
            job_set = load_job_set([self.definition.name])
            with opened(None, self.location) as pond:
                reports = staging_dir.commit_reports(pond)
                with reports.job(job_set, staging_dir.job_id, by="spark", epoch=batchId) as job:
                    note_result(job, adopt(pond, staging_dir, tasks, settings))
        else:
            tell_rejects(tasks, settings)
            staging_dir.end()
        step("epoch.committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove what the attempts at this epoch wrote or uploaded; those that failed did so themselves."""
        for attempt in _sealed(messages):
            attempt.staging_dir.give_up(attempt.task.parts)


def _sealed(messages: Sequence[WriterCommitMessage | None]) -> list[EpochParts]:
    return [message for message in messages if isinstance(message, EpochParts)]


def this_epoch() -> tuple[str, int]:
    """The query and the epoch that this task works on.

    Raises: `Invalid` when Spark does not say so.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context else None
    epoch = context.getLocalProperty(_EPOCH) if context else None
    if query is None or epoch is None:
        raise Invalid(
            "Spark does not say which query this is", kind="query_unknown",
            hint="write the stream in micro-batches, which is the default trigger",
        )  # fmt: skip
    return query, int(epoch)


def epoch_rejects(file: str | None, epoch: int) -> str | None:
    """The reject file of one epoch: made anew when the epoch is run again.

    >>> epoch_rejects("out/rejects.jsonl", 12)
    'out/rejects-000012.jsonl'
    """
    if file is None:
        return None
    path = Path(file)
    return str(path.with_stem(f"{path.stem}-{epoch:06d}"))
