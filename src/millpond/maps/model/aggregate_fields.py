"""The fields of an aggregate as people write them: a name, a type and a rule each; and those of forms.

| form | fields | an event brings |
|---|---|---|
| `histogram` | `value long count` | `value`, how often; else it counts once |
| `metric` | `value` latest, `min`, `max`, `count`, `sum`, `average`; `double` or `long` | `value`, for all of them |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from millpond.errors import Invalid
from millpond.extras import need
from millpond.maps.model.aggregation import Aggregation, Computed, Form, Formula, Rule
from millpond.maps.model.definition import SEPARATOR, MapDefinition, ScalarType, ValueType, check_field, parse_scalar
from millpond.maps.model.tags import TAGS
from millpond.times.buckets import bucket_width
from millpond.times.zones import check_zone

__all__ = ("MEASURE", "aggregated_type", "fields_in_words", "measure_name", "measures")

_NUMBERS = (ScalarType.LONG, ScalarType.DOUBLE)
_TYPES = {
    Rule.COUNT: (ScalarType.LONG,), Rule.SUM: _NUMBERS, Rule.MIN: (*_NUMBERS, ScalarType.TIMESTAMP),
    Rule.MAX: (*_NUMBERS, ScalarType.TIMESTAMP), Rule.FIRST: tuple(ScalarType), Rule.LATEST: tuple(ScalarType),
}  # fmt: skip
"""The rules that people write, and the types that they fit."""
# Each blank is taken once, by what is possessive: strangers name fields, by megabytes of blanks if they like.
_WORD = r"\s*+(`[^`]+`|[A-Za-z_][A-Za-z0-9_]*+)"
_NAME, _NAMED = rf"{_WORD}\s*+", _WORD + SEPARATOR
_FIELD = re.compile(_NAMED + r"([A-Za-z]++)\s++([A-Za-z_]++)\s*+")
_AVERAGE = re.compile(_NAMED + rf"(?:double\s++)?average\s++of\s{_NAME}/{_NAME}", re.IGNORECASE)
_SKETCH = re.compile(
    _NAMED + r"(?:(?:string\s++)?(distinct)|(?:double\s++)?quantiles\s*+(?:\(([^()]*)\))?)\s*+", re.IGNORECASE
)
_MARK = re.compile(r"[(),]")
_FRACTIONS = "0.5, 0.95, 0.99"
_FRACTION = re.compile(r"0|1|0?\.[0-9]{1,6}|[01]\.0")
_PERCENT_DIGITS = 4
_EXAMPLE = "write a name, a type and a rule for each field, such as 'orders long count, total double sum'"
_INSTANT = "{}_time"
_STORED_SKETCH = "_sketch"
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
    computed: list[Computed] = []
    taken = set(reserved)
    for piece in _outside_brackets(value):
        if (average := _AVERAGE.fullmatch(piece)) is not None:
            computed.append(Computed(_plain(average[1]), Formula.AVERAGE, (_plain(average[2]), _plain(average[3]))))
            continue
        if (sketch := _SKETCH.fullmatch(piece)) is not None:
            need("datasketches")
            name, scalar = _plain(sketch[1]) + _STORED_SKETCH, ScalarType.BINARY
            rule = Rule.DISTINCT if sketch[2] else Rule.QUANTILES
            computed += _of_sketch(name, rule, sketch[3])
        else:
            name, scalar, rule = _field(piece, value)
        pairs = [(name, scalar, rule)]
        if rule.dated:
            pairs.append((_INSTANT.format(name), ScalarType.TIMESTAMP, Rule.INSTANT))
        for field, type_, its_rule in pairs:
            if field != MEASURE or form is None:
                check_field(field, taken=field.lower() in taken)
            taken.add(field.lower())
            fields[field] = type_
            rules.append(its_rule)
    _check_computed(computed, dict(zip(fields, rules, strict=True)), reserved)
    if resolution is None:
        raise Invalid(
            "an aggregate has a resolution", kind="resolution", resolution=None,
            hint="such as resolution='hour'; 'none' for one bucket of all times",
        )  # fmt: skip
    width, zone = bucket_width(resolution).text, check_zone("UTC" if time_zone is None else time_zone)
    aggregation = Aggregation(tuple(rules), width, zone, tuple(computed), tagged, form)
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


def _outside_brackets(text: str) -> Iterator[str]:
    """The pieces between commas, but for those in brackets."""
    begin, inside = 0, False
    for mark in _MARK.finditer(text):
        if mark[0] == "," and not inside:
            yield text[begin : mark.start()]
            begin = mark.end()
        inside = mark[0] == "(" or (mark[0] == "," and inside)
    yield text[begin:]


def _plain(name: str) -> str:
    return name.strip("`")


def fields_in_words(value: ValueType, aggregation: Aggregation) -> str:
    """The fields with their rules, as they are written.

    >>> fields_in_words(*aggregated_type("n long count, t double sum, m average of t/n", "1 hour", None))
    'n long count, t double sum, m average of t/n'
    """
    words = []
    for (name, type_), rule in zip(value.fields, aggregation.rules, strict=True):
        if rule.sketched:
            at = [f"{field.at:g}" for field in aggregation.computed if field.of == (name,) and field.at is not None]
            words.append(f"{measure_name(name, rule)} {rule}" + (f"({', '.join(at)})" if at else ""))
        elif rule is not Rule.INSTANT:
            words.append(f"{name} {type_} {rule}")
    averages = (field for field in aggregation.computed if field.formula is Formula.AVERAGE)
    return ", ".join([*words, *(f"{field.name} average of {'/'.join(field.of)}" for field in averages)])


def measure_name(name: str, rule: Rule) -> str:
    """The name by which events bring what a stored field keeps."""
    return name.removesuffix(_STORED_SKETCH) if rule.sketched else name


def _of_sketch(stored: str, rule: Rule, fractions: str | None) -> list[Computed]:
    """The fields that a sketch is shown by.

    Raises: `Invalid`, kind `aggregate_rule`, for a fraction that is none.
    """
    name = measure_name(stored, rule)
    if rule is Rule.DISTINCT:
        return [Computed(name, Formula.DISTINCT, (stored,))]
    made = []
    for word in (fractions or _FRACTIONS).split(","):
        if not _FRACTION.fullmatch(word.strip()):
            raise Invalid(
                "a quantile is asked for by a fraction from 0 to 1", kind="aggregate_rule", field=name,
                fraction=word.strip(), hint="write such as 'latency quantiles(0.5, 0.99)'",
            )  # fmt: skip
        at = float(word)
        percent = f"{round(at * 100, _PERCENT_DIGITS):g}".replace(".", "_")
        made.append(Computed(f"{name}_p{percent}", Formula.QUANTILE, (stored,), at))
    return made


def _check_computed(computed: list[Computed], rules: dict[str, Rule], reserved: Collection[str]) -> None:
    """See that computed fields have names of their own, and averages are of a sum and a count."""
    if not rules:
        raise Invalid("an aggregate has fields with rules", kind="aggregate_fields", hint=_EXAMPLE)
    brought = [measure_name(name, rule) for name, rule in rules.items() if rule.sketched]
    taken = {*reserved, *map(str.lower, rules)}
    for name in brought:
        check_field(name, taken=name.lower() in taken)
    for field in computed:
        check_field(field.name, taken=field.name.lower() in taken)
        taken.add(field.name.lower())
        for name, rule in zip(field.of, (Rule.SUM, Rule.COUNT), strict=False):
            if field.formula is Formula.AVERAGE and rules.get(name) is not rule:
                raise Invalid(
                    "an average is of a sum and a count", kind="aggregate_rule", field=field.name, of=name,
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
            hint=f"rules are: {', '.join(_TYPES)}; without a type: distinct, quantiles(0.5, 0.99), average of TOTAL/N",
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
    return [(measure_name(name, rule), rule) for (name, _), rule in pairs if rule is not Rule.INSTANT]
