"""Differences of states as values: added, removed, changed, and conflicts, by pages and as columns.

    two-dot      what turns the left state into the right one
    three-dot    what the right changed since the merge base; a conflict where the left changed it too, differently
    uncommitted  two-dot from the head of a branch to what is staged on it

Invariants:
* A three-dot difference shows a conflict exactly where a merge of right into left, without strategy, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.kernel.keys import KeyRange
from millpond.ranges import Difference, RangeReader, diff
from millpond.ranges.equality import equal_at
from millpond.ranges.key_columns import key_column
from millpond.versions.objects.entries import ENTRIES, IDENTITY, Entry, entries_of, frozen_rows
from millpond.versions.paging import Block, Listing, Page, page
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.layers import EVERY_KEY, Reading
from millpond.versions.staging.reads import View, uncommitted

__all__ = ("DIFFERENCES", "Change", "change_page", "change_rows", "three_dot", "two_dot")

_SIDE = [field for field in ENTRIES if field.name != "key"]
DIFFERENCES = pa.schema(
    [pa.field("path", pa.string(), nullable=False), pa.field("type", pa.string(), nullable=False)]
    + [pa.field(f"{side}_{field.name}", field.type) for side in ("left", "right") for field in _SIDE]
)  # fmt: skip
"""The columns of differences: the path, the type, and both sides' columns of entries, null where a side has none."""


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs: `added`, `removed`, `changed` or `conflict`, and what both sides hold."""

    type: str
    path: str
    left: Entry | None = None
    right: Entry | None = None


@dataclass(frozen=True, slots=True)
class _Marked:
    """A stretch of differences, and which of its keys, in order, are conflicts."""

    difference: Difference
    conflict: npt.NDArray[np.bool_] | None = None


def two_dot(
    context: RepositoryContext, reading: Reading, left: str, right: View, keys: KeyRange = EVERY_KEY
) -> Iterator[_Marked]:
    """The changes that turn the index `left` into the state `right`."""
    view = View(right.layers, right.base, left)
    for difference in uncommitted(context, reading, view, keys, rows=1 << 12):
        yield _Marked(difference)


def three_dot(
    context: RepositoryContext, base: str, left: str, right: str, keys: KeyRange = EVERY_KEY
) -> Iterator[_Marked]:
    """The changes of `right` since `base`, and where `left` did so too."""
    ours = RangeReader(context.ranges, context.index(left))
    for difference in diff(context.ranges, context.index(base), context.index(right), same=IDENTITY, within=keys):
        marked = _mark(difference, ours) if left != base else _Marked(difference)
        if len(marked.difference):
            yield marked


def _mark(difference: Difference, ours: RangeReader) -> _Marked:
    """The differences that are not the left's too, with those marked that it changed otherwise."""
    keys, masks, parts = [], [], []
    for base, right in ((difference.removed, None), (None, difference.added), (difference.before, difference.after)):
        shown = base if right is None else right
        assert shown is not None
        numbers, rows = ours.find(shown.column("key"))
        as_base, as_right = (_same(ours, numbers, rows, side) for side in (base, right))
        open_ = ~as_right
        keys.append(shown.column("key").filter(pa.array(open_)))
        masks.append(~as_base[open_])
        chosen = pa.array(open_)
        parts.append((None if base is None else base.filter(chosen), None if right is None else right.filter(chosen)))
    removed, added, (before, after) = parts[0][0], parts[1][1], parts[2]
    order = pc.array_sort_indices(pa.concat_arrays(keys)).to_numpy()
    return _Marked(Difference(removed, added, before, after), np.concatenate(masks)[order])


def _same(
    reader: RangeReader, numbers: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], side: pa.RecordBatch | None
) -> npt.NDArray[np.bool_]:
    """The keys at which an index holds what a side holds; a side of None holds nothing.

    `numbers` and `rows` are the places of the side's keys in the index.
    """
    if side is None:
        return numbers < 0
    out, names = np.zeros(len(numbers), np.bool_), list(IDENTITY)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        here = np.flatnonzero(numbers == number)
        held = reader.batch(number).select(names)
        out[here] = equal_at(held, rows[here].astype(np.int64), side.select(names), here)
    return out


def _alone(difference: Difference) -> int | None:
    """The one kind that all keys of a stretch are of: 0 removed, 1 added, 2 changed; None for several."""
    kinds = [
        kind for kind, part in enumerate((difference.removed, difference.added, difference.after)) if part.num_rows
    ]
    return kinds[0] if len(kinds) == 1 else None


def _ordered(marked: _Marked) -> tuple[pa.Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The keys in order; the kind of each (0 removed, 1 added, 2 changed), and its row there."""
    difference = marked.difference
    parts = (difference.removed, difference.added, difference.after)
    alone = _alone(difference)
    if alone is not None:  # in order already
        count = parts[alone].num_rows
        return parts[alone].column("key"), np.full(count, alone), np.arange(count)
    keys = pa.concat_arrays([part.column("key") for part in parts])
    order = pc.array_sort_indices(keys).to_numpy().astype(np.int64)
    counts = [part.num_rows for part in parts]
    kinds = np.repeat(np.arange(3), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    return keys.take(pa.array(order)), kinds[order], rows[order]


_TYPES = ("removed", "added", "changed", "conflict")


def _block(marked: _Marked) -> Block[Change]:
    keys, kinds, rows = _ordered(marked)
    difference = marked.difference
    sides = ((difference.removed, None), (None, difference.added), (difference.before, difference.after))

    def decode(selected: Sequence[int]) -> list[Change]:
        positions = np.asarray(selected)
        paths = keys.take(pa.array(positions)).cast(pa.string()).to_pylist()
        lefts, rights = (_entries([side[at] for side in sides], kinds[positions], rows[positions]) for at in range(2))
        torn = np.zeros(len(positions), np.bool_) if marked.conflict is None else marked.conflict[positions]
        types = [_TYPES[kind] for kind in np.where(torn, 3, kinds[positions]).tolist()]
        return frozen_rows(Change, types, paths, lefts, rights)

    return Block(key_column(keys), decode)


def _entries(
    parts: Sequence[pa.RecordBatch | None], kinds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> list[Entry | None]:
    """One side's entries, by the kind of each difference; None where the side holds nothing."""
    out: list[Entry | None] = [None] * len(kinds)
    for kind, part in enumerate(parts):
        here = np.flatnonzero(kinds == kind)
        if part is not None and len(here) == len(kinds):
            return list(entries_of(part.take(pa.array(rows))))
        if part is not None and len(here):
            for at, entry in zip(here.tolist(), entries_of(part.take(pa.array(rows[here]))), strict=True):
                out[at] = entry
    return out


def change_page(differences: Callable[[KeyRange], Iterator[_Marked]], listing: Listing) -> Page[Change]:
    """One page of differences."""
    return page(lambda keys: map(_block, differences(keys)), listing)


def change_rows(marked: _Marked) -> pa.RecordBatch:
    """A stretch of differences as rows of `DIFFERENCES`."""
    keys, kinds, rows = _ordered(marked)
    difference, alone = marked.difference, _alone(marked.difference)
    if alone is None or marked.conflict is not None:
        types = kinds if marked.conflict is None else np.where(marked.conflict, 3, kinds)
        named = pa.array(_TYPES).take(pa.array(types))
    else:
        named = pa.repeat(_TYPES[alone], len(keys))
    columns = [keys.cast(pa.string()), named]
    for parts in ((difference.removed, None, difference.before), (None, difference.added, difference.after)):
        columns += _side_columns(parts, kinds, rows) if alone is None else _whole_columns(parts[alone], len(keys))
    return pa.RecordBatch.from_arrays(columns, schema=DIFFERENCES)


def _whole_columns(part: pa.RecordBatch | None, count: int) -> list[pa.Array]:
    """The columns of one side of a stretch where all keys are of one kind."""
    return [pa.nulls(count, field.type) if part is None else part.column(field.name) for field in _SIDE]


def _side_columns(
    parts: Sequence[pa.RecordBatch | None], kinds: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> list[pa.Array]:
    """The columns of one side, null where it holds nothing."""
    starts, held, count = np.full(3, -1), [], 0
    for number, part in enumerate(parts):
        if part is not None:
            starts[number] = count
            held.append(part)
            count += part.num_rows
    positions = starts[kinds]
    taken = pa.concat_batches(held).take(pa.array(rows + positions, mask=positions < 0))
    return [taken.column(field.name) for field in _SIDE]
