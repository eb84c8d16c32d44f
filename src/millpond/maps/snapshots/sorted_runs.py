"""Rows that are to be sorted as a whole, and are more than memory may hold: runs of them wait on the disk.

Rows come in any order, with the first column of their sort key, `major`. As soon as as many are held as allowed, they
are sorted by it and written as one run. `between` gives the rows of a part of all majors, which a caller sorts in
memory: slices of the runs, mapped where they lie.

Invariants:
* every row that was added comes out of exactly one of the spans that together cover all majors;
* no more than `bytes_max` of rows are held, those of the run that is being written among them, and as much again while
  it is sorted; without a bound all are held;
* a run is a file without a name: it goes with the last who reads it, also when the process is killed.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import U64, radix_order
from millpond.stores.files import disk_errors

__all__ = ("RUNS_HELD", "SortedRuns", "SpillTo")

MAJOR = "\0major"
"""The column of a run beside those of the rows; no map has one of this name."""
ROWS_PER_BATCH = 65_536
ALL = 1 << 64
RUNS_HELD = 2
"""The run whose rows are taken, and the one that is being written."""
SPILL_SHARE = 12
"""Sorting and writing take up to this many times the bytes of the rows that are sorted at once."""


@dataclass(frozen=True, slots=True)
class SpillTo:
    """The folder in which runs may lie, and the bytes of rows that memory may hold."""

    folder: Path
    bytes_max: int

    @classmethod
    def within(cls, folder: Path, memory_max: int) -> SpillTo:
        """Runs in a folder, of work that may take so many bytes of memory in all."""
        return cls(folder, memory_max // SPILL_SHARE)


class SortedRuns:
    """Rows, held or spilled. `spilled` counts the runs."""

    def __init__(self, major_of: Callable[[pa.RecordBatch], U64], spill: SpillTo | None, thread: Executor) -> None:
        """`thread` writes a run while the rows of the next are taken."""
        self._major_of, self._spill, self._thread = major_of, spill, thread
        self._held: list[tuple[pa.RecordBatch, U64]] = []
        self._held_bytes = 0
        self._written: list[tuple[pa.RecordBatch, U64]] = []
        self._writing: Future[list[tuple[pa.RecordBatch, U64]]] | None = None
        self.spilled = self.bytes = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows.

        Raises: `Unavailable`, kind `disk_full`.
        """
        if not batch.num_rows:
            return
        major = self._major_of(batch)
        self._held.append((batch, major))
        size = batch.nbytes + major.nbytes
        self.bytes += batch.nbytes
        self.rows += batch.num_rows
        self._held_bytes += size
        if self._spill is not None and self._held_bytes >= self._spill.bytes_max // RUNS_HELD:
            self.end()
            self._writing = self._thread.submit(_write_run, self._held, self._spill)
            self._held, self._held_bytes = [], 0

    def end(self) -> None:
        """Wait until the run that is being written is on the disk.

        Raises: `Unavailable`, kind `disk_full`.
        """
        if self._writing is not None:
            self._written += self._writing.result()
            self.spilled += 1
        self._writing = None

    def samples(self, count: int) -> U64:
        """Majors of about so many rows of each batch, sorted: they cut the rows into spans of about equal size."""
        samples = [major[:: max(1, len(major) // count)] for _, major in (*self._held, *self._written)]
        return np.sort(np.concatenate(samples)) if samples else np.zeros(0, np.uint64)

    def between(self, lower: int, upper: int) -> list[tuple[pa.RecordBatch, U64]]:
        """The rows with `lower` ≤ major < `upper`, and their majors; those of one major as they were added."""
        if (lower, upper) == (0, ALL):
            return [*self._written, *self._held]
        slices = [_slice(batch, major, lower, upper) for batch, major in self._written]
        slices += [_inside(batch, major, lower, upper) for batch, major in self._held]
        return [(batch, major) for batch, major in slices if batch.num_rows]


def _write_run(batches: list[tuple[pa.RecordBatch, U64]], spill: SpillTo) -> list[tuple[pa.RecordBatch, U64]]:
    """Sort rows and write them; the batches of the run, where they lie."""
    majors = np.concatenate([major for _, major in batches])
    table = pa.Table.from_batches([batch for batch, _ in batches]).combine_chunks()
    table = table.append_column(MAJOR, pa.array(majors))
    batches.clear()
    order = radix_order([majors])
    with disk_errors(spill.folder), tempfile.TemporaryFile(dir=spill.folder, prefix="run-") as file:
        with pa.ipc.new_file(pa.PythonFile(file, "w"), table.schema) as writer:
            for low in range(0, len(order), ROWS_PER_BATCH):
                writer.write_table(table.take(pa.array(order[low : low + ROWS_PER_BATCH])).combine_chunks())
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return list(_batches_of(mapped))


def _batches_of(mapped: mmap.mmap) -> Iterator[tuple[pa.RecordBatch, U64]]:
    reader = pa.ipc.open_file(pa.py_buffer(mapped))
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        at = batch.schema.get_field_index(MAJOR)
        yield batch.remove_column(at), batch.column(at).to_numpy()


def _inside(batch: pa.RecordBatch, major: U64, lower: int, upper: int) -> tuple[pa.RecordBatch, U64]:
    inside = (major >= np.uint64(lower)) & (major <= np.uint64(upper - 1))
    return batch.filter(pa.array(inside)), major[inside]


def _slice(batch: pa.RecordBatch, major: U64, lower: int, upper: int) -> tuple[pa.RecordBatch, U64]:
    low = int(np.searchsorted(major, np.uint64(lower), side="left"))
    high = int(np.searchsorted(major, np.uint64(upper - 1), side="right"))
    return batch.slice(low, high - low), major[low:high]
