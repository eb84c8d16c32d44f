"""Layers as ordered streams of blocks, and their merge: the one iterator behind listings, diffs and commits.

    token      rows of the space, a block at a time       ┐
    token      …                                          │  merged: newest row of each path, what range tombstones
    segment    an index of changes                        │  of newer layers hide left out
    difference head → compacted index, as a layer         ┘

Blocks are batches with the columns of changes, each ascending. Streams run forwards, or backwards: then the blocks
come from the last to the first, and each still ascends.

Invariants:
* Of one path the newest layer's row counts, tombstones included.
* A range tombstone hides rows of older layers; rows of its own layer and of newer ones stand.
* At one time a stream holds one block of each layer. Blocks begin small and grow, so that a page costs a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernel.keys import KeyRange, starting
from millpond.kernel.page import behind
from millpond.kernel.scans import first_rows
from millpond.kernel.space import ReadTransaction
from millpond.ranges import CachedObjects, Difference, Index, Spans, diff, load_index, open_range
from millpond.ranges.gather import gathered
from millpond.ranges.key_columns import key_column, lower_bound, upper_bound
from millpond.ranges.merge import match_keys
from millpond.ranges.spans import NO_SPANS
from millpond.versions.keyspaces import CLEARED, STAGED
from millpond.versions.objects.entries import CHANGES, IDENTITY
from millpond.versions.objects.staged_rows import decode_block

__all__ = (
    "EVERY_KEY", "Bounds", "Stream", "combine", "difference_blocks", "difference_stream", "index_stream",
    "spans_of_token", "token_stream",
)  # fmt: skip

EVERY_KEY = KeyRange(b"", None)
BLOCK_ROWS_MIN = 1 << 10
BLOCK_ROWS_MAX = 1 << 15
Reading: TypeAlias = "Callable[[], AbstractContextManager[ReadTransaction]]"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The paths that a stream is to bring, and its direction; `rows` are those of the first block."""

    keys: KeyRange = EVERY_KEY
    reverse: bool = False
    rows: int = BLOCK_ROWS_MIN

    def block_rows(self) -> Iterator[int]:
        """The sizes of blocks, each twice the one before."""
        rows = max(16, min(self.rows, BLOCK_ROWS_MAX))
        while True:
            yield rows
            rows = min(2 * rows, BLOCK_ROWS_MAX)


@dataclass(slots=True)
class Stream:
    """The blocks of one layer, and its range tombstones."""

    blocks: Iterator[pa.RecordBatch]
    spans: Spans = NO_SPANS


def spans_of_token(tx: ReadTransaction, token: str) -> Spans:
    """The range tombstones of a token."""
    prefix = CLEARED[token]
    return Spans.of(starting(str(prefix.unpack(key)[0])) for key in tx.keys(prefix.range()))


def token_stream(reading: Reading, token: str, bounds: Bounds) -> Stream:
    """The rows of a token. Each block is read in a transaction that `reading` opens.

    So a sealed token, which does not change, is read without holding one moment of the space for long.
    """
    with reading() as tx:
        spans = spans_of_token(tx, token)
    return Stream(_token_blocks(reading, token, bounds), spans)


def _token_blocks(reading: Reading, token: str, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    prefix = STAGED[token]
    keys = KeyRange(
        prefix.packed if not bounds.keys.start else _row_key(token, bounds.keys.start),
        prefix.range().stop if bounds.keys.stop is None else _row_key(token, bounds.keys.stop),
    )
    for count in bounds.block_rows():
        with reading() as tx:
            rows = first_rows(tx, keys, count, reverse=bounds.reverse)
        if not rows:
            return
        keys = behind(keys, rows[-1][0], reverse=bounds.reverse)
        if bounds.reverse:
            rows.reverse()
        yield decode_block(prefix, [key for key, _ in rows], [value for _, value in rows])
        if len(rows) < count:
            return


def _row_key(token: str, path: bytes) -> bytes:
    """The place of a path among the rows of a token; a bound of a prefix need not be text."""
    raw = path.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")
    return STAGED[token].packed + b"\x20" + raw


def index_stream(
    objects: CachedObjects, index: Index, bounds: Bounds, hidden: Spans = NO_SPANS
) -> Iterator[pa.RecordBatch]:
    """The rows of an index, of entries or of changes, as blocks of changes; ranges that are hidden are not opened."""
    sizes = bounds.block_rows()
    for entry in reversed(index.entries) if bounds.reverse else index.entries:
        if (bounds.keys.stop is not None and entry.first >= bounds.keys.stop) or entry.last < bounds.keys.start:
            continue
        if hidden.covers(entry.first, entry.last):
            continue
        batch = open_range(objects, entry)
        keys = key_column(batch.column("key"))
        start = lower_bound(keys, bounds.keys.start)
        stop = len(keys) if bounds.keys.stop is None else lower_bound(keys, bounds.keys.stop)
        while start < stop:
            count = min(next(sizes), stop - start)
            at = stop - count if bounds.reverse else start
            yield _as_changes(batch.slice(at, count))
            start, stop = (start, at) if bounds.reverse else (at + count, stop)


def _as_changes(batch: pa.RecordBatch, *, deleted: bool = False) -> pa.RecordBatch:
    if "deleted" in batch.schema.names:
        return batch
    mask = pa.array(np.full(batch.num_rows, deleted))
    return pa.RecordBatch.from_arrays([*batch.columns, mask], schema=CHANGES)


def difference_stream(objects: CachedObjects, old: str, new: str, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The changes that turn one index into another, as blocks: forwards only."""
    assert not bounds.reverse
    if old == new:
        return
    a, b = load_index(objects, old), load_index(objects, new)
    for difference in diff(objects, a, b, same=IDENTITY, within=bounds.keys):
        yield from difference_blocks(difference)


def difference_blocks(difference: Difference) -> Iterator[pa.RecordBatch]:
    """A stretch of differences as a block of changes."""
    parts = [
        _as_changes(difference.removed, deleted=True),
        _as_changes(difference.added),
        _as_changes(difference.after),
    ]
    present = [part for part in parts if part.num_rows]
    if len(present) <= 1:
        yield from present
    else:
        joined = pa.concat_batches(present)
        yield joined.take(pc.array_sort_indices(joined.column("key")))


class _Feed:
    """One stream in a merge: its block to come, read when it is looked at, and how far it reaches."""

    def __init__(self, stream: Stream, hidden: Spans, *, reverse: bool) -> None:
        self._blocks, self._hidden, self._reverse = stream.blocks, hidden, reverse
        self._block: pa.RecordBatch | None = None
        self._taken = True

    @property
    def block(self) -> pa.RecordBatch | None:
        """The block that is next; None at the end. A page ends before most streams do, so none is read ahead."""
        if self._taken:
            self._load()
        return self._block

    def _load(self) -> None:
        self._taken = False
        for block in self._blocks:
            shown = block
            if self._hidden and block.num_rows:
                hidden = self._hidden.holds(key_column(block.column("key")))
                shown = block.filter(pa.array(~hidden)) if hidden.any() else block
            if shown.num_rows:
                self._block, self._keys = shown, key_column(shown.column("key"))
                return
        self._block = None

    @property
    def reach(self) -> bytes:
        """The key that the block reaches to, in the direction of the merge."""
        return self._keys[0 if self._reverse else len(self._keys) - 1]

    def take(self, bound: bytes) -> pa.RecordBatch:
        """The rows of the block up to, and with, a bound; from it on when the merge runs backwards."""
        block = self.block
        assert block is not None
        cut = lower_bound(self._keys, bound) if self._reverse else upper_bound(self._keys, bound)
        if cut == (0 if self._reverse else len(self._keys)):
            self._block, self._taken = None, True
            return block
        taken, rest = (
            (block.slice(cut), block.slice(0, cut)) if self._reverse else (block.slice(0, cut), block.slice(cut))
        )
        self._block, self._keys = rest, key_column(rest.column("key"))
        return taken


def combine(newest_first: Sequence[Stream], *, reverse: bool = False) -> tuple[Iterator[pa.RecordBatch], Spans]:
    """The merge of streams: blocks with one row a path; and the range tombstones that count for what lies below."""
    feeds, hidden = [], NO_SPANS
    for stream in newest_first:
        feeds.append(_Feed(stream, hidden, reverse=reverse))
        hidden |= stream.spans
    return _merged(feeds, reverse=reverse), hidden


def _merged(feeds: list[_Feed], *, reverse: bool) -> Iterator[pa.RecordBatch]:
    while live := [feed for feed in feeds if feed.block is not None]:
        reaches = [feed.reach for feed in live]
        bound = max(reaches) if reverse else min(reaches)
        parts = [part for feed in live if (part := feed.take(bound)).num_rows]
        yield _overlay(parts)


def _overlay(newest_first: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all, one a path: the newest."""
    *newer, merged = newest_first
    for batch in reversed(newer):
        mine, other = match_keys(batch, merged)
        merged = gathered([batch, merged], np.where(mine >= 0, mine, other + batch.num_rows))
    return merged
