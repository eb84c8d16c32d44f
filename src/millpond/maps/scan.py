"""Reading the rows of a map that satisfy a condition, as a stream in the presented schema.

What the condition says about keys and times decides what is read:

| the condition bounds | read are |
|---|---|
| `key` to some values | the rows of those keys, between the times it bounds |
| `key` to a stretch | keys stored directly between its ends; keys stored by hash, all |
| `key_start` or `key_end` of a ranged map | the ranges that start in between |
| nothing of these | all rows |

The stream is one read transaction: it shows the map as it was when the first batch was asked for, and keeps the file's
old pages until it is read to its end or dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TypeAlias

import pyarrow as pa

from millpond.arrays.longs import LONG_MAX, LONG_MIN
from millpond.kernel.patience import check_patience
from millpond.maps.model.columns import askable_schema
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.display import check_columns, present
from millpond.maps.predicates.bounds import Span, both
from millpond.maps.predicates.predicate import Predicate, Where, predicate
from millpond.maps.predicates.taken import filtered
from millpond.maps.shard.shard import Shard, ShardView

__all__ = ("RowsOf", "candidate_rows", "rows_of_shard", "scan")

RowsOf: TypeAlias = Callable[[Predicate], Generator[pa.RecordBatch]]
"""Canonical rows that hold every row a condition takes."""

_EVERYTHING = Span()


def scan(
    rows: RowsOf, definition: MapDefinition, where: Where = None, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Rows of a map as Arrow batches, of the `rows` that its store has for a condition; `where` is as in `predicates`.

    Raises: `Invalid` for a column the map does not have, or a condition that is not understood.
    """
    names = check_columns(definition, columns)
    condition = predicate(definition, where)
    shown = askable_schema(definition)
    schema = pa.schema([shown.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, _batches(rows, definition, condition, names))


def _batches(
    rows: RowsOf, definition: MapDefinition, condition: Predicate, names: list[str]
) -> Iterator[pa.RecordBatch]:
    needed = names + [name for name in condition.columns if name not in names]
    with closing(rows(condition)) as batches:
        for canonical in batches:
            check_patience()
            batch = present(definition, canonical, needed)
            if condition.expression is not None:
                batch = filtered(batch, condition)
            if batch.num_rows:
                yield batch.select(names)


def rows_of_shard(shard: Shard, definition: MapDefinition, condition: Predicate) -> Generator[pa.RecordBatch]:
    """The candidate rows of a condition in a shard, as it was when the first batch was asked for."""
    with shard.view() as view:
        yield from candidate_rows(view, definition, condition)


def candidate_rows(view: ShardView, definition: MapDefinition, condition: Predicate) -> Iterator[pa.RecordBatch]:
    """Canonical rows that hold every row the condition takes, and as few others as the tables allow."""
    if condition.impossible:
        return
    if not definition.kind.keyed:
        lower, upper = _start_bounds(condition)
        yield from view.read_rows(lower=lower, upper=upper)
        return
    key = condition.spans.get("key", _EVERYTHING)
    if key.points is not None:
        since, until = _time_bounds(view, definition, condition)
        keys = sorted(point.encode() for point in key.points)
        yield from view.read_rows(keys, since=since, until=until)
        return
    yield from view.read_rows(
        key_lower=None if key.lower is None else key.lower.encode(),
        key_upper=None if key.upper is None else key.upper.encode(),
    )


def _start_bounds(condition: Predicate) -> tuple[int | None, int | None]:
    start = condition.spans.get("key_start", _EVERYTHING)
    # A range starts no later than it ends.
    end = condition.spans.get("key_end", _EVERYTHING)
    return _whole(both(start, Span(upper=end.upper)))


def _time_bounds(view: ShardView, definition: MapDefinition, condition: Predicate) -> tuple[int | None, int | None]:
    if definition.kind is not Kind.SESSION:
        time = "time" if definition.kind is Kind.AGGREGATE else "effective_time"
        return _whole(condition.spans.get(time, _EVERYTHING))
    end = condition.spans.get("end", _EVERYTHING)
    # A session starts no later than it ends, and no earlier than the longest one lasts.
    earliest = None if end.lower is None else end.lower - view.number("longest")
    return _whole(both(condition.spans.get("start", _EVERYTHING), Span(earliest, end.upper)))


def _whole(span: Span) -> tuple[int | None, int | None]:
    lower = None if span.lower is None or span.lower <= LONG_MIN else _clipped(span.lower, math.floor)
    upper = None if span.upper is None or span.upper >= LONG_MAX else _clipped(span.upper, math.ceil)
    return lower, upper


def _clipped(bound: float, rounded: Callable[[float], int]) -> int:
    """A bound as a whole number of 64 bits; the infinities are no number at all."""
    return LONG_MAX if bound >= LONG_MAX else LONG_MIN if bound <= LONG_MIN else rounded(bound)
