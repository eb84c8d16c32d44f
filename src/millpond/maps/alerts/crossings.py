"""Crossings: where the condition of a rule comes to hold by a change of an aggregate.

    rule            flights > 100, for 2 buckets
    before          10:00 ✓   11:00 ·   12:00 ·   13:00 ·
    a load brings             11:00 ✓   12:00 ✓
    after           10:00 ✓   11:00 ✓   12:00 ✓   13:00 ·     on at 11:00 and 12:00, told once: at 11:00

A rule is *on* in a bucket of a key when its condition holds there and in the buckets before it, as many together as the
rule says. Neighbours in which it is on are one crossing.

Invariants:
* a crossing is told by the change that lets a rule be on in neighbours of which none was on before: at the first of
  them, unless the bucket beside them, on either side, was on already and still is;
* so it is told again only after it fell back: when a bucket in which it is not on lies between, or a change undid it;
* a bucket without a row holds no condition, nor does a null: as in SQL;
* what is looked at follows the groups that a change touched: their values after it, and of those for which a condition
  holds, the values before, and `buckets` on either side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64
from millpond.deferred import opened_once
from millpond.maps.model.columns import INSTANT, askable_schema
from millpond.maps.model.rolled_up import is_rolled_up, shown_ends, shown_starts
from millpond.maps.model.tags import TAGS, shown_tags
from millpond.maps.predicates.taken import filtered
from millpond.maps.snapshots.needed_ranges import NeededRanges
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.times.buckets import bucket_ends
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN

if TYPE_CHECKING:
    import numpy.typing as npt

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.predicates.predicate import Predicate
    from millpond.maps.snapshots.finder import Matches
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

    Mask = npt.NDArray[np.bool_]

__all__ = ("Addresses", "Groups", "GroupsOf", "Looked", "crossed", "plain_keys")

_POSITION = " place"
"""No map has a column of that name."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Buckets of keys: keys as they are stored, perhaps a dictionary, and the starts of buckets in UTC milliseconds."""

    keys: pa.Array
    times: I64

    @classmethod
    def none(cls) -> Addresses:
        """No bucket."""
        return cls(pa.array([], pa.binary()), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.times)

    def take(self, positions: I64) -> Addresses:
        """Those at these places."""
        return Addresses(self.keys.take(pa.array(positions)), self.times[positions])

    def shown(self, definition: MapDefinition) -> Addresses:
        """The buckets that the map shows in their place, each once: those of late rows may be rolled up."""
        aggregation = definition.aggregation
        if aggregation is None or not is_rolled_up(aggregation):
            return self
        numbers, starts = self.keys.dictionary_encode().indices.to_numpy(), shown_starts(aggregation, self.times)
        firsts = np.unique(np.stack([numbers, starts]), axis=1, return_index=True)[1]
        return Addresses(self.keys, starts).take(np.sort(firsts))


def plain_keys(keys: pa.Array) -> pa.Array:
    """Keys that are no dictionary."""
    return keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys


@dataclass(slots=True)
class Looked:
    """Rows that were looked up, the places of those that are there, and the columns of them that were read."""

    snapshot: Snapshot
    addresses: Addresses
    matches: Matches
    there: pa.Array
    columns: dict[str, pa.Array] = field(default_factory=dict)

    @classmethod
    def up(cls, snapshot: Snapshot, addresses: Addresses) -> Looked:
        matches = snapshot.find(addresses.keys, pa.array(addresses.times).cast(INSTANT), on_invalid="miss")
        return cls(snapshot, addresses, matches, pa.array(np.flatnonzero(matches.there())))

    def column(self, name: str) -> pa.Array:
        """A column as people see it, with something where there is no row."""
        if name not in self.columns:
            self.columns[name] = self._read(name)
        return self.columns[name]

    def _read(self, name: str) -> pa.Array:
        times = self.addresses.times
        if name == "key":
            return plain_keys(self.addresses.keys).cast(pa.string())
        if name == TAGS:
            return shown_tags(plain_keys(self.addresses.keys))
        return pa.array(times).cast(INSTANT) if name == "time" else self.snapshot.take(self.matches, name)


class Groups(Protocol):
    """The groups of one state of a map."""

    def holds(self, condition: Predicate, addresses: Addresses) -> Mask:
        """For each address, whether there is a row, and the condition takes it.

        Raises: `Corrupt`, `NotFound`, naming the file.
        """

    def values(self, addresses: Addresses) -> list[dict[str, Any] | None]:
        """The values of rows as people see them, without the bytes of sketches; None where there is no row.

        Raises: as `holds`.
        """


class GroupsOf:
    """The groups of one state of layers, None for one without rows. Files are opened when it is asked: for few keys
    those, or of a bucket the pieces, that may have them; to open all takes a look at each key of the map.
    """

    def __init__(self, objects: Objects, definition: MapDefinition, manifest: SnapshotManifest | None) -> None:
        self._objects, self._definition, self._manifest = objects, definition, manifest
        self._last: tuple[Addresses, Looked | None] = Addresses.none(), None

    def _snapshot(self, addresses: Addresses) -> Snapshot | None:
        """A snapshot to ask for addresses; None where there is no row."""
        if self._manifest is None or not self._manifest.layers or not len(addresses):
            return None
        if "_whole" in self.__dict__ or len(addresses) > self._needed.keys_max:
            return self._whole
        return self._needed.of_keys(addresses.keys.unique().to_pylist()) or self._whole

    @opened_once
    def _needed(self) -> NeededRanges:
        assert self._manifest is not None, "there are rows"
        return NeededRanges(self._objects, self._manifest)

    @opened_once
    def _whole(self) -> Snapshot:
        assert self._manifest is not None, "there are rows"
        return Snapshot.open(self._objects, self._manifest)

    def close(self) -> None:
        """Close the files."""
        if "_whole" in self.__dict__:
            self._whole.close()

    def holds(self, condition: Predicate, addresses: Addresses) -> Mask:
        mask = np.zeros(len(addresses), np.bool_)
        looked = self.looked(addresses)
        if looked is None:
            return mask
        schema, shown = askable_schema(self._definition), {name: looked.column(name) for name in condition.columns}
        batch = pa.RecordBatch.from_arrays(
            [*shown.values(), pa.array(np.arange(len(addresses)))],
            schema=pa.schema([*map(schema.field, shown), pa.field(_POSITION, pa.int64())]),
        )
        mask[filtered(batch.take(looked.there), condition).column(_POSITION).to_numpy()] = True
        return mask

    def looked(self, addresses: Addresses) -> Looked | None:
        """The rows at addresses; of several rules, those before looked the same up."""
        if self._last[0] is not addresses:
            snapshot = self._snapshot(addresses)
            self._last = addresses, None if snapshot is None else Looked.up(snapshot, addresses)
        return self._last[1]

    def values(self, addresses: Addresses) -> list[dict[str, Any] | None]:
        snapshot = self._snapshot(addresses)
        if snapshot is None:
            return [None] * len(addresses)
        values = snapshot.lookup(addresses.keys, pa.array(addresses.times).cast(INSTANT), on_invalid="miss")
        names = [field.name for field in values.type if not pa.types.is_binary(field.type)]
        rows = values.to_pylist()
        return [None if row is None else {name: row[name] for name in names} for row in rows]


def crossed(
    definition: MapDefinition, condition: Predicate, buckets: int, before: Groups, after: Groups, changed: Addresses
) -> Addresses:
    """The crossings that a change of these addresses made: all addresses that changed of each key, or of all, together.

    Raises: as `Groups.holds`.
    """
    matches = changed.take(np.flatnonzero(after.holds(condition, changed)))
    if not len(matches):
        return matches
    new = matches.take(np.flatnonzero(~before.holds(condition, matches)))
    if not len(new):
        return new
    line = _line(definition, new, buckets)
    holds = [
        after.holds(condition, Addresses(new.keys, np.maximum(times, INSTANT_MIN))) & (times != _NO_BUCKET)
        for times in line
    ]
    return _firsts(new.keys, line, holds, buckets)


_NO_BUCKET = np.iinfo(np.int64).min


def _line(definition: MapDefinition, addresses: Addresses, buckets: int) -> list[I64]:
    """The starts of the buckets around each address, from `buckets` before it to as many behind."""
    aggregation = definition.aggregation
    assert aggregation is not None, "an aggregate has its buckets"
    width, line = aggregation.resolution, [addresses.times]
    if width == "none":
        nothing = np.full(len(addresses), _NO_BUCKET, np.int64)
        return [nothing, addresses.times, nothing]
    for _ in range(buckets):
        first = line[0]
        earlier = shown_starts(aggregation, np.maximum(first, INSTANT_MIN + 1) - 1)
        line.insert(0, np.where((first > INSTANT_MIN) & (earlier < first), earlier, _NO_BUCKET))
        last = np.maximum(line[-1], INSTANT_MIN)
        later = shown_ends(aggregation, last, bucket_ends(last, width, aggregation.time_zone))
        line.append(np.where((line[-1] != _NO_BUCKET) & (later <= INSTANT_MAX), later, _NO_BUCKET))
    return line


def _firsts(keys: pa.Array, line: list[I64], holds: list[Mask], buckets: int) -> Addresses:
    """The first of all neighbours in which a rule comes to be on, unless one beside them was on before.

    Each is on whose last so many buckets hold, one of which came to: so it was not on before.
    """
    numbers = keys.dictionary_encode().indices.to_numpy()
    pieces = []
    for at in range(buckets, 2 * buckets):
        on = np.flatnonzero(np.logical_and.reduce(holds[at - buckets + 1 : at + 1]))
        pieces.append((on, line[at][on], line[at + 1][on], holds[at - buckets][on], holds[at + 1][on]))
    position, time, following, left, right = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((time, numbers[position]))
    number, time = numbers[position][order], time[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (number[1:] != number[:-1]) | (time[1:] != time[:-1])  # two addresses may let one be on
    order, number, time = order[first], number[first], time[first]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (number[1:] != number[:-1]) | (time[1:] != following[order][:-1])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(order))[: len(starts)] - 1
    starts = starts[~(left[order][starts] | right[order][ends])]
    return Addresses(keys.take(pa.array(position[order][starts])), time[starts])
