"""Conditions on a map's rows, in every form people have them: text, pyarrow's expressions, tuples.

A condition becomes two things. An Arrow *expression* over the presented columns decides row by row; its meaning is
SQL's (a comparison with null holds for no row). *Spans* bound the columns by which rows are stored, so that only rows
which may answer are read: they may include rows that the expression refuses, never leave out one that it takes.

    "key = 'JFK' and effective_time >= '2013-06-01' and (temp > 80 or temp is null)"
    [("key", "in", ["JFK", "LGA"]), ("effective_time", "<", instant)]     all must hold
    pyarrow.compute.field("key") == "JFK"

Text is read by `predicate_text.py`. A time without a zone is UTC here: a condition filters, it stores nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.longs import LONG_MAX, LONG_MIN
from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import is_utf8
from millpond.maps.inputs.single_key import single_key
from millpond.maps.model.columns import MOMENT, askable_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.display import column_unknown
from millpond.maps.model.tags import TAGS, tag_of
from millpond.maps.predicates.bounds import Span
from millpond.maps.predicates.from_arrow import parts_of
from millpond.maps.predicates.parser import parse_condition
from millpond.maps.predicates.tree import (
    COMPARISONS,
    All,
    Any_,
    Compare,
    Condition,
    Like,
    Not,
    Null,
    OneOf,
    Unknown,
    check_size,
    columns_of,
    leaves,
    nulls_of,
    patterns_length,
    spans_of,
    values_count,
)
from millpond.times.instants import parse_moment

__all__ = ("Predicate", "Where", "columns_tested", "condition_of", "predicate", "type_of", "typed_spans")

Where: TypeAlias = str | pc.Expression | Sequence[Any] | None


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition, ready to use: the rows it takes, the columns it looks at, and the spans it leaves.

    `expression` None takes every row. A column without a span is not bounded; times in spans are UTC milliseconds.
    `nulls` are columns that are null in all rows that it takes.
    """

    expression: pc.Expression | None
    columns: tuple[str, ...]
    spans: Mapping[str, Span]
    nulls: frozenset[str] = frozenset()

    @property
    def impossible(self) -> bool:
        """True when no row can satisfy it."""
        return any(span.empty for span in self.spans.values())


def predicate(definition: MapDefinition, where: Where) -> Predicate:
    """A condition on the presented columns of a map.

    Raises: `Invalid` for a column the map does not have, a value that does not go with it, or text not understood.
    """
    if where is None or (isinstance(where, list | tuple) and not where):
        return Predicate(None, (), {})
    schema = askable_schema(definition)
    if isinstance(where, pc.Expression):
        _check_numbers(parts_of(where), schema)
        names = [name for name in schema.names if name != TAGS or not definition.tagged or TAGS in str(where)]
        return Predicate(where, tuple(names), typed_spans(where, schema))
    condition = condition_of(definition, where)
    columns = (column if tag_of(column) is None else TAGS for column in columns_of(condition))
    spans = {column: span for column, span in spans_of(condition).items() if column in schema.names}
    return Predicate(_expression(condition, schema), tuple(dict.fromkeys(columns)), spans, nulls_of(condition))


def condition_of(definition: MapDefinition, where: str | pc.Expression | Sequence[Any]) -> Condition:
    """A condition as a tree; its values are of the columns' types, but for those of pyarrow's expressions.

    Raises: as `predicate`.
    """
    if isinstance(where, pc.Expression):
        return parts_of(where)
    schema = askable_schema(definition)
    condition = parse_condition(where) if isinstance(where, str) else _of_tuples(where)
    columns = list(columns_of(condition))
    check_size(len(columns), values_count(condition), patterns_length(condition))
    for name in columns:
        if name not in schema.names and not (definition.tagged and tag_of(name)):
            raise column_unknown(definition, name)
    return _typed(_with_keys(definition, condition), schema)


def _with_keys(definition: MapDefinition, condition: Condition) -> Condition:
    """The condition with keys as they are stored: what equals a key is read by the rule of `inputs/keys.py`."""
    match condition:
        case All(parts):
            return All(tuple(_with_keys(definition, part) for part in parts))
        case Any_(parts):
            return Any_(tuple(_with_keys(definition, part) for part in parts))
        case Not(part):
            return Not(_with_keys(definition, part))
        case Compare(column, "=" | "!=" as comparison, value) if _is_key(definition, column, value):
            key = _stored_key(definition, column, value)
            if key is not None:
                return Compare(column, comparison, key)
            return OneOf(column, ()) if comparison == "=" else Not(OneOf(column, ()))
        case OneOf(column, values):
            keys = [
                _stored_key(definition, column, option) if _is_key(definition, column, option) else option
                for option in values
            ]
            return OneOf(column, tuple(key for key in keys if key is not None))
    return condition


def _is_key(definition: MapDefinition, column: str, value: Any) -> bool:
    """True when a value is read as a key: text that names no tags needs no reading, and a column of numbers compares
    with any number.
    """
    if value is None:
        return False  # nothing equals null, and that is no question about keys
    if column == "key":
        return definition.tagged or not isinstance(value, str)
    return column in ("key_start", "key_end")


def _stored_key(definition: MapDefinition, column: str, value: Any) -> str | int | None:
    """A key as rows show it; None for one that no row can have.

    Raises: `Invalid`, naming the column, for what is no key.
    """
    if column != "key" and isinstance(value, float) and not value.is_integer():
        return None  # it equals no whole number, which is no mistake in a comparison with a column of numbers
    try:
        key = single_key(definition, value)
        return key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return None
    except Invalid as error:
        raise Invalid(
            error.message, kind=error.kind, hint=error.hint, **(error.values | {"column": column})
        ) from error  # fmt: skip


def typed_spans(where: pc.Expression, schema: pa.Schema) -> dict[str, Span]:
    """The spans that an expression of pyarrow's leaves of the columns of a schema, as far as it is understood."""
    try:
        spans = spans_of(parts_of(where))
    except TypeError:  # bounds of one column that differ in type, such as a date and an instant
        return {}
    return {name: span for name, span in spans.items() if _of_its_type(span, schema, name)}


def _check_numbers(condition: Condition, schema: pa.Schema) -> None:
    """Refuse numbers that could be seconds in lists of times: Arrow takes them for milliseconds, as we take others."""
    for leaf in leaves(condition):
        if isinstance(leaf, OneOf) and leaf.column in schema.names:
            for value in leaf.values if pa.types.is_timestamp(schema.field(leaf.column).type) else ():
                if isinstance(value, int):
                    parse_moment(value)


def columns_tested(where: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns of a schema that an expression of pyarrow's may look at."""
    names = set(columns_of(parts_of(where)))
    understood = bool(names) and names <= set(schema.names)
    return [name for name in schema.names if name in names or not understood]


def _of_its_type(span: Span, schema: pa.Schema, name: str) -> bool:
    """True when the bounds can be compared with the column: Arrow's own expressions compare anything with anything."""
    bounds = [bound for bound in (span.lower, span.upper, *(span.points or ())) if bound is not None]
    kind = schema.field(name).type if name in schema.names else pa.null()
    form: Any = str if pa.types.is_string(kind) else date if pa.types.is_date(kind) else int | float | Decimal
    return all(isinstance(bound, form) for bound in bounds)


def _of_tuples(parts: Sequence[Any]) -> Condition:
    if not isinstance(parts, list | tuple):
        raise Invalid(
            "condition is not understood", kind="condition", near=shown(parts),
            hint="write it as text, as a list of (column, comparison, value), or as a pyarrow expression",
        )  # fmt: skip
    return All(tuple(_of_tuple(part) for part in parts))


def _of_tuple(part: Any) -> Condition:
    words = {"==": "=", "<>": "!="}
    match part:
        case (str(column), str(word), values) if word in ("in", "not in") and _several(values):
            return OneOf(column, tuple(values)) if word == "in" else Not(OneOf(column, tuple(values)))
        case (str(column), str(word), value) if words.get(word, word) in COMPARISONS:
            return Compare(column, words.get(word, word), value)
    raise Invalid(
        "condition is not understood", kind="condition", near=shown(part),
        hint="each is (column, comparison, value), the comparison one of = != < <= > >= in, not in",
    )  # fmt: skip


def _several(values: Any) -> bool:
    if isinstance(values, str | bytes | type) or not getattr(values, "ndim", 1):
        return False  # arrays without a dimension only look as if
    return isinstance(values, Iterable)


# -- values of the column's type ----------------------------------------------------------------------


def _typed(condition: Condition, schema: pa.Schema) -> Condition:
    match condition:
        case All(parts):
            return All(tuple(_typed(part, schema) for part in parts))
        case Any_(parts):
            return Any_(tuple(_typed(part, schema) for part in parts))
        case Not(part):
            return Not(_typed(part, schema))
        case Compare(column, comparison, value):
            kind = type_of(schema, column)
            typed = _value(column, kind, value)
            if pa.types.is_integer(kind) and not (isinstance(typed, int) and _is_held(typed)):
                return _with_whole(column, comparison, typed)
            return Compare(column, comparison, typed)
        case OneOf(column, values):
            kind = type_of(schema, column)
            options = tuple(_value(column, kind, value) for value in values)
            if pa.types.is_integer(kind):  # no whole number equals another one, and each is itself
                options = tuple(int(option) for option in options if _is_held(option) and option == int(option))
            elif pa.types.is_floating(kind):  # NaN equals nothing, and Arrow's lists tell both zeros apart
                zeros = (0.0, -0.0) if 0 in options else ()
                options = (*(option for option in options if option == option), *zeros)
            return OneOf(column, options)
        case Like(column, pattern):
            _value(column, type_of(schema, column), pattern, type_=pa.types.is_string)
    return condition


def _with_whole(column: str, comparison: str, number: float | Decimal) -> Condition:
    """A comparison of whole numbers with any number as one with a whole number: Arrow would make all of them floats,
    perhaps of 32 bits, and fail where they do not fit.
    """
    holds = comparison == "!="
    if _is_held(number):
        if comparison not in ("=", "!="):
            whole = math.floor(number) if comparison in (">", "<=") else math.ceil(number)
            return Compare(column, comparison, whole)
        if number == int(number):
            return Compare(column, comparison, int(number))
    elif comparison not in ("=", "!="):
        holds = number == number and comparison.startswith("<") == (number > 0)
    return Not(OneOf(column, ())) if holds else OneOf(column, ())


def type_of(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column of a condition."""
    return pa.string() if tag_of(column) is not None else schema.field(column).type


def _value(column: str, kind: pa.DataType, value: Any, type_: Any = None) -> Any:
    """A value in the terms of its column: text, numbers, bytes, or a time in the column's own unit."""
    types = pa.types
    if isinstance(value, pa.Scalar):
        value = _of_scalar(value)
    if types.is_timestamp(kind) and type_ is None:
        return _moment(value) if kind == MOMENT else _moment(value) // 1000
    fits = (
        (isinstance(value, str) and types.is_string(kind) and is_utf8(value))
        or (isinstance(value, bytes) and types.is_binary(kind))
        or (isinstance(value, bool) and types.is_boolean(kind))
        or (isinstance(value, int | float | Decimal) and not isinstance(value, bool) and _is_number(kind))
    )
    if fits and (type_ is None or type_(kind)):
        unordered = isinstance(value, Decimal) and value.is_nan()
        return _nearest(value) if unordered or pa.types.is_floating(kind) else value
    raise Invalid(
        "value does not go with the column", kind="condition_value", column=column, type=kind, value=shown(value),
        hint="text is written in quotes, numbers are not; for no value, say: is null",
    )  # fmt: skip


def _of_scalar(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):  # a time that Python cannot hold
        return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_held(number: float | Decimal) -> bool:
    """True for a number among those of 64 bits."""
    return bool(LONG_MIN <= number <= LONG_MAX)


def _nearest(number: float | Decimal) -> float:
    """The double nearest to a number; infinity where it is larger than all."""
    if isinstance(number, Decimal) and number.is_nan():
        return math.nan  # also of one that signals
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _moment(value: Any) -> int:
    """UTC microseconds; a number is milliseconds, as everywhere."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if isinstance(value, str) and value[:1].isdigit() and not (value.isdigit() and len(value) > len("20130208")):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return parse_moment(value)
    if isinstance(value, datetime) and value == value and value.utcoffset() is None:
        value = value.replace(tzinfo=UTC)
    return parse_moment(value)


# -- as Arrow says it ---------------------------------------------------------------------------------


def _expression(condition: Condition, schema: pa.Schema) -> pc.Expression:
    match condition:
        case All(parts):
            return reduce(and_, (_expression(part, schema) for part in parts))
        case Any_(parts):
            return reduce(or_, (_expression(part, schema) for part in parts))
        case Not(part):
            return ~_expression(part, schema)
        case Null(column):
            return _field(column).is_null()
        case Like(column, pattern):
            return pc.match_like(_field(column), pattern)
        case OneOf(column, values):
            options = pa.array(list(values), _literal_type(type_of(schema, column), *values))
            # SQL: null is in no list, and not in none either.
            in_options = _field(column).isin(options)
            return pc.if_else(_field(column).is_valid(), in_options, pa.scalar(None, pa.bool_()))
        case Compare(column, comparison, value):
            literal = pc.scalar(pa.scalar(value, _literal_type(type_of(schema, column), value)))
            return _compared(_field(column), comparison, literal)
        case Unknown():
            raise AssertionError("only Arrow's own expressions hold what is not known")


def _field(column: str) -> pc.Expression:
    tag = tag_of(column)
    return pc.field(column) if tag is None else pc.map_lookup(pc.field(TAGS), tag, "first")


def _literal_type(kind: pa.DataType, *values: Any) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind
    return pa.float64() if any(isinstance(value, float) for value in values) else kind


def _compared(column: pc.Expression, comparison: str, literal: pc.Expression) -> pc.Expression:
    compare = {
        "=": column.__eq__, "!=": column.__ne__, "<": column.__lt__, "<=": column.__le__, ">": column.__gt__,
        ">=": column.__ge__,
    }  # fmt: skip
    return compare[comparison](literal)
