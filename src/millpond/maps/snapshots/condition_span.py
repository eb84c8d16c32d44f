"""The groups of a snapshot that can hold rows of a condition: by its keys, or by where its ranges start."""

from __future__ import annotations

import math
from collections.abc import Callable

from millpond.arrays.key_hash import hash_key
from millpond.maps.model.definition import MapDefinition
from millpond.maps.predicates.bounds import Span, both
from millpond.maps.predicates.predicate import Predicate
from millpond.maps.snapshots.rows_of_groups import GroupSpan

__all__ = ("clipped", "condition_span", "order_key")

_INT64 = range(-(1 << 63), 1 << 63)


def condition_span(definition: MapDefinition, condition: Predicate) -> GroupSpan:
    """The least span of groups that holds every row the condition takes."""
    if condition.impossible:
        return GroupSpan(keys=())
    if definition.kind.keyed:
        points = condition.spans.get("key", Span()).points
        keys = None if points is None else tuple(sorted(order_key(definition, point.encode()) for point in points))
        return GroupSpan(keys=keys)
    # A range starts no later than it ends.
    ends = condition.spans.get("key_end", Span())
    starts = both(condition.spans.get("key_start", Span()), Span(upper=ends.upper))
    first = None if starts.lower is None else _whole(starts.lower, math.floor)
    return clipped(GroupSpan(), first, None if starts.upper is None else _whole(starts.upper, math.ceil))


def _whole(bound: float, rounded: Callable[[float], int]) -> int:
    """A bound as a whole number; beyond int64, where the infinities are, its end."""
    return _INT64.stop if bound >= _INT64.stop else _INT64.start if bound < _INT64.start else rounded(bound)


def order_key(definition: MapDefinition, key: bytes) -> bytes:
    """The order key of a keyed map's group."""
    return hash_key(key, definition.hash_bits).to_bytes(8, "big") + key


def clipped(span: GroupSpan, first: int | None, last: int | None) -> GroupSpan:
    """The span of starts from `first` to `last`, both included."""
    lower, upper = span.lower, span.upper
    if first is not None:
        lower = max(lower or b"", _ordered(first))
    if last is not None and last + 1 in _INT64:
        upper = _ordered(last + 1) if upper is None else min(upper, _ordered(last + 1))
    return GroupSpan(lower, upper)


def _ordered(number: int) -> bytes:
    """Eight bytes that sort as the numbers do; beyond int64 there is nothing."""
    return (min(max(number, _INT64.start), _INT64.stop) + (1 << 63)).to_bytes(9, "big")[1:]
