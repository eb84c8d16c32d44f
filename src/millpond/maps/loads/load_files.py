"""Loading files: read here, in one process, into parts of every map they feed, and adopted as one load."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.kernel.job_reports import JobReport
from millpond.maps.inputs.formats.files import InputFile, Piece, find_files
from millpond.maps.inputs.formats.readers import Read, Reading, read_piece, types_in, with_omitted
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.missing_fields import joined_types, missing_fields
from millpond.maps.inputs.rejects import RejectWriter
from millpond.maps.inputs.zones import time_form
from millpond.maps.layered.fields import alter_fields
from millpond.maps.layered.row_files import RowFileWriter
from millpond.maps.layered.writer import LayerWriter
from millpond.maps.loads.layered_load import Brought, LayersOf, parts_of
from millpond.maps.loads.load import LoadResult, commit_load, load_job_set, note_result, row_writer
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition, Store
from millpond.maps.parts.part import PartWriter
from millpond.stores.files import remove_tree
from millpond.times.instants import parse_instant

__all__ = (
    "Advance",
    "Intake",
    "ReadPiece",
    "SealedFiles",
    "file_reading",
    "guard_rejects",
    "load_files",
    "name_of",
    "seal_files",
    "with_file_fields",
)

Advance: TypeAlias = Callable[[int, int], None]
"""A callback for progress: the rows and the bytes read since the last time."""
ReadPiece: TypeAlias = Callable[[Piece, Reading], Generator[Read]]
"""Reads a piece of a file as `read_piece` does."""


def file_reading(
    maps: Mapping[str, MapDefinition], map_name: str | None, *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, effective_time: str | None = None,
    zone: str | None = None, time_unit: str | None = None, null: str = "", extra: str | None = None,
) -> Reading:  # fmt: skip
    """The context that the readers of a load need.

    Raises: `Invalid` when the effective time, the zone or the unit is not understood.
    """
    if effective_time is not None:
        # In words, for what is a number would be read in the unit of the file's numbers.
        millis = pa.scalar(parse_instant(effective_time), INSTANT)
        effective_time = pc.strftime(millis, format="%Y-%m-%dT%H:%M:%SZ").as_py()
    return Reading(
        maps=maps, map=None if map_name is None else map_name.lower(),
        columns=mapping_of(columns, extra), effective_time=effective_time,
        times=time_form(zone, time_unit), null=null,
    )  # fmt: skip


def with_file_fields(
    reading: Reading, files: Sequence[InputFile], alter: Callable[[str, Mapping[str, Any]], MapDefinition]
) -> Reading:  # fmt: skip
    """The context with the fields that the files bring, where the load says to add those.

    Raises: `Invalid` for a column whose type no field can have, or that has no value which tells it.
    """
    if reading.map is None or reading.columns is None or reading.columns.extra != "add":
        return reading
    definition = reading.target("")
    types = joined_types([schema for file in files if (schema := types_in(file, reading.null)) is not None])
    missing = missing_fields(types, definition, reading.columns)
    definition = alter(definition.name, {"add": missing}) if missing else definition
    return replace(reading, maps={**reading.maps, definition.name: definition})


def guard_rejects(rejects: str | Path | None, files: Sequence[InputFile]) -> None:
    """Refuse a reject file that is one of the files to read: it would be lost.

    Raises: `Invalid`.
    """
    if rejects is None or not Path(rejects).exists():
        return
    for file in files:
        if Path(rejects).samefile(file.path):
            raise Invalid(
                "the reject file is a file to load", kind="rejects_file", path=file.path, hint="name another file"
            )


@dataclass(frozen=True, slots=True)
class SealedFiles:
    """The result of reading files: their parts and layers, the number of rejected rows, and the files without any."""

    parts: list[Brought]
    rejected: int
    empty: tuple[str, ...]


class Intake:
    """Takes what is read, for any number of maps, into parts below a folder, or layers where `layers_of` has some."""

    def __init__(
        self, folder: Path, *, source: str = "", salt: str = "", memory_max: int | None = None,
        layers_of: LayersOf = lambda _: None, filed: bool = False, packs: bool = False,
    ) -> None:  # fmt: skip
        """`memory_max`: as of `PartWriter`, of each map. `filed`: rows of layered maps become files, to be sorted;
        `packs`: as of `RowFileWriter`.
        """
        self.memory_max = memory_max
        self.folder = folder
        self.source = source
        self.salt = salt
        self._layers_of, self._filed, self._packs = layers_of, filed, packs
        self._writers: dict[str, PartWriter | LayerWriter | RowFileWriter] = {}

    def take(self, definition: MapDefinition, rows: pa.RecordBatch) -> None:
        """Take canonical rows of one map."""
        writer = self._writers.get(definition.name)
        if writer is None:
            writer = self._writers[definition.name] = self._writer(definition)
        writer.write(rows)

    def _writer(self, definition: MapDefinition) -> PartWriter | LayerWriter | RowFileWriter:
        folder = self.folder / definition.name
        if self._filed and definition.store is Store.LAYERS:
            return RowFileWriter(definition, folder, packs=self._packs)
        return row_writer(
            definition, folder, self._layers_of(definition.name), source=self.source, salt=self.salt,
            memory_max=self.memory_max,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of files that are of no use any more."""
        for writer in self._writers.values():
            writer.close()

    def finish(self) -> list[Brought]:
        """Seal what was taken: the parts of each map in the order they were written."""
        return [part for writer in self._writers.values() for part in writer.finish()]


def load_files(
    loading: Loading, reading: Reading, targets: Sequence[str | Path], *, written: str | None = None,
    max_rejects: int = 0, rejects: str | Path | None = None, source: str = "", again: bool = False,
    advance: Advance | None = None, load_id: str | None = None,
) -> LoadResult:  # fmt: skip
    """Load files, see `Pond.load_files`."""
    began = loading.clock.monotonic()
    files = find_files(targets, written)
    source = source or name_of(files)
    folder = writer_folder(loading.folder, loading.clock)
    salt = loading.clock.random_id() if again else ""
    with loading.reports.job(load_job_set([reading.map] if reading.map else [])) as job:
        job.running(files=len(files))
        reading = with_file_fields(reading, files, partial(alter_fields, loading))
        intake = Intake(folder, source=source, salt=salt, memory_max=loading.memory_max, layers_of=loading.layers_of)
        try:
            sealed = seal_files(
                files, reading, intake, max_rejects=max_rejects, rejects=rejects,
                advance=_reporting(job, advance or _quiet),
            )  # fmt: skip
            loading.loads.accepted.note_sealed(parts_of(sealed.parts))
            result = commit_load(loading, sealed.parts, source=source, rejected=sealed.rejected, load_id=load_id)
        finally:
            intake.close()
            remove_tree(folder)
        note_result(job, result)
    return replace(result, seconds=loading.clock.monotonic() - began, empty=sealed.empty)


def _reporting(job: JobReport, advance: Advance) -> Advance:
    """A callback for progress that also reports the rows so far."""
    rows = 0

    def advanced(more: int, bytes_: int) -> None:
        nonlocal rows
        rows += more
        job.progress(rows)
        advance(more, bytes_)

    return advanced


def name_of(files: Sequence[InputFile]) -> str:
    """The default name of a load of these files."""
    return ", ".join(file.path for file in files[:3]) + (" …" if len(files) > 3 else "")


def seal_files(
    files: Sequence[InputFile], reading: Reading, intake: Intake, *, max_rejects: int = 0,
    rejects: str | Path | None = None, advance: Advance | None = None, read: ReadPiece = read_piece,
) -> SealedFiles:  # fmt: skip
    """Files as what an intake makes of them, see `Pond.load_files`."""
    guard_rejects(rejects, files)
    if read is read_piece:  # others read what strangers wrote elsewhere than here
        reading = with_omitted(reading, files)
    with RejectWriter(rejects, max_rejects=max_rejects) as rejected:
        counts = []
        for file in files:
            with closing(read(Piece(file), reading)) as reads:
                counts.append(_take_file(file, reads, intake, rejected, advance or _quiet))
    empty = tuple(file.path for file, count in zip(files, counts, strict=True) if not count)
    return SealedFiles(intake.finish(), rejected.count, empty)


def _quiet(_rows: int, _bytes: int) -> None:
    """Nobody watches."""


def _take_file(
    file: InputFile, reads: Iterator[Read], intake: Intake, rejected: RejectWriter, advance: Advance
) -> int:  # fmt: skip
    """Take a file's rows; how many there were, rejected ones among them."""
    done = count = 0
    for read in reads:
        rejected.write(read.rejected, source=file.path)
        count += read.count
        if read.rows is not None and read.definition is not None:
            intake.take(read.definition, read.rows)
        now = max(done, read.read)
        advance(0 if read.rows is None else read.rows.num_rows, now - done)
        done = now
    advance(0, file.size - done)
    return count
