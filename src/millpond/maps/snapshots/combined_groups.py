"""Groups of aggregates: rows of one bucket, of a load or of several layers, become one by the rules of the fields.

    a load: events           times at the start of their buckets ─▶ sorted groups ─▶ one row a bucket
    layers: partial rows     groups of one key, side by side     ─▶ in order of time ─▶ one row a bucket

Invariants, of which `docs/format/layers.md` has the first:
* a bucket has one row in a group, and its rows in several layers combine; what lies under a whole group does not count;
* rows stay in order of time within their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.radix import I64
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import shown_starts
from millpond.maps.search.combining import combined_values
from millpond.maps.search.run_values import counted_from

__all__ = (
    "GroupRows", "combined_groups", "groups_of_buckets", "groups_rolled_up",
    "in_order_of_time", "rows_of",
)  # fmt: skip

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of a batch of groups: where those of each begin, and where a bucket begins among them."""

    offsets: I64
    rows: pa.StructArray
    starts: I64

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> GroupRows:
        offsets, rows = rows_of(batch)
        first = np.diff(rows.field("time").to_numpy(), prepend=0) != 0
        first[offsets[:-1][np.diff(offsets) > 0]] = True
        return cls(offsets, rows, np.flatnonzero(first))


def rows_of(batch: pa.RecordBatch) -> tuple[I64, pa.StructArray]:
    """The rows of a batch of groups, and where those of each begin; those of a slice begin where it does."""
    column = batch.column("rows")
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], column.values.slice(offsets[0], offsets[-1] - offsets[0])


def groups_rolled_up(definition: MapDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with the starts of the buckets that show their rows as times: those of one may be several."""
    column = batch.column("rows")
    rows, at = column.flatten(), batch.schema.get_field_index("rows")
    assert definition.aggregation is not None, "an aggregate has one"
    starts = shown_starts(definition.aggregation, rows.field("time").to_numpy())
    fields = [pa.array(starts) if field.name == "time" else rows.field(field.name) for field in rows.type]
    offsets = pc.subtract(column.offsets, column.offsets[0])
    structs = pa.StructArray.from_arrays(fields, fields=list(rows.type))
    return batch.set_column(at, batch.schema.field(at), pa.ListArray.from_arrays(offsets, structs, type=column.type))


def combined_groups(definition: MapDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The groups with one row for each bucket; rows are in order of time.

    Raises: `Invalid`, kind `sum_overflow`.
    """
    within = GroupRows.of(batch)
    rows, starts = within.rows, within.starts
    assert definition.aggregation is not None, "an aggregate has one"
    if len(starts) == len(rows) and not definition.aggregation.sketched:
        return batch

    def named(run: int) -> dict[str, Any]:
        group = int(np.searchsorted(within.offsets, starts[run], side="right")) - 1
        key = batch.column("key")[group].as_py()[_HASH_BYTES:].decode(errors="replace")
        return {"key": key, "bucket": rows.field("time")[int(starts[run])].cast(INSTANT).as_py().isoformat()}

    times, values = rows.field("time").take(pa.array(starts)), rows.field("value")
    arrays = combined_values(definition, values, starts, named)
    structs = pa.StructArray.from_arrays([times, arrays], fields=list(rows.type))
    offsets = np.searchsorted(starts, within.offsets).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), structs, type=batch.schema.field("rows").type)
    return batch.set_column(batch.schema.get_field_index("rows"), batch.schema.field("rows"), column)


def groups_of_buckets(
    definition: MapDefinition, keys: pa.RecordBatch, rows: pa.RecordBatch, ends: I64, schema: pa.Schema
) -> pa.RecordBatch:
    """The groups of these keys, of rows in order of time, those of each key up to where it ends.

    Raises: as `combined_groups`.
    """
    structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs, type=schema.field("rows").type)
    return combined_groups(definition, pa.RecordBatch.from_arrays([*keys.columns, lists], schema=schema))


def in_order_of_time(
    members: I64, whole: Sequence[bool], low: I64, high: I64, times: I64
) -> tuple[I64, I64]:  # fmt: skip
    """All rows of keys that count, in order of time, and the offsets of the keys over them.

    A line of `members` has the group of each key in one layer, newest first, -1 where it has none; `low` and `high` say
    which rows a group has, and `times` are those of the rows.
    """
    seen = np.ones(members.shape[1], np.bool_)
    keys, positions = [], []
    for line, hides in zip(members, whole, strict=True):
        there = np.flatnonzero(seen & (line >= 0))
        groups = line[there]
        counts = high[groups] - low[groups]
        keys.append(np.repeat(there, counts))
        positions.append(counted_from(low[groups], counts))
        if hides:
            seen[there] = False
    key, position = np.concatenate(keys), np.concatenate(positions)
    order = np.lexsort((times[position], key))
    offsets = np.zeros(members.shape[1] + 1, np.int64)
    np.cumsum(np.bincount(key, minlength=members.shape[1]), out=offsets[1:])
    return position[order], offsets
