"""Three-way merge: what two indexes made of their common base, brought together; it costs what they changed.

    merged = merge_three_way(objects, base, ours, theirs, resolve)

Of each key, absence counting as a value of its own:

| | result |
|---|---|
| ours and theirs hold the same | that |
| ours holds what base holds | theirs |
| theirs holds what base holds | ours |
| all three differ | what `resolve` chooses: ours, theirs, base, no entry; or none of them, and the key is a conflict |

How little is read. Walking side by side, a stretch of keys that ends with a range's last key is settled by ids alone
where two of the three list the same ranges there. Then the result is the third's part of the stretch (or, where ours
and theirs are the two, theirs as much as ours): a whole range of it is taken over unread, and the others move on by
`seek`, which opens nothing. Only stretches that both sides changed are opened on all sides.

Invariants:
* The outcome is what writing the merged entries anew would make, id for id. A range is taken over only where the
  writer stands at a boundary, and only if its rule ended it: not the last of its index, which may have ended for want
  of entries, unless nothing follows.
* All cursors stand behind the same key between two stretches, so the same current id means the same rows to come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import Invalid
from millpond.ranges.equality import equal_at
from millpond.ranges.gather import gathered
from millpond.ranges.key_columns import key_column, merge_three_keys
from millpond.ranges.walk import Cursor, check_schemas, shared_bound, unfinished
from millpond.ranges.writer import RangeWriter

if TYPE_CHECKING:
    from millpond.ranges.index import Boundaries, Index
    from millpond.stores.objects import Objects

__all__ = ("Choice", "Conflicts", "Resolve", "Side", "ThreeWay", "conflicts", "merge_three_way")

_I64: TypeAlias = npt.NDArray[np.int64]


class Choice(IntEnum):
    """The resolution of a key that both sides changed. A side without the key deletes it, as `NONE` does."""

    BASE = 0
    OURS = 1
    THEIRS = 2
    NONE = 3
    CONFLICT = 4


@dataclass(frozen=True, slots=True)
class Side:
    """The rows one index holds of some keys: the row of each in `batch`, -1 where it has none."""

    batch: pa.RecordBatch
    rows: _I64

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """The keys that it has, as a mask."""
        return self.rows >= 0

    def entries(self) -> pa.RecordBatch:
        """The entries of the keys that it has, in order."""
        return self.batch.take(pa.array(self.rows[self.present]))

    def chosen(self, keys: npt.NDArray[Any]) -> Side:
        """The side at some of the keys, as a mask or as their places."""
        return Side(self.batch, self.rows[keys])


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Keys that both sides changed, and not to the same: in order, with what each index holds of them."""

    keys: pa.Array
    base: Side
    ours: Side
    theirs: Side

    def __len__(self) -> int:
        return len(self.keys)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Conflicts:
        """Those where the mask is set."""
        sides = (side.chosen(mask) for side in (self.base, self.ours, self.theirs))
        return Conflicts(self.keys.filter(pa.array(mask)), *sides)


Resolve: TypeAlias = "Callable[[Conflicts], Choice | npt.ArrayLike]"
"""Chooses for all keys of a stretch at once: one `Choice`, or one for each key."""


@dataclass(frozen=True, slots=True)
class ThreeWay:
    """The outcome of a merge: its index; or None and the keys that nobody chose for, as many as were wanted."""

    index: Index | None
    conflicts: tuple[Conflicts, ...] = ()


def merge_three_way(
    objects: Objects,
    base: Index,
    ours: Index,
    theirs: Index,
    resolve: Resolve | Choice = Choice.CONFLICT,
    *,
    boundaries: Boundaries | None = None,
    conflicts_max: int = 1000,
    same: Sequence[str] | None = None,
    compression: str | None = None,
) -> ThreeWay:
    """Bring together what `ours` and `theirs` made of `base`; boundaries are those of `ours` unless others are given.

    With a key that `resolve` does not choose for there is no index: from there on nothing is written any more, and the
    walk ends when `conflicts_max` keys are found. Entries are the same when they agree in the columns `same`, of all
    by default; of two that are the same, either may be taken.

    Raises: `Invalid` for indexes of different columns or a choice that is none; `NotFound`, `Corrupt`; `Unavailable`.
    """
    check_schemas([base, ours, theirs])
    walk = _Walk(objects, base, ours, theirs, same)
    left: list[Conflicts] = []
    # Written while no conflict is open: with the first one, the outcome has no index and the rest is only counted.
    with RangeWriter(objects, ours.columns, boundaries or ours.boundaries, compression=compression) as writer:
        for stretch in walk.stretches():
            if isinstance(stretch, _Torn):
                unresolved = stretch.settle(resolve)
                if len(unresolved):
                    left.append(unresolved)
            if left and sum(map(len, left)) >= conflicts_max:
                return ThreeWay(None, _first(left, conflicts_max))
            if not left:
                stretch.write(writer)
        return ThreeWay(None, tuple(left)) if left else ThreeWay(writer.finish())


def conflicts(
    objects: Objects, base: Index, ours: Index, theirs: Index, *, same: Sequence[str] | None = None
) -> Iterator[Conflicts]:
    """The keys that both sides changed, and not to the same, stretch by stretch; nothing is written.

    Raises: `Invalid` for indexes of different columns; `NotFound`, `Corrupt`.
    """
    check_schemas([base, ours, theirs])
    for stretch in _Walk(objects, base, ours, theirs, same).stretches():
        if isinstance(stretch, _Torn) and len(stretch.conflicts):
            yield stretch.conflicts


def _first(conflicts: list[Conflicts], limit: int) -> tuple[Conflicts, ...]:
    *whole, last = conflicts
    room = limit - sum(map(len, whole))
    return (*whole, last.chosen(np.arange(len(last)) < room))


@dataclass(slots=True)
class _Settled:
    """A stretch whose result is what one cursor has up to `bound`, None for nothing.

    `ended`: the stretch is all of the cursor's range, which may be taken over as it is.
    """

    cursor: Cursor | None
    bound: bytes
    ended: bool = False

    def write(self, writer: RangeWriter) -> None:
        """Take the range over, or write its rows."""
        cursor = self.cursor
        if cursor is None:
            return
        # In mid-range, an adopted range would cut the writer's where no rule does, and the ids would depend on history.
        if self.ended and writer.at_boundary and cursor.index.boundaries == writer.boundaries:
            writer.adopt(cursor.entry)
        else:
            writer.append(cursor.take(self.bound))


class _Torn:
    """A stretch that ours and theirs both changed: what each of the three holds of its keys, and what was chosen."""

    def __init__(
        self, base: pa.RecordBatch, ours: pa.RecordBatch, theirs: pa.RecordBatch, same: Sequence[str] | None
    ) -> None:
        self._batches = [base, ours, theirs]
        columns = [key_column(batch.column("key")) for batch in self._batches]
        rows = np.empty((3, sum(map(len, columns))), np.int64)
        count = merge_three_keys(*(part for column in columns for part in (column.offsets, column.data)), rows)
        self._sides = [Side(batch, mine[:count]) for batch, mine in zip(self._batches, rows, strict=True)]
        of_base, of_ours, of_theirs = self._sides
        # The cheaper question first: on most keys theirs is as base, and nothing else is compared.
        left = _same(of_base, of_theirs, same)  # theirs left it as it was
        self._chosen = np.where(left, Choice.OURS, Choice.THEIRS).astype(np.int8)
        changed = np.flatnonzero(~left)  # the others are as in base, both sides agree, or it is a conflict
        of_base, of_ours, of_theirs = (side.chosen(changed) for side in self._sides)
        agreed = _same(of_ours, of_theirs, same)
        # Both made the same change: that is no conflict, also where both deleted.
        self._chosen[changed[agreed]] = Choice.OURS
        self._open = changed[~agreed & ~_same(of_base, of_ours, same)]
        self._chosen[self._open] = Choice.CONFLICT

    @property
    def conflicts(self) -> Conflicts:
        """The keys that are nobody's by the rule alone."""
        sides = [side.chosen(self._open) for side in self._sides]
        rows = _positions(sides, np.argmax([side.present for side in sides], axis=0))
        return Conflicts(gathered(self._batches, rows).column("key"), *sides)

    def settle(self, resolve: Resolve | Choice) -> Conflicts:
        """Let the caller choose; the keys that are left."""
        conflicts = self.conflicts
        if len(conflicts) and resolve is not Choice.CONFLICT:
            self._chosen[self._open] = _choices(resolve, conflicts)
        return conflicts.chosen(self._chosen[self._open] == Choice.CONFLICT)

    def write(self, writer: RangeWriter) -> None:
        rows = _positions(self._sides, self._chosen)
        writer.append(gathered(self._batches, rows[rows >= 0]))


def _choices(resolve: Resolve | Choice, conflicts: Conflicts) -> npt.NDArray[np.int8]:
    answer = np.asarray(resolve(conflicts) if callable(resolve) else resolve)
    # The answer is a caller's code, and comes from a user's choice of a strategy.
    if answer.shape not in ((), (len(conflicts),)) or not np.isin(answer, list(Choice)).all():
        raise Invalid(
            "no choice between the sides of a merge", kind="range_choice", keys=len(conflicts), choices=answer.tolist(),
            hint="answer with one Choice, or with one for each key",
        )  # fmt: skip
    return np.broadcast_to(answer, len(conflicts)).astype(np.int8)


def _same(a: Side, b: Side, same: Sequence[str] | None) -> npt.NDArray[np.bool_]:
    """The keys of which two sides hold the same: equal entries, or none."""
    # Absence is a value: no row on either side is the same.
    out = ~a.present & ~b.present
    both = np.flatnonzero(a.present & b.present)
    left, right = (side.batch if same is None else side.batch.select(list(same)) for side in (a, b))
    out[both] = equal_at(left, a.rows[both], right, b.rows[both])
    return out


def _positions(sides: list[Side], chosen: npt.NDArray[np.integer]) -> _I64:
    """The rows that were chosen, in the batches one behind the other; -1 for none."""
    out = np.full(len(chosen), -1, np.int64)
    before = 0
    for number, side in enumerate(sides):
        mine = (chosen == number) & side.present
        out[mine] = side.rows[mine] + before
        before += side.batch.num_rows
    return out


@dataclass(slots=True)
class _Agreement:
    """The stretch over which base and one side are known to list the same ranges: through `last`, and to before
    `difference`.

    A `last` of None: not at all. A `difference` of None: to the end of both.
    """

    last: bytes | None
    difference: bytes | None

    def reaches(self, key: bytes) -> bool:
        """True when both hold the same up to and with `key`."""
        return self.difference is None or key < self.difference


class _Walk:
    """The three indexes side by side, stretch by stretch."""

    def __init__(self, objects: Objects, base: Index, ours: Index, theirs: Index, same: Sequence[str] | None) -> None:
        self.same = same
        self.base, self.ours, self.theirs = (Cursor(objects, index) for index in (base, ours, theirs))
        self._floor: bytes | None = None  # the last key of the stretch before
        self._agreed: dict[Cursor, _Agreement] = {}

    def stretches(self) -> Iterator[_Settled | _Torn]:
        """Each stretch once; what its receiver does not read stays unread."""
        cursors = [self.base, self.ours, self.theirs]
        while live := unfinished(cursors):
            settled = self._settled()
            if settled is None:
                self._floor = shared_bound(live)
                base, ours, theirs = (_rows_up_to(cursor, self._floor) for cursor in cursors)
                yield _Torn(base, ours, theirs, self.same)
            else:
                # Cheap, and an endless loop would hold the repository's merge.
                assert self._floor is None or settled.bound > self._floor, "the walk stands still"
                self._floor = settled.bound
                yield settled
            for cursor in cursors:
                # All stand behind the same key again: the invariant on which ids are compared.
                cursor.seek(self._floor + b"\0")  # the next of all keys

    def _settled(self) -> _Settled | None:
        """The stretch that comes, if ids alone settle it."""
        ours, theirs = self.ours, self.theirs
        # Both deleted all that base has left.
        if ours.done and theirs.done:
            return _Settled(None, self.base.index.entries[-1].last)
        if not ours.done and not theirs.done and ours.entry.id == theirs.entry.id:
            # Where it is not the last, its rule ended it; the last of both is the last of all.
            ended = theirs if ours.in_last and not theirs.in_last else ours
            return _Settled(ended, ended.entry.last, ended.at_start)
        return self._one_sided(ours, theirs) or self._one_sided(theirs, ours)

    def _one_sided(self, mine: Cursor, other: Cursor) -> _Settled | None:
        """The stretch that comes, if the other side left it as it was in base: then mine counts, if it has any."""
        agreement = self._agreement(other)
        # The whole range of mine lies where base and the other side agree.
        if not mine.done and mine.at_start and agreement.reaches(mine.entry.last):
            nothing_follows = agreement.difference is None
            return _Settled(mine, mine.entry.last, nothing_follows or not mine.in_last)
        if agreement.last is None:
            return None
        # Mine has nothing there: it deleted what both others hold.
        if mine.done or (mine.at_start and mine.entry.first > agreement.last):
            return _Settled(None, agreement.last)
        reaches = agreement.reaches(mine.entry.last)  # also past the end of base, where its last key lies behind
        return _Settled(mine, mine.entry.last if reaches else min(mine.entry.last, agreement.last))

    def _agreement(self, side: Cursor) -> _Agreement:
        """Found once for all ranges up to the next difference, so that a merge looks at each range once."""
        agreement = self._agreed.get(side)
        if agreement is None or not self._holds(agreement):
            agreement = self._agreed[side] = _agreement(self.base, side)
        return agreement

    def _holds(self, agreement: _Agreement) -> bool:
        return agreement.difference is None or (
            agreement.last is not None and self._floor is not None and self._floor < agreement.last
        )


def _agreement(base: Cursor, side: Cursor) -> _Agreement:
    last: bytes | None = None
    for after in itertools.count():
        a, b = base.coming(after), side.coming(after)
        if a is None and b is None:
            return _Agreement(last, None)
        if a is None or b is None or a.id != b.id:
            within = (after == 0 and not (base.done or base.at_start)) or (
                after == 0 and not (side.done or side.at_start)
            )
            return _Agreement(last, b"" if within else min(entry.first for entry in (a, b) if entry is not None))
        last = a.last
    raise AssertionError("counting does not end")


def _rows_up_to(cursor: Cursor, bound: bytes) -> pa.RecordBatch:
    if cursor.done or cursor.next_key > bound:
        return pa.RecordBatch.from_pylist([], schema=cursor.index.columns)
    return cursor.take(bound)
