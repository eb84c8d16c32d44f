"""Rows that many tasks read and others write as a layer: meanwhile they wait in files, cut by the hash of their keys.

    task 1   rows.ipc   0 0 3 7 7 … │ 0 1 3 …      messages of Arrow, of one share each; shares ascend within a block
    task 2   rows.ipc   1 2 …
    share 0 of all files, in the order of the tasks ─▶ sorted groups ─▶ ranges

Of an aggregate, the events of a block are combined before, as long as that leaves at most half as many rows.
Where files go to a bucket, a batch of many rows is packed as a block of a range is (`ranges/messages.py`): a third of
the bytes, which go over the network twice.

Shuffling by files needs no rows in the Java of a Spark, whose executors see the folder or the bucket of the pond
anyway. Nothing is sorted before all rows of a share are together: each row is sorted once. The messages of neighbouring
shares adjoin within a block, so a stretch of them is one read, which of a bucket is one request.

Invariants:
* rows of one key are in one share, in the order in which they came: within a file, then in the order of files;
* a file is complete before anybody hears of it, and goes with the folder of its job: it need not be durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from millpond.arrays.ahead import ordered_results
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Corrupt, NotFound
from millpond.kernel.steps import step
from millpond.maps.model.columns import canonical_schema, check_columns
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.event_digest import digest_of
from millpond.maps.snapshots.groups_of_rows import freeze_groups
from millpond.maps.snapshots.partition_filter import shares_of
from millpond.maps.snapshots.rows_of_groups import rows_of_groups
from millpond.ranges.messages import message_in, message_of
from millpond.stores.files import disk_errors
from millpond.stores.objects import Objects

__all__ = ("SHARES", "RowFile", "RowFileWriter", "rows_of_shares")

SHARES = 128
"""A share of a hundred million rows can be sorted in memory."""
BLOCK_BYTES = 64 << 20
"""The bytes of rows that are cut together: with fewer, the batches of a share are small."""
PIECE_ROWS = 1 << 16
"""So many rows are put in order at once, in the caches of the processor; in twenty times more each waits for memory."""
FETCHED_AHEAD = 4
"""The stretches of files that are fetched from a bucket at once, of `BLOCK_BYTES` at most."""
PACKED_ROWS_MIN = 512
"""Of fewer rows, a schema is larger than what packing saves."""
_FILE = "rows.ipc"
_WORTH = 2
"""Of so many events at least a row must become one: else combining costs more than it saves."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """The rows of one task for one map: the share and the rows of each batch of the file, of `count` shares.

    `ends` has the byte behind each batch. `bytes` is the size of the rows in memory, `value` the id of the value type
    that they were written under, `digest` that of the events of an aggregate. `path` is a file, or an object of `lies`.
    """

    path: str
    map: str
    incarnation: str
    batches: tuple[tuple[int, int], ...]
    ends: tuple[int, ...]
    count: int
    bytes: int
    value: str
    digest: int = 0
    lies: Objects | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(rows for _, rows in self.batches)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The bytes `[begin, end)` of the batches of some shares, and how many batches: as few spans as there are.

        >>> file = RowFile("", "", "", ((0, 1), (1, 1), (2, 1), (0, 1), (1, 1)), (8, 16, 24, 32, 40), 3, 0, "")
        >>> list(file.spans(1, 3))
        [(8, 24, 2), (32, 40, 1)]
        """
        for inside, run in groupby(range(len(self.batches)), lambda number: start <= self.batches[number][0] < stop):
            if inside:
                first, *others = run
                last = others[-1] if others else first
                yield self.ends[first - 1] if first else 0, self.ends[last], last - first + 1


class RowFileWriter:
    """Takes canonical rows of one map, as `PartWriter` does, into a file below a folder."""

    def __init__(self, definition: MapDefinition, folder: Path, *, packs: bool = False) -> None:
        """`packs`: the file will go to a bucket."""
        self._definition, self._folder, self._packs = definition, folder, packs
        self._schema = canonical_schema(definition)
        self._count = SHARES if definition.kind.keyed else 1
        self._held: list[pa.RecordBatch] = []
        self._bytes = self._written = self._digest = 0
        self._batches: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._file: BinaryIO | None = None
        self._combining = definition.aggregation is not None

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows.

        Raises: `Invalid` when the columns are not the map's; `Unavailable` when the disk is full.
        """
        check_columns(rows, self._schema, self._definition.name)
        if rows.num_rows:
            if self._definition.aggregation is not None:
                self._digest += digest_of(self._definition, rows)
            self._held.append(rows)
            self._bytes += rows.nbytes
            if self._bytes >= BLOCK_BYTES:
                self._write_block()

    def _write_block(self) -> None:
        rows = pa.Table.from_batches(self._held, self._schema)
        self._written += self._bytes
        self._held, self._bytes = [], 0
        with disk_errors(self._folder):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = (self._folder / _FILE).open("xb")
            for share, within in self._cut(self._combined(rows) if self._combining else rows):
                self._file.write(message_of(within) if self._is_packed(within) else within.serialize())
                self._batches.append((share, within.num_rows))
                self._ends.append(self._file.tell())

    def _is_packed(self, rows: pa.RecordBatch) -> bool:
        return self._packs and rows.num_rows >= PACKED_ROWS_MIN

    def _combined(self, events: pa.Table) -> pa.Table:
        """Events as rows of buckets: later loads and folds add up either."""
        groups = freeze_groups(self._definition, events.to_batches())
        rows = pa.Table.from_batches([rows_of_groups(self._definition, batch) for batch in groups], self._schema)
        self._combining = _WORTH * len(rows) <= len(events)
        return rows

    def _cut(self, rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows by their share, those of a share in the order in which they came."""
        if self._count == 1:
            yield from ((0, batch) for batch in rows.combine_chunks().to_batches())
            return
        pieces = [self._ordered(batch) for batch in rows.to_batches(max_chunksize=PIECE_ROWS)]
        for share in range(self._count):
            within = [ordered.slice(ends[share], ends[share + 1] - ends[share]) for ordered, ends in pieces]
            some = [batch for batch in within if batch.num_rows]
            if some:
                yield share, some[0] if len(some) == 1 else pa.concat_batches(some)

    def _ordered(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """Rows by their share, and where each share begins among them, and ends."""
        shares = shares_of(hash_keys(rows.column("key"), bits=self._definition.hash_bits), self._count)
        order = np.argsort(shares.astype(np.uint8), kind="stable")
        ends = np.cumsum(np.bincount(shares, minlength=self._count))
        return rows.take(pa.array(order)), [0, *ends.tolist()]

    def finish(self) -> list[RowFile]:
        """The file of all that was written; none without rows.

        Raises: `Unavailable` when the disk is full.
        """
        if self._held:
            self._write_block()
        if self._file is None:
            return []
        with disk_errors(self._folder):
            self._file.close()
        step("rows.filed")
        definition, path, batches = self._definition, str(self._folder / _FILE), tuple(self._batches)
        name, incarnation, value = definition.name, definition.incarnation, definition.value_id
        ends = tuple(self._ends)
        return [RowFile(path, name, incarnation, batches, ends, self._count, self._written, value, self._digest)]

    def close(self) -> None:
        """Close the file, which goes with its folder."""
        if self._file is not None:
            self._file.close()


def rows_of_shares(
    files: Sequence[RowFile], start: int, stop: int, definition: MapDefinition
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of the shares `[start, stop)` of some files of one map, those of a key in their order.

    Raises: `Corrupt` when a file is gone, or is none.
    """
    schema = canonical_schema(definition)

    def batches(span: tuple[RowFile, int, int, int]) -> list[pa.RecordBatch]:
        file, begin, end, count = span
        try:
            source = pa.BufferReader(_bytes_of(file, begin, end))
            return [message_in(source, schema) for _ in range(count)]
        except (OSError, EOFError, LookupError, ValueError, NotFound, pa.ArrowException) as error:
            raise Corrupt(
                "the rows that a task wrote cannot be read", kind="rows_damaged", file=file.path, map=file.map,
                reason=error, hint="load the data again",
            ) from error  # fmt: skip

    spans = ((file, *span) for file in files for span in file.spans(start, stop))
    # Each request waits for the bucket: the next ones are on their way meanwhile.
    far = any(file.lies is not None for file in files)
    for some in ordered_results(batches, spans, FETCHED_AHEAD if far else 1):
        yield from some


def _bytes_of(file: RowFile, begin: int, end: int) -> pa.Buffer:
    """The bytes `[begin, end)` of a file: mapped, or from a bucket by one request."""
    if file.lies is not None:
        return pa.py_buffer(file.lies.get_range(file.path, begin, end))
    with pa.memory_map(file.path) as mapped:
        mapped.seek(begin)
        return mapped.read_buffer(end - begin)
