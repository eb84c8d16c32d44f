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


def both(one: Span, other: Span) -> Span:
    """The intersection of two spans."""
    lowers = [span.lower for span in (one, other) if span.lower is not None]
    uppers = [span.upper for span in (one, other) if span.upper is not None]
    lower, upper = max(lowers, default=None), min(uppers, default=None)
    if one.points is None and other.points is None:
        return Span(lower, upper)
    if one.points is not None and other.points is not None:
        return Span.of_points(one.points & other.points)
    points = one.points if one.points is not None else other.points
    assert points is not None
    return Span.of_points(
        point for point in points if (lower is None or point >= lower) and (upper is None or point <= upper)
    )


def either(one: Span, other: Span) -> Span:
    """The hull of two spans: it may include values that lie between them."""
    if one.empty or other.empty:
        return other if one.empty else one
    if one.points is not None and other.points is not None:
        return Span.of_points(one.points | other.points)
    lower = None if one.lower is None or other.lower is None else min(one.lower, other.lower)
    upper = None if one.upper is None or other.upper is None else max(one.upper, other.upper)
    return Span(lower, upper)
