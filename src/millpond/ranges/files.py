"""Files of one record batch, and the seal that lets each be checked alone.

A range or an index is named by its columns (`range_ids.py`), and two versions of Arrow may write other bytes for the
same columns. So a checksum of the bytes cannot be the name, nor stand in whatever refers to the file: a file that
another version wrote would be accused, though it holds what it should. Each file carries its own, in the one item of
metadata of its schema:

    millpond: "range 2 <id> <checksum>"

* The checksum is XXH3-128 over all bytes of the file, its own 32 digits taken as zeros. Arrow writes the schema twice
  (in front, and again in the footer), so the seal stands there twice; both are filled in after the file is written.
* It tells damage, fast: a tenth of what the id costs. The id tells content, and is made again from the columns where
  bytes come from elsewhere and where all is verified.
* Every format that follows keeps this item, so a reader can tell a file of another format from a damaged one.

A range that lies far away is written in *blocks*, format 5: messages that are packed and compressed, each of which can
be fetched and read alone (`blocks.py`), and its filter, behind a batch without rows, where Arrow does not look. Blocks
of formats 3 and 4 are batches of the file, as they are in memory; they are read. The id is the same in each. Whoever
reads the file whole gets one batch, which is a copy; on this machine it lies as one batch again, to be mapped
(`in_form`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.ranges.blocks import BlockTable, blocks_of, filter_of
from millpond.ranges.canonical import canonical
from millpond.ranges.ids import BLOCKS_FORMAT, FILTERS_FORMAT, FORMAT, FORMATS, PACKED_FORMAT, Subject
from millpond.ranges.messages import message_in, message_of
from millpond.ranges.packing import packed, unpacked
from millpond.ranges.scratch_batch import scratch_buffer
from millpond.stores.objects import Objects, is_whole, put_with_copy

__all__ = (
    "FarFile", "content_id", "far_file", "far_form", "format_said", "in_form", "put_content", "read_batch",
    "read_sealed", "sealed_bytes", "write_batch",
)  # fmt: skip

SEAL = b"millpond"
_ZEROS = b"0" * 32
_SEALED = re.compile(rb"(range|index) ([0-9]{1,9}) ([0-9a-f]{64}) ([0-9a-f]{32})")
_CONTENT_BYTES = 20
_PLAIN = pa.ipc.IpcWriteOptions(compression=None)
_IN_BLOCKS = (BLOCKS_FORMAT, FILTERS_FORMAT, PACKED_FORMAT)
_BLOCKS = b"blocks"
"""The item of a schema's metadata that has the number of packed blocks behind the batch."""
_FRAME_BYTES = 4096
"""More than an Arrow file of one batch has beside the batch and its schema, which stands there twice."""


def content_id(data: bytes | memoryview | pa.Buffer) -> str:
    """The name of bytes (not of columns): BLAKE2b with 20 bytes, in hexadecimal digits.

    >>> content_id(b"")
    '3345524abf6bbe1809449224b5972c41790b6cf2'
    """
    return blake2b(memoryview(data), digest_size=_CONTENT_BYTES).hexdigest()


def put_content(
    objects: Objects, name: str, data: pa.Buffer, here: Callable[[], pa.Buffer] | None = None
) -> bool:  # fmt: skip
    """Store bytes under a name that stands for their content, unless they are there; True when they were stored.

    `here` makes their copy on this machine, where that has another form.
    """
    if is_whole(objects, name, data.size):
        return False
    put_with_copy(objects, name, data, here or (lambda: data))
    return True


def write_batch(
    batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None, *, folder: Path | None = None
) -> pa.Buffer:
    """A canonical batch as an Arrow IPC file; without `options`, not compressed, its buffers 8-byte aligned.

    Given a folder, a file that is not compressed lies there, without a name, and not in memory.
    """
    if options is None:
        # A stream that grows takes twice the bytes of the file.
        size = pa.ipc.get_record_batch_size(batch) + 3 * len(batch.schema.serialize()) + _FRAME_BYTES
        data = pa.allocate_buffer(size) if folder is None else scratch_buffer(folder, size)
        with pa.FixedSizeBufferWriter(data) as sink:
            _write_file(sink, [batch], _PLAIN)
            size = sink.tell()
        # No slice of the buffer, as nobody may write to one: the checksum is filled in later.
        return pa.py_buffer(np.frombuffer(data, np.uint8)[:size])
    grown = pa.BufferOutputStream()
    _write_file(grown, [batch], options)
    return grown.getvalue()


def _write_file(
    sink: pa.NativeFile, batches: Sequence[pa.RecordBatch], options: pa.ipc.IpcWriteOptions, behind: bytes = b""
) -> list[int]:  # fmt: skip
    """Write a file, with bytes `behind` its batches that are none of Arrow's; the places where its batches end."""
    ends = []
    with pa.ipc.new_file(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
        sink.write(behind)
    return ends


def _plain_size(batch: pa.RecordBatch, id_: str) -> int:
    """The bytes of the file of a canonical batch, as a range of that id that is neither compressed nor in blocks."""
    counted = pa.MockOutputStream()
    _write_file(counted, [batch.replace_schema_metadata({SEAL: _empty_seal("range", id_, FORMAT)})], _PLAIN)
    return int(counted.size())


def read_batch(data: pa.Buffer, name: str, *, blocks: bool = False) -> pa.RecordBatch:
    """The one batch of such a file, lying in `data`: nothing is copied. Several `blocks` are put together.

    Raises: `Corrupt` when the bytes are not such a file.
    """
    try:
        file = pa.ipc.open_file(data)
        if blocks and _BLOCKS in (file.schema.metadata or {}):
            return pa.concat_batches(_blocks_behind(data, file.schema)[0])
        if file.num_record_batches == 1 and file.schema.names:  # names that are text
            return file.get_batch(0)
        if blocks and file.num_record_batches and file.schema.names:
            return pa.concat_batches([file.get_batch(number) for number in range(file.num_record_batches)])
    except (pa.ArrowException, OSError, EOFError, LookupError, ValueError) as error:
        raise Corrupt("not an Arrow file", kind="range_damaged", object=name) from error
    raise Corrupt("not a file of one batch", kind="range_damaged", object=name)


def sealed_bytes(
    subject: Subject,
    id_: str,
    batch: pa.RecordBatch,
    *,
    options: pa.ipc.IpcWriteOptions | None = None,
    format_number: int = FORMAT,
    folder: Path | None = None,
) -> pa.Buffer:
    """A batch as a file with its seal, which stands beside what metadata its schema has; `folder` as of `write_batch`.

    A canonical batch that is compressed is packed first (`packing.py`).
    """
    empty = _empty_seal(subject, id_, format_number)
    if options is not None and options.compression is not None:
        batch = packed(batch)
    data = write_batch(
        batch.replace_schema_metadata({**(batch.schema.metadata or {}), SEAL: empty}), options, folder=folder
    )
    return _filled(data, empty)


class FarFile(NamedTuple):
    """The file of a range as it lies far away, and what an index says of it; without `table`, it has no blocks."""

    data: pa.Buffer
    table: BlockTable | None = None
    filter: pa.Buffer | None = None


def far_file(id_: str, batch: pa.RecordBatch, plain: pa.Buffer | None = None) -> FarFile:
    """A canonical batch as the file of packed blocks of this id; in `plain` form where it has no use of blocks."""
    blocks, filter_ = blocks_of(batch), filter_of(batch.column("key"))
    if not blocks:
        return FarFile(sealed_bytes("range", id_, batch) if plain is None else plain, filter=filter_)
    messages = [message_of(block) for block in blocks]
    empty = _empty_seal("range", id_, PACKED_FORMAT)
    # It stays a file that any reader of Arrow opens: blocks stand behind a batch without rows.
    first = canonical(batch.slice(0, 0)).replace_schema_metadata({SEAL: empty, _BLOCKS: str(len(blocks)).encode()})
    grown = pa.BufferOutputStream()
    begin = _write_file(grown, [first], _PLAIN, b"".join([*messages, filter_]))[0]
    ends = accumulate((message.size for message in messages), initial=begin)
    return _far_file(id_, _filled(grown.getvalue(), empty), batch, blocks, list(ends), filter_)


def _far_file(
    id_: str, data: pa.Buffer, batch: pa.RecordBatch, blocks: list[pa.RecordBatch], ends: list[int], filter_: pa.Buffer
) -> FarFile:  # fmt: skip
    table = BlockTable.of(data, list(pairwise(ends)), blocks, _plain_size(batch, id_), filter_)
    return FarFile(data, table, filter_)


def _blocks_behind(data: pa.Buffer, schema: pa.Schema) -> tuple[list[pa.RecordBatch], list[int]]:
    """The packed blocks of a file: where the first begins, and where each ends in it."""
    source, blocks = pa.BufferReader(data), []
    source.seek(len(_ends(data)[0]))
    pa.ipc.read_message(source)  # the batch without rows
    ends = [source.tell()]
    for _ in range(int(schema.metadata[_BLOCKS])):
        blocks.append(message_in(source, schema))
        ends.append(source.tell())
    return blocks, ends


def _empty_seal(subject: Subject, id_: str, format_number: int) -> bytes:
    return f"{subject} {format_number} {id_} ".encode() + _ZEROS


def _filled(data: pa.Buffer, empty: bytes) -> pa.Buffer:
    """A file whose seal has no checksum yet, with it."""
    # The zeros are looked for in the schema alone: rows may hold the same bytes.
    places = _places(data, empty)
    assert len(places) == 2, "Arrow writes the schema in front and in the footer"
    # The digits are zeros now, so this is the checksum that a reader will make.
    digits = np.frombuffer(_checksum(data, ()).encode(), np.uint8)
    filled = np.frombuffer(data, np.uint8)
    for place in places:
        filled[place : place + len(digits)] = digits
    return data


def in_form(data: pa.Buffer, name: str, *, blocks: bool, rows: pa.RecordBatch | None = None) -> pa.Buffer:
    """A sound file as it lies where files are far away, in `blocks`, or on this machine; one of other content as it is.
    `rows` are those of a range that was read already.

    Compressed ranges, and those too small or too large for blocks, have one form.
    """
    if blocks:
        return far_form(data, name, rows).data
    path = PurePosixPath(name)
    if path.parent.name != "ranges" or _format_of(data) not in _IN_BLOCKS:
        return data
    return sealed_bytes("range", path.stem, canonical(_rows_of(data, name, rows)))


def far_form(data: pa.Buffer, name: str, rows: pa.RecordBatch | None = None) -> FarFile:
    """A sound file as it lies where files are far away, with what an index says of it; without that, as it is. `rows`
    are those of a range that was read already.
    """
    path = PurePosixPath(name)
    number = _format_of(data) if path.parent.name == "ranges" else 0
    if number not in (FORMAT, PACKED_FORMAT):
        return FarFile(data)
    batch = canonical(_rows_of(data, name, rows))
    if number == FORMAT:
        # A file that is compressed is no larger than its batch by more than its frame.
        return FarFile(data) if data.size < batch.nbytes else far_file(path.stem, batch, data)
    blocks, ends = _blocks_behind(data, pa.ipc.open_file(data).schema)
    return _far_file(path.stem, data, batch, blocks, ends, filter_of(batch.column("key")))


def _rows_of(data: pa.Buffer, name: str, rows: pa.RecordBatch | None) -> pa.RecordBatch:
    if rows is None:
        rows = read_sealed("range", PurePosixPath(name).stem, data, name=name, where="", verify=False)
    return rows.replace_schema_metadata(None)


def format_said(schema: pa.Schema) -> int:
    """The number of the format in the seal of a file that was read."""
    seal = _SEALED.fullmatch((schema.metadata or {}).get(SEAL, b""))
    return 0 if seal is None else int(seal[2])


def _format_of(data: pa.Buffer) -> int:
    """The number that the seal of a file says; 0 without one."""
    seal = _SEALED.search(_ends(data)[1])
    return 0 if seal is None else int(seal[2])


def read_sealed(
    subject: Subject, id_: str, data: pa.Buffer, *, name: str, where: str, verify: bool = True
) -> pa.RecordBatch:
    """The batch of a file that must be the one of that id; `verify` reads all bytes and makes their checksum. The
    metadata of its schema say the format.

    Raises: `Corrupt`; `Invalid` for a file of another format. Both name the file.
    """
    # Before Arrow looks at a byte: it trusts the lengths in its file.
    if verify and not _sound(data):
        raise _refusal(subject, id_, data, name, where)
    blocks = subject == "range" and _format_of(data) in _IN_BLOCKS
    batch = read_batch(data, name, blocks=blocks)
    seal = _SEALED.fullmatch((batch.schema.metadata or {}).get(SEAL, b""))
    if seal is None or seal.group(1, 3) != (subject.encode(), id_.encode()) or int(seal[2]) not in FORMATS:
        raise _refusal(subject, id_, data, name, where)
    try:
        return unpacked(batch)
    except (ValueError, LookupError, pa.ArrowException) as error:
        raise _refusal(subject, id_, data, name, where) from error


def _refusal(subject: Subject, id_: str, data: pa.Buffer, name: str, where: str) -> MillpondError:
    """A file that is whole, but of another format, is not damaged."""
    seal = _SEALED.search(_ends(data)[1])
    # Format 1 had no seal, and was named by the hash of its bytes.
    version = int(seal[2]) if seal is not None and _sound(data) else 1 if content_id(data) == id_ else FORMAT
    if version not in FORMATS:
        return Invalid(
            "the file is of another format", kind="range_format", object=name, where=where, found=version,
            known=FORMATS[-1], hint="read it with the version that wrote it, or make it anew",
        )  # fmt: skip
    if subject == "index":
        return Corrupt("the index is not what was written", kind="index_damaged", object=name, where=where)
    return Corrupt("the range is not what was written", kind="range_damaged", object=name, where=where)


def _sound(data: pa.Buffer) -> bool:
    """True when the checksum in the file is the one of its bytes."""
    seal = _SEALED.search(_ends(data)[1])
    if seal is None:
        return False
    places = _places(data, seal[0])
    return len(places) == 2 and _checksum(data, places).encode() == seal[4]


def _checksum(data: pa.Buffer, zeroed: Sequence[int]) -> str:
    """XXH3-128 of a file, the 32 digits at each of these places taken as zeros."""
    digest, view, start = xxhash.xxh3_128(), memoryview(data), 0
    for place in zeroed:
        digest.update(view[start:place])
        digest.update(_ZEROS)
        start = place + len(_ZEROS)
    digest.update(view[start:])
    return digest.hexdigest()


def _places(data: pa.Buffer, seal: bytes) -> list[int]:
    """The offsets of the checksum's digits: one in the schema's message, one in the footer."""
    front, back = _ends(data)
    seals = ((0, front.find(seal)), (data.size - len(back), back.find(seal)))
    places = [start + at + len(seal) - len(_ZEROS) for start, at in seals if at >= 0]
    return places if len(set(places)) == len(places) else []


def _ends(data: pa.Buffer) -> tuple[bytes, bytes]:
    """The bytes through the schema's message, and those from the footer on; small, whatever the file holds."""
    view = memoryview(data)
    # Read from the lengths in the file, so that rows of gigabytes are not searched.
    front = 16 + int.from_bytes(view[12:16], "little")  # magic, continuation, length
    back = 10 + int.from_bytes(view[-10:-6], "little")  # length, magic
    return bytes(view[:front]), bytes(view[max(0, len(view) - back) :])
