"""The measures of events as the values of rows, one field for each rule; events that cannot be combined are faults.

An event that does not say of how many it tells counts once.

| fault | of |
|---|---|
| a bucket that begins before the year 1 | every event |
| a count below zero | `count` |
| NaN | every rule |
| an infinite number | `sum` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.inputs.faults import Faults
from millpond.maps.inputs.mapping import Columns
from millpond.maps.model.aggregate_fields import measure_name
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.columns import MOMENT, value_arrow
from millpond.maps.model.definition import MapDefinition, ScalarType
from millpond.maps.model.sketches import event_sketches
from millpond.times.buckets import bucket_starts
from millpond.times.instants import INSTANT_MIN, instant_text

__all__ = ("measured",)

_EVENTS = {Rule.DISTINCT: ScalarType.STRING, Rule.QUANTILES: ScalarType.DOUBLE}
"""The types of what events bring for sketches."""


def measured(
    definition: MapDefinition, columns: Columns, batch: pa.RecordBatch, times: pa.Array[Any],
    read: Callable[[str, pa.Array[Any], ScalarType], pa.Array[Any]], faults: Faults,
) -> pa.Array[Any]:  # fmt: skip
    """The values of events at these times; `read` makes a column of the input one of a type."""
    value, aggregation = definition.value, definition.aggregation
    assert value is not None and aggregation is not None, "an aggregate has both"
    starts = bucket_starts(times.fill_null(0).to_numpy(), aggregation.resolution, aggregation.time_zone)
    faults.add(
        starts < INSTANT_MIN,
        lambda row: f"time {instant_text(times[row].as_py())} is in a bucket that begins before the year 1",
    )
    sources = dict(columns.fields)
    made: list[pa.Array[Any]] = []
    for (name, scalar), rule in zip(value.fields, aggregation.rules, strict=True):
        if rule is Rule.INSTANT:
            dated = pc.if_else(made[-1].is_valid(), times, None)
            made.append(pc.multiply(dated, 1000).cast(MOMENT))
            continue
        source = sources.get(measure_name(name, rule))
        if source is None:
            made.append(pa.array(np.ones(batch.num_rows, np.int64)))
            continue
        column = batch.column(source)
        values = _checked(source, column, read(source, column, _EVENTS.get(rule, scalar)), rule, faults)
        if rule.sketched:
            values = event_sketches(rule, values)
        made.append(values.fill_null(1) if rule is Rule.COUNT else values)
    return pa.StructArray.from_arrays(made, fields=list(value_arrow(value)))


def _checked(name: str, column: pa.Array[Any], values: pa.Array[Any], rule: Rule, faults: Faults) -> pa.Array[Any]:
    """The values of a column, those that cannot be combined noted."""
    if rule is Rule.COUNT:
        faults.add_values(_mask(pc.less(values, 0)), column, name, "is a count below zero")
    if not pa.types.is_floating(values.type):
        return values
    faults.add_values(_mask(pc.is_nan(values)), column, name, "is no number, and cannot be combined")
    if rule is Rule.SUM:
        faults.add_values(_mask(pc.is_inf(values)), column, name, "is infinite, and cannot be added")
    return pc.add(values, 0.0)  # -0.0 becomes 0.0: which of the two is less would depend on the order of loads


def _mask(flags: pa.Array[Any]) -> np.ndarray:
    mask: np.ndarray = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return mask
