"""Conditions and Spark's filters as what a snapshot can skip by: keys, bounds of ranges, a condition on columns.

Every filter that is taken is taken exactly: a row comes out if and only if Spark would keep it. What Arrow and Spark
judge differently (NaN and its order) or what is not understood stays with Spark.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from millpond.maps.model.columns import MOMENT
from millpond.maps.model.definition import MapDefinition
from millpond.maps.predicates.predicate import predicate
from millpond.maps.snapshots.condition_span import clipped, condition_span, order_key
from millpond.maps.snapshots.rows_of_groups import GroupSpan

__all__ = ("Pushed", "push_condition", "push_filters")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

_COMPARED: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge, LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of pushing filters: the span of groups to look at, and the condition (None: every row)."""

    span: GroupSpan = field(default_factory=GroupSpan)
    where: pc.Expression | None = None


def push_condition(definition: MapDefinition, where: str | None) -> Pushed:
    """The span and condition that remain of a condition as `Map.scan` takes it.

    Raises: `Invalid` for a column the map does not have, or a condition that is not understood.
    """
    condition = predicate(definition, where)
    return Pushed(condition_span(definition, condition), condition.expression)


def push_filters(
    pushed: Pushed, definition: MapDefinition, schema: pa.Schema, filters: Iterable[Filter]
) -> tuple[Pushed, list[Filter]]:
    """The remainder when all these filters hold too; and the filters that Spark has to apply itself."""
    rest: list[Filter] = []
    for filter_ in filters:
        condition = _condition(schema, filter_)
        if condition is None:
            rest.append(filter_)
        else:
            where = condition if pushed.where is None else pushed.where & condition
            pushed = Pushed(_subset(definition, pushed.span, filter_), where)
    return pushed, rest


# -- conditions ---------------------------------------------------------------------------------------


def _condition(schema: pa.Schema, filter_: Filter) -> pc.Expression | None:
    name = _column_of(filter_)
    if name not in schema.names:
        return None
    field = schema.field(name)
    column = pc.field(field.name)
    if isinstance(filter_, IsNull | IsNotNull):
        return column.is_null() if isinstance(filter_, IsNull) else column.is_valid()
    if pa.types.is_floating(field.type) or pa.types.is_struct(field.type):
        return None
    if isinstance(filter_, In):
        return _among(column, field.type, filter_.value)
    if isinstance(filter_, StringStartsWith) and pa.types.is_string(field.type):
        return pc.starts_with(column, filter_.value)
    compare = _COMPARED.get(type(filter_))
    return None if compare is None or filter_.value is None else _compared(column, field.type, compare, filter_.value)  # type: ignore[attr-defined]


def _column_of(filter_: Filter) -> str | None:
    path: Any = getattr(filter_, "attribute", ())
    return path[0] if len(path) == 1 else None


def _among(column: pc.Expression, kind: pa.DataType, values: Iterable[Any]) -> pc.Expression | None:
    alternatives = [_compared(column, kind, operator.eq, value) for value in values if value is not None]
    return reduce(operator.or_, alternatives) if alternatives else None


def _compared(
    column: pc.Expression, kind: pa.DataType, compare: Callable[[Any, Any], Any], value: Any
) -> pc.Expression:
    if pa.types.is_timestamp(kind):
        return _compared_instant(column, kind, compare, value)
    return compare(column, pa.scalar(value, kind))


def _compared_instant(
    column: pc.Expression, kind: pa.DataType, compare: Callable[[Any, Any], Any], value: datetime.datetime
) -> pc.Expression:
    """Spark's times are microseconds, as values are; those of an address whole milliseconds: a bound between two of
    them moves to the next."""
    if kind == MOMENT:
        return compare(column, pa.scalar(_micros(value), kind))
    millis, rest = divmod(_micros(value), 1000)
    if rest and compare is operator.eq:
        return pc.scalar(False)
    if rest and compare in (operator.lt, operator.ge):
        millis += 1
    return compare(column, pa.scalar(millis, pa.int64()).cast(kind))


def _micros(value: datetime.datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // _MICROSECOND


# -- spans --------------------------------------------------------------------------------------------


def _subset(definition: MapDefinition, span: GroupSpan, filter_: Filter) -> GroupSpan:
    name = _column_of(filter_)
    if name == "key":
        return _with_keys(definition, span, filter_)
    return _with_bounds(span, filter_) if name == "key_start" else span


def _with_keys(definition: MapDefinition, span: GroupSpan, filter_: Filter) -> GroupSpan:
    if isinstance(filter_, EqualTo):
        values = {filter_.value}
    elif isinstance(filter_, In):
        values = {value for value in filter_.value if value is not None}
    else:
        return span
    keys = {order_key(definition, key.encode()) for key in values}
    if span.keys is not None:
        keys &= set(span.keys)
    return GroupSpan(keys=tuple(sorted(keys)))


def _with_bounds(span: GroupSpan, filter_: Filter) -> GroupSpan:
    """Groups of ranged maps are in order of where the range starts."""
    if isinstance(filter_, EqualTo):
        return clipped(span, filter_.value, filter_.value)
    if isinstance(filter_, GreaterThan | GreaterThanOrEqual):
        return clipped(span, filter_.value + isinstance(filter_, GreaterThan), None)
    if isinstance(filter_, LessThan | LessThanOrEqual):
        return clipped(span, None, filter_.value - isinstance(filter_, LessThan))
    return span
