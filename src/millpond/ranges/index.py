"""Ranges and their index as values, and the file of an index as bytes.

A range is one sorted record batch in an Arrow IPC file; an index lists ranges in the order of their keys. Both are
named by their content: the hash of their canonical columns (`range_ids.py`), in files that carry the checksum of
their bytes (`range_files.py`).

    ranges/<id>.arrow       one record batch: `key`, then whatever the entries hold
    indexes/<id>.arrow      one record batch: a row per range; schema and boundaries as metadata
    quarantine/<id>.arrow   what was found damaged

Invariants of an index:
* Ranges are not empty, do not overlap, and stand in ascending order.
* The same entries under the same boundaries make the same ranges, ids and index id, however they were batched and
  whichever version of Arrow wrote them. The sizes of files, blocks and filters are not content: they may differ.
* An index that lists no blocks and no filters is of format 2; one whose filters stand in their ranges of format 4; one
  with packed blocks of format 5, which is the least version that can read them.

The bytes are drawn in `docs/format/ranges.md`.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Protocol

import pyarrow as pa

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.json_forms import JsonForm, plain
from millpond.ranges.blocks import FILTERS_BYTES_MAX, BlockTable, checksum_of, filter_parts
from millpond.ranges.cache import CachedObjects
from millpond.ranges.files import far_form, format_said, put_content, read_sealed, sealed_bytes
from millpond.ranges.ids import BLOCKS_FORMAT, FILTERS_FORMAT, FORMAT, ID_BYTES, PACKED_FORMAT, columns_id, schema_code
from millpond.stores.objects import Objects, at_once, fsync_below, hold_read, read_once

__all__ = (
    "DEFAULT_BOUNDARIES", "Boundaries", "Index", "RangeEntry", "Shown", "Source", "far_entry", "index_bytes",
    "index_file", "index_name", "load_index", "plain_index", "quarantine_name", "range_name", "read_index",
    "store_index",
)  # fmt: skip

_COLUMNS = pa.schema(
    [
        pa.field("first", pa.binary(), nullable=False),
        pa.field("last", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("id", pa.binary(ID_BYTES), nullable=False),
    ]
)
_BLOCK = pa.struct(
    [
        pa.field("first", pa.binary(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("stop", pa.int64(), nullable=False),
        pa.field("checksum", pa.binary(16), nullable=False),
    ]
)
_WITH_BLOCKS = pa.schema(
    [
        *_COLUMNS,
        pa.field("plain", pa.int64(), nullable=False),
        pa.field("blocks", pa.list_(pa.field("item", _BLOCK, nullable=False)), nullable=False),
        pa.field("filter", pa.binary(), nullable=False),
    ]
)
_WITH_FILTERS = pa.schema([*_WITH_BLOCKS, pa.field("filter_checksum", pa.binary(), nullable=False)])
# Not `size`: versions of Arrow write the same entries in more or fewer bytes.
_CONTENT = ["first", "last", "count", "id"]
_BOUNDARIES = struct.Struct("<4Q")


class Source(Protocol):
    """A place that files can be read from as a whole: objects, or a node at the other end of a connection."""

    @property
    def where(self) -> str:
        """The place, for errors."""

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object.

        Raises: `NotFound`.
        """


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The rule for the ends of ranges. Smaller ranges: a change rewrites less; larger ones: fewer files and fewer
    look-ups.

    From `rows_min` rows on, a range ends after the first key whose hash ends in `bits` zero bits. When it is half
    full (of `rows_max` rows or of `bytes_max` bytes) half as many bits suffice, however few its rows; when it is
    three quarters full, a quarter of them; when it is full, it ends.
    """

    rows_min: int = 1 << 12
    rows_max: int = 1 << 16
    bits: int = 14
    bytes_max: int = 32 << 20

    def __post_init__(self) -> None:
        if not (1 <= self.rows_min <= self.rows_max and 0 <= self.bits < 64 and 1 <= self.bytes_max <= 1 << 30):
            raise Invalid("boundaries make no sense", kind="range_boundaries", **plain(self))


DEFAULT_BOUNDARIES = Boundaries()


_BOUNDARIES_FORM = JsonForm(Boundaries)


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """One range: its content id, its first and last key, its rows, the bytes of its file when it was written.

    `blocks` are the parts that can be fetched alone, of a file that has some; `filter` says which keys it may have.
    Without one here, one may stand in the file: `blocks` say so.
    """

    id: str
    first: bytes
    last: bytes
    count: int
    size: int
    # Of the form of the file, not of the content: the same range lies in folders without them.
    blocks: BlockTable | None = field(default=None, compare=False, repr=False)
    filter: pa.Buffer | None = field(default=None, compare=False, repr=False)

    @property
    def plain(self) -> RangeEntry:
        """The same range as it lies in a folder: in one batch, without a filter."""
        size = self.size if self.blocks is None else self.blocks.plain
        return replace(self, size=size, blocks=None, filter=None)

    @property
    def filter_checksum(self) -> bytes:
        """The checksum of a filter that stands in the file alone; empty: there is none, or the index has it."""
        return b"" if self.blocks is None or self.filter is not None else self.blocks.filter_checksum

    @property
    def without_filter(self) -> RangeEntry:
        """The same range with its filter in its file alone."""
        if self.blocks is None or self.filter is None:
            return replace(self, filter=None)
        # Files that were written in format 3 have none: whoever reads its bytes sees it by this checksum.
        return replace(self, filter=None, blocks=replace(self.blocks, filter_checksum=checksum_of(self.filter)))


@dataclass(frozen=True, slots=True)
class Shown:
    """Entries that are shown otherwise than they are stored: the same keys in the same order, with other columns."""

    schema: pa.Schema
    entries: Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Index:
    """Ranges in the order of their keys, and what they have in common. `shown` None: as they are stored."""

    id: str
    entries: tuple[RangeEntry, ...]
    schema: pa.Schema = field(hash=False)
    boundaries: Boundaries
    shown: Shown | None = field(default=None, compare=False)

    @property
    def columns(self) -> pa.Schema:
        """The columns of its entries as they are shown."""
        return self.schema if self.shown is None else self.shown.schema

    def show(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Entries of a range, read from its file, as they are shown."""
        return stored if self.shown is None else self.shown.entries(stored)

    @property
    def count(self) -> int:
        """Rows of all ranges."""
        return sum(entry.count for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes of all ranges' files."""
        return sum(entry.size for entry in self.entries)


def range_name(id_: str) -> str:
    """The name of a range's object."""
    return f"ranges/{id_}.arrow"


def quarantine_name(name: str) -> str:
    """The name of a file that was found damaged."""
    return f"quarantine/{PurePosixPath(name).name}"


def index_name(id_: str) -> str:
    """The name of an index's object."""
    return f"indexes/{id_}.arrow"


def store_index(
    objects: Objects, entries: list[RangeEntry], schema: pa.Schema, boundaries: Boundaries,
    beside: Sequence[Callable[[], object]] = (),
) -> Index:  # fmt: skip
    """Write the index over ranges that are stored already, or by acts that are done `beside`, where files are far away;
    the ranges become reachable by this act.
    """
    # An assertion, not an error: the writer refused unordered keys of a user before.
    assert all(a.last < b.first for a, b in itertools.pairwise(entries)), "ranges overlap"
    index = _with_few_filters(Index("", tuple(entries), schema, boundaries))
    id_, data = _file_of(index.entries, schema, boundaries)
    fsync_below(objects, "ranges")  # those that lay here may be the work of one who died before they were durable
    acts: list[Callable[[], object]] = [*beside, partial(put_content, objects, index_name(id_), data)]
    # The index may be there before the range that is put beside it. That is harmless, for nobody knows its id before
    # both are.
    at_once(objects, acts)
    # This one may have been there, too, and what comes now names it.
    fsync_below(objects, "indexes")
    index = replace(index, id=id_)
    # It is read again at once: by the next load, or fold.
    hold_read(objects, index_name(id_), index, data.size)
    return index


def _with_few_filters(index: Index) -> Index:
    """An index without filters where they are too many; they stand in the files of their ranges."""
    if sum(e.filter.size for e in index.entries if e.filter is not None) <= FILTERS_BYTES_MAX:
        return index
    return replace(index, entries=tuple(entry.without_filter for entry in index.entries))


def _file_of(entries: Sequence[RangeEntry], schema: pa.Schema, boundaries: Boundaries) -> tuple[str, pa.Buffer]:
    """The id of an index, and its file."""
    columns = [
        pa.array([e.first for e in entries], pa.binary()),
        pa.array([e.last for e in entries], pa.binary()),
        pa.array([e.count for e in entries], pa.int64()),
        pa.array([e.size for e in entries], pa.int64()),
        pa.array([bytes.fromhex(e.id) for e in entries], pa.binary(ID_BYTES)),
    ]
    layout, number = _COLUMNS, FORMAT
    # Each index has the first format that can say it, so that earlier versions read what they can.
    if any(e.blocks is not None or e.filter is not None for e in entries):
        layout, number = _WITH_BLOCKS, BLOCKS_FORMAT
        columns += [
            pa.array([0 if e.blocks is None else e.blocks.plain for e in entries], pa.int64()),
            pa.array([_blocks_listed(e.blocks) for e in entries], layout.field("blocks").type),
            pa.array([b"" if e.filter is None else memoryview(e.filter) for e in entries], pa.binary()),
        ]
    packed = any(e.blocks is not None and e.blocks.packed for e in entries)
    if packed or any(e.filter_checksum for e in entries):
        layout, number = _WITH_FILTERS, PACKED_FORMAT if packed else FILTERS_FORMAT
        columns.append(pa.array([e.filter_checksum for e in entries], pa.binary()))
    metadata = {b"boundaries": _BOUNDARIES_FORM.encode(boundaries), b"schema": schema.serialize().to_pybytes()}
    batch = pa.RecordBatch.from_arrays(columns, schema=layout.with_metadata(metadata))
    id_ = _id_of(batch, schema, boundaries)
    return id_, sealed_bytes("index", id_, batch, format_number=number)


def _blocks_listed(table: BlockTable | None) -> list[dict[str, object]]:
    if table is None:
        return []
    return [
        {"first": first, "rows": rows, "start": start, "stop": stop, "checksum": checksum}
        for first, rows, (start, stop), checksum in zip(
            table.firsts, table.rows, table.spans, table.checksums, strict=True
        )
    ]


def index_file(index: Index) -> pa.Buffer:
    """The file of an index, as its entries say that their ranges lie."""
    return _file_of(_with_few_filters(index).entries, index.schema, index.boundaries)[1]


def far_entry(
    entry: RangeEntry, data: pa.Buffer, rows: pa.RecordBatch | None = None
) -> tuple[RangeEntry, pa.Buffer]:  # fmt: skip
    """The entry of a range, and its file, as it lies far away; `data` is its file in any form, `rows` what was read of
    it already.
    """
    far = far_form(data, range_name(entry.id), rows)
    blocks, filter_ = far.table or entry.blocks, far.filter or entry.filter
    return replace(entry, size=far.data.size, blocks=blocks, filter=filter_), far.data


def plain_index(index: Index, data: pa.Buffer) -> pa.Buffer:
    """The file of an index as it lies in a folder; `data` where it has that form."""
    if all(entry.blocks is None and entry.filter is None for entry in index.entries):
        return data
    return index_file(replace(index, entries=tuple(entry.plain for entry in index.entries)))


def _id_of(batch: pa.RecordBatch, schema: pa.Schema, boundaries: Boundaries) -> str:
    """The id of an index: of which ranges it lists, of their columns, and of where they end."""
    # Boundaries are content. Whoever takes over a range trusts that it ends where these end it.
    limits = _BOUNDARIES.pack(boundaries.rows_min, boundaries.rows_max, boundaries.bits, boundaries.bytes_max)
    return columns_id("index", batch.select(_CONTENT), limits + schema_code(schema))


def index_bytes(objects: Source, id_: str) -> pa.Buffer:
    """The file of an index, unverified: `read_index` verifies.

    Raises: `NotFound`.
    """
    name = index_name(id_)
    try:
        return objects.get(name)
    except NotFound as error:
        if error.kind != "object_not_found":
            raise  # a source that knows more
        raise NotFound("there is no such index", kind="index_not_found", object=name, where=objects.where) from error


def load_index(objects: Source, id_: str) -> Index:
    """The index of that id, its checksum and its id verified.

    Raises: `NotFound`, `Corrupt`; `Invalid` for a file of another format.
    """
    if isinstance(objects, CachedObjects):
        # What is held was verified when it was read.
        return objects.opened_index(id_, lambda: load_index(objects.inner, id_))
    return read_once(
        objects, index_name(id_), lambda: index_bytes(objects, id_), lambda data: read_index(data, id_, objects.where)
    )


def read_index(data: pa.Buffer, id_: str, where: str = "") -> Index:
    """The index that is written in bytes; its checksum and its id are verified.

    Raises: `Corrupt`; `Invalid` for a file of another format.
    """
    name = index_name(id_)
    batch = read_sealed("index", id_, data, name=name, where=where)
    try:
        index = _index_in(batch, id_)
        # The checksum says that the file is whole; the id, that it is this index: the seal only says so.
        right = _id_of(batch, index.schema, index.boundaries) == id_
    # A file that was made wrong has a right checksum all the same, and may hold anything.
    except (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError, Invalid, struct.error) as error:
        raise _damaged(name, where) from error
    if not right:
        raise _damaged(name, where)
    return index


def _damaged(name: str, where: str) -> Corrupt:
    return Corrupt("the index is not what was written", kind="index_damaged", object=name, where=where)


def _index_in(batch: pa.RecordBatch, id_: str) -> Index:
    blocked = batch.schema.equals(_WITH_BLOCKS) or batch.schema.equals(_WITH_FILTERS)
    if not blocked and not batch.schema.equals(_COLUMNS):
        raise ValueError("these are not the columns of an index")
    batch.validate(full=True)
    metadata = batch.schema.metadata
    columns = [column.to_pylist() for column in batch.columns[: len(_COLUMNS)]]
    tables = _tables_in(batch) if blocked else itertools.repeat(None, batch.num_rows)
    filters = filter_parts(batch.column("filter")) if blocked else itertools.repeat(None, batch.num_rows)
    entries = tuple(
        RangeEntry(name.hex(), first, last, count, size, table, filter_)
        for first, last, count, size, name, table, filter_ in zip(*columns, tables, filters, strict=True)
    )
    schema = pa.ipc.read_schema(pa.py_buffer(metadata[b"schema"]))
    return Index(id_, entries, schema, _BOUNDARIES_FORM.decode(metadata[b"boundaries"]))


def _tables_in(batch: pa.RecordBatch) -> list[BlockTable | None]:
    """The blocks of each range."""
    tables, checksums = [], [b""] * batch.num_rows
    if batch.schema.equals(_WITH_FILTERS):
        checksums = batch.column("filter_checksum").to_pylist()
    packed = format_said(batch.schema) == PACKED_FORMAT
    columns = (batch.column(name).to_pylist() for name in ("count", "plain", "blocks"))
    for count, size, listed, checksum in zip(*columns, checksums, strict=True):
        spans = tuple((block["start"], block["stop"]) for block in listed)
        table = BlockTable(
            tuple(block["first"] for block in listed), tuple(block["rows"] for block in listed), spans,
            tuple(block["checksum"] for block in listed), size, checksum, packed,
        )  # fmt: skip
        # Whoever follows a table that is wrong would answer that a key is nowhere.
        if listed and (sum(table.rows) != count or any(not 0 <= start < stop for start, stop in spans)):
            raise ValueError("blocks are not those of the range")
        tables.append(table if listed else None)
    return tables
