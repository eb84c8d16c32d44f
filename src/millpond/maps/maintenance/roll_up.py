"""Rolling up a shard: old rows of an aggregate become rows of wider buckets.

    day before 06-10    06-08 09:00  3    06-08 14:00  2    06-09 08:00  1    06-10 07:00  4
    first change        06-08        5                      06-09 08:00  1    06-10 07:00  4     day before 06-09
    second change       06-08        5                      06-09        1    06-10 07:00  4     day before 06-10

Invariants:
* a change takes whole wide buckets of all keys, the oldest first, and notes in the same transaction how far the rows
  are rolled up: so each state between two changes is one that can be asked, and loaded into;
* a change moves about `ROWS_PER_CHANGE` rows, more where a wide bucket has more;
* rows are added in an order that follows from the rows alone, in batches of one size: doubles are rounded alike on all
  nodes;
* a shard without rows notes it, too: what comes late is put into wide buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.kernel.steps import step
from millpond.maps.maintenance.chunks import Chunk, Position, chunk_at
from millpond.maps.maintenance.groups import group_keys, longs_of
from millpond.maps.model.aggregation import Aggregation, RolledUp
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import rolled_up, shown_ends, shown_starts, together
from millpond.maps.shard.bucket_tables import BucketStore, add_rows
from millpond.maps.shard.generation import Generation
from millpond.maps.shard.layouts import decode_rows
from millpond.maps.shard.shard import Shard

__all__ = ("ROWS_PER_CHANGE", "roll_up")

I64 = npt.NDArray[np.int64]

ROWS_PER_CHANGE = 1 << 21
"""About how many rows a change moves: each change reads the times of all rows."""
ROWS_PER_BATCH, ROWS_PER_CHUNK = 65_536, 131_072
KEYS_MAX = 1_000_000
"""More keys are not listed: the next freeze reads all rows."""


def roll_up(shard: Shard, width: str, before_ms: int, going: Callable[[], None]) -> int:
    """Combine the rows of whole buckets of a width before a time; the number of changes. Call it while
    `shard.exclusive()`; `going` is called before each change, and may raise.

    Raises: `Invalid`, kind `sum_overflow`, or `resolution_finer` for buckets that do not fit those that are rolled up.
    """
    with shard.view() as view:
        definition = view.definition
        assert definition.aggregation is not None, "an aggregate has one"
        goal = rolled_up(definition.aggregation, width, before_ms)
        if goal == definition.aggregation:
            return 0
        moving = _Moving(replace(definition, aggregation=goal))
        for chunk, times, moved in () if view.tx is None else moving.chunks(view.generation, view.tx):
            moving.count(group_keys(view.store, view.tx, chunk.taken(moved)), times[moved])
    ends = moving.ends()
    states = [together(definition.aggregation, [RolledUp(end, width)]) for end in ends] + [goal]
    touched = moving.touched() if len(states) == 1 else None
    for state in states:
        going()
        shard.change(_Moving(replace(definition, aggregation=state)).into(shard), touched)
        step("roll_up.committed")
    return len(states)


class _Moving:
    """The rows that move, as a state of the map shows buckets."""

    def __init__(self, definition: MapDefinition) -> None:
        self._definition = definition
        assert definition.aggregation is not None, "an aggregate has one"
        self._aggregation: Aggregation = definition.aggregation
        self._rows: dict[int, int] = {}
        self._keys: list[pa.Array] = []
        self._keys_listed = 0

    def chunks(self, generation: Generation, tx: lmdb.Transaction) -> Iterator[tuple[Chunk, I64, I64]]:
        """The chunks of a shard: with the times of its rows, and the places of those that move."""
        position: Position | None = None
        while (chunk := chunk_at(generation, tx, position, ROWS_PER_CHUNK)) is not None:
            times = longs_of(generation.store, chunk)[-1]
            moved = np.flatnonzero(shown_starts(self._aggregation, times) != times)
            if len(moved):
                yield chunk, times, moved
            if (position := chunk.following) is None:
                return

    # -- before the changes -----------------------------------------------------------------------------

    def count(self, keys: pa.Array, times: I64) -> None:
        """Count rows of these keys and times, which move."""
        starts, counts = np.unique(shown_starts(self._aggregation, times), return_counts=True)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self._rows[start] = self._rows.get(start, 0) + count
        if self._keys_listed <= KEYS_MAX:
            self._keys.append(keys.cast(pa.binary()).unique())
            self._keys_listed += len(self._keys[-1])

    def touched(self) -> pa.Array | None:
        """The keys of the rows that were counted; None for too many."""
        if self._keys_listed > KEYS_MAX:
            return None
        return pa.concat_arrays([pa.array([], pa.binary()), *self._keys]).unique()

    def ends(self) -> list[int]:
        """The ends of the wide buckets behind which changes end, but the last one."""
        starts, ends, rows = sorted(self._rows), [], 0
        for start, following in pairwise(starts):
            rows += self._rows[start]
            if rows + self._rows[following] > ROWS_PER_CHANGE:
                bounds = np.array([start])
                ends.append(int(shown_ends(self._aggregation, bounds, bounds + 1)[0]))
                rows = 0
        return ends

    # -- a change ---------------------------------------------------------------------------------------

    def into(self, shard: Shard) -> Callable[[lmdb.Transaction], None]:
        """The change that moves the rows."""

        def act(tx: lmdb.Transaction) -> None:
            generation = shard.tables
            store = generation.store
            assert isinstance(store, BucketStore), "it is an aggregate"
            generation.put_rolled_up(tx, self._aggregation.rolled_up)
            for rows in self._batches(generation, tx):
                store.delete_rows(tx, rows.select(self._definition.kind.address))
                add_rows(store, tx, self._definition, rows)

        return act

    def _batches(self, generation: Generation, tx: lmdb.Transaction) -> Iterator[pa.RecordBatch]:
        """The rows that move, where they lie now, so many at a time."""
        schema = canonical_schema(self._definition)
        table = pa.Table.from_batches([], schema)
        for chunk, _, moved in self.chunks(generation, tx):
            some = chunk.taken(moved)
            rows = decode_rows(self._definition, chunk.table, some.keys, some.values)
            table = pa.concat_tables([table, pa.Table.from_batches([rows], schema)])
            while table.num_rows >= ROWS_PER_BATCH:
                yield _as_batch(table.slice(0, ROWS_PER_BATCH))
                table = table.slice(ROWS_PER_BATCH)
        if table.num_rows:
            yield _as_batch(table)


def _as_batch(rows: pa.Table) -> pa.RecordBatch:
    [batch] = rows.combine_chunks().to_batches()
    return batch
