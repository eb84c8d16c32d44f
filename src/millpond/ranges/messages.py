"""Batches as messages of Arrow that can be read alone: packed and compressed for the way, or as they are in memory.

    packed    the message of a schema, which says the forms (`packing.py`) │ the message of the rows, compressed
    plain     the message of the rows, which is mapped where it lies

Blocks of ranges in buckets are packed, and so are the rows that tasks of Spark leave there for each other.
"""

from __future__ import annotations

import pyarrow as pa

from millpond.ranges.packing import packed, unpacked

__all__ = ("message_in", "message_of", "plain_message")

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Not by zstd, which makes a third less of it: that takes twice as long to write and five times as long to read."""
_ALONE = pa.ipc.IpcReadOptions(use_threads=False)
"""To wake other threads takes longer than to decompress a block."""


def message_of(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as packed messages."""
    content, out = packed(batch, deep=True), pa.BufferOutputStream()
    writer = pa.ipc.new_stream(out, content.schema, options=_COMPRESSED)
    writer.write_batch(content)
    size = out.tell()
    writer.close()
    return out.getvalue()[:size]  # without the mark of the end


def message_in(source: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of the next messages, in either form.

    Raises: `ValueError` and others of Arrow for what is no batch of the schema.
    """
    begin, message = source.tell(), pa.ipc.read_message(source)
    if message.type != "schema":
        return pa.ipc.read_record_batch(message, schema)
    # Packed ones are a stream, which is read from its schema on.
    source.seek(begin)
    rows = _rows_in(source)
    if not rows.schema.equals(schema):
        raise ValueError(f"other columns: {rows.schema.names}")
    return rows.replace_schema_metadata(schema.metadata)


def _rows_in(source: pa.NativeFile) -> pa.RecordBatch:
    return unpacked(pa.ipc.open_stream(source, options=_ALONE).read_next_batch())


def plain_message(data: pa.Buffer) -> pa.Buffer:
    """The plain message of packed ones; others, and what is none, as they are."""
    try:
        if pa.ipc.read_message(data).type == "schema":
            return _rows_in(pa.BufferReader(data)).serialize()
    except (pa.ArrowException, OSError, EOFError, LookupError, ValueError):
        return data  # whoever opens it says what is wrong
    return data
