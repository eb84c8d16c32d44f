"""One attempt of a Spark task at its rows: batches in, sealed parts and a file of rejects out.

    <attempt's folder>/<map>/part-00000/…
                      /rejects.arrow

Invariants:
* An attempt writes below its own folder only (`landings.py`); nothing there is visible to anybody until the driver
  enters it.
* Parts and rejects are complete where the driver will find them before the attempt's message exists.
* An attempt that outlives its job finds the job's folder gone, and leaves nothing behind.
* An attempt never fails for its rejects: it stops reading, and the driver decides. A failing task would only be
  tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from millpond.clock import SystemClock
from millpond.maps.inputs.faults import REJECTED
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.zones import TimeForm
from millpond.maps.loads.load_files import Intake
from millpond.maps.model.definition import MapDefinition
from millpond.spark.staging import ROWS, Staged, StagingDir, job_over
from millpond.tracing import past_span

__all__ = ("BATCH_MAX", "Attempt", "TaskParts", "rejects_of", "run_attempt", "task_numbers", "tell_tasks")

NOTE_SECONDS = 1.0
"""The time between two notes of an attempt about its rows."""
BATCH_MAX = (131_072, 64 << 20)
"""Spark hands over small batches; about so many rows are normalised at a time, or rows of so many bytes."""


@dataclass(frozen=True)
class TaskParts(WriterCommitMessage):
    """The parts and rows of one attempt at a partition; `rejects` is a file of `faults.REJECTED`, or its bytes."""

    partition: int
    parts: tuple[Staged, ...]
    rejected: int = 0
    rejects: str | bytes | None = None
    times_ms: tuple[int, int] = (0, 0)
    """The times at which it began and ended, by the clock of its executor."""


def tell_tasks(tasks: Iterable[TaskParts]) -> None:
    """Make the spans of the tasks of a job, within that of the job: executors need not know where spans go."""
    for task in tasks:
        past_span("task", *task.times_ms, partition=task.partition, parts=len(task.parts), rejected=task.rejected)


def task_numbers() -> tuple[int, int]:
    """The partition this process works on, and the number of the attempt, unlike any other's."""
    context = TaskContext.get()
    return (context.partitionId(), context.taskAttemptId()) if context else (0, 0)


def rejects_of(task: TaskParts) -> Iterator[pa.RecordBatch]:
    """The rows an attempt rejected, in batches of `faults.REJECTED`."""
    if task.rejects is None:
        return
    rejects = task.rejects
    with pa.OSFile(rejects, "rb") if isinstance(rejects, str) else pa.BufferReader(rejects) as source:
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def run_attempt(attempt: Attempt, take_all: Callable[[Attempt], None]) -> TaskParts:
    """Let `take_all` feed an attempt; whatever fails, nothing of it is left behind."""
    try:
        take_all(attempt)
        return attempt.finish()
    except BaseException:
        attempt.abandon()
        raise


class Attempt:
    """Takes the rows of one partition; `finish` seals them, and `abandon` removes them.

    `enough` rejects make the attempt `hopeless`: whoever feeds it may stop. `noted` is called with the attempt's folder
    now and then, when its rows so far are noted there.
    """

    def __init__(
        self, staging_dir: StagingDir, partition: int, task: int, *, source: str = "", salt: str = "", enough: int = 0,
        noted: Callable[[Path], None] | None = None,
    ) -> None:  # fmt: skip
        self.staging_dir = staging_dir
        self.partition = partition
        self.folder = staging_dir.attempt(partition, task)
        self.enough = enough
        self._rows = self._put = 0
        self._noted = noted
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()
        self._note_due = self._clock.monotonic() + NOTE_SECONDS
        self._rejected = 0
        self._rejects: list[pa.RecordBatch] = []
        self._intake = Intake(self.folder, source=source, salt=salt, filed=staging_dir.filed, packs=staging_dir.far)

    @property
    def hopeless(self) -> bool:
        """True when this attempt alone has more rejects than the job may have: reading on changes nothing."""
        return self._rejected > self.enough

    def take(
        self, batch: pa.RecordBatch, definition: MapDefinition, columns: ColumnMapping | None = None,
        times: TimeForm | None = None,
    ) -> None:  # fmt: skip
        """Take input rows for one map.

        Raises: `Invalid` when a column is missing, or as a whole cannot hold what it is mapped to.
        """
        normalised = normalise(batch, definition, columns, times)
        self.put(normalised.rows, definition)
        self.reject(normalised.rejected, first_row=self._rows)
        self._rows += batch.num_rows

    def put(self, rows: pa.RecordBatch, definition: MapDefinition) -> None:
        """Take canonical rows for one map."""
        self._intake.take(definition, rows)
        self._put += rows.num_rows
        now = self._clock.monotonic()
        if now >= self._note_due:
            self._note_due = now + NOTE_SECONDS
            self._note_rows()
            if self._noted is not None:
                self._noted(self.folder)

    def _note_rows(self) -> None:
        """Leave the number of rows so far where the driver may read it."""
        with suppress(OSError):  # of no use to this attempt
            (self.folder / ROWS).write_text(str(self._put))

    def reject(self, rejected: pa.RecordBatch, *, first_row: int = 0) -> None:
        """Take rows that cannot be stored, as `faults.REJECTED`, of a batch that began at row `first_row`."""
        if rejected.num_rows:
            self._rejected += rejected.num_rows
            positions = pc.add(rejected.column("row"), first_row)
            self._rejects.append(rejected.set_column(0, REJECTED.field("row"), positions))

    def finish(self) -> TaskParts:
        """Seal what was taken.

        Raises: `Conflict` when the job is over, then nothing is left of the attempt; `Unavailable` when a node cannot
        be reached.
        """
        self._check_running()
        self._note_rows()
        sealed = [] if self.hopeless else cast("list[Staged]", self._intake.finish())
        parts, rejects = self.staging_dir.add_parts(self.folder, sealed, self._write_rejects())
        self._check_running()
        return TaskParts(
            self.partition, parts, self._rejected, rejects, times_ms=(self._began_ms, self._clock.now_ms())
        )  # fmt: skip

    def abandon(self) -> None:
        """Remove everything that was written."""
        self.staging_dir.leave(self.folder)

    def _write_rejects(self) -> Path | None:
        if not self._rejects:
            return None
        file = self.folder / "rejects.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, REJECTED) as writer:
            for batch in self._rejects:
                writer.write_batch(batch)
        return file

    def _check_running(self) -> None:
        if self.staging_dir.over(self.folder):
            raise job_over(self.partition)
