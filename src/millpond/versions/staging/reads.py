"""Reads of a state: one path, pages of paths, and what differs from the head.

A *view* is a state at one moment: layers, the index below them, and the index of the head commit. A commit is a view
without layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernel.keys import KeyRange
from millpond.kernel.space import ReadTransaction
from millpond.ranges import diff, open_range
from millpond.ranges.diff import Difference
from millpond.ranges.fold import differences
from millpond.ranges.key_columns import key_column, lower_bound
from millpond.ranges.spans import NO_SPANS, Spans
from millpond.versions.graph.commits import get_commit
from millpond.versions.keyspaces import CLEARED, STAGED
from millpond.versions.objects.entries import ENTRIES, IDENTITY, Entry, entry_at
from millpond.versions.objects.staged_rows import decode_entry
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.branches import BranchRecord, Layer
from millpond.versions.staging.layers import (
    EVERY_KEY,
    Bounds,
    Reading,
    Stream,
    combine,
    difference_stream,
    index_stream,
    token_stream,
)

__all__ = (
    "PointReads", "View", "at", "changes_of", "find_entry", "find_in_index", "head_view", "is_cleared", "is_dirty",
    "layer_entry", "rows_of_path", "shown_entries", "uncommitted", "view_of", "visible",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """A state: `layers` above the index `base`; `head` is the index of the commit that it is to become a change of."""

    layers: tuple[Layer, ...]
    base: str
    head: str


def view_of(context: RepositoryContext, tx: ReadTransaction, record: BranchRecord) -> View:
    """The state of a branch with what is staged."""
    head = get_commit(tx, context.graph.commits, record.commit_id).tree
    return View(record.layers, record.compacted_index or head, head)


def head_view(tree: str) -> View:
    """The state of a commit."""
    return View((), tree, tree)


def at(tx: ReadTransaction) -> Reading:
    """Reads of one moment: every block from the same transaction."""

    def reading() -> AbstractContextManager[ReadTransaction]:
        return nullcontext(tx)

    return reading


# -- one path -----------------------------------------------------------------------------------------


class PointReads(Protocol):
    """The part of a `ReadTransaction` that one path needs: those reads that `rows_of_path` names."""

    def get(self, key: bytes) -> bytes | None:
        """The value at `key`."""

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        """The keys of the range: the last one first, and no other is asked for."""


def rows_of_path(view: View, path: str) -> tuple[list[bytes], list[KeyRange]]:
    """The keys that tell of a path in the tokens of a state, and the ranges whose last keys do."""
    tokens = [layer.id for layer in view.layers if layer.index is None]
    return [STAGED[token].pack(path) for token in tokens], [_tombstones(token, path) for token in tokens]


def _tombstones(token: str, path: str) -> KeyRange:
    prefix = CLEARED[token]
    return KeyRange(prefix.packed, prefix.pack(path) + b"\0")


def find_entry(context: RepositoryContext, tx: PointReads, view: View, path: str) -> Entry | None:
    """The entry at a path, None when there is none.

    Raises: `NotFound`, `Corrupt` for ranges.
    """
    for layer in view.layers:
        is_there, entry = layer_entry(context, tx, layer, path)
        if is_there:
            return entry
    return find_in_index(context, view.base, path)


def layer_entry(context: RepositoryContext, tx: PointReads, layer: Layer, path: str) -> tuple[bool, Entry | None]:
    """True when the layer says what is at a path; and the entry, None where it says that there is none."""
    if layer.index is not None:
        return _segment_entry(context, layer.index, path)
    row = tx.get(STAGED[layer.id].pack(path))
    if row is not None:
        return True, decode_entry(path, row)
    return is_cleared(tx, layer.id, path), None


def is_cleared(tx: PointReads, token: str, path: str) -> bool:
    """True when a range tombstone of the token hides a path in the layers below.

    No range tombstone of a token lies within another. So the one that could hide the path is the last before it.
    """
    prefix = CLEARED[token]
    nearest = next(tx.keys(_tombstones(token, path), reverse=True), None)
    return nearest is not None and nearest != prefix.packed and path.startswith(str(prefix.unpack(nearest)[0]))


def _segment_entry(context: RepositoryContext, index: str, path: str) -> tuple[bool, Entry | None]:
    batch_row = _row_of(context, index, path.encode())
    if batch_row is None:
        return False, None
    batch, row = batch_row
    if "deleted" in batch.schema.names and batch.column("deleted")[row].as_py():
        return True, None
    return True, entry_at(batch, row)


def find_in_index(context: RepositoryContext, index: str, path: str) -> Entry | None:
    """The entry of an index at a path.

    Raises: `NotFound`, `Corrupt`.
    """
    row = _row_of(context, index, path.encode())
    return None if row is None else entry_at(*row)


def _row_of(context: RepositoryContext, id_: str, key: bytes) -> tuple[pa.RecordBatch, int] | None:
    entries = context.index(id_).entries
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[middle].last < key:
            low = middle + 1
        else:
            high = middle
    if low == len(entries) or entries[low].first > key:
        return None
    batch = open_range(context.ranges, entries[low])
    keys = key_column(batch.column("key"))
    row = lower_bound(keys, key)
    return (batch, row) if row < len(keys) and keys[row] == key else None


# -- many paths ---------------------------------------------------------------------------------------


def _streams(
    context: RepositoryContext, reading: Reading, layers: tuple[Layer, ...], bounds: Bounds
) -> tuple[list[Stream], Spans]:
    streams, hidden = [], NO_SPANS
    for layer in layers:
        if layer.index is None:
            streams.append(token_stream(reading, layer.id, bounds))
            hidden |= streams[-1].spans
        else:
            streams.append(Stream(index_stream(context.ranges, context.index(layer.index), bounds, hidden)))
    return streams, hidden


def changes_of(
    context: RepositoryContext, reading: Reading, layers: tuple[Layer, ...], bounds: Bounds | None = None
) -> tuple[Iterator[pa.RecordBatch], Spans]:
    """The layers as one stream of changes, and the range tombstones that count for what lies below them."""
    bounds = bounds or Bounds(rows=1 << 14)
    return combine(_streams(context, reading, layers, bounds)[0], reverse=bounds.reverse)


def visible(
    context: RepositoryContext, reading: Reading, view: View, bounds: Bounds | None = None
) -> Iterator[pa.RecordBatch]:
    """The entries of a state as batches, each ascending; of `bounds.reverse` the last batch first.

    Raises: `NotFound`, `Corrupt` for ranges.
    """
    bounds = bounds or Bounds(rows=1 << 14)
    streams, hidden = _streams(context, reading, view.layers, bounds)
    base = Stream(index_stream(context.ranges, context.index(view.base), bounds, hidden))
    yield from shown_entries(combine([*streams, base], reverse=bounds.reverse)[0])


def shown_entries(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The entries among changes that have been combined down to an index: tombstones left out."""
    for block in blocks:
        deleted = block.column("deleted")
        shown = block if deleted.true_count == 0 else block.filter(pc.invert(deleted))
        if shown.num_rows:
            yield shown.select(ENTRIES.names)


def uncommitted(
    context: RepositoryContext, reading: Reading, view: View, keys: KeyRange = EVERY_KEY, *, rows: int = 1 << 14
) -> Iterator[Difference]:
    """The changes that a state is of its head, stretch by stretch: in what every mix of layers comes to.

    Raises: `NotFound`, `Corrupt` for ranges.
    """
    bounds = Bounds(keys, rows=rows)
    if not view.layers:
        if view.base != view.head:
            yield from diff(
                context.ranges, context.index(view.head), context.index(view.base), same=IDENTITY, within=keys
            )
        return
    streams, _ = _streams(context, reading, view.layers, bounds)
    compacted = Stream(difference_stream(context.ranges, view.head, view.base, bounds))
    blocks, spans = combine([*streams, compacted])
    bounded = Spans.of(spans.within(keys))
    yield from differences(context.ranges, context.index(view.head), blocks, bounded, same=IDENTITY, within=keys)


def is_dirty(context: RepositoryContext, reading: Reading, view: View) -> bool:
    """True when a state differs from its head."""
    if not view.layers and view.base == view.head:
        return False
    return next(uncommitted(context, reading, view, rows=256), None) is not None
