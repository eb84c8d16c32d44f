"""The lookup in aggregates: all rows of a key within a span of time, in every layer that counts, combined.

    question   layer 0 (join)   layer 1 (join)   layer 2 (whole)        rows of one question lie together
    JFK 10:00  row 7            –                row 3             ─▶   7 3 │ …   ─▶   one value each
    LGA 10:00  –                –                –                 ─▶   null

Whole groups hide what lies under them, as `joined_groups.py` states for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64, U64, radix_order
from millpond.arrays.xxh3 import hash_keys
from millpond.maps.inputs.key_columns import OnInvalid, check_on_invalid, keys_of, moments_of
from millpond.maps.inputs.spans import Spans
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.computed import computed_column
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import shown_ends, shown_from, shown_starts
from millpond.maps.search.bucket_rows import distinct_keys, runs_within
from millpond.maps.search.combining import Field, combined, combined_runs, fields_of
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.maps.search.kernels import find_groups
from millpond.maps.search.partial import WHOLE
from millpond.maps.search.run_values import Runs
from millpond.maps.snapshots.finder import Finder, Found, KeyAddress, LayerParts, key_address

__all__ = ("BucketFinder", "FoundRows", "finder_class")


@dataclass(frozen=True, slots=True)
class FoundRows(Found):
    """Rows that combine to answers: `positions` number the answers, which `runs` of rows have."""

    runs: Runs

    @classmethod
    def joined(cls, parts: Sequence[tuple[I64, FoundRows]]) -> FoundRows:
        """The answers to several batches of questions, each with the places of its questions among all."""
        orders, positions, begins, counts, starts = [], [], [], [], []
        answers = runs = 0
        for places, answer in parts:
            orders.append(places[answer.order])
            positions.append(np.where(answer.positions >= 0, answer.positions + answers, -1))
            begins.append(answer.runs.begins)
            counts.append(answer.runs.counts)
            starts.append(answer.runs.starts + runs)
            answers += len(answer.runs.starts)
            runs += len(answer.runs.begins)
        none = [np.zeros(0, np.int64)]
        order, position, *lines = (
            np.concatenate([*none, *pieces]) for pieces in (orders, positions, begins, counts, starts)
        )
        return cls(order, position, Runs(*lines))

    @classmethod
    def nothing(cls, count: int) -> FoundRows:
        """No answer to any question."""
        none = np.zeros(0, np.int64)
        return cls(np.arange(count), np.full(count, -1, np.int64), Runs(none, none, none))


class BucketFinder(Finder):
    """Searches the groups of one snapshot of an aggregate."""

    def search(self, keys: pa.Array, instants: I64) -> FoundRows:
        """The rows of the bucket that holds each instant."""
        since, until = _bucket_of(self._aggregation, instants)
        return self._within(keys, since, until, np.arange(len(self._directories.layers)), self._hiding())

    def find_between(
        self, keys: Any, between: tuple[Any, Any], on_invalid: OnInvalid = "error"
    ) -> FoundRows:  # fmt: skip
        """The rows of the buckets that begin from the first time on, and before the second.

        Raises: as `find`.
        """
        check_on_invalid(on_invalid)
        array = keys_of(self.definition, keys, on_invalid)
        bounds = [moments_of(bound, len(array), on_invalid) for bound in between]
        wide = max(len(instants) for instants, _ in bounds)
        since, until = (
            np.ascontiguousarray(np.broadcast_to(shown_from(self._aggregation, instants), wide))
            for instants, _ in bounds
        )
        result = self._within(array, since, until, np.arange(len(self._directories.layers)), self._hiding())
        for _, in_range in bounds:
            if len(in_range):
                result.positions[~in_range[result.order]] = -1
        return result

    def find_in_parts(
        self, keys: pa.Array, instants: I64, numbers: I64, parts: LayerParts, spans: Spans | None = None
    ) -> FoundRows:  # fmt: skip
        """As `search`, in the layers of the part with the number of each question; nothing where that is -1.

        The rows of other `spans` than buckets, if they are given.
        """
        batches = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            if number < 0:
                batches.append((places, FoundRows.nothing(len(places))))
                continue
            times = instants if len(instants) == 1 else instants[places]
            since, until = (spans or _bucket_of)(parts.aggregations[number], times)
            span = slice(parts.begins[number], parts.begins[number + 1])
            these = keys.take(pa.array(places))
            hides = parts.modes[span] == WHOLE
            batches.append((places, self._within(these, since, until, parts.layers[span], hides)))
        return FoundRows.joined(batches)

    @property
    def _aggregation(self) -> Aggregation:
        aggregation = self.definition.aggregation
        assert aggregation is not None, "an aggregate has one"
        return aggregation

    def _hiding(self) -> np.ndarray:
        """For each layer, whether its groups hide what lies under them."""
        return np.ones(len(self._directories.layers), np.bool_) if self._modes is None else self._modes == WHOLE

    def _within(self, keys: pa.Array, since: I64, until: I64, layers: I64, hides: np.ndarray) -> FoundRows:
        """The rows with `since` ≤ time < `until` of each key in some layers, newest first; one span for all or many.

        The groups of a dictionary in whose order keys come are looked for once for each entry, and so are those of more
        keys than there are groups: many come again.
        """
        codes = self._codes(keys)
        if codes is not None:
            keys = keys.dictionary
        elif pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        hashes = hash_keys(keys, bits=self.definition.hash_bits)
        if self.share is not None:
            self._check_share(self.share, keys, hashes)
        if not len(layers):
            return FoundRows.nothing(len(keys if codes is None else codes))
        address, step = key_address(keys), 0 if len(since) == 1 else 1
        if codes is None and len(keys) > len(self.groups) and not keys.null_count:
            by_rows, order, ordered, places = _repeated(hashes, address)
        else:
            order, ordered = self._ordered(hashes, len(self.groups))
            by_rows, places = order, order[:0]
        directories, groups = self._directories, np.empty((len(layers), len(order)), np.int64)
        search = (ordered, order, address, self.groups.address, directories.layers[layers])
        find_groups(*search, hides, directories.slots, directories.filters, groups)
        if codes is not None:
            of_keys = np.empty(len(keys), np.int64)
            of_keys[order] = np.arange(len(keys))
            by_rows, places = np.arange(len(codes)), of_keys[codes]
        elif step:
            since, until = since[by_rows], until[by_rows]  # so they are read where they lie side by side
        count = len(by_rows)
        starts, positions = np.empty(count + 1, np.int64), np.empty(count, np.int64)
        begins, counts, answers = runs_within(
            self.groups.address, self._times("time"), places, groups, hides, since, until, step, starts, positions
        )
        return FoundRows(by_rows, positions, Runs(begins, counts, starts[:answers]))

    def _codes(self, keys: pa.Array) -> I64 | None:
        """The numbers of keys in their dictionary, where they come in its order; a share is asked for keys alone."""
        if not pa.types.is_dictionary(keys.type) or self.share is not None:
            return None
        if keys.indices.null_count or keys.dictionary.null_count:
            return None
        codes: I64 = keys.indices.to_numpy()
        return codes if len(codes) and bool((codes[1:] >= codes[:-1]).all()) else None

    def take(
        self, matches: Found, name: str, kind: pa.DataType, *path: str, bytes_max: int = ANSWER_BYTES_MAX
    ) -> pa.Array:  # fmt: skip
        """The value of what was found, or one field of it, combined.

        Raises: `Invalid`, kind `sum_overflow`.
        """
        assert isinstance(matches, FoundRows) and name == "value", "an aggregate answers with its fields"
        computed = [field for field in self._aggregation.computed if not path or path[0] == field.name]
        needed = {*path, *(name for field in computed for name in field.of)}
        fields = [field for field in fields_of(self.definition) if not path or needed & {*field.stored}]
        types = {field.name: field.type for field in value_arrow(self.definition.value)}
        made: dict[str, pa.Array] = {}
        others = []
        for field in fields:
            if field.rule.reduced:
                place = self._column("value", types[field.name], field.name)
                made[field.name] = combined_runs(self.definition, field, place, matches.runs)
            else:
                others.append(field)
        if others:
            made |= self._combined(others, types, matches.runs, bytes_max)
        made |= {field.name: computed_column(field, made) for field in computed}
        if path:
            answers = made[path[0]]
        else:
            answers = pa.StructArray.from_arrays([made[field.name] for field in kind], fields=list(kind))
        places = np.empty(len(matches), np.int64)
        places[matches.order] = matches.positions
        return answers.take(pa.array(places, mask=places < 0))

    def _combined(
        self, fields: Sequence[Field], types: Mapping[str, pa.DataType], runs: Runs, bytes_max: int
    ) -> dict[str, pa.Array]:  # fmt: skip
        """The fields whose rule looks at rows one by one."""
        positions = runs.rows
        rows = Found(np.arange(len(positions)), positions)
        columns = {
            stored: super(BucketFinder, self).take(rows, "value", types[stored], stored, bytes_max=bytes_max)
            for field in fields for stored in field.stored
        }  # fmt: skip
        return combined(self.definition, fields, columns, runs.row_starts, lambda _: {})


def _repeated(hashes: U64, keys: KeyAddress) -> tuple[I64, I64, U64, I64]:
    """The order of questions by the hashes of their keys; the first question of each key, its hash; the key of each."""
    by_rows = radix_order([hashes])
    ordered, firsts, places = hashes[by_rows], np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
    firsts = firsts[: distinct_keys(ordered, by_rows, keys, firsts, places)]
    return by_rows, by_rows[firsts], ordered[firsts], places


def _bucket_of(aggregation: Aggregation, instants: I64) -> tuple[I64, I64]:
    """The times `[since, until)` of the rows of the bucket of each instant."""
    since = shown_starts(aggregation, instants)
    return since, shown_ends(aggregation, since, since + 1)


def finder_class(definition: MapDefinition) -> type[Finder]:
    """The class that searches the snapshots of a map."""
    return Finder if definition.aggregation is None else BucketFinder
