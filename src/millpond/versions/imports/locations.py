"""Locations: the places that an import reads, and the paths that it gives to what it finds.

    PrefixLocation("s3://bucket/2013/", "flights/")           flights/01.csv …: all below, by their names behind the
                                                              last slash of the prefix
    ObjectLocation("s3://bucket/a.csv", "flights/a.csv")      one object
    TableLocation("s3://bucket/entries.parquet", "flights/")  rows of a table of entries, sorted by path

Invariants:
* A location is read in the order of its paths, in blocks. A table whose rows are in another order is refused, by its
  first row that does not ascend: what merges several locations relies on each of them.
* An import takes the place of what lay under the destination of a prefix, and at the destination of an object. The
  rows of a table are put over what is there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.arrays.arrow_sizes import bounded_stream
from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.ranges.key_columns import first_unordered, key_column
from millpond.stores.objects.sources import Ranges, Source, SourceFile, SourceObject, join_address, split_address
from millpond.versions.objects.entries import CHANGES, DEFAULT_CONTENT_TYPE, check_path
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.segments import normal_batch

__all__ = (
    "Location", "ObjectLocation", "PrefixLocation", "ReadTable", "TableLocation", "check_readable", "object_block",
    "prefix_blocks", "read_table", "replaced", "table_blocks",
)  # fmt: skip

TABLE_ROWS = 1 << 16
_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PrefixLocation:
    """All objects whose addresses begin so; their paths are the destination and their names."""

    address: str
    destination: str = ""

    @property
    def folder(self) -> str:
        """The destination as the beginning of paths."""
        return self.destination if self.destination[-1:] in ("", "/") else f"{self.destination}/"


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """One object, and its path."""

    address: str
    destination: str


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A Parquet or Arrow file of entries, sorted by path; the destination comes before its paths."""

    address: str
    destination: str = ""


Location: TypeAlias = "PrefixLocation | ObjectLocation | TableLocation"
ReadTable: TypeAlias = "Callable[[Source, str, int], Generator[pa.RecordBatch]]"
"""Reads a table as `read_table` does."""


def replaced(location: Location) -> KeyRange | None:
    """The paths that are gone unless the import has them; None for no path."""
    match location:
        case PrefixLocation():
            return starting(location.folder)
        case ObjectLocation():
            path = location.destination.encode()
            return KeyRange(path, path + b"\0")
        case TableLocation():
            return None


def check_readable(context: RepositoryContext, locations: Sequence[Location], read: ReadTable) -> None:
    """Refuse locations of which nothing can be read.

    Raises: `Invalid` for an address, a path or a table; `NotFound`, `Denied`, `Unavailable` for a source.
    """
    for location in locations:
        source, name = _open(context, location)
        match location:
            case PrefixLocation():
                source.check(name)
            case ObjectLocation():
                check_path(location.destination)
                source.size(name)
            case TableLocation():
                with closing(read(source, name, 0)) as rows:
                    next(rows)


def _open(context: RepositoryContext, location: Location) -> tuple[Source, str]:
    root, name = split_address(location.address)
    return context.sources(root), name


# -- objects ------------------------------------------------------------------------------------------


def prefix_blocks(context: RepositoryContext, location: PrefixLocation) -> Iterator[pa.RecordBatch]:
    """The entries of a prefix as changes, ascending.

    Raises: as a walk of the source; `Invalid` for a path that is too long.
    """
    root, name = split_address(location.address)
    base = len(name.rpartition("/")[0]) + 1 if "/" in name else 0
    for objects in context.sources(root).walk(name):
        yield _block(root, objects, [location.folder + item.name[base:] for item in objects])


def object_block(context: RepositoryContext, locations: Sequence[ObjectLocation]) -> pa.RecordBatch:
    """The entries of single objects as changes, ascending; of two with one path the last.

    Raises: `Invalid` for a path; `NotFound`, `Denied`, `Unavailable` for an object.
    """
    chosen = {location.destination: location.address for location in locations}
    parts = []
    for path in sorted(chosen, key=str.encode):
        root, name = split_address(chosen[path])
        parts.append(_block(root, [context.sources(root).look(name)], [path]))
    return pa.concat_batches(parts) if parts else CHANGES.empty_table().combine_chunks().to_batches()[0]


def _block(root: str, objects: Sequence[SourceObject], paths: Sequence[str]) -> pa.RecordBatch:
    keys = [path.encode() for path in paths]
    check_path(max(paths, key=lambda path: len(path.encode())))
    count = len(objects)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array([join_address(root, item.name) for item in objects], pa.string()),
        pa.array([item.size for item in objects], pa.int64()),
        pa.array([item.mtime for item in objects], pa.int64()),
        pa.array([item.checksum for item in objects], pa.string()),
        pa.repeat(pa.scalar(DEFAULT_CONTENT_TYPE, pa.string()), count),
        pa.repeat(pa.scalar("", pa.string()), count),
        pa.repeat(pa.scalar(False), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


# -- tables -------------------------------------------------------------------------------------------


def table_blocks(context: RepositoryContext, location: TableLocation, read: ReadTable) -> Iterator[pa.RecordBatch]:
    """The rows of a table as changes, in their order.

    Raises: as `read_table`; `Invalid` for rows that do not ascend.
    """
    source, name = _open(context, location)
    order = _Order(location.address)
    with closing(read(source, name, context.seconds())) as rows:
        for changes in rows:
            order.check(changes)
            if location.destination and changes.num_rows:
                keys = changes.column("key")
                prefix = pa.scalar(location.destination.encode(), pa.binary())
                keys = pc.binary_join_element_wise(prefix, keys, pa.scalar(b"", pa.binary()))
                changes = pa.RecordBatch.from_arrays([keys, *changes.columns[1:]], schema=CHANGES)
                _check_longest(keys)
            yield changes


class _Order:
    """The order of a table, over all its batches."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._last: bytes | None = None
        self._rows = 0

    def check(self, changes: pa.RecordBatch) -> None:
        """Take the next rows, which ascend strictly.

        Raises: `Invalid`, which names the row.
        """
        if not changes.num_rows:
            return
        keys = key_column(changes.column("key"))
        row = first_unordered(keys.offsets, keys.data)
        if row < 0 and self._last is not None and keys[0] <= self._last:
            row = 0
        if row >= 0:
            before = keys[row - 1] if row else self._last
            raise Invalid(
                "rows do not ascend", kind="import_order", address=self._address, row=self._rows + row + 1,
                path=keys[row].decode(), before=(before or b"").decode(), hint="sort the table by path, each path once",
            )  # fmt: skip
        self._last = keys[len(keys) - 1]
        self._rows += changes.num_rows


def _check_longest(keys: pa.Array) -> None:
    lengths = pc.binary_length(keys)
    check_path(keys[pc.index(lengths, pc.max(lengths)).as_py()].as_py().decode())


def read_table(source: Ranges, name: str, mtime: int) -> Generator[pa.RecordBatch]:
    """The rows of a file, Parquet or Arrow's file or stream format, as changes; first none, when it is known to be a
    table of entries. `mtime`: that of rows without one.

    Raises: `Invalid` for a file that is no table, columns that are none of entries, and paths.
    """
    with io.BufferedReader(SourceFile(source, name), _BUFFER_BYTES) as file:
        try:
            schema, batches = _opened(file)
            yield normal_batch(pa.RecordBatch.from_pylist([], schema=schema), mtime=mtime)
            for batch in batches:
                yield normal_batch(batch, mtime=mtime)
        except MemoryError:
            raise  # Arrow's too, which is no fault of the table
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise Invalid(
                "not a table of entries", kind="import_table", address=join_address(source.where, name),
                reason=str(error).partition("\n")[0],
                hint="a Parquet file, or an Arrow file or stream, with the columns of entries",
            ) from error  # fmt: skip


def _opened(file: io.BufferedReader[SourceFile]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    magic = file.peek(8)[:8]
    if magic[:4] == b"PAR1":
        # What is read ahead is held to the end: memory would grow with the groups of the table.
        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        return parquet.schema_arrow, parquet.iter_batches(TABLE_ROWS)
    if magic[:6] == b"ARROW1":
        file.read(8)  # a stream follows
    stream = bounded_stream(file)
    return stream.schema, iter(stream)
