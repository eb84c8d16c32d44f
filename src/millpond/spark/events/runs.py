"""Runs: the rows of a task in the order in which they are appended, on their way to the driver.

    task 0   run  run ┐
    task 1   run      ┼─ merged by the driver ──▶ batches for each stream ──▶ appended
    task 2   run  run ┘

Invariants:
* the order of rows (stream, source, position, time, content) depends on the rows alone. So an epoch that is run again
  comes to the same batches and positions, however Spark distributes its rows;
* a task holds `RUN_BYTES`, the driver a batch of rows of each run and `APPEND_BYTES` of events.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from millpond.errors import Invalid
from millpond.events.event import EventBatch, NewEvent
from millpond.events.importing import Imported
from millpond.events.names import StreamName
from millpond.events.volumes import Append
from millpond.kernel.steps import step
from millpond.spark.events.columns import ORDER, STAGED, RowForm, event_of

__all__ = ("EventLog", "append_runs", "write_runs")

RUN_BYTES = 32 << 20
MESSAGE_BYTES = 64 << 20
"""Rows of one task that travel with its message, where no folder takes them."""
ROWS_AT_ONCE = 2_048
APPEND_BYTES = 4 << 20
APPEND_EVENTS = 10_000

Run: TypeAlias = "str | bytes"
Row: TypeAlias = "tuple[str, str, str, int, int, str, bytes, str]"


@dataclass(frozen=True, slots=True)
class EventLog:
    """The source of rows that name none: an epoch of a query, or a batch job; `name` is empty where it has no name."""

    name: str
    epoch: int = 0

    def position(self, rank: int) -> int:
        """The position of an event: its rank among those of its stream in the epoch."""
        return (self.epoch << 64) | rank


def write_runs(batches: Iterable[pa.RecordBatch], form: RowForm, folder: Path | None) -> tuple[Run, ...]:
    """Sort the rows of a task into runs: files in a folder, or bytes where there is none.

    Raises: `Invalid` for a row that is no event, or for more bytes than a message takes.
    """
    runs: list[Run] = []
    some: list[pa.RecordBatch] = []
    size = 0
    for rows in batches:
        some.append(form.staged(rows))
        size += some[-1].nbytes
        if size >= RUN_BYTES:
            runs.append(_write_run(some, folder, len(runs)))
            some, size = [], 0
    if any(rows.num_rows for rows in some):
        runs.append(_write_run(some, folder, len(runs)))
    _check_message(runs)
    return tuple(runs)


def _write_run(batches: list[pa.RecordBatch], folder: Path | None, number: int) -> Run:
    table = pa.Table.from_batches(batches, STAGED).sort_by(ORDER)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    if folder is None:
        memory = pa.BufferOutputStream()
        with pa.ipc.new_file(memory, STAGED, options=options) as writer:
            writer.write_table(table, max_chunksize=ROWS_AT_ONCE)
        return bytes(memory.getvalue())
    file = folder / f"run-{number:05d}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, STAGED, options=options) as writer:
        writer.write_table(table, max_chunksize=ROWS_AT_ONCE)
    return str(file)


def _check_message(runs: Sequence[Run]) -> None:
    size = sum(len(run) for run in runs if isinstance(run, bytes))
    if size > MESSAGE_BYTES:
        raise Invalid(
            "a task has more events than travel with its message", kind="events_task_size", bytes=size,
            bytes_max=MESSAGE_BYTES,
            hint="more partitions, or smaller epochs; a pond's folder has no such bound",
        )  # fmt: skip


def append_runs(append: Append, runs: Sequence[Run], log: EventLog) -> Imported:
    """Append the rows of all runs, and count those that are new; what was stored before is left out."""
    done, pending, events, size = Imported(), [], 0, 0
    with ExitStack() as stack:
        rows = heapq.merge(*(_rows(stack, run) for run in runs))
        for batch, batch_bytes in _batches(rows, log):
            pending.append(batch)
            events, size = events + len(batch.events), size + batch_bytes
            if size >= APPEND_BYTES or events >= APPEND_EVENTS:
                done = reduce(operator.add, append(pending), done)
                step("events.runs_appended")
                pending, events, size = [], 0, 0
        if pending:
            done = reduce(operator.add, append(pending), done)
            step("events.runs_appended")
    return done


def _rows(stack: ExitStack, run: Run) -> Iterator[Row]:
    source = stack.enter_context(pa.OSFile(run, "rb") if isinstance(run, str) else pa.BufferReader(run))
    file = stack.enter_context(pa.ipc.open_file(source))
    for number in range(file.num_record_batches):
        yield from zip(*(column.to_pylist() for column in file.get_batch(number).columns), strict=True)


def _batches(rows: Iterator[Row], log: EventLog) -> Iterator[tuple[EventBatch, int]]:
    """The batches of sorted rows, with their bytes: events of one message stand in one."""
    for (queue, job_set, source), group in groupby(rows, key=lambda row: row[:3]):
        stream = StreamName(queue, job_set)
        events: list[NewEvent] = []
        positions: list[int] = []
        size = 0
        for rank, row in enumerate(group):
            position = row[3] if source else log.position(rank)
            if positions and position != positions[-1] and (size >= APPEND_BYTES or len(events) >= APPEND_EVENTS):
                yield _batch(stream, events, source or log.name, positions), size
                events, positions, size = [], [], 0
            events.append(event_of(*row[4:]))
            positions.append(position)
            size += len(row[6]) + len(row[7])
        yield _batch(stream, events, source or log.name, positions), size


def _batch(stream: StreamName, events: list[NewEvent], source: str, positions: list[int]) -> EventBatch:
    return EventBatch(stream, events, source, positions if source else ())
