"""Loading files with Spark: the driver cuts them into pieces, tasks read pieces into parts, the driver adopts them all.

The readers are those of a load in one process (`maps/inputs/formats/readers.py`), so a file means the same to both.
A large Parquet, CSV or JSON lines file is read by many tasks. An XML file is read by one, as a stream, and may feed
many maps. Files must lie under the same path for the driver and all executors, as the pond does.

Invariants:
* All or nothing, as in `jobs`.
* Parts are adopted in the order of files and pieces: the same rows win as in one process.
* A file that cannot be read fails the load at once: trying it again cannot help.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from millpond.clock import SystemClock
from millpond.errors import MillpondError
from millpond.maps.inputs.faults import REJECTED
from millpond.maps.inputs.formats.files import Piece, find_files
from millpond.maps.inputs.formats.readers import Reading, read_piece, split_file, with_omitted
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.inputs.rejects import ENOUGH, RejectWriter
from millpond.maps.loads.load import LoadResult, load_job_set, note_result
from millpond.maps.loads.load_files import file_reading, guard_rejects, with_file_fields
from millpond.spark.attempts import Attempt, TaskParts, rejects_of, run_attempt, task_numbers, tell_tasks
from millpond.spark.layer_tasks import write_by_tasks
from millpond.spark.locations import PondLike, location_of, opened
from millpond.spark.staging import Entered, Staged, StagingDir
from millpond.spark.write_jobs import rows_reported

__all__ = ("PIECE_BYTES", "load_files")

PIECE_BYTES = 128 << 20
"""Text of this size, or Parquet of this size unpacked, is work for a task of some seconds."""


@dataclass(frozen=True, slots=True)
class _PieceRead:
    """The result of reading one piece: parts and rejects, its last record's position, its rows; or why it cannot be
    read.
    """

    number: int
    parts: TaskParts | None
    last: int = 0
    count: int = 0
    error: MillpondError | None = None


_Settings = tuple[str, str, int]
"""The settings of every attempt: the source, the salt of its parts, and how many rejects are enough."""


def load_files(
    session: SparkSession, files: str | Path | Sequence[str | Path], pond: PondLike | None = None,
    map: str | None = None, *, columns: ColumnMapping | Mapping[str, Any] | None = None, written: str | None = None,
    max_rejects: int = 0, rejects: str | Path | None = None, effective_time: str | None = None,
    zone: str | None = None, time_unit: str | None = None, null: str = "", source: str = "", again: bool = False,
    freeze: bool = True, synchronise: bool = False, piece_bytes: int = PIECE_BYTES,
    show: Callable[[str, int], object] | None = None, extra: str | None = None, branch: str | None = None,
    load_id: str | None = None,
) -> LoadResult:  # fmt: skip
    """Load files, folders or patterns with Spark, as one load, see `loads.load`.

    Raises: likewise.
    """
    clock = SystemClock()
    began = clock.monotonic()
    location = location_of(pond, session, refs=True).at(branch, None)
    paths = find_files([files] if isinstance(files, str | Path) else files, written)
    # Executors work elsewhere than the driver.
    paths = [replace(file, path=str(Path(file.path).absolute())) for file in paths]
    guard_rejects(rejects, paths)
    with opened(pond, location) as open_:
        definitions = {pond_map.name: pond_map.definition for pond_map in location.maps(open_)}
        reading = file_reading(
            definitions, map, columns=columns, effective_time=effective_time, zone=zone, time_unit=time_unit,
            null=null, extra=extra,
        )  # fmt: skip
        if reading.map is not None and reading.map not in reading.maps:
            location.map(open_, reading.map)
        reading = with_file_fields(reading, paths, lambda name, added: location.alter(open_, name, **added).definition)
        reading = with_omitted(reading, paths)
        pieces = [piece for file in paths for piece in split_file(file, piece_bytes)]
        source = source or ", ".join(file.path for file in paths[:3]) + (" …" if len(paths) > 3 else "")
        staging_dir = location.staging_dir(clock, os.getpid(), load_id=load_id).counted(session)
        job_set = load_job_set([reading.map] if reading.map else [])
        with open_.reports.job(job_set, staging_dir.job_id, by="spark") as job:
            staging_dir.begin()
            job.running(files=len(paths), tasks=len(pieces))
            salt = load_id or (clock.random_id() if again else "")
            reads: list[_PieceRead] = []
            try:
                enough = max_rejects if rejects is None else max_rejects + ENOUGH
                with rows_reported(staging_dir, job, None if show is None else partial(show, "reading")):
                    reads = _read_all(session, pieces, reading, staging_dir, (source, salt, enough))
                tell_tasks(read.parts for read in reads if read.parts is not None)
                if show is not None:
                    show("merging", sum(read.count for read in reads))
                with RejectWriter(rejects, max_rejects=max_rejects) as rejected:
                    _tell_rejects(reads, pieces, rejected)
                entered = Entered(
                    source=source, rejected=rejected.count, synchronise=synchronise, freeze=freeze, salt=salt,
                    writes=partial(write_by_tasks, session),
                )  # fmt: skip
                result = staging_dir.enter(open_, _parts(reads), entered)
            except BaseException:
                staging_dir.give_up(_parts(reads))
                raise
            note_result(job, result)
        staging_dir.end()
        return replace(result, empty=_without_rows(reads, pieces), seconds=clock.monotonic() - began)


def _without_rows(reads: Sequence[_PieceRead], pieces: Sequence[Piece]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for read in reads:
        path = pieces[read.number].file.path
        counts[path] = counts.get(path, 0) + read.count
    return tuple(path for path, count in counts.items() if not count)


def _read_all(
    session: SparkSession, pieces: list[Piece], reading: Reading, staging_dir: StagingDir, settings: _Settings
) -> list[_PieceRead]:
    """All pieces, each read by a task.

    Raises: the error of the first piece that cannot be read.
    """

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                read = _read(number, pieces[number], reading, staging_dir, settings)
                yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(read)]})

    numbers = session.range(0, len(pieces), 1, len(pieces))
    messages = numbers.mapInArrow(attempt, "message binary").collect()
    reads = sorted((pickle.loads(row.message) for row in messages), key=lambda read: read.number)
    for read in reads:
        if read.error is not None:
            raise read.error
    return reads


def _read(number: int, piece: Piece, reading: Reading, staging_dir: StagingDir, settings: _Settings) -> _PieceRead:
    """One task's attempt at a piece, on an executor."""
    last = count = 0

    def take_all(attempt: Attempt) -> None:
        nonlocal last, count
        for read in read_piece(piece, reading):
            if attempt.hopeless:
                return
            last = max(last, read.last)
            count += read.count
            attempt.reject(read.rejected)
            if read.rows is not None and read.definition is not None:
                attempt.put(read.rows, read.definition)

    source, salt, enough = settings
    try:
        attempt = Attempt(staging_dir, number, task_numbers()[1], source=source, salt=salt, enough=enough)
        parts = run_attempt(attempt, take_all)
    except MillpondError as error:
        return _PieceRead(number, None, error=error)
    return _PieceRead(number, parts, last, count)


def _tell_rejects(reads: Sequence[_PieceRead], pieces: Sequence[Piece], rejected: RejectWriter) -> None:
    """Write the rejects of all pieces, with their positions in the whole file."""
    path, done = "", 0
    for read in reads:
        piece = pieces[read.number]
        if piece.file.path != path:
            path, done = piece.file.path, 0
        for batch in rejects_of(read.parts) if read.parts else ():
            placed = batch.set_column(0, REJECTED.field("row"), pc.add(batch.column("row"), done))
            rejected.write(placed, source=path)
        done += read.last


def _parts(reads: Sequence[_PieceRead]) -> list[Staged]:
    return [part for read in reads if read.parts for part in read.parts.parts]
