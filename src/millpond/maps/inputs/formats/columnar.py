"""Parquet and Arrow files: columns with their types, of which only those are read that the map needs.

Parquet's INT96 says neither its unit nor whether it is an instant. It is read in microseconds, in which it holds every
year; in nanoseconds, Arrow would turn the year 9999 into 1816. Spark writes instants by default, and its name into the
file: they are in UTC. Before Spark 3.1, or in its legacy mode, those before 1900 are of another calendar, so that such
a file needs a zone, as one of anybody else's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import Arrived
from millpond.maps.inputs.formats.files import Format, InputFile, Piece, open_stream
from millpond.maps.inputs.mapping import ColumnMapping, find_columns
from millpond.maps.inputs.tables import BATCH_ROWS_MAX, joined_batches
from millpond.maps.model.columns import MOMENT
from millpond.maps.model.definition import MapDefinition

__all__ = ("column_types", "damaged", "meant_schema", "open_parquet", "read_arrow", "read_parquet", "split_parquet")

ROWS_READ = 1 << 14
BATCH_BYTES = 64 << 20
"""About as much is handed on at once."""
_SPARK, _SPARK_LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyINT96"
"""Names in the metadata of the files that Spark writes."""


def read_parquet(piece: Piece, definition: MapDefinition, mapping: ColumnMapping | None) -> Iterator[Arrived]:
    """The rows of a Parquet file, or of some of its row groups.

    Raises: `Invalid` when a column is missing, or the file is damaged.
    """
    with open_parquet(piece.file) as parquet_file:
        with _naming(piece.file):
            meant = meant_schema(parquet_file)
            names = meant.names
        needed = _needed(names, definition, mapping)
        groups = list(range(piece.start, parquet_file.num_row_groups if piece.stop is None else piece.stop))
        schema = pa.schema([meant.field(name) for name in needed])
        read = parquet_file.iter_batches(_rows_read(parquet_file.metadata, needed), row_groups=groups, columns=needed)
        large = joined_batches(read, BATCH_ROWS_MAX, BATCH_BYTES)
        batches = (batch if batch.schema == schema else batch.cast(schema) for batch in large)
        rows = sum(parquet_file.metadata.row_group(group).num_rows for group in groups)
        yield from _counted(piece.file, batches, rows)


def _rows_read(metadata: parquet.FileMetaData, needed: Collection[str]) -> int:
    """The rows that are read at once: fewer, where they are large. A value that repeats is stored once."""
    schema, most = metadata.schema, 0
    read = [at for at in range(metadata.num_columns) if schema.column(at).path.partition(".")[0] in needed]
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        size = sum(group.column(at).total_uncompressed_size for at in read)
        most = max(most, size // max(group.num_rows, 1))
    return max(1, min(ROWS_READ, BATCH_BYTES // max(most, 1)))


def column_types(file: InputFile) -> pa.Schema:
    """The columns of a file, with their types.

    Raises: `Invalid` when it is damaged.
    """
    if file.format is Format.PARQUET:
        with open_parquet(file) as parquet_file, _naming(file):
            return meant_schema(parquet_file)
    with _naming(file):
        schema: pa.Schema = next(_arrow_batches(file))
    return schema


def open_parquet(file: InputFile) -> parquet.ParquetFile:
    """A Parquet file, open.

    Raises: `Invalid` when it is damaged.
    """
    with _naming(file):
        return parquet.ParquetFile(file.path, memory_map=True, coerce_int96_timestamp_unit="us")


def meant_schema(parquet_file: parquet.ParquetFile) -> pa.Schema:
    """The columns of a Parquet file, with the types that its writer meant: those of Spark's INT96 are instants."""
    schema: pa.Schema = parquet_file.schema_arrow.remove_metadata()
    if not _tells_instants(parquet_file.metadata.metadata or {}):
        return schema
    leaves = (parquet_file.schema.column(number).physical_type for number in range(len(parquet_file.schema)))
    return pa.schema([_meant(field, leaves) for field in schema])


def _tells_instants(metadata: Mapping[bytes, bytes]) -> bool:
    """True when an INT96 of a file is an instant in the calendar of today."""
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_SPARK, b""))
    return version is not None and (int(version[1]), int(version[2])) >= (3, 1) and _SPARK_LEGACY not in metadata


def _meant(field: pa.Field, leaves: Iterator[str]) -> pa.Field:
    """A field whose INT96 are instants; `leaves` are the physical types of its scalars and of those after it."""
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        return field.with_type(pa.struct([_meant(inner, leaves) for inner in kind]))
    if types.is_map(kind):
        return field.with_type(pa.map_(_meant(kind.key_field, leaves), _meant(kind.item_field, leaves)))
    if types.is_list(kind):
        return field.with_type(pa.list_(_meant(kind.value_field, leaves)))
    return field.with_type(MOMENT) if next(leaves) == "INT96" else field


def _needed(names: Sequence[str], definition: MapDefinition, mapping: ColumnMapping | None) -> list[str]:
    needed = find_columns(names, definition, mapping).read
    return [name for name in names if name in needed]


@contextmanager
def _naming(file: InputFile) -> Iterator[None]:
    """Let what is wrong with a file be an error that names it."""
    try:
        yield
    except MemoryError:
        raise  # Arrow's too, which is no fault of the file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(file, error) from error


def damaged(file: InputFile, error: Exception) -> Invalid:
    """The error for a file that is not of its format."""
    return Invalid(
        f"the file is no {file.format} that can be read", kind="input_damaged", path=file.path,
        reason=str(error).splitlines()[0], hint="copy it again, or name its true format (written=FORMAT)",
    )  # fmt: skip


def _counted(file: InputFile, batches: Iterator[pa.RecordBatch], rows: int = 0) -> Iterator[Arrived]:
    position = 1
    while True:
        with _naming(file):
            batch = next(batches, None)
        if batch is None:
            return
        last = position + batch.num_rows - 1
        yield Arrived(batch, position, last=last, read=file.size * last // rows if rows else 0)
        position = last + 1


def split_parquet(file: InputFile, bytes_max: int) -> list[Piece]:
    """Pieces of whole row groups, of about `bytes_max` each."""
    with open_parquet(file) as parquet_file:
        metadata = parquet_file.metadata
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
    batches = _arrow_batches(piece.file)
    with _naming(piece.file):
        names = next(batches).names
    needed = _needed(names, definition, mapping)
    yield from _counted(piece.file, (_checked(batch.select(needed)) for batch in batches))


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch, checked to its last offset: kernels read it by its addresses."""
    batch.validate(full=True)
    return batch


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
