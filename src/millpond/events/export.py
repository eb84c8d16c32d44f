"""Export of events to a file of Parquet, which Spark, DuckDB, Polars and pandas read: the columns of `events.rows`.

Invariants:
* the file has its name when it is whole and durable, not before; a process that is killed leaves the old file, and
  beside it a hidden one that the next export of that name removes;
* the events are those that were there when the index of their stream was read, stream by stream, in the order of ids;
* memory: a row group, and a page of events.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.error_values import ShownAsTable, html_table
from millpond.errors import Invalid, MillpondError, NotFound
from millpond.events.filters import Filters, filter_of
from millpond.events.index import StreamIndex
from millpond.events.interface import EventsLike
from millpond.events.rows import TABLE, read_rows
from millpond.events.selection import named_indexes
from millpond.events.starts import start_position
from millpond.kernel.steps import step
from millpond.stores.files import sweep_unfinished, whole_file

__all__ = ("ROW_GROUP_BYTES", "ROW_GROUP_EVENTS", "Exported", "Exporting")

ROW_GROUP_BYTES = 16 << 20
"""A row group of an exported file ends at about so many bytes of Arrow columns, or at `ROW_GROUP_EVENTS`."""
ROW_GROUP_EVENTS = 100_000
_STREAMS_SHOWN = 50
_BATCHES_MAX = 256
"""Batches of small streams that are joined to one: each takes memory of its own."""


@dataclass(frozen=True, slots=True)
class Exported(ShownAsTable):
    """The outcome of an export: streams that were read, events that were written, and the bytes of the file."""

    streams: int
    events: int
    bytes: int


class Exporting:
    """Streams that can be exported, and that a notebook shows."""

    def _repr_html_(self: EventsLike) -> str | None:
        with suppress(MillpondError):
            shown = list(islice(self.indexes(), _STREAMS_SHOWN + 1))
            more = f", the first {_STREAMS_SHOWN}" if len(shown) > _STREAMS_SHOWN else ""
            rows = [
                (*index.stream, index.count, len(index.days()), index.stored_bytes) for index in shown[:_STREAMS_SHOWN]
            ]
            return html_table(f"streams of events{more}", ("queue", "job set", "events", "days", "stored bytes"), rows)
        return None  # it was closed, or no node answers: a notebook shows the text

    def export(
        self: EventsLike, out: str | os.PathLike[str], queue: str | None = None, job_sets: str | Iterable[str] = (), *,
        after: str = "", until: str = "", filters: Filters | None = None,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> Exported:  # fmt: skip
        """Write the events of streams to a file of Parquet, whole or not at all; one that is there is replaced.

        `job_sets` are names or patterns such as `nightly-*`; without any it is the whole queue, and without a queue all
        streams. `after` and `until` are places as `read` takes them: of ids, the events after the one, up to the
        other; of times, those appended at the one or later, and before the other. `advance` is called with the number
        of events that were written.

        Raises:
            Invalid: a name, a place or a filter is not understood, or the file's name does not end in `.parquet`.
            NotFound: there is no such stream, or no such folder. Unavailable: the disk is full.
            Corrupt: what is stored is damaged.
        """
        need_type("out", out, str, PathLike)
        need_type("job_sets", job_sets, Iterable)
        names = [job_sets] if isinstance(job_sets, str) else list(job_sets)
        if names and queue is None:
            raise Invalid("job sets are those of a queue", kind="stream_name", hint="name the queue, too")
        path, matching = _checked(Path(out)), filter_of(filters)
        for position in (after, until):
            start_position(position, lambda: None)  # refused before any work
        sweep_unfinished(path.parent, f".{glob.escape(path.name)}.*.unfinished")
        with whole_file(path) as file, _RowGroups(file, advance) as writer:
            streams = 0
            for index in named_indexes(self, queue, names):
                for batch in read_rows(self, index, *_bounds(index, after, until), matching=matching):
                    writer.add(batch)
                streams += 1
        step("events.exported")
        return Exported(streams, writer.events, path.stat().st_size)


def _checked(path: Path) -> Path:
    if path.suffix.lower() != ".parquet" or path.is_dir():
        raise Invalid(
            "events are exported to a file of Parquet", kind="output_format", path=path,
            hint="end its name in .parquet",
        )  # fmt: skip
    if not path.parent.is_dir():
        raise NotFound("there is no such folder", kind="folder_not_found", path=path.parent, hint="make it first")
    return path


def _bounds(index: StreamIndex, after: str, until: str) -> tuple[int, int]:
    return start_position(after, lambda: index), start_position(until, lambda: index) if until else index.last_id


class _RowGroups:
    """A file of Parquet whose row groups are filled with batches of any size."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], object]) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(file, TABLE, compression="zstd")
        self._advance = advance
        self._pending: list[pa.RecordBatch] = []
        self._count = 0
        self.events = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._count += batch.num_rows
        size = sum(batch_.nbytes for batch_ in self._pending)
        if size >= ROW_GROUP_BYTES or self._count >= ROW_GROUP_EVENTS:
            self._write()
        elif len(self._pending) == _BATCHES_MAX:
            self._pending = self._joined().to_batches()

    def _joined(self) -> pa.Table:
        return pa.Table.from_batches(self._pending, TABLE).combine_chunks()

    def _write(self) -> None:
        self._writer.write_table(self._joined())
        self.events += self._count
        self._advance(self._count)
        step("events.row_group_written")
        self._pending, self._count = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._pending:
                self._write()
            if kind is None:
                self._writer.close()
        finally:
            self._writer.is_open = False  # else its end is written when it is collected, to a file that is closed
