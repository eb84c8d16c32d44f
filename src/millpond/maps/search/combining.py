"""Values of aggregates, combined: rows of runs become one row a run, each field by its rule.

Loads, reads, lookups and folds come here: the one place that knows what a rule does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.radix import I64
from millpond.errors import Invalid
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.sketches import united
from millpond.maps.search.gather import RowColumn
from millpond.maps.search.run_values import Runs, extremes_of_runs, sums_of_runs

__all__ = ("Field", "combined", "combined_runs", "combined_values", "fields_of")

_HALF = 32
_LOW = np.int64((1 << _HALF) - 1)

Named = Callable[[int], dict[str, Any]]
"""The values of an error that name a run."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that people ask for, its rule, and the field that holds the instants of `first` and `latest`."""

    name: str
    rule: Rule
    instant: str | None

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the columns that hold it."""
        return (self.name,) if self.instant is None else (self.name, self.instant)


def fields_of(definition: MapDefinition) -> list[Field]:
    """The fields of an aggregate, but those of instants."""
    assert definition.aggregation is not None and definition.value is not None, "an aggregate has both"
    names = [name for name, _ in definition.value.parts]
    return [
        Field(name, rule, names[position + 1] if rule.dated else None)
        for position, (name, rule) in enumerate(zip(names, definition.aggregation.rules, strict=True))
        if rule is not Rule.INSTANT
    ]


def combined_values(definition: MapDefinition, values: pa.Array, starts: I64, named: Named) -> pa.Array:
    """The structs of some runs, each combined; runs begin at `starts`, and have a row.

    Raises: as `combined`.
    """
    names = [field.name for field in values.type]
    columns = dict(zip(names, values.flatten(), strict=True))
    arrays = combined(definition, fields_of(definition), columns, starts, named)
    return pa.StructArray.from_arrays([arrays[name] for name in names], fields=list(values.type))


def combined(
    definition: MapDefinition, fields: Sequence[Field], columns: Mapping[str, pa.Array], starts: I64, named: Named
) -> dict[str, pa.Array]:  # fmt: skip
    """The columns of these fields, one value for each run.

    Raises: `Invalid`, kind `sum_overflow`, for a sum that its type cannot hold.
    """
    arrays: dict[str, pa.Array] = {}
    for field in fields:
        column = columns[field.name]
        if field.rule.sketched:
            arrays[field.name] = united(field.rule, column, starts)
        elif len(starts) == len(column):
            arrays |= {name: columns[name] for name in field.stored}
        elif field.instant is not None:
            chosen = _chosen(field.rule, columns[field.instant], column, starts)
            arrays |= {name: columns[name].take(chosen) for name in field.stored}
        elif field.rule.additive:
            arrays[field.name] = _sums(definition, field.name, column, starts, named)
        else:
            arrays[field.name] = _extremes(field.rule, column, starts)
    return arrays


def combined_runs(
    definition: MapDefinition, field: Field, column: RowColumn, runs: Runs, positions: I64, count: int
) -> pa.Array:  # fmt: skip
    """The values of one field whose rule reduces numbers, of rows where they lie: each answer at its place among so
    many; null where the place is that of none.

    Raises: as `combined`.
    """
    if field.rule.additive:
        values, there, wrong = sums_of_runs(column.table, column.kind, runs, positions, count)
        if wrong:
            raise _too_large(definition, field.name, column.kind)
    else:
        least = field.rule is Rule.MIN
        values, there = extremes_of_runs(column.table, column.kind, runs, positions, count, least=least)
    if there.all():
        return pa.Array.from_buffers(column.kind, count, [None, pa.py_buffer(values)], null_count=0)
    validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(column.kind, count, [validity, pa.py_buffer(values)])


def _any_valid(column: pa.Array, starts: I64) -> npt.NDArray[np.bool_] | None:
    """Runs with a value; None: all have one."""
    if not column.null_count:
        return None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    there: npt.NDArray[np.bool_] = np.logical_or.reduceat(valid, starts) if len(starts) else valid[:0]
    return there


def _masked(values: npt.NDArray[Any], there: npt.NDArray[np.bool_] | None, kind: pa.DataType) -> pa.Array:
    mask = None if there is None else ~there
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64(), mask=mask).cast(kind)
    return pa.array(values, kind, mask=mask)


def _sums(definition: MapDefinition, name: str, column: pa.Array, starts: I64, named: Named) -> pa.Array:
    there = _any_valid(column, starts)
    values = (column.fill_null(0) if column.null_count else column).to_numpy()
    if pa.types.is_floating(column.type):
        with np.errstate(over="ignore"):
            totals = np.add.reduceat(values, starts)
        wrong = ~np.isfinite(totals)
    else:
        # The halves of 2^31 rows add up within 64 bits each, and tell together if their sum does not.
        high, low = np.add.reduceat(values >> _HALF, starts), np.add.reduceat(values & _LOW, starts)
        upper = high + (low >> _HALF)
        wrong = (upper >= 1 << (_HALF - 1)) | (upper < -(1 << (_HALF - 1)))
        totals = np.add.reduceat(values, starts)
    if wrong.any():
        raise _too_large(definition, name, column.type, **named(int(np.argmax(wrong))))
    return _masked(totals, there, column.type)


def _too_large(definition: MapDefinition, name: str, kind: pa.DataType, **named: Any) -> Invalid:
    return Invalid(
        "a sum is larger than its type holds", kind="sum_overflow", map=definition.name, field=name, type=kind, **named,
        hint="count in a larger unit, or ask for fewer buckets together; for whole numbers a double holds more",
    )  # fmt: skip


def _extremes(rule: Rule, column: pa.Array, starts: I64) -> pa.Array:
    there, kind = _any_valid(column, starts), column.type
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(kind) else column
    least = rule is Rule.MIN
    if plain.null_count:
        if pa.types.is_floating(kind):
            plain = plain.fill_null(float("inf") if least else float("-inf"))
        else:
            limits = np.iinfo(np.int64)
            plain = plain.fill_null(limits.max if least else limits.min)
    extremes = (np.minimum if least else np.maximum).reduceat(plain.to_numpy(), starts)
    return _masked(extremes, there, kind)


def _chosen(rule: Rule, instants: pa.Array, column: pa.Array, starts: I64) -> pa.Array:
    """The row of each run whose value is the first, or the latest; null where there is none."""
    runs = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(column)))
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    picked = pa.array(rows)
    table = pa.table({
        "run": runs[rows], "instant": instants.take(picked).cast(pa.int64()), "value": _ordered(column.take(picked)),
    })  # fmt: skip
    order = pc.sort_indices(table, [("run", "ascending"), ("instant", "ascending"), ("value", "ascending")]).to_numpy()
    of_run = runs[rows][order]
    first = np.flatnonzero(np.diff(of_run, prepend=-1))
    positions = first if rule is Rule.FIRST else np.append(first[1:], len(of_run))[: len(first)] - 1
    chosen = np.zeros(len(starts), np.int64)
    missing = np.ones(len(starts), np.bool_)
    if len(first):
        chosen[of_run[first]] = rows[order[positions]]
        missing[of_run[first]] = False
    return pa.array(chosen, mask=missing)


def _ordered(column: pa.Array) -> pa.Array:
    """A column in a type that Arrow sorts."""
    return column.cast(pa.uint8()) if pa.types.is_boolean(column.type) else column
