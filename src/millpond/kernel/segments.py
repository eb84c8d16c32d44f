"""Segments and manifests: what a series is made of at one moment, as values.

A *segment* is a run of entries: **open**, the only one written; or **sealed**, never written again. A *manifest*
lists the segments of a series, newest first. It changes by one operation alone: neighbours are *substituted* by at
most one segment, and that fails when they are no longer neighbours: the compare-and-set and the fencing in one.

    adopt       a sealed segment built elsewhere comes in as the newest
    open, seal  the newest is written, then is not any more
    compact     neighbours become one that holds what they hold
    retire      the oldest leave: their entries live elsewhere, or nowhere, from now on

Invariants of a manifest, asserted whenever one is made:
* ids are unique, and positions fall from the newest to the oldest;
* only the newest segment may be open;
* a segment that was absorbed is not listed, and is never listed again: adopting it twice is harmless, also
  after it was compacted away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from millpond.errors import Conflict, Fenced, Invalid

__all__ = ("Manifest", "Segment")


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of entries: its id, its place in time (later is greater), how many entries, and whether it is sealed."""

    id: str
    position: int
    entries: int = 0
    sealed: bool = True

    def __post_init__(self) -> None:
        assert self.id and self.position >= 0 and self.entries >= 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The segments of a series, newest first, and the ids it has absorbed.

    >>> manifest = Manifest().adopt(Segment("a", 1)).adopt(Segment("b", 2)).adopt(Segment("c", 3))
    >>> [segment.id for segment in manifest.compact(["c", "b"], Segment("bc", 3)).segments]
    ['bc', 'a']
    """

    segments: tuple[Segment, ...] = ()
    absorbed: frozenset[str] = field(default=frozenset())

    def __post_init__(self) -> None:
        ids = [segment.id for segment in self.segments]
        assert len(set(ids)) == len(ids), "ids are unique"
        assert all(newer.position > older.position for newer, older in itertools.pairwise(self.segments))
        assert all(segment.sealed for segment in self.segments[1:]), "only the newest may be open"
        assert self.absorbed.isdisjoint(ids), "what was absorbed is not listed"

    def __contains__(self, id_: str) -> bool:
        """True when the segment is listed, or was and has been absorbed."""
        return id_ in self.absorbed or any(segment.id == id_ for segment in self.segments)

    @property
    def newest(self) -> Segment | None:
        """The segment that comes first."""
        return self.segments[0] if self.segments else None

    @property
    def oldest(self) -> Segment | None:
        """The segment that comes last."""
        return self.segments[-1] if self.segments else None

    def open(self, segment: Segment) -> Manifest:
        """With a new open segment on top; one that was open must have been sealed.

        Raises:
            Conflict: another is open, or this one is not newer than the newest.
        """
        assert not segment.sealed
        if self.newest is not None and not self.newest.sealed:
            raise Conflict("a segment is open already", kind="segment_open", segment=self.newest.id)
        return self._on_top(segment)

    def seal(self, entries: int) -> Manifest:
        """With the open segment sealed, holding so many entries.

        Raises:
            Conflict: none is open.
        """
        if self.newest is None or self.newest.sealed:
            raise Conflict("no segment is open", kind="segment_sealed")
        return replace(self, segments=(replace(self.newest, sealed=True, entries=entries), *self.segments[1:]))

    def adopt(self, segment: Segment) -> Manifest:
        """With a sealed segment on top; unchanged when it is here, or was.

        Raises:
            Conflict: it is not newer than the newest, or the newest is open.
        """
        assert segment.sealed
        if segment.id in self:
            return self
        if self.newest is not None and not self.newest.sealed:
            raise Conflict("a segment is open on top", kind="segment_open", segment=self.newest.id)
        return self._on_top(segment)

    def _on_top(self, segment: Segment) -> Manifest:
        if segment.id in self:
            raise Conflict("the segment was here before", kind="segment_known", segment=segment.id)
        if self.newest is not None and segment.position <= self.newest.position:
            raise Conflict(
                "the segment comes too late", kind="segment_order", segment=segment.id, newest=self.newest.id,
                hint="give it a position after the newest",
            )  # fmt: skip
        return replace(self, segments=(segment, *self.segments))

    def substitute(self, inputs: Sequence[str], output: Segment | None) -> Manifest:
        """With neighbouring sealed segments replaced by `output`, or by nothing.

        Raises:
            Fenced: the inputs are not all here, or not neighbours in this order: somebody else replaced one.
            Conflict: one is open.
            Invalid: no inputs.
        """
        if not inputs:
            raise Invalid("nothing is to be replaced", kind="segments_none")
        start, stop = self._span(inputs)
        taken = self.segments[start:stop]
        if not all(segment.sealed for segment in taken):
            raise Conflict("an open segment cannot be replaced", kind="segment_open", segment=taken[0].id)
        added = () if output is None else (output,)
        gone = self.absorbed.union(inputs) - {segment.id for segment in added}
        return Manifest((*self.segments[:start], *added, *self.segments[stop:]), gone)

    def compact(self, inputs: Sequence[str], output: Segment) -> Manifest:
        """With neighbours replaced by one that holds what they hold, in their place.

        Raises:
            Fenced: the inputs are no longer neighbours.
        """
        return self.substitute(inputs, replace(output, position=self._find(inputs[0]).position))

    def retire(self, inputs: Sequence[str]) -> Manifest:
        """Without the oldest segments, which are `inputs`, newest first.

        Raises:
            Conflict: they are not the oldest.
        """
        if not self.includes_oldest(inputs):
            raise Conflict("only the oldest segments can leave", kind="segment_order", segments=tuple(inputs))
        return self.substitute(inputs, None)

    def includes_oldest(self, inputs: Iterable[str]) -> bool:
        """True when the oldest segment is among the inputs: only then may what is folded from them drop tombstones."""
        return self.oldest is not None and self.oldest.id in set(inputs)

    def _find(self, id_: str) -> Segment:
        for segment in self.segments:
            if segment.id == id_:
                return segment
        raise Fenced(
            "the segment is not here any more", kind="segment_gone", segment=id_,
            hint="drop what was made of it, and begin anew",
        )  # fmt: skip

    def _span(self, inputs: Sequence[str]) -> tuple[int, int]:
        start = self.segments.index(self._find(inputs[0]))
        stop = start + len(inputs)
        if [segment.id for segment in self.segments[start:stop]] != list(inputs):
            raise Fenced(
                "the segments are no longer neighbours", kind="segments_moved", segments=tuple(inputs),
                hint="drop what was made of them, and begin anew",
            )  # fmt: skip
        return start, stop
