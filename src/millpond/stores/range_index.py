"""Ranges and their index as values, and their files as bytes.

A range is one sorted record batch in an Arrow IPC file; an index lists ranges in the order of their keys. Both are
named by their content: the name is the BLAKE2b of the file's bytes, so the name is the checksum too.

    ranges/<id>.arrow       one record batch: `key`, then whatever the entries hold
    indexes/<id>.arrow      one record batch: a row per range; schema and boundaries as metadata
    quarantine/<id>.arrow   what was found damaged

Invariants of an index:
* Ranges are not empty, do not overlap, and stand in ascending order.
* The same entries under the same boundaries make the same ranges, ids and index id, however they were batched.

The bytes are drawn in `docs/format/ranges.md`.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millpond.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from millpond.stores.objects import Objects

__all__ = (
    "DEFAULT_BOUNDARIES", "Boundaries", "Index", "RangeEntry", "Source", "content_id", "index_bytes", "index_name",
    "load_index", "put_content", "range_name", "read_batch", "read_index", "store_index", "write_batch",
)  # fmt: skip

FORMAT = b"1"
ID_BYTES = 20
_COLUMNS = pa.schema(
    [
        pa.field("first", pa.binary(), nullable=False),
        pa.field("last", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("id", pa.binary(ID_BYTES), nullable=False),
    ]
)


class Source(Protocol):
    """What reading a whole file needs of a place: objects, or a node at the other end of a line."""

    @property
    def where(self) -> str:
        """The place, for errors."""

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object.

        Raises: `NotFound`.
        """


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where ranges end. Smaller ranges: a change rewrites less; larger ones: fewer files and fewer look-ups.

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
            raise Invalid("boundaries make no sense", kind="range_boundaries", **asdict(self))


DEFAULT_BOUNDARIES = Boundaries()


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """One range: its content id, its first and last key, its rows, the bytes of its file."""

    id: str
    first: bytes
    last: bytes
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Index:
    """Ranges in the order of their keys, and what they have in common."""

    id: str
    entries: tuple[RangeEntry, ...]
    schema: pa.Schema = field(hash=False)
    boundaries: Boundaries

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


def index_name(id_: str) -> str:
    """The name of an index's object."""
    return f"indexes/{id_}.arrow"


def content_id(data: bytes | memoryview | pa.Buffer) -> str:
    """The name of content: BLAKE2b with 20 bytes, in hexadecimal digits.

    >>> content_id(b"")
    '3345524abf6bbe1809449224b5972c41790b6cf2'
    """
    return blake2b(memoryview(data), digest_size=ID_BYTES).hexdigest()


def put_content(objects: Objects, name: str, data: pa.Buffer) -> bool:
    """Store bytes under the name of their content, unless they are there; whether they had to be stored."""
    try:
        if objects.size(name) == data.size:
            return False
    except NotFound:
        pass
    objects.put(name, data)
    return True


def write_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """A canonical batch as an Arrow IPC file: no compression, every buffer 8-byte aligned."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def read_batch(data: pa.Buffer, name: str) -> pa.RecordBatch:
    """The one batch of such a file, lying in `data`: nothing is copied.

    Raises: `Corrupt` when the bytes are not such a file.
    """
    try:
        file = pa.ipc.open_file(data)
        if file.num_record_batches == 1 and file.schema.names:  # names that are text
            return file.get_batch(0)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt("not an Arrow file", kind="range_damaged", object=name) from error
    raise Corrupt("not a file of one batch", kind="range_damaged", object=name)


def store_index(objects: Objects, entries: list[RangeEntry], schema: pa.Schema, boundaries: Boundaries) -> Index:
    """Write the index over ranges that are stored already; the ranges become reachable by this act."""
    assert all(a.last < b.first for a, b in itertools.pairwise(entries)), "ranges overlap"
    metadata = {
        b"millpond.index": FORMAT,
        b"boundaries": json.dumps(asdict(boundaries)).encode(),
        b"schema": schema.serialize().to_pybytes(),
    }
    columns = [
        pa.array([e.first for e in entries], pa.binary()),
        pa.array([e.last for e in entries], pa.binary()),
        pa.array([e.count for e in entries], pa.int64()),
        pa.array([e.size for e in entries], pa.int64()),
        pa.array([bytes.fromhex(e.id) for e in entries], pa.binary(ID_BYTES)),
    ]
    data = write_batch(pa.RecordBatch.from_arrays(columns, schema=_COLUMNS.with_metadata(metadata)))
    name = content_id(data)
    objects.settle("ranges")  # those that lay here already may be the work of one who died before they were durable
    put_content(objects, index_name(name), data)
    objects.settle("indexes")
    return Index(name, tuple(entries), schema, boundaries)


def index_bytes(objects: Source, id_: str) -> pa.Buffer:
    """The file of an index, its checksum verified.

    Raises: `NotFound`, `Corrupt`.
    """
    name = index_name(id_)
    try:
        data = objects.get(name)
    except NotFound as error:
        if error.kind != "object_not_found":
            raise  # a source that knows more
        raise NotFound("there is no such index", kind="index_not_found", object=name, where=objects.where) from error
    if content_id(data) != id_:
        raise Corrupt("the index is not what was written", kind="index_damaged", object=name, where=objects.where)
    return data


def load_index(objects: Source, id_: str) -> Index:
    """The index of that id, its checksum verified.

    Raises: `NotFound`, `Corrupt`; `Invalid` for a format that is newer than this reader.
    """
    return read_index(index_bytes(objects, id_), id_)


def read_index(data: pa.Buffer, id_: str) -> Index:
    """The index that is written in bytes.

    Raises: `Corrupt`; `Invalid` for a format that is newer than this reader.
    """
    batch = read_batch(data, index_name(id_))
    metadata = batch.schema.metadata or {}
    if metadata.get(b"millpond.index") != FORMAT:
        raise Invalid(
            "the index is of another format", kind="index_format", index=id_,
            format=metadata.get(b"millpond.index"), hint="read it with the version that wrote it, or a newer one",
        )  # fmt: skip
    columns = [column.to_pylist() for column in batch.columns]
    entries = tuple(
        RangeEntry(name.hex(), first, last, count, size)
        for first, last, count, size, name in zip(*columns, strict=True)
    )
    schema = pa.ipc.read_schema(pa.py_buffer(metadata[b"schema"]))
    return Index(id_, entries, schema, Boundaries(**json.loads(metadata[b"boundaries"])))
