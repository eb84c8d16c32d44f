"""Limits of what groups can hold after a load: the groups beyond them are not looked up.

    rule: orders > 100           a load brings      layers under it hold at most     so after it at most
                                 JFK 10:00   3      90 and 5                         98     is not looked up
                                 LGA 10:00  40      90 and 5                         135    is

Limits follow from the rows of the load, and from the extremes that each layer notes of its fields. A layer older
than such notes, and a state with rows in wider buckets, leave a field without a limit. A number stays one, whatever is
combined with it: where a condition asks for null, so has the load.

Invariants:
* a group that the condition takes after the load is within the limits; one that is within them may be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from millpond.maps.model.rolled_up import is_rolled_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.predicates.bounds import Span
    from millpond.maps.predicates.predicate import Predicate
    from millpond.maps.snapshots.manifest import Layer, SnapshotManifest

__all__ = ("Limit", "limits_of", "within")

Mask: TypeAlias = "npt.NDArray[np.bool_]"

_ROUNDING = 2.0**-40
"""The share by which a sum of doubles may differ from another of the same numbers, by far."""


class Limit(Protocol):
    """A limit of what groups can hold after a load."""

    def of_load(self) -> bool:
        """True when a group of the load may be within it."""

    def of_groups(self, values: pa.StructArray) -> Mask:
        """For each row of a load, whether its group may be within it."""


@dataclass(frozen=True, slots=True)
class _Null:
    """A field that has to be null."""

    name: str

    def of_load(self) -> bool:
        return True

    def of_groups(self, values: pa.StructArray) -> Mask:
        mask: Mask = values.field(self.name).is_null().to_numpy(zero_copy_only=False)
        return mask


@dataclass(frozen=True, slots=True)
class _Reach:
    """A span that a field has to reach, and what the layers under a load hold of it: at least `low`, at most `high`, of
    an `added` field all together. `brought` are the extremes of the load.
    """

    name: str
    span: Span
    added: bool
    low: float
    high: float
    brought: tuple[float, float]

    def of_load(self) -> bool:
        return bool(self._reached(*np.array(self.brought)))

    def of_groups(self, values: pa.StructArray) -> Mask:
        column = values.field(self.name).cast(pa.float64(), safe=False)
        numbers = column.fill_null(0.0 if self.added else float("nan")).to_numpy()
        return self._reached(numbers, numbers)

    def _reached(self, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Mask:
        if self.added:
            with np.errstate(over="ignore"):
                rounding = (np.maximum(np.abs(low), np.abs(high)) + self.high - self.low) * _ROUNDING
                low, high = low + self.low - rounding, high + self.high + rounding
        else:
            low, high = np.fmin(low, self.low), np.fmax(high, self.high)  # a null is nothing beside a number
        reached = np.ones(np.shape(low), np.bool_)
        if self.span.lower is not None:
            reached &= high >= self.span.lower
        if self.span.upper is not None:
            reached &= low <= self.span.upper
        return reached


def limits_of(
    definition: MapDefinition, condition: Predicate, below: SnapshotManifest | None, brought: Layer
) -> list[Limit]:  # fmt: skip
    """The limits that a load sets to a condition: of the fields for which every layer notes its extremes."""
    aggregation = definition.aggregation
    assert aggregation is not None and definition.value is not None, "an aggregate has both"
    limits: list[Limit] = [
        _Null(name) for (name, _), rule in zip(definition.value.parts, aggregation.rules, strict=True)
        if rule.reduced and name in condition.nulls
    ]  # fmt: skip
    if below is not None and is_rolled_up(below.aggregation):
        return limits
    layers = () if below is None else below.layers
    noted = [{name: (low, high) for name, low, high in layer.extremes} for layer in (brought, *layers)]
    for (name, _), rule in zip(definition.value.parts, aggregation.rules, strict=True):
        span = condition.spans.get(name)
        if span is None or not all(name in extremes for extremes in noted):
            continue
        least, most = noted[0][name]
        lows, highs = zip((inf, -inf), *(extremes[name] for extremes in noted[1:]), strict=True)
        if rule.additive:
            low, high = sum(min(low, 0.0) for low in lows), sum(max(high, 0.0) for high in highs)
            least, most = min(least, 0.0), max(most, 0.0)
        else:
            low, high = min(lows), max(highs)
        limits.append(_Reach(name, span, rule.additive, low, high, (least, most)))
    return limits


def within(limits: Sequence[Limit], values: pa.StructArray) -> Mask:
    """The mask of the rows of a load whose groups are within all limits."""
    mask = np.ones(len(values), np.bool_)
    for limit in limits:
        mask &= limit.of_groups(values)
    return mask
