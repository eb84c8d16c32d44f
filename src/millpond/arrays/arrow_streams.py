"""Arrow's stream format, written: batches as bytes, whole or piece by piece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ("stream_of", "stream_pieces")


def stream_of(batch: pa.RecordBatch) -> memoryview:
    """The bytes of a stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def stream_pieces(schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[bytes]:
    """The bytes of a stream: a piece for each batch, made when it is taken, and the end; one holds the schema, too."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write(batch)
            yield _taken(sink)
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
