"""A job: the attempts of many tasks, entered as one load or not at all.

Invariants:
* Nothing is visible before all parts have been entered in one write of the pond's space (or of the primary's).
* Of several attempts at one partition only the one whose message reached the driver counts; what the others wrote
  goes away with the job (`staging.py`).
* Parts are entered in order of their partition, so of two rows with one address the one of the higher partition
  wins; within a partition the later row (or the first, for a map with `overwrite=False`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid
from millpond.kernel.job_reports import JobReport
from millpond.kernel.worker import repeating
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.missing_fields import missing_fields
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.rejects import ENOUGH, RejectWriter
from millpond.maps.inputs.tables import joined_batches
from millpond.maps.inputs.zones import NAME_THE_ZONE, TimeForm, time_form
from millpond.maps.loads.load import LoadResult, load_job_set, note_result
from millpond.maps.model.definition import MapDefinition
from millpond.maps.protocols import MapLike
from millpond.maps.snapshots.stretches import write_here
from millpond.spark.attempts import BATCH_MAX, Attempt, TaskParts, rejects_of, run_attempt, task_numbers, tell_tasks
from millpond.spark.layer_tasks import write_by_tasks
from millpond.spark.locations import Location, OpenPond, PondLike, location_of, opened
from millpond.spark.private_api import need_classic
from millpond.spark.question_types import TO_TIMESTAMP
from millpond.spark.staging import Entered, StagingDir

__all__ = (
    "QUERY",
    "LoadSettings",
    "adopt",
    "begin_job",
    "check_rows",
    "epoch_of",
    "load_frame",
    "load_partition",
    "rows_reported",
    "tell_rejects",
)


LOOK_SECONDS = 1.0
"""The time between two looks at the rows that tasks have taken."""
QUERY = "sql.streaming.queryId"
"""The local property in which Spark tells the threads and tasks of a stream which query they serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The treatment of rows and rejects by a load.

    `max_rejects` rows of the whole job may be rejected; `rejects` is the JSON lines file that takes them.
    `freeze` makes the new rows part of the snapshot when the load ends, instead of with the next bulk lookup; on nodes
    that is their own affair. `synchronise`: the load ends when every node has merged it; in a folder it always is.
    `salt` tells parts from others with the same rows: without it they are the same part, and change nothing.
    `times`: the form of times that are numbers.
    `epoch`: the stream and the epoch of it that this is; the same again, or an earlier one, enters nothing.
    """

    columns: ColumnMapping = field(default_factory=ColumnMapping)
    max_rejects: int = 0
    rejects: str | None = None
    source: str = ""
    freeze: bool = True
    synchronise: bool = False
    salt: str = ""
    epoch: tuple[str, int] | None = None
    times: TimeForm = field(default_factory=TimeForm)

    @property
    def layer_salt(self) -> str:
        """The salt of what all tasks bring: what came in an earlier epoch comes again, and wins again."""
        return " ".join((*map(str, self.epoch or ()), self.salt)).strip()

    @property
    def enough(self) -> int:
        """The rejects after which a task need not read on."""
        return self.max_rejects if self.rejects is None else self.max_rejects + ENOUGH


def begin_job(location: Location, clock: Clock, owner: int) -> StagingDir:
    """A new job's staging_dir; leftovers in a folder are removed when the process `owner` is dead."""
    staging_dir = location.staging_dir(clock, owner)
    staging_dir.begin()
    return staging_dir


def epoch_of(query: str, epoch: int, definition: MapDefinition) -> tuple[str, int]:
    """A query's epoch into one map, as the pond remembers it.

    A query that feeds two maps may have come to the one and not to the other; one that is made anew has no past.
    """
    return f"{query} {definition.name}.{definition.incarnation}", epoch


def check_rows(
    schema: StructType, definition: MapDefinition, columns: ColumnMapping, alter: Callable[..., MapLike]
) -> MapDefinition:  # fmt: skip
    """Refuse, before any task starts, rows that the map cannot take as a whole; the definition that they are for.

    `alter` adds the fields that the map lacks, where the load says so.

    Raises: `Invalid` naming the column that is missing or of a wrong type.
    """
    types = to_arrow_schema(schema, timezone="UTC")
    if columns.extra == "add" and (missing := missing_fields(types, definition, columns)):
        definition = alter(definition.name, add=missing).definition
    nothing = [pa.array([], field.type) for field in types]
    try:
        normalise(pa.RecordBatch.from_arrays(nothing, schema=types), definition, columns)
    except Invalid as error:
        if error.hint != NAME_THE_ZONE:
            raise
        raise Invalid(error.message, kind=error.kind, hint=TO_TIMESTAMP, **error.values) from error
    return definition


def load_partition(
    batches: Iterable[pa.RecordBatch], staging_dir: StagingDir, definition: MapDefinition, settings: LoadSettings,
    noted: Callable[[Path], None] | None = None,
) -> TaskParts:  # fmt: skip
    """One task's attempt at its partition, on an executor; `noted` as of `Attempt`.

    Raises: `Conflict` when the job is over, then nothing is left of the attempt; `Unavailable` when a node cannot be
    reached.
    """

    def take_all(attempt: Attempt) -> None:
        for batch in joined_batches(batches, *BATCH_MAX):
            if attempt.hopeless:
                return
            attempt.take(batch, definition, settings.columns, settings.times)

    partition, task = task_numbers()
    salt = settings.layer_salt
    if settings.epoch is not None:
        salt = f"{salt} {partition}"  # what came in a lower partition comes again, and wins again
    attempt = Attempt(
        staging_dir, partition, task, source=settings.source, salt=salt, enough=settings.enough, noted=noted
    )
    return run_attempt(attempt, take_all)


def adopt(
    pond: OpenPond, staging_dir: StagingDir, tasks: Iterable[TaskParts], settings: LoadSettings,
    session: SparkSession | None = None,
) -> LoadResult:  # fmt: skip
    """End a job well: its rejects are written down, its parts become one load, and what else it left goes away.

    A `session` has the layers of many rows written by tasks.

    Raises: `Invalid` when there are more rejects than allowed, then nothing was loaded; else as `Pond.commit_load`.
    """
    ordered = sorted(tasks, key=lambda task: task.partition)
    parts = [part for task in ordered for part in task.parts]
    tell_tasks(ordered)
    try:
        rejected = tell_rejects(ordered, settings)
        entered = Entered(
            source=settings.source,
            rejected=rejected,
            stream=settings.epoch,
            synchronise=settings.synchronise,
            freeze=settings.freeze,
            salt=settings.layer_salt,
            writes=write_here if session is None else partial(write_by_tasks, session),
        )
        result = staging_dir.enter(pond, parts, entered)
    except BaseException:
        staging_dir.give_up(parts)
        raise
    staging_dir.end()
    return result


def tell_rejects(tasks: Iterable[TaskParts], settings: LoadSettings) -> int:
    """Write down the rejects of all tasks, in order; how many there are.

    Raises: `Invalid` when they are more than allowed.
    """
    with RejectWriter(settings.rejects, max_rejects=settings.max_rejects, source=settings.source) as writer:
        for task in tasks:
            where = f"{settings.source} partition {task.partition}".strip()
            for batch in rejects_of(task):
                writer.write(batch, source=where)
        return writer.count


def load_frame(
    frame: DataFrame, pond: PondLike | None = None, map: str = "", *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, source: str = "", again: bool = False, freeze: bool = True,
    synchronise: bool = False, epoch: int | None = None, time_unit: str | None = None, load_id: str | None = None,
    extra: str | None = None, branch: str | None = None,
) -> LoadResult:  # fmt: skip
    """Load a DataFrame, see `loads.load`.

    Raises: likewise.
    """
    clock = SystemClock()
    began = clock.monotonic()
    mapping = mapping_of(columns, extra)
    settings = LoadSettings(
        columns=mapping, max_rejects=max_rejects, rejects=None if rejects is None else str(rejects), source=source,
        freeze=freeze, synchronise=synchronise, salt=load_id or (clock.random_id() if again else ""),
        times=time_form(unit=time_unit),
    )  # fmt: skip
    location = location_of(pond, frame.sparkSession, refs=True).at(branch, None)
    with opened(pond, location) as open_:
        definition = location.map(open_, map).definition
        definition = check_rows(frame.schema, definition, mapping, partial(location.alter, open_))
        if epoch is not None:
            settings = replace(settings, epoch=epoch_of(_query_of(frame), epoch, definition))
        staging_dir = location.staging_dir(clock, os.getpid(), load_id=load_id).counted(frame.sparkSession)
        with open_.reports.job(load_job_set([definition.name]), staging_dir.job_id, by="spark") as job:
            staging_dir.begin()
            job.running()
            try:
                with rows_reported(staging_dir, job):
                    tasks = _run(frame, staging_dir, definition, settings)
            except BaseException:
                staging_dir.give_up(())
                raise
            result = adopt(open_, staging_dir, tasks, settings, frame.sparkSession)
            note_result(job, result)
        return replace(result, seconds=clock.monotonic() - began)


@contextmanager
def rows_reported(
    staging_dir: StagingDir, job: JobReport, noted: Callable[[int], object] | None = None
) -> Iterator[None]:
    """Report the rows that tasks have taken so far, while this lasts; `noted` hears of them, too."""

    def look() -> None:
        if rows := staging_dir.rows():
            job.progress(rows)
            if noted is not None:
                noted(rows)

    with repeating("rows that tasks have taken", look, LOOK_SECONDS, SystemClock()):
        yield


def _query_of(frame: DataFrame) -> str:
    need_classic(frame.sparkSession, "epoch", "use frame.writeStream.format('millpond')")
    query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
    if query is None:
        raise Invalid("no query is running here", kind="query_unknown", hint="epoch is for foreachBatch")
    return query


def _run(
    frame: DataFrame, staging_dir: StagingDir, definition: MapDefinition, settings: LoadSettings
) -> list[TaskParts]:
    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = load_partition(batches, staging_dir, definition, settings)
        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(task)]})

    return [pickle.loads(row.message) for row in frame.mapInArrow(attempt, "message binary").collect()]
