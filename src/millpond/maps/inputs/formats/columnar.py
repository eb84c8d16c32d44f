"""Parquet and Arrow files: columns with their types, of which only those are read that the map needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import Arrived
from millpond.maps.inputs.formats.files import InputFile, Piece, open_stream
from millpond.maps.inputs.mapping import ColumnMapping, find_columns
from millpond.maps.inputs.tables import BATCH_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.model.definition import MapDefinition

__all__ = ("read_arrow", "read_parquet", "split_parquet")


def read_parquet(piece: Piece, definition: MapDefinition, mapping: ColumnMapping | None) -> Iterator[Arrived]:
    """The rows of a Parquet file, or of some of its row groups.

    Raises: `Invalid` when a column is missing, or the file is damaged.
    """
    with _opened(piece.file) as opened:
        needed = _needed(opened.schema_arrow, definition, mapping)
        groups = list(range(piece.start, opened.num_row_groups if piece.stop is None else piece.stop))
        batches = opened.iter_batches(BATCH_ROWS_MAX, row_groups=groups, columns=needed)
        rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        yield from _counted(piece.file, batches, rows)


def _opened(file: InputFile) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(file.path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(file, error) from error


def _needed(schema: pa.Schema, definition: MapDefinition, mapping: ColumnMapping | None) -> list[str]:
    needed = find_columns(schema.names, definition, mapping).names
    return [name for name in schema.names if name in needed]


def _damaged(file: InputFile, error: Exception) -> Invalid:
    return Invalid(
        f"the file is no {file.format} that can be read", kind="input_damaged", path=file.path,
        reason=str(error).splitlines()[0], hint="copy it again, or name its true format (written=FORMAT)",
    )  # fmt: skip


def _counted(file: InputFile, batches: Iterator[pa.RecordBatch], rows: int = 0) -> Iterator[Arrived]:
    position = 1
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowInvalid, OSError) as error:
            raise _damaged(file, error) from error
        if batch is None:
            return
        last = position + batch.num_rows - 1
        yield Arrived(batch, position, last=last, read=file.size * last // rows if rows else 0)
        position = last + 1


def split_parquet(file: InputFile, bytes_max: int) -> list[Piece]:
    """Pieces of whole row groups, of about `bytes_max` each."""
    with _opened(file) as opened:
        metadata = opened.metadata
        sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    pieces, start, size = [], 0, 0
    for group, group_bytes in enumerate(sizes):
        if size and size + group_bytes > bytes_max:
            pieces.append(Piece(file, start, group))
            start, size = group, 0
        size += group_bytes
    return [*pieces, Piece(file, start, len(sizes))]


def read_arrow(piece: Piece, definition: MapDefinition, mapping: ColumnMapping | None) -> Iterator[Arrived]:
    """The rows of an Arrow IPC file or stream.

    Raises: `Invalid` when a column is missing, or the file is damaged.
    """
    try:
        reader = _arrow_batches(piece.file)
        schema, batches = next(reader), reader
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(piece.file, error) from error
    needed = _needed(schema, definition, mapping)
    yield from _counted(piece.file, (batch.select(needed) for batch in batches))


def _arrow_batches(file: InputFile) -> Iterator[Any]:
    """The schema, then the batches."""
    with open_stream(file) as stream:
        seekable = stream.read(6) == b"ARROW1"
    if seekable:
        with pa.memory_map(file.path) as source, pa.ipc.open_file(source) as reader:
            yield reader.schema
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        return
    with open_stream(file) as stream, pa.ipc.open_stream(stream) as reader:
        yield reader.schema
        yield from reader
