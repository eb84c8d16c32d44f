"""Files of every format as canonical rows, whole or piece by piece.

The same readers serve a load in one process and the tasks of a Spark job: what a file means does not depend on who
reads it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid, NotFound
from millpond.maps.inputs.faults import REJECTED
from millpond.maps.inputs.formats.arrived import Arrived, Positions
from millpond.maps.inputs.formats.columnar import column_types, read_arrow, read_parquet, split_parquet
from millpond.maps.inputs.formats.delimited import csv_types, read_csv, split_csv
from millpond.maps.inputs.formats.files import Format, InputFile, Piece
from millpond.maps.inputs.formats.json_lines import json_types, omitted_in_lines, read_json_lines, split_json_lines
from millpond.maps.inputs.formats.references import read_references
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.inputs.normalise import normalise
from millpond.maps.inputs.zones import TimeForm
from millpond.maps.model.definition import MapDefinition

__all__ = ("Read", "Reading", "read_piece", "split_file", "types_in", "with_omitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The context of a load's readers: all maps, the one that is loaded if it is one, its columns.

    `effective_time` is the time of XML elements that have none, as ISO 8601; `times` the form of all times, `null` what
    CSV writes where there is no value. `omitted`: the columns that lines of JSON may leave out, see `with_omitted`.
    """

    maps: Mapping[str, MapDefinition]
    map: str | None = None
    columns: ColumnMapping | None = None
    effective_time: str | None = None
    times: TimeForm = TimeForm()  # noqa: RUF009 - frozen
    null: str = ""
    omitted: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def target(self, path: str) -> MapDefinition:
        """The map that rows without a map's name go to.

        Raises: `Invalid` when the load names none; `NotFound` when there is none of that name.
        """
        if self.map is None:
            raise Invalid(
                "the file does not say which map its rows are for", kind="no_map", path=path,
                hint="name the map: millpond load MAP FILE; only XML names its maps itself",
            )  # fmt: skip
        if self.map not in self.maps:
            raise NotFound("there is no such map", kind="map_not_found", map=self.map)
        return self.maps[self.map]


@dataclass(frozen=True, slots=True)
class Read:
    """Canonical rows for one map, and what was rejected, with its position (from 1, in XML the line) as `row`.

    `last` and `read` as in `Arrived`.
    """

    definition: MapDefinition | None
    rows: pa.RecordBatch | None
    rejected: pa.RecordBatch
    last: int
    read: int

    @property
    def count(self) -> int:
        """Rows that stood there, stored or rejected."""
        return self.rejected.num_rows + (0 if self.rows is None else self.rows.num_rows)


def read_piece(piece: Piece, reading: Reading) -> Generator[Read]:
    """The rows of a piece of a file; positions are counted from the piece's beginning.

    Raises: `Invalid` when the file is damaged, or has not the columns that the map needs.
    """
    try:
        for arrived in _arrivals(piece, reading):
            yield _settle(arrived, reading, piece.file.path)
    except Invalid as error:
        if "path" in error.values:
            raise
        values = {"path": piece.file.path} | error.values
        raise Invalid(error.message, kind=error.kind, hint=error.hint, **values) from error


def _arrivals(piece: Piece, reading: Reading) -> Iterator[Arrived]:
    if piece.file.format is Format.XML:
        return read_references(piece, reading.maps, reading.map, reading.effective_time)
    definition = reading.target(piece.file.path)
    if piece.file.format is Format.CSV:
        return read_csv(piece, definition, reading.columns, null=reading.null)
    if piece.file.format is Format.JSON_LINES:
        return read_json_lines(piece, definition, reading.columns, reading.omitted)
    return (read_arrow if piece.file.format is Format.ARROW else read_parquet)(piece, definition, reading.columns)


def _settle(arrived: Arrived, reading: Reading, path: str) -> Read:
    """The batch as canonical rows, and its rejects at their positions."""
    rejected = arrived.rejected
    if arrived.rows is None:
        return Read(None, None, rejected, arrived.last, arrived.read)
    if arrived.map is None:
        definition, columns = reading.target(path), reading.columns
    else:
        definition, columns = reading.maps[arrived.map], None
    made = normalise(arrived.rows, definition, columns, reading.times)
    if made.rejected.num_rows:
        placed = _placed(made.rejected, arrived.positions)
        rejected = pa.concat_batches([rejected, placed]).sort_by("row") if rejected.num_rows else placed
    return Read(definition, made.rows, rejected, arrived.last, arrived.read)


def _placed(rejected: pa.RecordBatch, positions: Positions) -> pa.RecordBatch:
    """Rejects whose `row` is an index in their batch, at their positions."""
    indices = rejected.column("row").to_numpy()
    placed = positions + indices if isinstance(positions, int) else np.asarray(positions, np.int64)[indices]
    return rejected.set_column(0, REJECTED.field("row"), pa.array(placed, pa.int64()))


def with_omitted(reading: Reading, files: Sequence[InputFile]) -> Reading:
    """The context with the columns that some lines of JSON have and others leave out, which are null there.

    Raises: `Invalid` when the load names no map, or a file is an array too large to be read whole; `NotFound` when
    there is no such map.
    """
    lines = [file for file in files if file.format is Format.JSON_LINES]
    if not lines:
        return reading
    definition = reading.target(lines[0].path)
    return replace(reading, omitted=omitted_in_lines(lines, definition, reading.columns))


def types_in(file: InputFile, null: str) -> pa.Schema | None:
    """The columns of a file, with the types that it tells, or its beginning; None for XML.

    Raises: `Invalid` when the file is damaged.
    """
    match file.format:
        case Format.XML:
            return None
        case Format.CSV:
            return csv_types(file, null)
        case Format.JSON_LINES:
            return json_types(file)
        case _:
            return column_types(file)


def split_file(file: InputFile, bytes_max: int) -> list[Piece]:
    """The pieces of a file, in order."""
    match file.format:
        case Format.PARQUET:
            return split_parquet(file, bytes_max)
        case Format.CSV:
            return split_csv(file, bytes_max)
        case Format.JSON_LINES:
            return split_json_lines(file, bytes_max)
        case _:
            return [Piece(file)]
