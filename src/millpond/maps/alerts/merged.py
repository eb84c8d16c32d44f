"""Judging a load into a shard, before its rows are added: its groups as they are, and as they will be.

    view of the shard     JFK 10:00  90 orders                      before
    parts of the load     JFK 10:00  12 orders, LGA 10:00  3
    over one another      JFK 10:00  102 orders, LGA 10:00  3       after; other groups are as before

Invariants:
* who judges is who merges, alone with the shard: what is judged is what is added, in the transaction that follows;
* it is about one load: of a map with rules, loads are merged one by one;
* rows are added in the order in which merging adds them, so doubles are rounded alike;
* memory does not grow with a load: of a large one, keys are judged by shares of their hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.byte_columns import run_ends, sort_order, take
from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Invalid
from millpond.maps.alerts.crossings import Addresses
from millpond.maps.alerts.judging import Judge, Judged, Touched, meet
from millpond.maps.model.address import address_bytes
from millpond.maps.model.columns import canonical_schema, value_arrow
from millpond.maps.model.display import present
from millpond.maps.model.rolled_up import is_rolled_up
from millpond.maps.predicates.taken import taken_rows
from millpond.maps.search.rows_of_buckets import at_bucket_starts, combined_rows
from millpond.maps.shard.added import held_rows
from millpond.maps.shard.bucket_tables import BucketStore, values_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from millpond.arrays.radix import I64
    from millpond.maps.alerts.rules import AlertRule
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.predicates.predicate import Predicate
    from millpond.maps.shard.shard import ShardView

__all__ = ("judged_load",)

RowsOfLoad: TypeAlias = Callable[[], Iterable[pa.RecordBatch]]

SHARE_ROWS = 1 << 20
SHARE_BYTES = 64 << 20
"""The rows of a load, and their bytes, that are judged together; one key is never cut."""


def judged_load(
    view: ShardView, definition: MapDefinition, rules: Sequence[AlertRule], rows: RowsOfLoad, count: int, size: int
) -> tuple[Judged, pa.RecordBatch | None]:  # fmt: skip
    """Judge a load by the rules of a map. `rows` are those of its parts, in order, of which there are `count`, of
    `size` bytes. A load whose sums overflow is not judged: it is not merged. Beside the outcome, the rows of the groups
    that it touched as they are after it; None where merging adds them otherwise.

    Raises: `Corrupt`.
    """
    outcome = Judged(definition.name, tuple(rules))
    judges = [Judge(rule, rule.condition(definition)) for rule in rules]
    shares, after = 1 + max(count // SHARE_ROWS, size // SHARE_BYTES), list[pa.RecordBatch]()
    try:
        meet(definition, judges, (_changed(view, definition, share, after) for share in _shares(rows, shares)), outcome)
    except Invalid as error:
        if error.kind != "sum_overflow":
            raise
        return Judged(definition.name, outcome.rules), None
    # Late rows of a wide bucket are several, and merging adds them together first: doubles would be rounded otherwise.
    alike = shares == 1 and bool(after) and not is_rolled_up(definition.aggregation)
    return outcome, after[0] if alike else None


def _shares(rows: RowsOfLoad, count: int) -> Iterator[pa.RecordBatch]:
    """The rows of a load by shares of keys; within a share they are in their order."""
    for number in range(count):
        pieces = [_of_share(batch, number, count) for batch in rows()]
        if pieces:
            yield pa.concat_batches(pieces)


def _of_share(rows: pa.RecordBatch, number: int, count: int) -> pa.RecordBatch:
    if count == 1:
        return rows
    return rows.filter(pa.array(hash_keys(rows.column("key")) % np.uint64(count) == number))


def _changed(
    view: ShardView, definition: MapDefinition, rows: pa.RecordBatch, last: list[pa.RecordBatch]
) -> tuple[Touched, _ShardGroups, _ShardGroups]:  # fmt: skip
    """The groups that rows touch, and the states before and after; the rows after are the `last`."""
    [rows] = at_bucket_starts(definition, [rows])
    before = _ShardGroups(view, definition)
    held = before.rows_at(_without_repeats(definition, rows))[1]
    after = combined_rows(definition, pa.concat_batches([held, rows]))
    last[:] = [after]
    return Touched(lambda: after), before, _ShardGroups(view, definition, after)


def _without_repeats(definition: MapDefinition, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of which each address has one."""
    addresses = address_bytes(definition, rows)
    if bool(run_ends(take(addresses, sort_order(addresses))).all()):
        return rows  # of one part
    numbers = addresses.to_arrow().dictionary_encode().indices.to_numpy()
    return rows.take(pa.array(np.unique(numbers, return_index=True)[1]))


def _are_at(rows: pa.RecordBatch, addresses: Addresses) -> bool:
    """True for rows at just these addresses."""
    return np.array_equal(rows.column("time").to_numpy(), addresses.times) and rows.column("key").equals(addresses.keys)


class _ShardGroups:
    """The groups of a shard as a view shows it; those of `rows` are as these say."""

    def __init__(self, view: ShardView, definition: MapDefinition, rows: pa.RecordBatch | None = None) -> None:
        self._view, self._definition, self._rows = view, definition, rows
        self._last: tuple[Addresses, tuple[I64, pa.RecordBatch]] | None = None

    @cached_property
    def _addresses(self) -> pa.Array:
        assert self._rows is not None, "some groups are others"
        return address_bytes(self._definition, self._rows).to_arrow()

    def rows_at(self, addresses: pa.RecordBatch) -> tuple[I64, pa.RecordBatch]:
        """The canonical rows at some addresses, and the place of each among these."""
        if self._rows is None:
            return self._stored(addresses)
        numbers = pc.index_in(address_bytes(self._definition, addresses).to_arrow(), self._addresses)
        own = np.flatnonzero(numbers.is_valid())
        others = np.flatnonzero(numbers.is_null())
        positions, rows = self._stored(addresses.take(pa.array(others)))
        return np.append(own, others[positions]), pa.concat_batches([self._rows.take(numbers.drop_null()), rows])

    def _stored(self, addresses: pa.RecordBatch) -> tuple[I64, pa.RecordBatch]:
        tx, store = self._view.tx, self._view.store
        held: Sequence[bytes | None] = [None] * addresses.num_rows
        if tx is not None and addresses.num_rows:
            assert isinstance(store, BucketStore), "it is an aggregate"
            held = values_at(store, tx, addresses)
        positions = np.flatnonzero([value is not None for value in held])
        return positions, held_rows(self._definition, held, addresses)

    def _at(self, addresses: Addresses) -> tuple[I64, pa.RecordBatch]:
        """The rows at addresses; of several rules, those before looked the same up."""
        own = self._rows
        if own is not None and _are_at(own, addresses):
            return np.arange(len(own)), own
        if self._last is None or self._last[0] is not addresses:
            schema = pa.schema(map(canonical_schema(self._definition).field, self._definition.kind.address))
            columns = [addresses.keys, pa.array(addresses.times)]
            self._last = addresses, self.rows_at(pa.RecordBatch.from_arrays(columns, schema=schema))
        return self._last[1]

    def holds(self, condition: Predicate, addresses: Addresses) -> npt.NDArray[np.bool_]:
        mask = np.zeros(len(addresses), np.bool_)
        positions, rows = self._at(addresses)
        mask[positions[taken_rows(self._definition, condition, rows)]] = True
        return mask

    def values(self, addresses: Addresses) -> list[dict[str, Any] | None]:
        positions, rows = self._at(addresses)
        names = [field.name for field in value_arrow(self._definition.shown) if not pa.types.is_binary(field.type)]
        values: list[dict[str, Any] | None] = [None] * len(addresses)
        for position, row in zip(positions.tolist(), present(self._definition, rows, names).to_pylist(), strict=True):
            values[position] = row
        return values
