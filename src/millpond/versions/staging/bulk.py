"""Rows in bulk, in any order and any number: staged all together or not at all.

    batches ─ chunks, sorted ─┬ few rows ─▶ rows of the token
                              └ runs: indexes of ascending chunks ─ merged, when there are several ─▶ one segment

Invariants:
* Of rows of one path the last one counts.
* Memory holds a chunk, and a block of each run: it does not grow with the rows.
* The branch changes by one write. Nothing is staged when a row cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.ranges import Index
from millpond.ranges.key_columns import key_column
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.layers import Bounds, Stream, combine, index_stream
from millpond.versions.staging.publishing import collections
from millpond.versions.staging.segments import normal_batch, push_segment, sorted_changes, write_segment
from millpond.versions.staging.writes import put_entries

__all__ = ("CHUNK_ROWS", "SEGMENT_ROWS_MIN", "Rows", "stage_rows")

SEGMENT_ROWS_MIN = 4_096
"""Rows from which a table is staged as a segment: fewer cost less as rows of the token."""
CHUNK_ROWS = 1 << 18
"""Rows that are sorted in memory."""
Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"


def stage_rows(
    context: RepositoryContext, branch: str, rows: Rows, *, force: bool = False, chunk_rows: int = CHUNK_ROWS,
    segment_rows_min: int = SEGMENT_ROWS_MIN,
) -> tuple[int, str | None]:  # fmt: skip
    """Stage rows; how many there were, and the id of the segment's index, where they became one.

    Raises: `Invalid` for columns or paths; `NotFound`, `Denied` for the branch; what the batches raise.
    """
    since, chunks = collections(context), _Chunks(context, rows, chunk_rows)
    first = next(chunks, None)
    if first is None:
        return 0, None
    second = next(chunks, None)
    if second is None and first.num_rows < segment_rows_min:
        put_entries(context, branch, first, force=force)
        return chunks.rows, None
    ahead = (chunk for chunk in (first, second) if chunk is not None)
    runs = _runs(context, _chain(ahead, chunks))
    index = runs[0] if len(runs) == 1 else _merged(context, runs)
    push_segment(context, branch, index, since, force=force)
    return chunks.rows, index.id


def _chain(ahead: Iterator[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from ahead
    yield from rest


class _Chunks(Iterator[pa.RecordBatch]):
    """The rows as changes, a chunk at a time: within one each path is once, and they ascend."""

    def __init__(self, context: RepositoryContext, rows: Rows, chunk_rows: int) -> None:
        need_type("rows", rows, Iterable, pa.Table, pa.RecordBatch)
        self._now, self._chunk_rows = context.seconds(), chunk_rows
        if isinstance(rows, pa.RecordBatch):
            rows = [rows]
        self._batches: Iterator[pa.RecordBatch | pa.Table] = iter([rows] if isinstance(rows, pa.Table) else rows)
        self.rows = 0

    def __next__(self) -> pa.RecordBatch:
        batches: list[pa.RecordBatch] = []
        count = 0
        while count < self._chunk_rows and (batch := next(self._batches, None)) is not None:
            batches.append(normal_batch(batch, mtime=self._now))
            count += batch.num_rows
        if not count:
            raise StopIteration
        self.rows += count
        return sorted_changes(batches[0] if len(batches) == 1 else pa.concat_batches(batches))


def _runs(context: RepositoryContext, chunks: Iterator[pa.RecordBatch]) -> list[Index]:
    """Indexes of the chunks, those that ascend one after another in one."""
    runs: list[Index] = []
    chunk: pa.RecordBatch | None = next(chunks)
    while chunk is not None:
        run = _Run(chunk, chunks)
        runs.append(write_segment(context, run))
        chunk = run.beyond
    return runs


class _Run(Iterator[pa.RecordBatch]):
    """Chunks up to the first that does not ascend, which is `beyond`."""

    def __init__(self, first: pa.RecordBatch, chunks: Iterator[pa.RecordBatch]) -> None:
        self._next: pa.RecordBatch | None = first
        self._chunks = chunks
        self.beyond: pa.RecordBatch | None = None

    def __next__(self) -> pa.RecordBatch:
        chunk = self._next
        if chunk is None:
            raise StopIteration
        self._next = next(self._chunks, None)
        if self._next is not None and key_column(self._next.column("key"))[0] <= _last(chunk):
            self.beyond, self._next = self._next, None
        return chunk


def _last(chunk: pa.RecordBatch) -> bytes:
    keys = key_column(chunk.column("key"))
    return keys[len(keys) - 1]


def _merged(context: RepositoryContext, runs: list[Index]) -> Index:
    """The index of all runs; of one path the row of the last run."""
    newest_first = [Stream(index_stream(context.ranges, run, Bounds(rows=1 << 14))) for run in reversed(runs)]
    return write_segment(context, combine(newest_first)[0])
