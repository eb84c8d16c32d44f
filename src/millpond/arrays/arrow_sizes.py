"""The memory that an Arrow stream will take, read from its declared sizes before anything of it is decompressed.

    stream ─▶ messages ─▶ metadata: rows, elements, buffers ─▶ first 8 bytes of a compressed buffer: its length

A few kilobytes can declare gigabytes: buffers compress a thousandfold, and a column of nulls has rows and no buffers at
all. Arrow allocates what is declared. So each message's metadata is read first, as "Arrow Columnar Format", section
IPC, draws it: FlatBuffers, of which the few fields that matter are read here. Arrow has checked that they are well
formed when it gives a message.

Invariants:
* nothing is allocated that is larger than the metadata of one message;
* every buffer lies within its message's body, else the stream is refused;
* `decoded` is what Arrow allocates while it reads the stream, `elements` the sum of the lengths of all columns and of
  their children, in all batches and dictionaries.

A stream that is too long to be held, `bounded_stream` measures message by message.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid

__all__ = ("DeclaredSizes", "bounded_stream", "declared_sizes", "expanded_bytes", "not_an_arrow_stream")

BATCH_BYTES_MAX = 256 << 20
"""One batch of a stream with its dictionaries: decompressed, and each row with a value of its own."""
BATCH_ELEMENTS_MAX = 1 << 22
"""The elements of all columns of one batch, and of its dictionaries."""
METADATA_BYTES_MAX = 1 << 20
_CONTINUES = b"\xff" * 4
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of a Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # fields of a RecordBatch
_ID, _DATA, _IS_DELTA = 0, 1, 2  # fields of a DictionaryBatch
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_PAIR_BYTES = 16
_NOT_COMPRESSED = -1


@dataclass(frozen=True, slots=True)
class DeclaredSizes:
    """The sizes that a stream declares: batches, their rows, elements of all columns, bytes of all buffers.

    `decoded`: the bytes of the buffers that are decompressed. The others lie in the stream itself.
    """

    batches: int = 0
    rows: int = 0
    elements: int = 0
    buffers: int = 0
    decoded: int = 0

    def __add__(self, other: DeclaredSizes) -> DeclaredSizes:
        return DeclaredSizes(
            self.batches + other.batches, self.rows + other.rows, self.elements + other.elements,
            self.buffers + other.buffers, self.decoded + other.decoded,
        )  # fmt: skip


def declared_sizes(stream: bytes | bytearray) -> DeclaredSizes:
    """The sizes that an Arrow stream declares.

    Raises: `Invalid`, kind `arrow_stream`, when it is none, or contradicts itself.
    """
    total = DeclaredSizes()
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
            total += _of_message(message)
    except (pa.ArrowException, OSError, ValueError, TypeError, struct.error) as error:
        raise not_an_arrow_stream(error) from error
    return total


def not_an_arrow_stream(reason: Exception) -> Invalid:
    """The error for a body that is no Arrow stream."""
    return Invalid(
        "the body is no Arrow stream", kind="arrow_stream", reason=str(reason).partition("\n")[0],
        hint="send record batches as application/vnd.apache.arrow.stream",
    )  # fmt: skip


def bounded_stream(file: BinaryIO | io.BufferedIOBase, bytes_max: int = BATCH_BYTES_MAX) -> pa.RecordBatchReader:
    """The batches of a stream as it comes, measured before they are read, and checked to their last offset after.

    Raises: also while it is read, `Invalid`, kind `arrow_batch_large`; `pa.ArrowInvalid` when it is no Arrow stream, or
    contradicts itself.
    """
    reader = pa.ipc.open_stream(_Measured(file, bytes_max))
    return pa.RecordBatchReader.from_batches(reader.schema, _checked(reader, bytes_max))


def _checked(reader: pa.RecordBatchReader, bytes_max: int) -> Iterator[pa.RecordBatch]:
    with reader:
        for batch in reader:
            batch.validate(full=True)  # kernels read it by its addresses
            _check_size(bytes_max, sum(map(expanded_bytes, batch.columns)))
            yield batch


def expanded_bytes(array: pa.Array) -> int:
    """The bytes of rows that share theirs, in a dictionary or as views, once each has its own."""
    if isinstance(array, pa.ExtensionArray):
        return expanded_bytes(array.storage)
    if array.type in (pa.string_view(), pa.binary_view()):
        lengths = np.frombuffer(array.buffers()[1] or b"", np.int32)[::4]  # of 16 bytes a view the first 4
        return int(np.maximum(lengths[array.offset : array.offset + len(array)], 0).sum(dtype=np.int64))
    if not pa.types.is_dictionary(array.type):
        return 0
    values = array.dictionary
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)
            or pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)):  # fmt: skip
        return len(array) * 32
    return int(pc.sum(pc.binary_length(values).take(array.indices)).as_py() or 0)


def _check_size(bytes_max: int, size: int, elements: int = 0) -> None:
    if size > bytes_max or elements > BATCH_ELEMENTS_MAX:
        raise Invalid(
            "a batch of the stream is too large", kind="arrow_batch_large", bytes=size, bytes_max=bytes_max,
            elements=elements, elements_max=BATCH_ELEMENTS_MAX,
            hint="write smaller batches, such as of 65,536 rows",
        )  # fmt: skip


class _Measured(io.RawIOBase):
    """A stream, of which Arrow is given a message when that was measured, with the dictionaries before it."""

    def __init__(self, file: BinaryIO | io.BufferedIOBase, bytes_max: int) -> None:
        super().__init__()
        self._file, self._bytes_max = file, bytes_max
        self._left = memoryview(b"")
        self._dictionaries: dict[int, DeclaredSizes] = {}

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes of one message: Arrow asks for its parts one by one."""
        if not self._left:
            self._left = memoryview(self._message())
        stop = len(self._left) if size is None or size < 0 else size
        data, self._left = bytes(self._left[:stop]), self._left[stop:]
        return data

    def _message(self) -> bytes:
        """The next message; no bytes, or an end of the stream, behind the last."""
        head = self._file.read(4)
        if head == _CONTINUES:
            head += self._file.read(4)  # streams of earlier releases of Arrow begin with the length
        length = int.from_bytes(head[-4:], "little") if len(head) % 4 == 0 else 0
        if length == 0:
            return head
        if length > METADATA_BYTES_MAX:
            raise pa.ArrowInvalid(f"the metadata of a message has {length} bytes")
        metadata = self._file.read(length)
        try:
            body_bytes = _Table.root(memoryview(metadata)).number(_BODY_LENGTH, "<q")
            _check_size(self._bytes_max, body_bytes)
            message = b"".join((head, metadata, self._file.read(max(body_bytes, 0))))
            self._measure(pa.ipc.read_message(pa.py_buffer(message)))
        except Invalid:
            raise
        except (struct.error, ValueError) as error:
            raise pa.ArrowInvalid(str(error)) from error
        return message

    def _measure(self, message: pa.Message) -> None:
        sizes = _of_message(message)
        table = _Table.root(memoryview(message.metadata))
        if table.number(_HEADER_TYPE, "<B") == _DICTIONARY_BATCH and (batch := table.table(_HEADER)) is not None:
            name, before = batch.number(_ID, "<q"), DeclaredSizes()
            if batch.number(_IS_DELTA, "<B"):
                before = self._dictionaries.get(name, before)
            self._dictionaries[name] = before + sizes
            sizes = DeclaredSizes()
        whole = sum(self._dictionaries.values(), sizes)
        _check_size(self._bytes_max, whole.buffers, whole.elements)


def _of_message(message: pa.Message) -> DeclaredSizes:
    metadata = _Table.root(memoryview(message.metadata))
    kind = metadata.number(_HEADER_TYPE, "<B")
    if kind not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return DeclaredSizes()
    batch = metadata.table(_HEADER)
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(_DATA)
    if batch is None:
        raise ValueError("a message has no batch")
    body = message.body
    return _of_batch(batch, memoryview(b"") if body is None else memoryview(body))


def _of_batch(batch: _Table, body: memoryview) -> DeclaredSizes:
    rows, compressed = batch.number(_LENGTH, "<q"), batch.table(_COMPRESSION) is not None
    nodes = [length for length, _ in batch.pairs(_NODES)]
    if rows < 0 or min(nodes, default=0) < 0:
        raise ValueError("a length is negative")
    buffers = decoded = 0
    for offset, length in batch.pairs(_BUFFERS):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ValueError("a buffer lies outside of its message")
        own = _uncompressed(body[offset : offset + length]) if compressed and length else None
        buffers += length if own is None else own
        decoded += own or 0
    return DeclaredSizes(1, rows, sum(nodes), buffers, decoded)


def _uncompressed(buffer: memoryview) -> int | None:
    """The declared length of a compressed buffer; None for one that is stored as it is."""
    (length,) = struct.unpack_from("<q", buffer)
    if length == _NOT_COMPRESSED:
        return None
    if length < 0:
        raise ValueError("a length is negative")
    return int(length)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of FlatBuffers: its fields are found through a table of offsets, its vtable, which tables share."""

    data: memoryview
    offset: int

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, int(struct.unpack_from("<I", data)[0]))

    def _field(self, number: int) -> int | None:
        """The place of a field; None for one that is not stored, and so has its default."""
        vtable = self.offset - struct.unpack_from("<i", self.data, self.offset)[0]
        (size,) = struct.unpack_from("<H", self.data, vtable)
        entry = 4 + 2 * number  # the sizes of vtable and table stand before the fields
        if entry + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, vtable + entry)
        return self.offset + offset if offset else None

    def number(self, field: int, form: str) -> int:
        """A number; 0 by default."""
        offset = self._field(field)
        return 0 if offset is None else int(struct.unpack_from(form, self.data, offset)[0])

    def table(self, field: int) -> _Table | None:
        """A table, which lies elsewhere."""
        offset = self._field(field)
        return None if offset is None else _Table(self.data, offset + struct.unpack_from("<I", self.data, offset)[0])

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two numbers."""
        offset = self._field(field)
        if offset is None:
            return []
        offset += struct.unpack_from("<I", self.data, offset)[0]
        (count,) = struct.unpack_from("<I", self.data, offset)
        start = offset + 4
        if start + count * _PAIR_BYTES > len(self.data):
            raise ValueError("a vector is longer than its message")
        return list(struct.iter_unpack("<qq", self.data[start : start + count * _PAIR_BYTES]))
