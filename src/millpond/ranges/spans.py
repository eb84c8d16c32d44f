"""Spans: disjoint stretches of keys in order, and which keys lie within them.

>>> spans = Spans.of([KeyRange(b"a/", b"a0"), KeyRange(b"a/b", b"a/c")])
>>> spans.ranges
(KeyRange(start=b'a/', stop=b'a0'),)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.kernel.keys import KeyRange
from millpond.ranges.key_columns import KeyColumn, key_column, search

__all__ = ("NO_SPANS", "Spans")


@dataclass(frozen=True, slots=True)
class Spans:
    """Key ranges that ascend and do not touch; only the last may be without an end."""

    ranges: tuple[KeyRange, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[KeyRange]) -> Spans:
        """The union of key ranges."""
        joined: list[KeyRange] = []
        for start, stop in sorted(ranges, key=lambda keys: keys.start):
            before = joined[-1] if joined else None
            # Spans that touch are joined too, so that `covers` may look at one span.
            if before is not None and (before.stop is None or start <= before.stop):
                ends = stop is not None and before.stop is not None
                joined[-1] = KeyRange(before.start, max(stop, before.stop) if ends else None)  # type: ignore[type-var]
            else:
                joined.append(KeyRange(start, stop))
        return cls(tuple(joined))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: Spans) -> Spans:
        if not other or not self:
            return self or other
        return Spans.of((*self.ranges, *other.ranges))

    def within(self, keys: KeyRange) -> list[KeyRange]:
        """The parts of the spans that lie in a range of keys."""
        spans = []
        for start, stop in self.ranges:
            low = max(start, keys.start)
            high = keys.stop if stop is None else stop if keys.stop is None else min(stop, keys.stop)
            if high is None or low < high:
                spans.append(KeyRange(low, high))
        return spans

    def holds(self, keys: KeyColumn) -> npt.NDArray[np.bool_]:
        """The keys of a column that lie in one of the spans, as a mask."""
        if not self.ranges or len(keys) == 0:
            return np.zeros(len(keys), np.bool_)
        # a key lies within when it is behind more starts than stops
        # Spans are disjoint, so a key is behind at most one start more than stops.
        begun = _counts([start for start, _ in self.ranges], keys)
        ended = _counts([stop for _, stop in self.ranges if stop is not None], keys)
        return np.asarray(begun > ended, np.bool_)

    def meets(self, first: bytes, last: bytes) -> bool:
        """True when a key between `first` and `last`, both included, could lie in one of the spans."""
        at = bisect_right(self.ranges, last, key=lambda keys: keys.start) - 1
        if at < 0:
            return False
        stop = self.ranges[at].stop
        return stop is None or stop > first

    def covers(self, first: bytes, last: bytes) -> bool:
        """True when every key from `first` to `last`, both included, lies in one span."""
        at = bisect_right(self.ranges, first, key=lambda keys: keys.start) - 1
        return at >= 0 and self.ranges[at].holds(first) and self.ranges[at].holds(last)


def _counts(bounds: list[bytes], keys: KeyColumn) -> npt.NDArray[np.int64]:
    """For each key the bounds that are not above it."""
    column = key_column(pa.array(bounds, pa.binary()))
    out = np.empty(len(keys), np.int64)
    search(column.offsets, column.data, keys.offsets, keys.data, np.arange(len(keys)), True, out)
    return out


NO_SPANS = Spans()
