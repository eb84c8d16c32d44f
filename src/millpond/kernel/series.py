"""A series: a manifest in a space, one row a segment, so that adopting one more costs one row however many wait.

    (segments…, position)   JSON of the segment, and of what its part wants to say about it
    (absorbed…, id)         the position it had: it was compacted, retired, or is still listed; until it is forgotten

The rows are the manifest: `read` assembles it, the others change it by the rules of `segments.py`, in the caller's
transaction, together with whatever must be true at the same moment.

Invariants:
* every listed segment has its id among `absorbed`, with its own position: adopted twice it is one segment;
* a segment leaves from the oldest end, or is removed with all memory of it; one that left may be put back in its place;
* what a part has forgotten may be adopted again: how far back it remembers is for the part to say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.errors import Conflict, Corrupt
from millpond.kernel.segments import Manifest, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millpond.kernel.keys import Prefix
    from millpond.kernel.space import ReadTransaction, Transaction

__all__ = ("Listed", "Series")


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment that is listed, and what its part says about it."""

    segment: Segment
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """Sealed segments in a space, in the order of their positions."""

    segments: Prefix
    absorbed: Prefix

    def listed(self, tx: ReadTransaction) -> Iterator[Listed]:
        """The segments, oldest first: the order in which they are folded.

        Raises:
            Corrupt: a row is not what a series writes.
        """
        for key, value in tx.scan(self.segments.range()):
            yield self._parse(key, value)

    def read(self, tx: ReadTransaction) -> Manifest:
        """The manifest, with all that is known to be absorbed: it costs a look at every row."""
        segments = tuple(listed.segment for listed in self.listed(tx))[::-1]
        ids = {segment.id for segment in segments}
        known = {str(self.absorbed.unpack(key)[0]) for key in tx.keys(self.absorbed.range())}
        return Manifest(segments, frozenset(known - ids))

    def knows(self, tx: ReadTransaction, id_: str) -> bool:
        """True when the segment is listed, or was."""
        return tx.get(self.absorbed.pack(id_)) is not None

    def known(self, tx: ReadTransaction, ids: Sequence[str]) -> set[str]:
        """Those of the ids whose segments are listed, or were."""
        rows = tx.get_many([self.absorbed.pack(id_) for id_ in ids])
        return {id_ for id_, row in zip(ids, rows, strict=True) if row is not None}

    def adopt(self, tx: Transaction, segment: Segment, about: dict[str, Any]) -> bool:
        """List a sealed segment as the newest; False when it is known already.

        Raises:
            Conflict: a newer one is listed.
        """
        assert segment.sealed
        if self.knows(tx, segment.id):
            return False
        newest = next(tx.scan(self.segments.range(), reverse=True), None)
        if newest is not None:
            # One look at the newest says what `Manifest.adopt` would say after reading them all.
            Manifest((self._parse(*newest).segment,)).adopt(segment)
        self.put_back(tx, segment, about)
        return True

    def put_back(self, tx: Transaction, segment: Segment, about: dict[str, Any]) -> None:
        """List a segment that left, in its old place: what it brought is to be folded once more."""
        row = {"id": segment.id, "entries": segment.entries, "about": about}
        tx.put(self.segments.pack(segment.position), json.dumps(row).encode())
        tx.put(self.absorbed.pack(segment.id), segment.position.to_bytes(8, "big"))

    def retire(self, tx: Transaction, positions: Sequence[int]) -> None:
        """Take out the oldest segments, at these positions, oldest first; they stay absorbed.

        Raises:
            Conflict: they are not the oldest any more.
        """
        oldest = [listed.segment.position for listed, _ in zip(self.listed(tx), positions, strict=False)]
        if oldest != list(positions):
            raise Conflict(
                "only the oldest segments can leave", kind="segment_order", positions=tuple(positions),
                hint="read again, then retry",
            )  # fmt: skip
        tx.delete_range(self.segments.range(), len(oldest))

    def remove(self, tx: Transaction, segment: Segment) -> bool:
        """Take out a segment that cannot be used, and forget it; whether it was listed."""
        tx.delete(self.absorbed.pack(segment.id))
        return tx.delete(self.segments.pack(segment.position))

    def forget(self, tx: Transaction, before: int) -> int:
        """Forget the absorbed segments with a position less than `before` that are not listed; how many."""
        gone = 0
        for key, position in tx.scan(self.absorbed.range()):
            number = int.from_bytes(position, "big")
            if number < before and tx.get(self.segments.pack(number)) is None:
                gone += tx.delete(key)
        return gone

    def clear(self, tx: Transaction) -> None:
        """Forget everything."""
        for prefix in (self.segments, self.absorbed):
            tx.delete_range(prefix.range())

    def _parse(self, key: bytes, value: bytes) -> Listed:
        try:
            (position,) = self.segments.unpack(key)
            row = json.loads(value)
            id_, entries, about = row["id"], row["entries"], row["about"]
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(key) from error
        # What the disk says is checked, not asserted: it is no mistake of ours.
        sound = type(position) is int and position >= 0 and isinstance(id_, str) and bool(id_)
        if not sound or type(entries) is not int or entries < 0 or not isinstance(about, dict):
            raise _damaged(key)
        assert isinstance(position, int)
        return Listed(Segment(id_, position, entries), about)


def _damaged(key: bytes) -> Corrupt:
    return Corrupt("a row of a series cannot be read", kind="series_damaged", key=key.hex())
