"""Groups of several layers put together: the one place that makes rows of the rows of layers.

    pieces, newest first        key a           key b
    join                        t=3             –
    fill                        t=2 t=3         t=9
    whole                       t=1 t=2         (tombstone)
    outcome                     t=1 t=2 t=3     t=9          of t=2 the value of whole, of t=3 that of join

Reading everything and folding both come here; a lookup, which looks at one row of each layer, states the same rule in
`search/partial.py`.

Invariants:
* What lies under a whole group does not count.
* Of several rows of one address the newest counts, but a row of a `fill` layer only where there is no older one.
* Rows stay in order of time within their group.
* Rows of one bucket of an aggregate combine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.radix import I64
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import is_rolled_up
from millpond.maps.snapshots.combined_groups import (
    combined_groups,
    groups_of_buckets,
    groups_rolled_up,
    in_order_of_time,
)
from millpond.maps.snapshots.groups_of_rows import list_of_rows, row_times
from millpond.maps.snapshots.manifest import LayerMode
from millpond.ranges.gather import gathered
from millpond.ranges.merge import match_keys

__all__ = ("join_groups",)


def join_groups(
    definition: MapDefinition, modes: Sequence[LayerMode], pieces: Sequence[tuple[int, pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The groups of one stretch of keys, of the layers of these numbers, as one batch: newest first, as the modes say.

    A tombstone that nothing joins comes out as an empty group.
    """
    pieces = [(number, batch) for number, batch in pieces if batch.num_rows]
    rolled_up = is_rolled_up(definition.aggregation)
    if rolled_up:
        pieces = [(number, groups_rolled_up(definition, batch)) for number, batch in pieces]
    if len(pieces) < 2:
        yield from (combined_groups(definition, batch) if rolled_up else batch for _, batch in pieces)
        return
    keys, members = _union([batch for _, batch in pieces])
    rows = _Rows.of(definition, [batch for _, batch in pieces])
    if definition.aggregation is not None:
        hiding = [modes[number] is LayerMode.WHOLE for number, _ in pieces]
        order, ends = in_order_of_time(members, hiding, rows.low, rows.high, rows.first)
        yield groups_of_buckets(definition, keys, gathered(rows.batches, order), ends, pieces[0][1].schema)
        return
    places, offsets = np.empty(len(rows.first), np.int64), np.zeros(keys.num_rows + 1, np.int64)
    whole, fill = (
        np.array([modes[number] is mode for number, _ in pieces]) for mode in (LayerMode.WHOLE, LayerMode.FILL)
    )
    used = _join(members, whole, fill, rows.low, rows.high, rows.first, rows.second, places, offsets)
    fields = gathered(rows.batches, places[:used])
    structs = pa.StructArray.from_arrays(fields.columns, fields=list(fields.schema))
    schema = pieces[0][1].schema
    yield pa.RecordBatch.from_arrays([*keys.columns, *list_of_rows(schema, offsets, structs)], schema=schema)


def _union(batches: list[pa.RecordBatch]) -> tuple[pa.RecordBatch, I64]:
    """All keys in order, with their hashes; and of each, a line per batch, its group, counted over all; -1: none."""
    names = [name for name in ("key", "hash") if name in batches[0].schema.names]
    keys = batches[0].select(names)
    members = np.arange(keys.num_rows)[np.newaxis]
    begin = keys.num_rows
    for batch in batches[1:]:
        mine, other = match_keys(keys, batch)
        older = np.where(other >= 0, other + begin, -1)
        members = np.vstack([np.where(mine >= 0, members[:, mine], -1), older])
        keys = gathered([keys, batch.select(names)], np.where(mine >= 0, mine, other + keys.num_rows))
        begin += batch.num_rows
    return keys, members


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of some batches of groups, counted over all: where those of each group lie, and their times."""

    batches: list[pa.RecordBatch]
    low: I64
    high: I64
    first: I64
    second: I64

    @classmethod
    def of(cls, definition: MapDefinition, groups: list[pa.RecordBatch]) -> _Rows:
        batches, lows, highs, begin = [], [], [], 0
        for batch in groups:
            column = batch.column("rows")
            offsets = column.offsets.to_numpy().astype(np.int64)  # those of a slice begin where it does
            rows = column.values.slice(offsets[0], offsets[-1] - offsets[0])
            batches.append(pa.RecordBatch.from_struct_array(rows))
            offsets += begin - offsets[0]
            lows.append(offsets[:-1])
            highs.append(offsets[1:])
            begin += len(rows)
        times = [np.concatenate([batch.column(name).to_numpy() for batch in batches])
                 for name in row_times(definition.kind)] or [np.zeros(begin, np.int64)]  # fmt: skip
        return cls(batches, np.concatenate(lows), np.concatenate(highs), times[0], times[-1])


@kernel
def _is_before(first, second, row, other):  # type: ignore[no-untyped-def]
    return first[row] < first[other] or (first[row] == first[other] and second[row] < second[other])


@kernel
def _join(members, whole, fill, low, high, first, second, places, offsets):  # type: ignore[no-untyped-def]
    """Fill in the rows of each key in order, and the offsets of the keys over them; how many there are."""
    used = 0
    layers = len(members)
    layer, at, stop = np.empty(layers, np.int64), np.empty(layers, np.int64), np.empty(layers, np.int64)
    for key in range(len(offsets) - 1):
        count = 0
        for number in range(layers):
            group = members[number, key]
            if group >= 0:
                layer[count], at[count], stop[count] = number, low[group], high[group]
                count += 1
                if whole[number]:
                    break
        if count == 1:
            for row in range(at[0], stop[0]):
                places[used] = row
                used += 1
            count = 0
        while True:
            best = -1
            for i in range(count):
                if at[i] == stop[i]:
                    continue
                if (
                    best < 0
                    or _is_before(first, second, at[i], at[best])
                    or (fill[layer[best]] and not _is_before(first, second, at[best], at[i]))
                ):
                    best = i
            if best < 0:
                break
            chosen = at[best]
            for i in range(count):
                if at[i] < stop[i] and not _is_before(first, second, chosen, at[i]):
                    at[i] += 1
            places[used] = chosen
            used += 1
        offsets[key + 1] = used
    return used
