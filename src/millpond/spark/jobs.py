"""A job: the attempts of many tasks, adopted as one load or not at all.

    <pond>/writer/<host>-<pid>-<job>/      lives until the job is over, or the process <pid> is

Invariants:
* Nothing is visible before all parts have been entered in one write of the pond's space.
* Of several attempts at one partition only the one whose message reached the driver is adopted; what the others
  wrote goes away with the job's folder.
* Parts are adopted in order of their partition, so of two rows with one address the one of the higher partition
  wins; within a partition the later row (or the first, for a map with `overwrite=False`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millpond.clock import Clock, SystemClock
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.rejects import ENOUGH, RejectWriter
from millpond.maps.kinds import MapDefinition
from millpond.maps.loading import LoadResult, writer_folder
from millpond.pond import Pond
from millpond.spark.attempts import Attempt, TaskParts, joined, rejects_of, run_attempt, task_numbers
from millpond.spark.ponds import PondLike, opened, pond_folder
from millpond.stores.files import remove_tree

__all__ = ("LoadSettings", "adopt", "begin_job", "check_rows", "load", "load_partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What a load does with rows and rejects.

    `max_rejects` rows of the whole job may be rejected; `rejects` is the JSON lines file that takes them.
    `freeze` makes the new rows part of the snapshot when the load ends, instead of with the next bulk lookup.
    `salt` tells parts from others with the same rows: without it they are the same part, and change nothing.
    """

    columns: ColumnMapping = field(default_factory=ColumnMapping)
    max_rejects: int = 0
    rejects: str | None = None
    source: str = ""
    freeze: bool = True
    salt: str = ""

    @property
    def enough(self) -> int:
        """The rejects after which a task need not read on."""
        return self.max_rejects if self.rejects is None else self.max_rejects + ENOUGH


def begin_job(pond: Path, clock: Clock, owner: int) -> Path:
    """The folder of a new job's attempts; leftovers are removed when the process `owner` is dead."""
    folder = writer_folder(pond, clock, owner)
    folder.mkdir(parents=True)
    return folder


def check_rows(schema: StructType, definition: MapDefinition, columns: ColumnMapping) -> None:
    """Refuse, before any task starts, rows that the map cannot take as a whole.

    Raises: `Invalid` naming the column that is missing or of a wrong type.
    """
    nothing = to_arrow_schema(schema, timezone="UTC").empty_table().combine_chunks()
    normalise(
        pa.RecordBatch.from_arrays([pa.array([], each.type) for each in nothing.schema], schema=nothing.schema),
        definition,
        columns,
    )


def load_partition(
    batches: Iterable[pa.RecordBatch], job: Path, definition: MapDefinition, settings: LoadSettings
) -> TaskParts:
    """One task's attempt at its partition, on an executor.

    Raises: `Conflict` when the job is over; then nothing is left of the attempt.
    """

    def take_all(attempt: Attempt) -> None:
        for batch in joined(batches):
            if attempt.hopeless:
                return
            attempt.take(batch, definition, settings.columns)

    partition, task = task_numbers()
    attempt = Attempt(job, partition, task, source=settings.source, salt=settings.salt, enough=settings.enough)
    return run_attempt(attempt, take_all)


def adopt(pond: Pond, job: Path, tasks: Iterable[TaskParts], settings: LoadSettings) -> LoadResult:
    """End a job well: its rejects are written down, its parts become one load, and its folder goes away.

    Raises: `Invalid` when there are more rejects than allowed, then nothing was loaded; else as `Pond.commit_load`.
    """
    try:
        ordered = sorted(tasks, key=lambda task: task.partition)
        rejected = _tell_rejects(ordered, settings)
        parts = [part for task in ordered for part in task.parts]
        result = pond.commit_load(parts, source=settings.source, rejected=rejected)
        if settings.freeze:
            for name in result.maps:
                pond.map(name).freeze()
        return result
    finally:
        remove_tree(job)


def _tell_rejects(tasks: Iterable[TaskParts], settings: LoadSettings) -> int:
    with RejectWriter(settings.rejects, max_rejects=settings.max_rejects, source=settings.source) as told:
        for task in tasks:
            where = f"{settings.source} partition {task.partition}".strip()
            for batch in rejects_of(task):
                told.write(batch, source=where)
        return told.count


def load(
    frame: DataFrame, pond: PondLike | None = None, map: str = "", *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, source: str = "", again: bool = False, freeze: bool = True,
) -> LoadResult:  # fmt: skip
    """Load a DataFrame into a map, as one load or not at all, and say what became of it; see `Map.load`.

    As `frame.write.format("millpond")…save()`, but it answers, and the commit happens in this process. `freeze` makes
    the new rows part of the snapshot when the load ends, instead of with the next bulk lookup.

    Raises: `Invalid` for columns or rows that cannot be stored, and as `Pond.commit_load`.
    """
    mapping = mapping_of(columns) or ColumnMapping()
    settings = LoadSettings(
        columns=mapping, max_rejects=max_rejects, rejects=None if rejects is None else str(rejects), source=source,
        freeze=freeze, salt=SystemClock().random_id() if again else "",
    )  # fmt: skip
    folder = pond_folder(pond, frame.sparkSession)
    with opened(folder if pond is None else pond) as open_:
        definition = open_.map(map).definition
        check_rows(frame.schema, definition, mapping)
        job = begin_job(folder, SystemClock(), os.getpid())
        try:
            tasks = _run(frame, job, definition, settings)
        except BaseException:
            remove_tree(job)
            raise
        return adopt(open_, job, tasks, settings)


def _run(frame: DataFrame, job: Path, definition: MapDefinition, settings: LoadSettings) -> list[TaskParts]:
    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = load_partition(batches, job, definition, settings)
        yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(told)]})

    return [pickle.loads(row.message) for row in frame.mapInArrow(attempt, "message binary").collect()]
