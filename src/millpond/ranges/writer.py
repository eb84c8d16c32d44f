"""Writing ranges: sorted batches in, content-named files and their index out.

Batches are made canonical, cut where their keys say, and written range by range; a few threads write ranges
while the next is being cut. Nobody is told of an index before all its ranges are stored. Ranges that lie in the
place already are not written again. Where files are far away, they are written in packed blocks and have
filters (`blocks.py`), unless they are compressed whole.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid
from millpond.kernel.closing import Closing
from millpond.kernel.steps import step
from millpond.ranges.blocks import FILTERS_BYTES_MAX
from millpond.ranges.canonical import bare, canonical, check_types, decoded, row_sizes
from millpond.ranges.files import FarFile, far_file, put_content, sealed_bytes
from millpond.ranges.ids import columns_id
from millpond.ranges.index import DEFAULT_BOUNDARIES, Boundaries, Index, RangeEntry, range_name, store_index
from millpond.ranges.key_columns import cut, first_unordered, key_column
from millpond.ranges.scratch_batch import joined
from millpond.stores.objects import Objects

__all__ = ("BYTES_AT_ONCE_MAX", "RangeWriter", "write")

_WRITING_MAX = 4  # ranges written at once: a disk or a bucket makes each wait, and they may wait together
BYTES_AT_ONCE_MAX = 128 << 20
"""So many bytes of ranges are written at once; each takes about three times its bytes meanwhile."""
_ROWS_THREADED_MIN = 1 << 10  # a thread costs more than storing fewer
_LEVEL = 1  # of zstd: higher ones cost more time than they save bytes


def write(
    objects: Objects,
    batches: Iterable[pa.RecordBatch],
    boundaries: Boundaries = DEFAULT_BOUNDARIES,
    *,
    schema: pa.Schema | None = None,
    compression: str | None = None,
    bytes_at_once: int = BYTES_AT_ONCE_MAX,
) -> Index:
    """Write entries as ranges and an index. `schema` is needed when there may be no batch at all.

    `compression` (`zstd`, `lz4`) makes files smaller that readers then unpack instead of mapping them; the names of
    ranges do not depend on it. `bytes_at_once` bounds the bytes of ranges that are written at the same time; one is,
    however large.

    The batches hold `key: binary`, strictly ascending over all of them, and any other columns.

    Raises: `Invalid` for keys out of order, columns that ranges do not keep, batches of different schemas;
    `Unavailable` when the place is full: what was written stays invisible and is found again by the next attempt.
    """
    rest = iter(batches)
    first = next(rest, None)
    if schema is None:
        if first is None:
            raise Invalid("no batches and no schema", kind="range_schema", hint="pass schema=")
        schema = first.schema
    with RangeWriter(objects, schema, boundaries, compression=compression, bytes_at_once=bytes_at_once) as writer:
        for batch in itertools.chain([] if first is None else [first], rest):
            writer.append(batch)
        return writer.finish()


class RangeWriter(Closing):
    """Takes ascending entries, or whole ranges as they are, and ends with an index. A context manager."""

    def __init__(
        self,
        objects: Objects,
        schema: pa.Schema,
        boundaries: Boundaries = DEFAULT_BOUNDARIES,
        *,
        compression: str | None = None,
        bytes_at_once: int = BYTES_AT_ONCE_MAX,
        filters: bool = True,
    ) -> None:
        """Without `filters`, they stay in the files of ranges: others write for the same index, too many together."""
        self.schema = bare(schema)
        check_types(self.schema)
        self.boundaries = boundaries
        self._objects = objects
        self._key = self.schema.get_field_index("key")
        self._pending: list[pa.RecordBatch] = []  # the open range
        self._rows = self._bytes = 0
        self._last: bytes | None = None
        self._entries: list[RangeEntry | Future[RangeEntry]] = []
        self._writing: deque[tuple[Future[RangeEntry], int]] = deque()  # with their bytes
        self._bytes_at_once = bytes_at_once
        codec = pa.Codec(compression, _LEVEL) if compression == "zstd" else compression
        self._options = None if compression is None else pa.ipc.IpcWriteOptions(compression=codec)
        self._in_blocks = objects.in_blocks and compression is None
        self._filters = filters
        self._filter_bytes = 0
        self._threads = ThreadPoolExecutor(_WRITING_MAX, thread_name_prefix="ranges")

    @property
    def at_boundary(self) -> bool:
        """True when a range has just ended, so that another may be adopted."""
        return self._rows == 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Go on with the entries of a batch.

        Raises: `Invalid`.
        """
        if not bare(batch.schema).equals(self.schema):
            raise Invalid(
                "a batch differs from the ones before", kind="range_schema", expected=self.schema, actual=batch.schema
            )
        if batch.num_rows == 0:
            return
        if batch.column(self._key).null_count:
            raise Invalid("a key is null", kind="range_null", column="key")
        # Before sizes are taken: how a producer laid the rows must not move the ends of ranges.
        batch = canonical(decoded(batch), self.schema)
        self._check_order(batch)
        for start, stop, ended in self._cut(batch):
            self._pending.append(batch.slice(start, stop - start))
            if ended:
                self._end_range()

    def _check_order(self, batch: pa.RecordBatch) -> None:
        keys = key_column(batch.column(self._key))
        row = first_unordered(keys.offsets, keys.data)
        if row < 0 and self._last is not None and keys[0] <= self._last:
            row = 0
        if row >= 0:
            before = keys[row - 1] if row else self._last
            raise Invalid("keys do not ascend", kind="range_order", before=before, key=keys[row])
        self._last = keys[len(keys) - 1]

    def _cut(self, batch: pa.RecordBatch) -> list[tuple[int, int, bool]]:
        """The pieces of a batch as start, stop and whether a range ends there; moves the open range's measure on."""
        keys = key_column(batch.column(self._key))
        ends = np.empty(batch.num_rows, np.int64)
        limits = self.boundaries
        batches, self._rows, self._bytes = cut(
            keys.offsets, keys.data, row_sizes(batch), self._rows, self._bytes,
            limits.rows_min, limits.rows_max, limits.bits, limits.bytes_max, ends,
        )  # fmt: skip
        stops = ends[:batches].tolist()
        pieces = [(start, stop, True) for start, stop in zip([0, *stops], stops, strict=False)]
        if self._rows:
            pieces.append((stops[-1] if stops else 0, batch.num_rows, False))
        return pieces

    def _end_range(self) -> None:
        pieces, self._pending = self._pending, []
        if sum(piece.num_rows for piece in pieces) < _ROWS_THREADED_MIN:
            self._entries.append(self._store(pieces))
            return
        size = sum(piece.nbytes for piece in pieces)
        while self._writing and self._are_enough(size):
            self._writing.popleft()[0].result()  # its error, if any, is ours now
        if size > self._bytes_at_once:
            self._entries.append(self._store(pieces))  # nothing is cut meanwhile, which would take memory too
            return
        stored = self._threads.submit(self._store, pieces)
        self._writing.append((stored, size))
        # A promise, in the place of its entry: threads end in any order, and entries ascend.
        self._entries.append(stored)

    def _are_enough(self, size: int) -> bool:
        """True when one more range of so many bytes waits until another is stored."""
        bytes_there = sum(other for _, other in self._writing)
        return len(self._writing) == _WRITING_MAX or bytes_there + size > self._bytes_at_once

    def _store(self, pieces: list[pa.RecordBatch]) -> RangeEntry:
        entry, put = self._made(pieces)
        put()
        return entry

    def _made(self, pieces: list[pa.RecordBatch]) -> tuple[RangeEntry, Callable[[], object]]:
        """The entry of a range, and the act that stores it."""
        folder = self._scratch_folder(sum(piece.nbytes for piece in pieces))
        if folder is None or len(pieces) == 1:
            batch = canonical(pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces))
        else:
            batch = joined(folder, self.schema, pieces)
        # The caller holds the list: their memory goes before the file takes as much again.
        pieces.clear()
        id_ = columns_id("range", batch)
        if self._in_blocks:
            far = far_file(id_, batch)
        else:
            far = FarFile(sealed_bytes("range", id_, batch, options=self._options, folder=folder))
        # To unpack what was just packed would take longer than all else.
        here = None if far.table is None else partial(sealed_bytes, "range", id_, batch)
        put = partial(put_content, self._objects, range_name(id_), far.data, here)
        keys = key_column(batch.column(self._key))
        first, last = keys[0], keys[len(keys) - 1]
        entry = RangeEntry(id_, first, last, batch.num_rows, far.data.size, far.table, self._indexed(far.filter))
        return entry, put

    def _indexed(self, filter_: pa.Buffer | None) -> pa.Buffer | None:
        """The filter of a range, for the index; none where that would have too many bytes of them, and gets none."""
        if filter_ is None or not self._filters or self._filter_bytes > FILTERS_BYTES_MAX:
            return None
        # Threads may lose an addition of each other. Then a few more are held, and `store_index` counts anew.
        self._filter_bytes += filter_.size
        return filter_

    def _scratch_folder(self, size: int) -> Path | None:
        """The folder in which a range of so many bytes is put together; None: in memory.

        A range beyond its boundaries has one entry that is large, which may be any size.
        """
        if size <= max(2 * self.boundaries.bytes_max, self._bytes_at_once):
            return None
        file = self._objects.local_path("scratch")
        return file.parent if file is not None and file.parent.is_dir() else None

    def adopt(self, entry: RangeEntry) -> None:
        """Take over a range of the same schema and boundaries that is stored already, without reading it."""
        assert self.at_boundary and (self._last is None or self._last < entry.first), "only a whole range, in order"
        # Of a range that was not read: what is appended next must still be above it.
        self._last = entry.last
        self._entries.append(entry)

    def end(self) -> list[RangeEntry]:
        """End the last range, and wait until all are stored; no index is written."""
        if self._pending:
            # The last range is stored in this thread, which waits for it anyway: most indexes have but one that is new.
            pieces, self._pending = self._pending, []
            self._entries.append(self._store(pieces))
        entries = [entry.result() if isinstance(entry, Future) else entry for entry in self._entries]
        self.close()
        step("ranges.written")
        return entries

    def finish(self) -> Index:
        """End the last range, wait until all are stored, and write the index: far away beside the last range, for each
        put is waited for.
        """
        beside = []
        if self._pending and self._objects.in_blocks:
            pieces, self._pending = self._pending, []
            entry, put = self._made(pieces)
            self._entries.append(entry)
            beside.append(put)
        index = store_index(self._objects, self.end(), self.schema, self.boundaries, beside)
        step("ranges.indexed")
        return index

    def close(self) -> None:
        """Let the writing threads go; without `finish`, what was written stays unreachable."""
        self._threads.shutdown(wait=True, cancel_futures=True)
