"""The aggregation of a map: a rule for each field, by which values combine, and the width and zone of its buckets.

    value="orders long count, total double sum, last double latest"    stored as
    orders long, total double, last double, last_time timestamp        count, sum, latest, instant

| rule | combines values to | types |
|---|---|---|
| `count` | their sum; an event that has none counts once | long |
| `sum` | their sum | long, double |
| `min`, `max` | the least, the greatest | long, double, timestamp |
| `first`, `latest` | that of the earliest, latest instant; among equals the least, the greatest | every type |
| `distinct`, `quantiles` | a sketch of their texts, their numbers: `sketches.py` | binary |
| `instant` | of `first` and `latest`: the instant of the event, which stands beside the value | timestamp |

Fields that are `computed` of these when rows are shown are stored nowhere:

| formula | of | gives |
|---|---|---|
| `average` | a sum, a count | the sum for each of the count; null where that is zero |
| `distinct` | a sketch of texts | about how many differ |
| `quantile` | a sketch of numbers | about the number below which the share `at` of them lies |

Invariants:
* every rule is commutative and associative, but for the rounding of doubles: the order of loads and folds is no matter;
* a null adds nothing, but to a count; a field is null where nothing was added.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ("Aggregation", "Computed", "Form", "Formula", "RolledUp", "Rule")


class Rule(StrEnum):
    """The way in which values of a field combine."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LATEST = "latest"
    DISTINCT = "distinct"
    QUANTILES = "quantiles"
    INSTANT = "instant"

    @property
    def sketched(self) -> bool:
        """A sketch of the values is stored."""
        return self in (Rule.DISTINCT, Rule.QUANTILES)

    @property
    def additive(self) -> bool:
        """Values are added."""
        return self in (Rule.COUNT, Rule.SUM)

    @property
    def reduced(self) -> bool:
        """Values are numbers, of which one comes after the other."""
        return self.additive or self in (Rule.MIN, Rule.MAX)

    @property
    def dated(self) -> bool:
        """The instant of the event is stored beside the value, as the next field."""
        return self in (Rule.FIRST, Rule.LATEST)


class Form(StrEnum):
    """Aggregates that have a name of their own, and its fields: those of Stroom's Plan B."""

    HISTOGRAM = "histogram"
    METRIC = "metric"


class Formula(StrEnum):
    """The way in which a field that no row stores follows from others; it gives a double."""

    AVERAGE = "average"
    DISTINCT = "distinct"
    QUANTILE = "quantile"


@dataclass(frozen=True, slots=True)
class Computed:
    """A field that is worked out when rows are shown, of stored ones."""

    name: str
    formula: Formula
    of: tuple[str, ...]
    at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The form in which it is stored."""
        options = {} if self.at is None else {"at": self.at}
        return {"name": self.name, "formula": str(self.formula), "of": [*self.of]} | options


@dataclass(frozen=True, slots=True)
class RolledUp:
    """Rows before an instant, at which a bucket of a wider resolution begins, are in buckets of that one."""

    before: int
    resolution: str


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The rules of the fields of a value, in their order; the width of a bucket, as `1 hour`; its time zone; and the
    fields that are computed of the others.

    `tagged`: its keys are sets of tags, in the form of `tags.py`. `form` is that of a histogram or a metric.
    `rolled_up`, the widest and earliest first, is of a state of the map, never of its definition: see `rolled_up.py`.
    """

    rules: tuple[Rule, ...]
    resolution: str
    time_zone: str
    computed: tuple[Computed, ...] = ()
    tagged: bool = False
    form: Form | None = None
    rolled_up: tuple[RolledUp, ...] = ()

    @property
    def sketched(self) -> bool:
        """Sketches are among the fields."""
        return any(rule.sketched for rule in self.rules)

    def to_dict(self) -> dict[str, Any]:
        """The form in which it is stored."""
        stored: dict[str, Any] = {
            "rules": [str(rule) for rule in self.rules], "resolution": self.resolution, "time_zone": self.time_zone,
        }  # fmt: skip
        if self.computed:
            stored["computed"] = [field.to_dict() for field in self.computed]
        if self.tagged:
            stored["tagged"] = True
        if self.rolled_up:
            stored["rolled_up"] = [{"before": part.before, "resolution": part.resolution} for part in self.rolled_up]
        return stored if self.form is None else stored | {"form": str(self.form)}
