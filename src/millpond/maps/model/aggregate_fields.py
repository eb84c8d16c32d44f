"""The fields of an aggregate as people write them: a name, a type and a rule each; and those of forms.

| form | fields | an event brings |
|---|---|---|
| `histogram` | `value long count` | `value`, how often; else it counts once |
| `metric` | `value` latest, `min`, `max`, `count`, `sum`, `average`; `double` or `long` | `value`, for all of them |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.maps.model.aggregation import Aggregation, Computed, Form, Formula, Rule
from millpond.maps.model.definition import ScalarType, ValueType, check_field, parse_scalar
from millpond.maps.model.tags import TAGS
from millpond.times.buckets import bucket_width
from millpond.times.zones import check_zone

if TYPE_CHECKING:
    from collections.abc import Collection

    from millpond.maps.model.definition import MapDefinition

__all__ = ("MEASURE", "aggregated_type", "measures")

_NUMBERS = (ScalarType.LONG, ScalarType.DOUBLE)
_TYPES = {
    Rule.COUNT: (ScalarType.LONG,), Rule.SUM: _NUMBERS, Rule.MIN: (*_NUMBERS, ScalarType.TIMESTAMP),
    Rule.MAX: (*_NUMBERS, ScalarType.TIMESTAMP), Rule.FIRST: tuple(ScalarType), Rule.LATEST: tuple(ScalarType),
}  # fmt: skip
"""The rules that people write, and the types that they fit."""
_NAME = r"\s*(`[^`]+`|[A-Za-z_][A-Za-z0-9_]*)\s*"
_FIELD = re.compile(_NAME + r"[: ]\s*([A-Za-z]+)\s+([A-Za-z_]+)\s*")
_AVERAGE = re.compile(_NAME + rf"[: ]\s*(?:double\s+)?average\s+of\s{_NAME}/{_NAME}", re.IGNORECASE)
_EXAMPLE = "write a name, a type and a rule for each field, such as 'orders long count, total double sum'"
_INSTANT = "{}_time"
MEASURE = "value"
"""The one column that an event brings to a histogram or a metric."""
_METRIC = "value {0} latest, min {0} min, max {0} max, count long count, sum {0} sum, average average of sum/count"


def aggregated_type(
    value: str | ValueType | None, resolution: str | None, time_zone: str | None, *, tagged: bool = False,
    form: Form | None = None,
) -> tuple[ValueType, Aggregation]:  # fmt: skip
    """The stored type and the aggregation of a new map.

    >>> value, aggregation = aggregated_type("orders long count, last double latest", "1 hour", None)
    >>> str(value), [str(rule) for rule in aggregation.rules]
    ('orders long, last double, last_time timestamp', ['count', 'latest', 'instant'])

    Raises: `Invalid` naming the field whose rule is not known, or does not fit its type; the resolution; the zone.
    """
    if form is not None:
        value = _fields_of_form(form, value)
    if not isinstance(value, str):
        raise Invalid("an aggregate has fields with rules", kind="aggregate_fields", value=value, hint=_EXAMPLE)
    reserved = ("time", TAGS) if tagged else ("time",)
    fields: dict[str, ScalarType] = {}
    rules: list[Rule] = []
    averages = []
    for piece in value.split(","):
        if (average := _AVERAGE.fullmatch(piece)) is not None:
            averages.append(Computed(_plain(average[1]), Formula.AVERAGE, (_plain(average[2]), _plain(average[3]))))
            continue
        name, scalar, rule = _field(piece, value)
        pairs = [(name, scalar, rule)]
        if rule.dated:
            pairs.append((_INSTANT.format(name), ScalarType.TIMESTAMP, Rule.INSTANT))
        for field, type_, its_rule in pairs:
            if field != MEASURE or form is None:
                check_field(field, taken=field.lower() in (*reserved, *map(str.lower, fields)))
            fields[field] = type_
            rules.append(its_rule)
    _check_averages(averages, dict(zip(fields, rules, strict=True)), reserved)
    if resolution is None:
        raise Invalid(
            "an aggregate has a resolution", kind="resolution", resolution=None,
            hint="such as resolution='hour'; 'none' for one bucket of all times",
        )  # fmt: skip
    width, zone = bucket_width(resolution).text, check_zone(time_zone or "UTC")
    aggregation = Aggregation(tuple(rules), width, zone, tuple(averages), tagged, form)
    return ValueType(fields=tuple(fields.items())), aggregation


def _fields_of_form(form: Form, value: str | ValueType | None) -> str:
    """The fields of a form, of a type that may be stated."""
    types = ("long",) if form is Form.HISTOGRAM else ("double", "long")
    scalar = types[0] if value is None else str(value).strip().lower()
    if scalar not in types:
        raise Invalid(
            f"a {form} has fields of its own", kind="aggregate_fields", value=value,
            hint=f"leave value out, or say {' or '.join(types)}; kind='aggregate' has fields of your own",
        )  # fmt: skip
    return "value long count" if form is Form.HISTOGRAM else _METRIC.format(scalar)


def _plain(name: str) -> str:
    return name.strip("`")


def _check_averages(averages: list[Computed], rules: dict[str, Rule], reserved: Collection[str]) -> None:
    """See that averages are of a sum and a count, and have names of their own."""
    if not rules:
        raise Invalid("an aggregate has fields with rules", kind="aggregate_fields", hint=_EXAMPLE)
    taken = {*reserved, *map(str.lower, rules)}
    for average in averages:
        check_field(average.name, taken=average.name.lower() in taken)
        taken.add(average.name.lower())
        for name, rule in zip(average.of, (Rule.SUM, Rule.COUNT), strict=True):
            if rules.get(name) is not rule:
                raise Invalid(
                    "an average is of a sum and a count", kind="aggregate_rule", field=average.name, of=name,
                    hint=f"name a field with the rule {rule}, as in 'n long count, total double sum, mean average of "
                    "total/n'",
                )  # fmt: skip


def _field(piece: str, whole: str) -> tuple[str, ScalarType, Rule]:
    match = _FIELD.fullmatch(piece)
    if match is None:
        raise Invalid(
            "the fields of an aggregate are not understood", kind="aggregate_fields", value=repr(whole),
            field=piece.strip(), hint=_EXAMPLE,
        )  # fmt: skip
    name, scalar, word = _plain(match.group(1)), parse_scalar(match.group(2)), match.group(3).lower()
    if word not in _TYPES:
        raise Invalid(
            "there is no such rule", kind="aggregate_rule", field=name, rule=match.group(3),
            hint=f"rules are: {', '.join(_TYPES)}; an average is written NAME average of SUM/COUNT",
        )  # fmt: skip
    rule = Rule(word)
    if scalar not in _TYPES[rule]:
        raise Invalid(
            "the rule does not fit the type of the field", kind="aggregate_rule", field=name, rule=rule, type=scalar,
            hint=f"{rule} is for: {', '.join(_TYPES[rule])}",
        )  # fmt: skip
    return name, scalar, rule


def measures(definition: MapDefinition) -> list[tuple[str, Rule]]:
    """The fields that events bring, with their rules: all but instants."""
    assert definition.aggregation is not None and definition.value is not None, "an aggregate has both"
    pairs = zip(definition.value.parts, definition.aggregation.rules, strict=True)
    return [(name, rule) for (name, _), rule in pairs if rule is not Rule.INSTANT]
