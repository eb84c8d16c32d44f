"""Files that strangers wrote, read by a confined process; here come their rows, in bounded pieces of known columns.

    file ─▶ child: parses, normalises, cuts ─▶ pieces of Arrow ─▶ node: measured, checked ─▶ load, import
    source ◀── ranges of bytes ──┘ └─ it ends early, or falls silent ─▶ an error that names the file: nothing is loaded

Kilobytes unpack to gigabytes, or make a parser in C++ end its process: here that is not the node. What a file means is
decided by the readers that others use in their own process: `read_piece`, `read_table`.

Invariants:
* this process holds at most two pieces of a file, whatever is in it;
* a batch is checked to its last offset before a kernel reads it.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from millpond.arrays.arrow_sizes import BATCH_ELEMENTS_MAX, bounded_stream
from millpond.arrays.arrow_streams import stream_of
from millpond.errors import Invalid, MillpondError
from millpond.maps.inputs.faults import REJECTED
from millpond.maps.inputs.formats.arrived import NOTHING_REJECTED
from millpond.maps.inputs.formats.readers import Read, Reading, read_piece, with_omitted
from millpond.maps.model.columns import RAW_DIGEST, canonical_schema
from millpond.server.confined import FRAME_BYTES_MAX, THREADS, Ask, Confines, EndedEarly, OutOfTime, confined_pieces
from millpond.stores.objects.sources import Ranges, Source, join_address
from millpond.versions.imports.locations import read_table
from millpond.versions.objects.entries import CHANGES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millpond.maps.inputs.formats.files import Piece

__all__ = (
    "BATCH_BYTES", "MEMORY_BYTES", "PROCESSOR_SECONDS_MAX", "ROWS_BYTES_MAX", "SECONDS_MAX", "Distant", "ranges_of",
    "read_confined", "read_table_confined",
)  # fmt: skip

MEMORY_BYTES: Final = 384 << 20
SECONDS_MAX: Final = 60
"""The time until the next piece."""
PROCESSOR_SECONDS_MAX: Final = 2 * 3_600
"""The processor's time for all of a file."""
BATCH_BYTES: Final = 16 << 20
"""The rows of a piece, and its rejects; a row is no larger."""
ROWS_BYTES_MAX: Final = 64 << 30
"""All rows of a file that is loaded."""
_RANGE_BYTES = 8 << 20
_RANGE = struct.Struct("<qq")
_CONFINES = Confines(MEMORY_BYTES, SECONDS_MAX, PROCESSOR_SECONDS_MAX)


class _Sent(msgspec.Struct):
    """A piece of what a file holds, as `Read`: its batches are streams of Arrow."""

    map: str | None
    rows: memoryview | None
    rejected: memoryview
    last: int
    read: int


_PIECES = msgspec.msgpack.Decoder(_Sent)


def read_confined(piece: Piece, reading: Reading) -> Generator[Read]:
    """The rows of a piece of a file, as `read_piece`.

    Raises: as `read_piece`; `Invalid`, kinds `file_memory`, `file_slow`, `file_rows`, `record_long`.
    """
    path, size = piece.file.path, 0
    with _naming({"path": path}), closing(confined_pieces(_CONFINES, bytes, _read, piece, reading)) as pieces:
        for data in pieces:
            sent = _PIECES.decode(data)
            definition = None if sent.map is None else reading.maps[sent.map]
            rows = None if sent.rows is None else _batch(sent.rows)
            if rows is not None and (definition is None or rows.schema != canonical_schema(definition)):
                raise ValueError("rows are not those of their map")
            rejected = _batch(sent.rejected)
            if rejected.schema != REJECTED:
                raise ValueError("rejects are none")
            size += 0 if rows is None else rows.nbytes
            if size > ROWS_BYTES_MAX:
                raise Invalid("the file has more rows than a page loads", kind="file_rows", path=path, bytes=size,
                              bytes_max=ROWS_BYTES_MAX, hint="load it with: millpond load")  # fmt: skip
            yield Read(definition, rows, rejected, sent.last, sent.read)


def read_table_confined(source: Source, name: str, mtime: int) -> Generator[pa.RecordBatch]:
    """The rows of a table of entries, as `read_table`.

    Raises: as `read_table`; `Invalid`, kinds `file_memory`, `file_slow`, `record_long`; what the source raises.
    """
    address = join_address(source.where, name)
    pieces = confined_pieces(_CONFINES, ranges_of(source, name), _read_table, source.where, name, mtime)
    with _naming({"address": address}), closing(pieces):
        for data in pieces:
            rows = _batch(memoryview(data))
            if rows.schema != CHANGES:
                raise ValueError("rows are no changes")
            yield rows


def ranges_of(source: Ranges, name: str) -> Callable[[bytes], bytes]:
    """The answers to what a child asks that reads an object as `Distant`."""

    def answer(question: bytes) -> bytes:
        if not question:
            return str(source.size(name)).encode()
        start, stop = _RANGE.unpack(question)
        return bytes(source.get_range(name, start, min(stop, start + _RANGE_BYTES)))

    return answer


@contextmanager
def _naming(file: dict[str, object]) -> Iterator[None]:
    """Let errors of the process that reads a file name it."""
    try:
        yield
    except Invalid as error:
        raise Invalid(error.message, kind=error.kind, hint=error.hint, **(file | error.values)) from error
    except MillpondError:
        raise
    except (EndedEarly, msgspec.MsgspecError, ValueError, LookupError) as error:
        raise Invalid(
            "reading the file takes more memory than it may, or breaks the reader", kind="file_memory", **file,
            bytes_max=MEMORY_BYTES, reason=str(error).partition("\n")[0],
            hint="write smaller groups of rows, such as of 65,536; maps take any file by: millpond load",
        ) from error  # fmt: skip
    except OutOfTime as error:
        raise Invalid(
            "reading the file takes longer than it may", kind="file_slow", **file, seconds_max=SECONDS_MAX,
            hint="split it; maps take any file by: millpond load",
        ) from error  # fmt: skip


def _batch(data: memoryview) -> pa.RecordBatch:
    try:
        with bounded_stream(io.BytesIO(data), FRAME_BYTES_MAX) as stream:
            return next(stream)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise ValueError(str(error)) from error


# -- in the process -----------------------------------------------------------------------------------


def _read(_ask: Ask, piece: Piece, reading: Reading) -> Iterator[Buffer]:
    _keep_to_threads()
    for read in read_piece(piece, with_omitted(reading, [piece.file])):
        rows = [] if read.rows is None else list(_cut(read.rows))
        rejected = list(_cut(read.rejected)) if read.rejected.num_rows else []
        for number in range(max(len(rows), len(rejected), 1)):
            some = replace(
                read, rows=rows[number] if number < len(rows) else None,
                rejected=rejected[number] if number < len(rejected) else NOTHING_REJECTED,
            )  # fmt: skip
            yield msgspec.msgpack.encode(_sent(some))


def _sent(read: Read) -> _Sent:
    return _Sent(
        None if read.definition is None else read.definition.name, None if read.rows is None else stream_of(read.rows),
        stream_of(read.rejected), read.last, read.read,
    )  # fmt: skip


def _read_table(ask: Ask, where: str, name: str, mtime: int) -> Iterator[Buffer]:
    _keep_to_threads()
    for batch in read_table(Distant(ask, where), name, mtime):
        for some in _cut(batch):
            yield stream_of(some)


class Distant:
    """The object of a source as its reader sees it, of which the node reads."""

    def __init__(self, ask: Ask, where: str) -> None:
        self._ask, self.where = ask, where

    def size(self, _name: str) -> int:
        return int(self._ask(b""))

    def get_range(self, _name: str, start: int, stop: int) -> bytes:
        return self._ask(_RANGE.pack(start, stop))


def _keep_to_threads() -> None:
    """Have Arrow begin few threads: the memory that each is given ahead counts."""
    pa.set_cpu_count(THREADS)
    pa.set_io_thread_count(THREADS)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces that may be sent.

    Raises: `Invalid`, kind `record_long`, for a row that may not.
    """
    size, rows = batch.nbytes, batch.num_rows
    if size <= BATCH_BYTES and rows * sum(map(_columns, batch.schema)) <= BATCH_ELEMENTS_MAX:
        yield batch
        return
    if rows <= 1:
        raise Invalid("a row is larger than one may be", kind="record_long", bytes=size, bytes_max=BATCH_BYTES,
                      hint="leave it out, or load the file with: millpond load")  # fmt: skip
    yield from _cut(batch.slice(0, rows // 2))
    rest = batch.slice(rows // 2)
    # Digests of batches add up.
    yield from _cut(rest.replace_schema_metadata({RAW_DIGEST: "0"}) if batch.schema.metadata else rest)


def _columns(field: pa.Field) -> int:
    """The arrays that a column is stored in."""
    return 1 + sum(_columns(field.type.field(number)) for number in range(field.type.num_fields))
