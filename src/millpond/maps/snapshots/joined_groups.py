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
* Of two states that share layers, a row can only differ where one of the other layers has a row of its address, or
  replaces its group: all other rows may be left out of both.
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
    rows_of,
)
from millpond.maps.snapshots.groups_of_rows import Mask, is_before, list_of_rows, row_times
from millpond.maps.snapshots.manifest import LayerMode
from millpond.ranges.gather import gathered
from millpond.ranges.merge import match_keys

__all__ = ("join_groups", "join_two_states")


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
    stack = _Stack.of(definition, modes, pieces)
    if definition.aggregation is not None:
        yield stack.buckets(definition)
        return
    yield stack.joined(np.ones(len(pieces), np.bool_), np.zeros(len(pieces), np.bool_))


def join_two_states(
    definition: MapDefinition, modes: Sequence[LayerMode], pieces: Sequence[tuple[int, pa.RecordBatch]], old: int,
    new: int,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:  # fmt: skip
    """The groups of two states without the rows that cannot differ: first come the `old` layers that only the one has,
    then the `new` ones of the other, then those that both share. Not for aggregates.
    """
    stack = _Stack.of(definition, modes, pieces)
    numbers = np.array([number for number, _ in pieces])
    apart = numbers < old + new
    return stack.joined((numbers < old) | ~apart, apart), stack.joined(numbers >= old, apart)


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
            offsets, rows = rows_of(batch)
            batches.append(pa.RecordBatch.from_struct_array(rows))
            lows.append(offsets[:-1] + begin)
            highs.append(offsets[1:] + begin)
            begin += len(rows)
        times = [np.concatenate([batch.column(name).to_numpy() for batch in batches])
                 for name in row_times(definition.kind)] or [np.zeros(begin, np.int64)]  # fmt: skip
        return cls(batches, np.concatenate(lows), np.concatenate(highs), times[0], times[-1])


@dataclass(frozen=True, slots=True)
class _Stack:
    """Groups of several layers, newest first: their keys, and of each key the group of every layer."""

    schema: pa.Schema
    keys: pa.RecordBatch
    members: I64
    rows: _Rows
    whole: Mask
    fill: Mask

    @classmethod
    def of(
        cls, definition: MapDefinition, modes: Sequence[LayerMode], pieces: Sequence[tuple[int, pa.RecordBatch]]
    ) -> _Stack:
        batches = [batch for _, batch in pieces]
        whole, fill = (
            np.array([modes[number] is mode for number, _ in pieces]) for mode in (LayerMode.WHOLE, LayerMode.FILL)
        )
        return cls(batches[0].schema, *_union(batches), _Rows.of(definition, batches), whole, fill)

    def buckets(self, definition: MapDefinition) -> pa.RecordBatch:
        """The groups of an aggregate."""
        rows = self.rows
        order, ends = in_order_of_time(self.members, self.whole.tolist(), rows.low, rows.high, rows.first)
        return groups_of_buckets(definition, self.keys, gathered(rows.batches, order), ends, self.schema)

    def joined(self, counts: Mask, marks: Mask) -> pa.RecordBatch:
        """The groups of the layers that count; where layers are marked, only rows of addresses that those have, and of
        groups that one of them replaces."""
        rows = self.rows
        positions, offsets = np.empty(len(rows.first), np.int64), np.zeros(self.keys.num_rows + 1, np.int64)
        used = _join(
            self.members, self.whole, self.fill, counts, marks, rows.low, rows.high, rows.first, rows.second, positions,
            offsets,
        )  # fmt: skip
        fields = gathered(rows.batches, positions[:used])
        structs = pa.StructArray.from_arrays(fields.columns, fields=list(fields.schema))
        columns = [*self.keys.columns, *list_of_rows(self.schema, offsets, structs)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@kernel
def _join(members, whole, fill, counts, marks, low, high, first, second, positions, offsets):  # type: ignore[no-untyped-def]
    """Fill in the rows of each key in order, and the offsets of the keys over them; how many there are."""
    used = 0
    layers, unmarked = len(members), not marks.any()
    layer, at, stop = np.empty(layers, np.int64), np.empty(layers, np.int64), np.empty(layers, np.int64)
    speaks = np.empty(layers, np.bool_)
    for key in range(len(offsets) - 1):
        count, hidden, every = 0, False, unmarked
        for number in range(layers):
            group = members[number, key]
            if group < 0:
                continue
            speaking = counts[number] and not hidden
            if speaking or marks[number]:
                layer[count], at[count], stop[count], speaks[count] = number, low[group], high[group], speaking
                count += 1
            if whole[number]:
                hidden, every = hidden or counts[number], every or marks[number]
        if count == 1 and every:
            if speaks[0]:
                for row in range(at[0], stop[0]):
                    positions[used] = row
                    used += 1
            count = 0
        while True:
            lowest = -1
            for i in range(count):
                if at[i] < stop[i] and (lowest < 0 or is_before(first, second, at[i], lowest)):
                    lowest = at[i]
            if lowest < 0:
                break
            best, row, chosen = -1, -1, every
            for i in range(count):
                if at[i] == stop[i] or is_before(first, second, lowest, at[i]):
                    continue
                if speaks[i] and (best < 0 or fill[layer[best]]):
                    best, row = i, at[i]
                chosen = chosen or marks[layer[i]]
                at[i] += 1
            if chosen and row >= 0:
                positions[used] = row
                used += 1
        offsets[key + 1] = used
    return used
