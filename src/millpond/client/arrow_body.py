"""Arrow streams that nodes answer with: read to their end, or not at all.

Arrow takes an end of the bytes for an end of the stream. Where the length of an answer is lost, as behind a proxy that
closes the connection instead of saying it, a stream that was cut between two batches would be a short answer, and no
error. So the mark at the end of the stream is insisted on.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from millpond.client.transport import Body
from millpond.errors import Unavailable

__all__ = ("read_batches", "read_table")

_END = b"\xff\xff\xff\xff\0\0\0\0"


class _Watched(io.RawIOBase):
    """A body, and the last bytes that were read of it."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self._body = body
        self._last = b""
        self._exhausted = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = self._body.read(size)
        self._exhausted = self._exhausted or not data
        self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        return data

    def has_ended(self) -> bool:
        """True when the mark was read, and nothing after it."""
        return self._last == _END and not self._exhausted


def read_batches(body: Body) -> pa.RecordBatchReader:
    """The batches of an answer, as they come; the body is closed with them.

    Raises: `Unavailable`, kind `answer_cut`, also while they are read; as `Body.read`.
    """
    watched = _Watched(body)
    try:
        stream = pa.ipc.open_stream(watched)
    except BaseException as error:
        body.close()
        if isinstance(error, pa.ArrowException | StopIteration):
            raise _cut(body.node) from error
        raise
    return pa.RecordBatchReader.from_batches(stream.schema, _batches(stream, watched, body))


def _batches(stream: pa.RecordBatchReader, watched: _Watched, body: Body) -> Iterator[pa.RecordBatch]:
    with body:
        try:
            yield from stream
        except (pa.ArrowException, OSError) as error:
            raise _cut(body.node) from error
        if not watched.has_ended():
            raise _cut(body.node)


def read_table(data: bytes, node: str, rows: int) -> pa.Table:
    """All of an answer of so many rows.

    Raises: `Unavailable`, kind `answer_cut`.
    """
    try:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise _cut(node) from error
    if table.num_rows != rows:
        raise _cut(node)
    return table


def _cut(node: str) -> Unavailable:
    return Unavailable(
        "the answer of the node ended before its end", kind="answer_cut", node=node,
        hint="ask again; if it stays so, look at what lies between: a proxy must pass on how long an answer is",
    )  # fmt: skip
