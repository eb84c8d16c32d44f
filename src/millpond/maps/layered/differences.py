"""The differences of two states of a layered map, by address: the key or range, and its times.

Manifests are walked side by side, and what both share is skipped: the layers that lie under both, and ranges of the
others that both have where nothing else lies. So the cost follows what changed.

Invariants:
* an address differs where one state has no row of it, or where the stored bytes of both values differ;
* each address comes out once, and all addresses of a key come out together;
* a row that is left out is the same in both states (`snapshots/joined_groups.py`);
* a key that is skipped has the same rows in both states: its range is the only one over the shared layers that can
  hold it, on either side, and says the same there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond import ranges
from millpond.errors import Invalid
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.maps.model.address import address_bytes
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.values import encode_values
from millpond.maps.snapshots.joined_groups import join_groups, join_two_states
from millpond.maps.snapshots.rows_of_groups import groups_of_keys, rows_of_groups
from millpond.maps.snapshots.shown_layers import shown_layer
from millpond.ranges.walk import Cursor, take_stretch

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
    from millpond.stores.objects import Objects

__all__ = (
    "AddressRows",
    "ChangedKeys",
    "Difference",
    "changed_keys",
    "check_alike",
    "difference_of",
    "differences",
    "same_rows",
)

KEYS_AT_ONCE = 1 << 16
"""About so many keys are compared at once."""
BYTES_AT_ONCE = 16 << 20
"""About so many bytes of rows that only one state has."""

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AddressRows:
    """Canonical rows, no two of one address; their addresses, and their values as they are stored."""

    definition: MapDefinition
    rows: pa.RecordBatch
    addresses: pa.Array
    values: pa.Array | None

    @classmethod
    def of(cls, definition: MapDefinition, batches: Sequence[pa.RecordBatch], *, updates: bool = False) -> AddressRows:
        """The rows of batches; with `updates`, they tell when they were put."""
        table = pa.Table.from_batches(batches, canonical_schema(definition, updates=updates)).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
        values = None
        if definition.kind.valued:
            values = encode_values(rows.column("value"), definition.value).to_arrow().cast(pa.large_binary())
        return cls(definition, rows, address_bytes(definition, rows).to_arrow().cast(pa.large_binary()), values)

    def positions(self, addresses: pa.Array) -> I64:
        """The place of the row of each address, -1 where there is none. No two addresses are alike."""
        if addresses.equals(self.addresses):  # values alone changed: nothing has to be looked for
            return np.arange(len(addresses))
        if len(addresses) >= len(self.addresses):
            return _positions(addresses, self.addresses)
        in_few, positions = _positions(self.addresses, addresses), np.full(len(addresses), -1, np.int64)
        (rows,) = np.nonzero(in_few >= 0)
        positions[in_few[rows]] = rows
        return positions


def _positions(addresses: pa.Array, among: pa.Array) -> I64:
    """The place of each address; what is few should be searched, for it is hashed."""
    positions: I64 = pc.index_in(addresses, among).fill_null(-1).to_numpy().astype(np.int64)
    return positions


def same_rows(left: AddressRows, left_positions: I64, right: AddressRows, right_positions: I64) -> Mask:
    """True where both places hold equal values, or no row is at either."""
    both = (left_positions >= 0) & (right_positions >= 0)
    same: Mask = (left_positions < 0) & (right_positions < 0)
    if left.values is None or right.values is None:
        return same | both
    equal = pc.equal(
        left.values.take(pa.array(left_positions[both])), right.values.take(pa.array(right_positions[both]))
    )
    same[both] = equal.to_numpy(zero_copy_only=False)
    return same


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Keys whose rows may differ, as order keys, ascending; and of both states all rows of them that may differ."""

    keys: pa.Array
    old: AddressRows
    new: AddressRows


@dataclass(frozen=True, slots=True)
class Difference:
    """Addresses that differ, and where both states have them; -1: not at all."""

    addresses: pa.Array
    old: AddressRows
    new: AddressRows
    old_positions: I64
    new_positions: I64

    def __len__(self) -> int:
        return len(self.addresses)

    def address_rows(self) -> pa.RecordBatch:
        """The columns of the addresses."""
        names = list(self.old.definition.kind.address)
        sides = pa.Table.from_batches([self.old.rows.select(names), self.new.rows.select(names)]).combine_chunks()
        positions = np.where(self.new_positions >= 0, self.new_positions + self.old.rows.num_rows, self.old_positions)
        taken = sides.take(pa.array(positions)).combine_chunks()
        return taken.to_batches()[0] if taken.num_rows else pa.RecordBatch.from_pylist([], taken.schema)


def difference_of(changed: ChangedKeys) -> Difference:
    """The addresses of some keys that differ."""
    old, new = changed.old, changed.new
    in_new = new.positions(old.addresses)
    gone, stays = np.flatnonzero(in_new < 0), np.flatnonzero(in_new >= 0)
    old_positions = np.full(len(new.addresses) + len(gone), -1, np.int64)
    new_positions = old_positions.copy()
    old_positions[in_new[stays]], old_positions[len(new.addresses) :] = stays, gone
    new_positions[: len(new.addresses)] = np.arange(len(new.addresses))
    differ = np.flatnonzero(~same_rows(old, old_positions, new, new_positions))
    old_positions, new_positions = old_positions[differ], new_positions[differ]
    addresses = [new.addresses.take(pa.array(new_positions[new_positions >= 0])), old.addresses.take(pa.array(gone))]
    return Difference(pa.concat_arrays(addresses), old, new, old_positions, new_positions)


def differences(objects: Objects, old: SnapshotManifest | None, new: SnapshotManifest | None) -> Iterator[Difference]:
    """The differences of two states of a map, some keys at a time, in the order of their hashes, or of ranges.

    None is a state without rows.

    Raises: `Invalid`, kind `maps_differ`, for maps of another kind or value type; `NotFound`, `Corrupt`, naming the
    file.
    """
    for changed in changed_keys(objects, old, new):
        difference = difference_of(changed)
        if len(difference):
            yield difference


def check_alike(old: SnapshotManifest, new: SnapshotManifest) -> None:
    """Refuse to compare maps of another kind or value type.

    Raises: `Invalid`, kind `maps_differ`.
    """
    if (old.kind, old.value, old.fields, old.hash_bits) != (new.kind, new.value, new.fields, new.hash_bits):
        raise Invalid(
            "the map has another kind or value type there", kind="maps_differ", map=new.map, kinds=[old.kind, new.kind],
            values=[old.value, new.value], hint="let both be alike first, or take the map of one side as it is",
        )  # fmt: skip


def changed_keys(
    objects: Objects, old: SnapshotManifest | None, new: SnapshotManifest | None, *, updates: bool = False,
    within: KeyRange = EVERYTHING, verify: bool = False,
) -> Iterator[ChangedKeys]:  # fmt: skip
    """The keys whose rows may differ, with their rows in both states, some at a time.

    `updates`: or whose update times may; the rows tell them, of states that keep them. `within`: of those order
    keys alone. `verify`: also the files that both share are read whole again, for rows that are to be written.

    Raises: as `differences`.
    """
    either = new if old is None else old
    if either is None or (old is not None and new is not None and old.id == new.id):
        return
    if old is not None and new is not None:
        check_alike(old, new)
    walk = _Walk.of(objects, either, old, new, updates=updates)
    for cursor in walk.cursors:
        cursor.seek(within.start)
    yield from walk.steps(within.stop, verify=verify)


@dataclass(slots=True)
class _Walk:
    """Two stacks of layers, walked side by side: the layers that only one of them has, and those under both.

    States that are rolled up otherwise may show the same rows as others: of them nothing is skipped.
    """

    objects: Objects
    either: SnapshotManifest
    definitions: tuple[MapDefinition, MapDefinition]
    old: Sequence[Layer]
    new: Sequence[Layer]
    shared: Sequence[Layer]
    cursors: list[Cursor]
    updates: bool

    @classmethod
    def of(
        cls, objects: Objects, either: SnapshotManifest, old: SnapshotManifest | None, new: SnapshotManifest | None, *,
        updates: bool,
    ) -> _Walk:  # fmt: skip
        below, above = (() if state is None else state.layers for state in (old, new))
        definitions = (old or either).definition, (new or either).definition
        count = 0
        alike = definitions[0].aggregation == definitions[1].aggregation
        while alike and count < min(len(below), len(above)) and below[-1 - count] == above[-1 - count]:
            count += 1
        shared, below, above = below[len(below) - count :], below[: len(below) - count], above[: len(above) - count]
        sides = [(state, layer) for state, layers in ((old, below), (new, above)) if state for layer in layers]
        cursors = [Cursor(objects, shown_layer(objects, state, layer, updates=updates)) for state, layer in sides]
        return cls(objects, either, definitions, below, above, shared, cursors, updates)

    def steps(self, stop: bytes | None, *, verify: bool = False) -> Iterator[ChangedKeys]:
        """Go through all keys below `stop`."""
        shown = (shown_layer(self.objects, self.either, layer, updates=self.updates) for layer in self.shared)
        readers = [ranges.open_index(self.objects, index, verify=verify) for index in shown]
        pieces: list[list[pa.RecordBatch]] = [[] for _ in self.cursors]
        rows = size = 0
        while True:
            if self._skipped():
                continue
            if (stretch := take_stretch(self.cursors, stop)) is None:
                break
            for number, batch in stretch:
                pieces[number].append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= KEYS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield self._changed(pieces, readers)
                pieces, rows, size = [[] for _ in self.cursors], 0, 0
        if rows:
            yield self._changed(pieces, readers)

    def _skipped(self) -> bool:
        """True when a range that both stacks have, and that nothing else meets, was left out."""
        if self.definitions[0].aggregation != self.definitions[1].aggregation:
            return False
        count = len(self.old)
        fresh = {
            cursor.entry.id: number for number, cursor in enumerate(self.cursors[:count])
            if not cursor.done and cursor.at_start
        }  # fmt: skip
        for number, cursor in enumerate(self.cursors[count:], count):
            if cursor.done or not cursor.at_start or cursor.entry.id not in fresh:
                continue
            other, last = fresh[cursor.entry.id], cursor.entry.last
            old, new = self.old[other], self.new[number - count]
            if old.value != new.value or (self.shared and old.mode is not new.mode):
                continue
            if self.updates and old.updated != new.updated:
                continue
            rest = [third for at, third in enumerate(self.cursors) if at not in (number, other) and not third.done]
            if all(third.next_key > last for third in rest):
                cursor.skip()
                self.cursors[other].skip()
                return True
        return False

    def _changed(self, pieces: list[list[pa.RecordBatch]], readers: Sequence[ranges.RangeReader]) -> ChangedKeys:
        columns = [batch.column("key") for batches in pieces for batch in batches]
        keys = pc.unique(pa.chunked_array(columns))
        keys = keys.take(pc.sort_indices(keys))
        below = [pa.concat_batches(groups) if groups else None
                 for groups in (list(groups_of_keys(reader, keys)) for reader in readers)]  # fmt: skip
        above = [pa.concat_batches(batches) if batches else None for batches in pieces]
        groups = [(number, batch) for number, batch in enumerate([*above, *below]) if batch is not None]
        modes, count = [layer.mode for layer in [*self.old, *self.new, *self.shared]], len(self.old)
        before, after = self.definitions
        if self.either.aggregation is None:
            old, new = ([joined] for joined in join_two_states(after, modes, groups, count, len(self.new)))
        else:
            of_old = [piece for piece in groups if piece[0] < count or piece[0] >= len(above)]
            of_new = [piece for piece in groups if piece[0] >= count]
            old, new = list(join_groups(before, modes, of_old)), list(join_groups(after, modes, of_new))
        return ChangedKeys(keys, self._rows(before, old), self._rows(after, new))

    def _rows(self, definition: MapDefinition, groups: Sequence[pa.RecordBatch]) -> AddressRows:
        rows = [rows_of_groups(definition, batch) for batch in groups]
        return AddressRows.of(definition, rows, updates=self.updates)
