"""A series: the sealed segments of a part in a space, one row each, so that adopting one more costs one row however
many there are.

    (segments…, position)   JSON of the segment, and of what its part says about it
    (absorbed…, id)         the position it had: it was compacted, retired, or is still listed; until it is forgotten

Every change is made in the caller's transaction, together with whatever must be true at the same moment.

Invariants:
* positions grow: only a segment with a position after the newest is adopted;
* adopted twice it is one segment: as long as it is listed, and, where the series has `absorbed`, until it is forgotten;
* a segment leaves from the oldest end, or is removed with all memory of it; one that left may be put back in its place;
* neighbours are substituted by one segment, if they are what was seen; only in a series that remembers no ids;
* every listed segment has its id among `absorbed`, with its own position;
* `absorbed` is bounded by its part, which says how far back it remembers (`forget`). A part whose ids never come again,
  or that drops whole series, has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millpond.errors import Conflict, Corrupt, Fenced
from millpond.json_forms import JsonForm
from millpond.kernel.keys import Prefix
from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("Listed", "Segment", "Series")

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of entries, never written again: its id, its place in time (later is greater), and how many entries."""

    id: str
    position: int
    entries: int = 0

    def __post_init__(self) -> None:
        assert self.id and self.position >= 0 and self.entries >= 0


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    entries: int
    about: Any


_ROW = JsonForm(_Row)


@dataclass(frozen=True, slots=True)
class Listed(Generic[A]):
    """A segment that is listed, and the words of its part about it."""

    segment: Segment
    about: A


@dataclass(frozen=True, slots=True)
class Series(Generic[A]):
    """Sealed segments in a space, in the order of their positions.

    `form` is the form of what a part says about a segment.
    """

    segments: Prefix
    absorbed: Prefix | None
    form: JsonForm[A]

    def listed(self, tx: ReadTransaction) -> Iterator[Listed[A]]:
        """The segments, oldest first: the order in which they are folded.

        Raises:
            Corrupt: a row is not what a series writes.
        """
        for key, value in tx.scan(self.segments.range()):
            yield self._parse(key, value)

    def between(self, tx: ReadTransaction, start: int, stop: int) -> list[Listed[A]]:
        """The segments at positions from `start` up to, without, `stop`, oldest first.

        Raises:
            Corrupt: a row is not what a series writes.
        """
        return [self._parse(key, value) for key, value in tx.scan(self.segments.range((start,), (stop,)))]

    def find(self, tx: ReadTransaction, id_: str) -> Listed[A] | None:
        """The segment of that id while it is listed; for a series that remembers its segments.

        Raises:
            Corrupt: a row is not what a series writes.
        """
        assert self.absorbed is not None
        # One that left is still absorbed. Its place is empty then, and nobody else's: positions grow.
        position = tx.get(self.absorbed.pack(id_))
        key = None if position is None else self.segments.pack(int.from_bytes(position, "big"))
        row = None if key is None else tx.get(key)
        return None if key is None or row is None else self._parse(key, row)

    def knows(self, tx: ReadTransaction, id_: str) -> bool:
        """True when the segment is listed, or was and is remembered."""
        return bool(self.members(tx, [id_]))

    def members(self, tx: ReadTransaction, ids: Sequence[str]) -> set[str]:
        """Those of the ids whose segments are listed, or were and are remembered."""
        if self.absorbed is None:
            return {entry.segment.id for entry in self.listed(tx)}.intersection(ids)
        rows = tx.get_many([self.absorbed.pack(id_) for id_ in ids])
        return {id_ for id_, row in zip(ids, rows, strict=True) if row is not None}

    def adopt(self, tx: Transaction, segment: Segment, about: A) -> bool:
        """List a sealed segment as the newest; False when it is known already.

        Raises:
            Conflict: a newer one is listed.
        """
        # First of all: a sender who did not learn that it was adopted sends it again, when later ones are listed. That
        # is no conflict.
        if self.knows(tx, segment.id):
            return False
        # The newest is read in the write that lists another one, and the writes of a space have an order: so positions
        # grow, whoever else adopts, without a lock.
        row = next(tx.scan(self.segments.range(), reverse=True), None)
        newest = None if row is None else self._parse(*row).segment
        if newest is not None and segment.position <= newest.position:
            raise Conflict(
                "the segment comes too late", kind="segment_order", segment=segment.id, newest=newest.id,
                hint="give it a position after the newest",
            )  # fmt: skip
        self.put_back(tx, segment, about)
        return True

    def put_back(self, tx: Transaction, segment: Segment, about: A) -> None:
        """List a segment that left, in its old place: what it brought is to be folded once more."""
        # Both rows in one transaction: a segment that is listed is known, whatever becomes of the process.
        row = _Row(segment.id, segment.entries, self.form.plain(about))
        tx.put(self.segments.pack(segment.position), _ROW.encode(row))
        if self.absorbed is not None:
            tx.put(self.absorbed.pack(segment.id), segment.position.to_bytes(8, "big"))

    def substitute(self, tx: Transaction, inputs: Sequence[Listed[A]], output: Segment, about: A) -> None:
        """Put one segment in the place of neighbours: at the position of the newest of them.

        Raises:
            Fenced: the inputs are not listed any more as they are given, or others stand between them.
        """
        assert self.absorbed is None and inputs and output.position == inputs[-1].segment.position
        start, stop = inputs[0].segment.position, inputs[-1].segment.position + 1
        # All that lies between is compared, and not each input alone: what else is there is no part of the output, and
        # would be lost with the range.
        if self.between(tx, start, stop) != list(inputs):
            raise Fenced(
                "the segments are no longer what they were", kind="segments_moved",
                segments=tuple(entry.segment.id for entry in inputs),
                hint="drop what was made of them, and begin anew",
            )  # fmt: skip
        # In this order: the output has the key of the newest input.
        tx.delete_range(self.segments.range((start,), (stop,)))
        self.put_back(tx, output, about)

    def retire(self, tx: Transaction, positions: Sequence[int]) -> None:
        """Take out the oldest segments, at these positions, oldest first; they stay absorbed.

        Raises:
            Conflict: they are not the oldest any more.
        """
        # The caller may have listed them in a transaction before this one, and another have retired them since.
        oldest = [entry.segment.position for entry, _ in zip(self.listed(tx), positions, strict=False)]
        if oldest != list(positions):
            raise Conflict(
                "only the oldest segments can leave", kind="segment_order", positions=tuple(positions),
                hint="read again, then retry",
            )  # fmt: skip
        tx.delete_range(self.segments.range(), len(oldest))

    def remove(self, tx: Transaction, segment: Segment) -> bool:
        """Take out a segment that cannot be used, and forget it; True when it was listed."""
        if self.absorbed is not None:
            tx.delete(self.absorbed.pack(segment.id))
        return tx.delete(self.segments.pack(segment.position))

    def forget(self, tx: Transaction, before: int) -> int:
        """Forget the absorbed segments with a position less than `before` that are not listed; how many."""
        count = 0
        for key, position in () if self.absorbed is None else tx.scan(self.absorbed.range()):
            number = int.from_bytes(position, "big")
            # A listed segment stays known, however old it is: adopted again it would be folded twice.
            if number < before and tx.get(self.segments.pack(number)) is None:
                count += tx.delete(key)
        return count

    def clear(self, tx: Transaction) -> None:
        """Forget everything."""
        for prefix in (self.segments, self.absorbed):
            if prefix is not None:
                tx.delete_range(prefix.range())

    def _parse(self, key: bytes, value: bytes) -> Listed[A]:
        try:
            (position,) = self.segments.unpack(key)
            row = _ROW.decode(value)
            about = self.form.build(row.about)
        except ValueError as error:
            raise _damaged(key) from error
        # What the disk says is checked, not asserted: it is no mistake of ours.
        if type(position) is not int or position < 0 or not row.id or row.entries < 0:
            raise _damaged(key)
        return Listed(Segment(row.id, position, row.entries), about)


def _damaged(key: bytes) -> Corrupt:
    return Corrupt("a row of a series cannot be read", kind="series_damaged", key=key.hex())
