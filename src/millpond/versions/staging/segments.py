"""Segments: changes made in bulk, sorted and written as ranges, then put under a branch as a sealed layer.

    table ─ sort ─ ranges, index ─┐
    branch: token, sealed…        └─▶ new token, segment, token as it was, sealed…      one swap

Invariants:
* A segment is complete and durable before a branch lists it. All of it is staged by the swap, or nothing.
* What was staged before the swap lies below it, what is staged after it above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.kernel.keys import starting
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.ranges import Index, RangeReader, scan, write
from millpond.ranges.key_columns import first_unordered, key_column
from millpond.versions.objects.entries import (
    CHANGES,
    DEFAULT_CONTENT_TYPE,
    ENTRIES,
    PATH_BYTES_MAX,
    Entry,
    canonical_metadata,
    entry_at,
)
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.branches import Layer, get_branch, put_branch, sealed
from millpond.versions.staging.publishing import publish

__all__ = (
    "find_presence", "find_rows", "normal_batch", "push_segment", "sorted_changes", "typed_column", "write_segment",
)  # fmt: skip

_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_METADATA = CHANGES.names.index("metadata")
_FILLS = {"address": "", "size": 0, "mtime": 0, "checksum": "", "content_type": DEFAULT_CONTENT_TYPE, "metadata": ""}


def normal_batch(table: Any, *, mtime: int) -> pa.RecordBatch:
    """The rows of a table as changes: `path` or `key`, and any other columns of entries; `deleted` for deletions.

    Columns that are missing get their defaults; `mtime` is the time of rows without one.

    Raises: `Invalid` for a column that is unknown or of another type; for a path that is empty or too long, a size
    below zero, metadata that are no object of texts.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise Invalid("not a table of entries", kind="stage_columns", value=shown(table), hint="a table of Arrow")
    names = ["key" if name == "path" else name for name in table.column_names]
    unknown = sorted(set(names) - set(CHANGES.names))
    if unknown or len(set(names)) != len(names) or "key" not in names:
        raise Invalid(
            "not a table of entries", kind="stage_columns", unknown=unknown, columns=table.column_names,
            hint=f"path, and any of: {', '.join((*_FILLS, 'deleted'))}",
        )  # fmt: skip
    table = table.rename_columns(names)
    fills = {**_FILLS, "mtime": mtime, "deleted": False}
    columns = [_column(table, field, fills) for field in CHANGES]
    columns[_METADATA] = canonical_metadata(columns[_METADATA])
    batch = pa.RecordBatch.from_arrays(columns, schema=CHANGES)
    lengths = pc.binary_length(batch.column("key"))
    if batch.num_rows and not (pc.min(lengths).as_py() > 0 and pc.max(lengths).as_py() <= PATH_BYTES_MAX):
        raise Invalid("a path has 1 to 1,024 bytes", kind="path_invalid", hint="shorten the paths of the table")
    if pc.any(batch.column("deleted")).as_py():
        batch = _bare_tombstones(batch)
    if batch.num_rows and (size := pc.min(batch.column("size")).as_py()) < 0:
        raise Invalid("a size is not negative", kind="entry_invalid", size=size)
    return batch


def _column(table: pa.Table, field: pa.Field, fills: dict[str, object]) -> pa.Array:
    if field.name not in table.column_names:
        return pa.repeat(pa.scalar(fills[field.name], field.type), table.num_rows)
    column = typed_column(table.column(field.name), field.name).combine_chunks()
    array = column if isinstance(column, pa.Array) else pa.array([], field.type)
    if array.null_count == 0:
        return array
    if field.name == "key":
        raise Invalid("a path is null", kind="stage_columns", column="path")
    return array.fill_null(pa.scalar(fills[field.name], field.type))


def typed_column(column: Any, name: str) -> Any:
    """A column of changes with the type that it must have.

    Raises: `Invalid`.
    """
    field = CHANGES.field(name)
    try:
        if name == "key" and column.type in _BINARY:
            column = column.cast(pa.string())  # a path is Unicode
        column.validate(full=True)  # a file may call any bytes a text
        return column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(
            "a column is not of its type", kind="stage_columns", column="path" if name == "key" else name,
            expected=field.type, found=column.type, reason=str(error),
        ) from error  # fmt: skip


def _bare_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Tombstones hold nothing but their paths."""
    deleted = batch.column("deleted")
    empty = {
        field.name: pa.scalar(0 if field.type == pa.int64() else "", field.type)
        for field in ENTRIES if field.name != "key"
    }  # fmt: skip
    columns = [
        pc.if_else(deleted, empty[name], batch.column(name)) if name in empty else batch.column(name)
        for name in CHANGES.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def sorted_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Changes in the order of their paths, one a path: of several the last."""
    keys = key_column(batch.column("key"))
    if first_unordered(keys.offsets, keys.data) < 0:
        return batch
    order = pc.sort_indices(
        pa.table({"key": batch.column("key"), "row": pa.array(np.arange(batch.num_rows))}),
        sort_keys=[("key", "ascending"), ("row", "ascending")],
    )
    batch = batch.take(order)
    key = batch.column("key")
    last = np.ones(batch.num_rows, np.bool_)
    last[:-1] = pc.not_equal(key[:-1], key[1:]).to_numpy(zero_copy_only=False)
    return batch if last.all() else batch.filter(pa.array(last))


def write_segment(context: RepositoryContext, batches: Iterable[pa.RecordBatch]) -> Index:
    """Write changes, sorted over all batches, as an index; without `deleted` where nothing is deleted.

    Raises: `Invalid` for paths out of order; `Unavailable` when the place is full.
    """
    rest = iter(batches)
    ahead = [batch for batch in (next(rest, None),) if batch is not None]
    plain = len(ahead) == 1 and not pc.any(ahead[0].column("deleted")).as_py()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from ahead
        yield from rest

    if plain and (second := next(rest, None)) is None:
        return write(context.ranges, [ahead[0].select(ENTRIES.names)], context.boundaries, compression=COMPRESSION)
    if plain:
        ahead.append(second)
    return write(context.ranges, rows(), context.boundaries, schema=CHANGES, compression=COMPRESSION)


def push_segment(
    context: RepositoryContext, branch: str, index: Index, count: int, *, force: bool = False,
    besides: Callable[[Transaction], None] | None = None,
) -> None:  # fmt: skip
    """Put a segment, built since `count`, under a branch, above all that was staged before; an empty one is no layer.

    `besides` is done in the same write.

    Raises: `NotFound`, `Denied`; what `besides` raises.
    """
    if context.composed:
        inside = next(scan(context.ranges, index, *starting(context.composed), columns=("key",)), None)
        context.check_paths([] if inside is None else [inside.column("key")[0].as_py().decode()])
    segment = Layer(context.clock.random_id(), index.id)
    fresh = context.clock.random_id()

    def change(tx: Transaction) -> None:
        context.check_writable(tx, branch, "write to", force=force)
        before = get_branch(tx, context.uid, branch)
        if index.count:
            record = sealed(tx, before, fresh)
            put_branch(tx, context.uid, branch, replace(record, sealed=(segment, *record.sealed)))
        if besides is not None:
            besides(tx)

    step("versions.segment_written")
    publish(context, [index.id], count, change)
    step("versions.segment_pushed")


def find_presence(context: RepositoryContext, index: str, paths: Sequence[str]) -> list[int]:
    """Of each path 1 when an index shows it, 0 when it has a tombstone there, -1 when it has nothing.

    Raises: `NotFound`, `Corrupt`.
    """
    reader = RangeReader(context.ranges, context.index(index))
    numbers, rows = reader.find(pa.array(paths, pa.string()).cast(pa.binary()))
    shows = np.where(numbers >= 0, 1, -1)
    if "deleted" in reader.index.schema.names:
        for number in np.unique(numbers[numbers >= 0]).tolist():
            here = np.flatnonzero(numbers == number)
            deletions = reader.batch(number).column("deleted").take(pa.array(rows[here])).to_numpy(zero_copy_only=False)
            shows[here[deletions]] = 0
    states: list[int] = shows.tolist()
    return states


def find_rows(context: RepositoryContext, index: str, paths: Sequence[str]) -> dict[str, Entry | None]:
    """The entries of an index at paths, those it lacks left out; None for a tombstone.

    Raises: `NotFound`, `Corrupt`.
    """
    reader = RangeReader(context.ranges, context.index(index))
    numbers, rows = reader.find(pa.array(paths, pa.string()).cast(pa.binary()))
    entries: dict[str, Entry | None] = {}
    for path, number, row in zip(paths, numbers.tolist(), rows.tolist(), strict=True):
        if number >= 0:
            batch = reader.batch(number)
            is_deleted = "deleted" in batch.schema.names and batch.column("deleted")[row].as_py()
            entries[path] = None if is_deleted else entry_at(batch, row)
    return entries
