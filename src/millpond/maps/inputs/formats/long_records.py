"""The record of a CSV file that is too long to be read: searched for when reading has failed, to name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

__all__ = ("LongRecord", "find_long_record")

_QUOTE, _END = ord('"'), ord("\n")


@dataclass(frozen=True, slots=True)
class LongRecord:
    """A record: how many with anything in them stand before it, its size, and its largest cell, counted from 0.

    `open`: a quote in it is never closed.
    """

    number: int
    size: int
    cell: int
    open: bool


def find_long_record(chunks: Iterable[bytes], bytes_max: int, delimiter: str) -> LongRecord:
    """The first record of more than `bytes_max`, else the last one."""
    number, size, inside, head = 0, 0, 0, b""
    for chunk in chunks:
        if inside and b'"' not in chunk:
            size, head = size + len(chunk), head if len(head) >= bytes_max else head + chunk
            continue
        data = np.frombuffer(chunk, np.uint8)
        quoted = (np.cumsum(data == _QUOTE, dtype=np.uint8) + inside) & 1
        ends = np.flatnonzero((data == _END) & (quoted == 0))
        sizes = np.diff(ends, prepend=-1) - 1
        if len(ends):
            sizes[0] += size
        long = np.flatnonzero(sizes > bytes_max)
        stop = len(ends) if not len(long) else int(long[0])
        number += int(np.count_nonzero(sizes[:stop]))
        start = 0 if stop == 0 else int(ends[stop - 1]) + 1
        head = (head if stop == 0 else b"") + chunk[start:] if len(head) < bytes_max or stop else head
        if len(long):
            return LongRecord(number, int(sizes[stop]), _largest_cell(head[: int(sizes[stop])], delimiter), open=False)
        size = (size if stop == 0 else 0) + len(chunk) - start
        inside = int(quoted[-1])
    return LongRecord(number, size, _largest_cell(head, delimiter), bool(inside))


def _largest_cell(record: bytes, delimiter: str) -> int:
    data = np.frombuffer(record, np.uint8)
    quoted = np.cumsum(data == _QUOTE) & 1
    marks = np.flatnonzero((data == ord(delimiter)) & (quoted == 0))
    return int(np.diff(marks, prepend=-1, append=len(data)).argmax())
