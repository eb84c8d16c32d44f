"""Checking rows of a part of an aggregate, which combine with those that are there: one that no event can have brought
would spoil its bucket for good.

Invariants checked, beside those of `row_check.py`:
* a time is the start of a bucket; a key of an aggregate with tags is a set of tags in its one form;
* a count is there and not below zero, no number is NaN, and none that is added is infinite;
* a sketch is one that the library reads, of the form that Millpond writes;
* the instant of a first or latest value is there where the value is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Corrupt
from millpond.maps.inputs.tags import to_tags
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import shown_starts
from millpond.maps.model.sketches import is_sound
from millpond.maps.search.combining import fields_of

__all__ = ("check_buckets",)


def check_buckets(definition: MapDefinition, rows: pa.RecordBatch) -> None:
    """Check canonical rows of an aggregate.

    Raises: `Corrupt`, kind `part_rows`, naming the fault.
    """
    assert definition.aggregation is not None, "an aggregate has one"
    fault = _fault_of_addresses(definition, rows) or _fault_of_values(definition, rows.column("value"))
    if fault:
        raise Corrupt(
            "the part holds rows that its map cannot have", kind="part_rows", map=definition.name, reason=fault
        )


def _fault_of_addresses(definition: MapDefinition, rows: pa.RecordBatch) -> str:
    times = rows.column("time").to_numpy()
    if not np.array_equal(shown_starts(definition.aggregation, times), times):  # type: ignore[arg-type]
        return "a time is not the start of a bucket"
    if definition.tagged:
        keys = rows.column("key")
        tags = to_tags(keys.cast(pa.string()))
        if tags.faults or not tags.values.equals(keys):
            return "a key is no set of tags"
    return ""


def _fault_of_values(definition: MapDefinition, values: pa.StructArray) -> str:
    if values.null_count:
        return "a row has no value"
    for field in fields_of(definition):
        column = values.field(field.name)
        if field.rule is Rule.COUNT and (column.null_count or _any(pc.less(column, 0))):
            return f"{field.name} is no count"
        if pa.types.is_floating(column.type):
            if _any(pc.is_nan(column)):
                return f"{field.name} is NaN"
            if field.rule is Rule.SUM and _any(pc.is_inf(column)):
                return f"{field.name} is infinite"
        if field.rule.sketched and not is_sound(field.rule, column):
            return f"{field.name} is no sketch"
        if field.instant is not None and _any(pc.xor(column.is_valid(), values.field(field.instant).is_valid())):
            return f"{field.name} has no instant, or an instant no value"
    return ""


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())
