"""Spans: what a condition leaves of one column, as a few points or everything between two bounds.

A span may be wider than the condition, never narrower. Bounds are inclusive; None is unbounded.

>>> both(span_of(">=", 3), span_of("<", 9))
Span(lower=3, upper=9, points=None)
>>> either(Span.of_points([1, 5]), Span.of_points([7]))
Span(lower=1, upper=7, points=frozenset({1, 5, 7}))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ("Span", "both", "either", "span_of")


@dataclass(frozen=True, slots=True)
class Span:
    """Values from `lower` to `upper`, or just those `points`."""

    lower: Any = None
    upper: Any = None
    points: frozenset[Any] | None = None

    @classmethod
    def of_points(cls, points: Iterable[Any]) -> Span:
        """Just these values."""
        points_ = frozenset(points)
        return cls(min(points_), max(points_), points_) if points_ else cls(None, None, points_)

    @property
    def empty(self) -> bool:
        """True when no value is left."""
        if self.points is not None:
            return not self.points
        return self.lower is not None and self.upper is not None and bool(self.lower > self.upper)


def span_of(comparison: str, value: Any) -> Span | None:
    """The span of the values that satisfy a comparison; None: everything."""
    if comparison == "=":
        return Span.of_points([value])
    if comparison in ("<", "<="):
        return Span(upper=value)
    return Span(lower=value) if comparison in (">", ">=") else None


def both(*spans: Span) -> Span:
    """The intersection of spans, in one pass over their points: there may be many of both."""
    lower = max((span.lower for span in spans if span.lower is not None), default=None)
    upper = min((span.upper for span in spans if span.upper is not None), default=None)
    pointed = [span.points for span in spans if span.points is not None]
    if not pointed:
        return Span(lower, upper)
    return Span.of_points(
        point
        for point in frozenset.intersection(*pointed)
        if (lower is None or point >= lower) and (upper is None or point <= upper)
    )


def either(*spans: Span) -> Span:
    """The hull of spans: it may include values that lie between them."""
    spans = tuple(span for span in spans if not span.empty) or spans[:1]
    pointed = [span.points for span in spans if span.points is not None]
    if len(pointed) == len(spans):
        return Span.of_points(point for points in pointed for point in points)
    lowers, uppers = [span.lower for span in spans], [span.upper for span in spans]
    return Span(None if None in lowers else min(lowers), None if None in uppers else max(uppers))
