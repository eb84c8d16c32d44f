"""Merging two states of a layered map that came from a common one: three-way, address by address.

| base → theirs | ours | outcome |
|---|---|---|
| the same | any | ours |
| changed | as theirs | ours |
| changed | as base | theirs |
| changed | neither | a conflict: a resolution says which side counts, or nothing is merged |

To revert a change, or to make it again elsewhere, is a merge with another base. Of a map that keeps update times a row
that is taken brings its time; of equal rows the time that one side changed counts, of both changes the later.

Invariants:
* the outcome is ours with one layer of what changed on top, and one of whole groups where rows go: it costs what the
  other side changed, not what the map holds;
* both sides of an aggregate count where its layers still tell them apart (`added_sides.py`);
* a merge with a conflict that nothing resolves changes nothing: what it wrote is nobody's, and is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.maps.layered.added_rows import with_sums
from millpond.maps.layered.added_sides import (
    Sides,
    in_common_buckets,
    join_sides,
    refuse_narrower,
    remembering,
    same_state,
)
from millpond.maps.layered.differences import (
    I64,
    AddressRows,
    ChangedKeys,
    Difference,
    Mask,
    changed_keys,
    check_alike,
    difference_of,
    same_rows,
)
from millpond.maps.model.address import long_column
from millpond.maps.model.columns import UPDATED
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.layer_times import with_updates
from millpond.maps.snapshots.layers import check_exact, on_top, write_layer
from millpond.maps.snapshots.manifest import Layer, LayerMode, LayerTimes, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan, thaw
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.ranges import Choice
from millpond.stores.objects import Objects

__all__ = ("CONFLICTS_MAX", "Merged", "Resolve", "Conflicts", "merge_manifests")

CONFLICTS_MAX = 1_000
"""The conflicts of a map that are reported; there may be more."""

Resolve = Callable[[pa.RecordBatch], "np.ndarray"]
"""The choice for each conflict, from the columns of its address."""


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Addresses that both sides changed differently, and where each state has them; -1: not at all."""

    addresses: pa.RecordBatch
    base: AddressRows
    ours: AddressRows
    theirs: AddressRows
    positions: tuple[I64, I64, I64]


@dataclass(slots=True)
class Merged:
    """The outcome: the manifest of ours with what theirs changed; ours itself when that is nothing.

    `changed` counts the addresses that were taken from the other side; None: its whole state was, uncounted. With
    `conflicts` there is no outcome.
    """

    manifest: SnapshotManifest | None
    changed: int | None = 0
    conflicts: list[Conflicts] = field(default_factory=list)

    @property
    def conflicting(self) -> int:
        """The number of conflicts that are reported."""
        return sum(conflicts.addresses.num_rows for conflicts in self.conflicts)


def _refuse_conflicts(addresses: pa.RecordBatch) -> np.ndarray:
    """No choice for any conflict."""
    return np.full(addresses.num_rows, Choice.CONFLICT)


def merge_manifests(
    objects: Objects, definition: MapDefinition, base: SnapshotManifest | None, ours: SnapshotManifest | None,
    theirs: SnapshotManifest | None, *, version: int, created_ms: int, resolve: Resolve = _refuse_conflicts,
    spill: SpillTo | None = None,
) -> Merged:  # fmt: skip
    """Merge what theirs changed since base into ours; None is a state without rows. Hold `writing` around it.

    All are looked at with the fields of a definition, that of the outcome.

    Raises: `Invalid`, kind `maps_differ`, for maps of another kind or value type, `field_narrowed` for a number that a
    wider type does not tell; `NotFound`, `Corrupt`; `Unavailable`.
    """
    states, before = (base, ours, theirs), ours
    updates = tracks_updates(definition)
    renewing = updates and theirs is not None and theirs.updates
    base, ours, theirs = (
        None if state is None else with_updates(state.shown_as(definition), updates, created_ms)
        for state in (base, ours, theirs)
    )
    base, ours, theirs = in_common_buckets(base, ours, theirs)
    if ours is not None and ours is not before:
        ours = replace(ours, shard_version=version, created_ms=created_ms)
    for other in (base, theirs):
        if ours is not None and other is not None:
            check_alike(ours, other)
    # A state that the other side replaces as a whole is not looked at: it may have values that the outcome cannot tell.
    for state in (states[2],) if theirs is not None and same_state(base, ours) else states:
        _check_exact_state(objects, definition, state)
    sides = Sides(definition, base, ours, theirs)
    joined_sides = join_sides(objects, sides, version=version, created_ms=created_ms, spill=spill)
    if joined_sides is not None:
        return Merged(joined_sides, 0 if joined_sides is ours else None)
    if theirs is not None and same_state(base, ours):
        return Merged(replace(theirs, shard_version=version, created_ms=created_ms), None)
    refuse_narrower(sides)
    merging = _Merging(objects, definition, ours, resolve, Merged(ours), LayerTimes(updates=updates), renewing)
    changes = (merging.step(changed) for changed in changed_keys(objects, base, theirs, updates=updates, verify=True))
    rows = (batch for batches in changes for batch in batches if batch.num_rows)
    joined = write_layer(objects, definition, rows, LayerMode.JOIN, spill=spill, times=merging.times)
    if merging.merged.conflicts:
        return replace(merging.merged, manifest=None)
    for layer in (joined, merging.whole_layer(spill)):
        if layer is not None:
            merging.merged.manifest = on_top(
                objects, merging.merged.manifest, definition, layer, version=version, created_ms=created_ms, spill=spill
            )
    if merging.merged.manifest is not ours:
        merging.merged.manifest = remembering(merging.merged.manifest, sides)
    return merging.merged


def _check_exact_state(objects: Objects, definition: MapDefinition, state: SnapshotManifest | None) -> None:
    """See that a definition tells all values of a state."""
    if state is not None and (shown := state.shown_as(definition)) is not state:
        for layer in shown.layers:
            check_exact(objects, shown, layer)


@dataclass(slots=True)
class _Merging:
    """A merge that goes through the keys that theirs changed. `renewing`: it is known when their rows were put."""

    objects: Objects
    definition: MapDefinition
    ours: SnapshotManifest | None
    resolve: Resolve
    merged: Merged
    times: LayerTimes
    renewing: bool
    whole: list[pa.RecordBatch] = field(default_factory=list)
    emptied: list[pa.Array] = field(default_factory=list)

    def step(self, changed: ChangedKeys) -> Iterator[pa.RecordBatch]:
        """The rows that join ours; what must replace whole groups is laid aside."""
        difference = difference_of(changed)
        if not len(difference) and not self.renewing:
            return
        batches: Iterator[pa.RecordBatch] = iter(())
        updates = self.times.updates
        if self.ours is not None:
            span = GroupSpan(keys=tuple(changed.keys.to_pylist()))
            batches = thaw(self.objects, self.ours, span, updates=updates)
        yield from self._taken(difference, AddressRows.of(self.definition, list(batches), updates=updates))

    def _taken(self, difference: Difference, ours: AddressRows) -> Iterator[pa.RecordBatch]:
        difference = with_sums(difference, ours)
        base, theirs, positions = difference.old, difference.new, ours.positions(difference.addresses)
        as_theirs = same_rows(ours, positions, theirs, difference.new_positions)
        as_base = same_rows(ours, positions, base, difference.old_positions)
        if self.definition.aggregation is not None:  # equal rows may be of different loads
            as_theirs &= as_base | (positions < 0)
        choices = np.full(len(difference), Choice.THEIRS)
        choices[as_theirs] = Choice.OURS
        clash = ~as_theirs & ~as_base
        if clash.any():
            choices[clash] = self._resolved(difference, ours, positions, clash)
        take_theirs = choices == Choice.THEIRS
        take_base = choices == Choice.BASE
        here = (take_theirs & (difference.new_positions >= 0)) | (take_base & (difference.old_positions >= 0))
        gone = ((take_theirs | take_base | (choices == Choice.NONE)) & ~here) & (positions >= 0)
        renewed = self._renewed(base, ours, theirs)
        self.merged.changed = (self.merged.changed or 0) + int(here.sum() + gone.sum()) + len(renewed)
        put = pa.Table.from_batches([
            theirs.rows.take(pa.array(difference.new_positions[here & take_theirs])),
            base.rows.take(pa.array(difference.old_positions[here & take_base])),
            theirs.rows.take(renewed),
        ]).combine_chunks()  # fmt: skip
        changed = pa.concat_arrays([difference.addresses.filter(pa.array(here | gone)), theirs.addresses.take(renewed)])
        yield from self._apart(put, changed, ours, positions[gone])

    def _renewed(self, base: AddressRows, ours: AddressRows, theirs: AddressRows) -> pa.Array:
        """The places of their rows that are equal to ours, and bring their update time: one that ours did not change,
        or a later one.
        """
        if not self.renewing:
            return pa.array([], pa.int64())
        (in_ours, ours_ms), (in_base, base_ms) = (_times_of_equal(side, theirs) for side in (ours, base))
        put_ms = long_column(theirs.rows, UPDATED)
        ours_changed, theirs_changed = ~in_base | (ours_ms != base_ms), ~in_base | (put_ms != base_ms)
        renewed = in_ours & theirs_changed & ((put_ms > ours_ms) | ~ours_changed)
        return pa.array(np.flatnonzero(renewed))

    def _resolved(self, difference: Difference, ours: AddressRows, positions: I64, clash: Mask) -> np.ndarray:
        addresses = difference.address_rows().filter(pa.array(clash))
        choices = self.resolve(addresses)
        refused = choices == Choice.CONFLICT
        room = CONFLICTS_MAX - self.merged.conflicting
        if refused.any() and room > 0:
            sides = (difference.old_positions[clash], positions[clash], difference.new_positions[clash])
            self.merged.conflicts.append(Conflicts(
                addresses.filter(pa.array(refused)).slice(0, room), difference.old, ours, difference.new,
                tuple(side[refused][:room] for side in sides),
            ))  # fmt: skip
        return choices

    def _apart(self, put: pa.Table, changed: pa.Array, ours: AddressRows, gone: I64) -> Iterator[pa.RecordBatch]:
        """The rows that only join; those of groups that lose a row are laid aside, with the rest of their groups.

        Rows of aggregates that joined would be added: all their groups are laid aside.
        """
        adding = self.definition.aggregation is not None
        if not len(gone) and not (adding and put.num_rows):
            yield from put.to_batches()
            return
        touched = [_group_keys(self.definition, ours.rows.take(pa.array(gone)))]
        touched += [_group_keys(self.definition, batch) for batch in put.to_batches() if adding]
        emptied = pc.unique(pa.concat_arrays(touched))
        stay = pc.invert(pc.is_in(ours.addresses, changed))
        beside = pc.is_in(_group_keys(self.definition, ours.rows), emptied)
        self.whole.append(ours.rows.filter(pc.and_(stay, beside)))
        self.emptied.append(emptied)
        for batch in put.to_batches():
            among = pc.is_in(_group_keys(self.definition, batch), emptied)
            self.whole.append(batch.filter(among))
            yield batch.filter(pc.invert(among))

    def whole_layer(self, spill: SpillTo | None) -> Layer | None:
        """The layer of the groups that lose rows."""
        if not self.emptied:
            return None
        touched = pa.chunked_array(self.emptied).combine_chunks()
        return write_layer(
            self.objects, self.definition, self.whole, LayerMode.WHOLE, touched=touched, spill=spill, times=self.times
        )


def _times_of_equal(side: AddressRows, theirs: AddressRows) -> tuple[Mask, I64]:
    """True for each of their rows that a side has, too; and when it was put there."""
    there = side.positions(theirs.addresses)
    equal = (there >= 0) & same_rows(side, there, theirs, np.arange(len(there)))
    times = np.zeros(len(there), np.int64)
    times[equal] = long_column(side.rows, UPDATED)[there[equal]]
    return equal, times


def _group_keys(definition: MapDefinition, rows: pa.RecordBatch) -> pa.Array:
    """The key of each row, or its range, as `write_layer` takes those that are touched."""
    if definition.kind.keyed:
        return rows.column("key")
    return range_order_keys(long_column(rows, "key_start"), long_column(rows, "key_end"))
