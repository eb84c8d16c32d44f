"""The lookup in aggregates: all rows of a key within a span of time, in every layer that counts, combined.

    question   layer 0 (join)   layer 1 (join)   layer 2 (whole)        rows of one question lie together
    JFK 10:00  row 7            –                row 3             ─▶   7 3 │ …   ─▶   one value each
    LGA 10:00  –                –                –                 ─▶   null

Whole groups hide what lies under them, as `joined_groups.py` states for all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millpond.arrays.radix import I64, U64, radix_order
from millpond.maps.inputs.spans import Spans, bucket_of
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.columns import value_arrow
from millpond.maps.model.computed import computed_column
from millpond.maps.model.definition import MapDefinition
from millpond.maps.search.bucket_rows import distinct_keys, find_groups_in_parts, runs_within
from millpond.maps.search.combining import Field, combined, combined_runs, fields_of
from millpond.maps.search.gather import ANSWER_BYTES_MAX
from millpond.maps.search.group_table import COUNT
from millpond.maps.search.kernels import find_groups
from millpond.maps.search.partial import WHOLE
from millpond.maps.search.run_values import Runs
from millpond.maps.snapshots.finder import Finder, KeyAddress, LayerParts, Matches, key_address

__all__ = ("BucketFinder", "MatchRows", "finder_class")

_TOGETHER = 1 << 17
"""The questions in parts that are searched together: they take some memory for each of their layers."""
_AGAIN = 4
"""Groups for each key up to which it costs less to put equal keys together than to look for each."""


@dataclass(frozen=True, slots=True)
class MatchRows(Matches):
    """Rows that combine to answers: `positions` number the answers to the questions of `order`, of so many, and `runs`
    of rows are theirs.
    """

    questions: int
    runs: Runs

    def __len__(self) -> int:
        return self.questions

    def without(self, there: Any) -> MatchRows:
        """The same, without answers to questions that are not `there`; empty: all are."""
        if len(there):
            self.positions[~there[self.order]] = -1
        return self

    @classmethod
    def joined(cls, pieces: Sequence[MatchRows], questions: int) -> MatchRows:
        """The rows of so many questions, of some at a time."""
        none = [np.zeros(0, np.int64)]
        before = itertools.accumulate((len(piece.runs.begins) for piece in pieces), initial=0)
        order = np.concatenate([*none, *(piece.order for piece in pieces)])
        runs = Runs(
            np.concatenate([*none, *(piece.runs.begins for piece in pieces)]),
            np.concatenate([*none, *(piece.runs.counts for piece in pieces)]),
            np.concatenate([*none, *(piece.runs.starts + count for piece, count in zip(pieces, before, strict=False))]),
        )
        return cls(order, np.arange(len(order)), questions, runs)

    @property
    def numbers(self) -> I64:
        """The question of each answer; -1: of none any more."""
        numbers: I64 = np.where(self.positions >= 0, self.order, -1)
        return numbers


class _Searched(NamedTuple):
    """The groups of questions in the order of the search: a line for each layer, a column for each key; `keys_at` are
    those of the keys of questions, themselves where it is empty.
    """

    order: I64
    keys_at: I64
    groups: I64


class BucketFinder(Finder):
    """Searches the groups of one snapshot of an aggregate."""

    def search(self, keys: pa.Array, instants: I64) -> MatchRows:
        """The rows of the bucket that holds each instant."""
        return self._runs(self._search(keys), *bucket_of(self._aggregation, instants))

    def find_within(self, keys: pa.Array, spans: Spans) -> MatchRows:
        """The rows of the buckets in the span of each key.

        Raises: as `find` for keys outside of a subset.
        """
        if self.bounds is not None:
            self.bounds.check(self.definition, keys, spans.times[0], spans.there)
        return self._runs(self._search(keys), *spans.of(self._aggregation)).without(spans.there)

    def find_within_parts(self, keys: pa.Array, spans: Spans, numbers: I64, parts: LayerParts) -> MatchRows:
        """As `find_within`, in the layers of the part with the number of each question; nothing where that is -1."""
        since, until = _spans_in_parts(spans, numbers, parts)
        first = numbers[0] if len(numbers) else -1
        if first >= 0 and bool((numbers == first).all()):
            part = slice(parts.begins[first], parts.begins[first + 1])
            searched = self._search(keys, parts.layers[part], parts.modes[part])
            return self._runs(searched, since, until).without(spans.there)
        pieces = [self._runs(searched, since, until) for searched in self._search_in_parts(keys, numbers, parts)]
        return MatchRows.joined(pieces, len(keys)).without(spans.there)

    @property
    def _aggregation(self) -> Aggregation:
        aggregation = self.definition.aggregation
        assert aggregation is not None, "an aggregate has one"
        return aggregation

    def _search_in_parts(self, keys: pa.Array, numbers: I64, parts: LayerParts) -> Iterator[_Searched]:
        """The groups of each key in the layers of the part with its number, some keys at a time."""
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        order, ordered, stretches = self._ordered_by_parts(keys, numbers, parts)
        layers, hides, directories = self._directories.layers[parts.layers], parts.modes == WHOLE, self._directories
        height, address = max(1, int(np.diff(parts.begins).max(initial=0))), key_address(keys)
        cuts = np.searchsorted(stretches[:, 1], np.arange(_TOGETHER, len(order), _TOGETHER)) + 1
        for some in np.split(stretches, cuts):
            if len(some):
                here = order[some[0, 0] : some[-1, 1]]
                groups = np.empty((height, len(here)), np.int64)
                find_groups_in_parts(
                    ordered, order, address, self.groups.address, some, layers, hides, directories.slots,
                    directories.filters, groups,
                )  # fmt: skip
                yield _Searched(here, here[:0], groups)

    def _search(self, keys: pa.Array, layers: I64 | None = None, modes: I64 | None = None) -> _Searched:
        """The groups of each key in all layers that count; or in some, with their modes.

        The groups of a dictionary in whose order keys come are looked for once for each entry, and so are those of
        many keys: some come again.
        """
        codes = self._codes(keys)
        if codes is not None:
            keys = keys.dictionary
        elif pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        hashes, address = self._hashes(keys), key_address(keys)
        directories, hides = self._directories, (self._layer_modes if modes is None else modes) == WHOLE
        lines = directories.layers if layers is None else directories.layers[layers]
        count = sum(int(self.groups.table[first:end, COUNT].sum()) for first, end in lines[:, :2].tolist())
        if codes is None and _AGAIN * len(keys) > count and not keys.null_count:
            by_rows = radix_order([hashes])
            order, ordered, keys_at = _repeated(hashes, by_rows, address)
        else:
            order, ordered = self._ordered(hashes, count)
            by_rows, keys_at = order, order[:0]
        groups = np.empty((len(lines), len(order)), np.int64)
        if len(lines):
            search = (ordered, order, address, self.groups.address, lines, hides)
            find_groups(*search, directories.slots, directories.filters, groups)
        if codes is not None:
            of_keys = np.empty(len(keys), np.int64)
            of_keys[order] = np.arange(len(keys))
            by_rows, keys_at = np.arange(len(codes)), of_keys[codes]
        return _Searched(by_rows, keys_at, groups)

    def _runs(self, searched: _Searched, since: I64, until: I64) -> MatchRows:
        """The rows with `since` ≤ time < `until` of the groups of each question; one span for all or many."""
        count, step = len(searched.order), 0 if len(since) == 1 else 1
        since, until = (
            np.require(times, requirements=["C", "W"]) for times in (since, until)
        )  # of one type for the kernel
        starts, answered = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
        begins, counts, answers = runs_within(
            self.groups.address, self._times("time"), searched.order, searched.keys_at, searched.groups, since, until,
            step, starts, answered,
        )  # fmt: skip
        return MatchRows(answered[:answers], np.arange(answers), count, Runs(begins, counts, starts[:answers]))

    def _codes(self, keys: pa.Array) -> I64 | None:
        """The numbers of keys in their dictionary, where they come in its order; a share is asked for keys alone."""
        if not pa.types.is_dictionary(keys.type) or self.share is not None:
            return None
        if keys.indices.null_count or keys.dictionary.null_count:
            return None
        codes: I64 = keys.indices.to_numpy()
        return codes if len(codes) and bool((codes[1:] >= codes[:-1]).all()) else None

    def take(
        self, matches: Matches, name: str, kind: pa.DataType, *path: str, bytes_max: int = ANSWER_BYTES_MAX
    ) -> pa.Array:  # fmt: skip
        """The value of what was found, or one field of it, combined.

        Raises: `Invalid`, kind `sum_overflow`.
        """
        assert isinstance(matches, MatchRows) and name == "value", "an aggregate answers with its fields"
        computed = [field for field in self._aggregation.computed if not path or path[0] == field.name]
        needed = {*path, *(name for field in computed for name in field.of)}
        fields = [field for field in fields_of(self.definition) if not path or needed & {*field.stored}]
        types = {field.name: field.type for field in value_arrow(self.definition.value)}
        arrays, count, numbers = dict[str, pa.Array](), len(matches), matches.numbers
        others = []
        for field in fields:
            if field.rule.reduced:
                column = self._column("value", types[field.name], field.name)
                arrays[field.name] = combined_runs(self.definition, field, column, matches.runs, numbers, count)
            else:
                others.append(field)
        if others:
            arrays |= self._combined(others, types, matches, bytes_max)
        arrays |= {field.name: computed_column(field, arrays) for field in computed}
        if path:
            return arrays[path[0]]
        missing = pa.array(~matches.there()) if matches.hits < count else None
        return pa.StructArray.from_arrays([arrays[field.name] for field in kind], fields=list(kind), mask=missing)

    def _combined(
        self, fields: Sequence[Field], types: Mapping[str, pa.DataType], matches: MatchRows, bytes_max: int
    ) -> dict[str, pa.Array]:  # fmt: skip
        """The fields whose rule looks at rows one by one."""
        positions = matches.runs.rows
        rows = Matches(np.arange(len(positions)), positions)
        columns = {
            stored: super(BucketFinder, self).take(rows, "value", types[stored], stored, bytes_max=bytes_max)
            for field in fields for stored in field.stored
        }  # fmt: skip
        arrays = combined(self.definition, fields, columns, matches.runs.row_starts, lambda _: {})
        answers = np.full(len(matches), -1, np.int64)
        answers[matches.order] = matches.positions
        taken = pa.array(answers, mask=answers < 0)
        return {name: column.take(taken) for name, column in arrays.items()}


def _repeated(hashes: U64, by_rows: I64, keys: KeyAddress) -> tuple[I64, U64, I64]:
    """The first question of each key, of those in the order of their hashes; its hash; the key of each question."""
    firsts, keys_at, ordered = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64), np.empty_like(hashes)
    count = distinct_keys(hashes, by_rows, keys, firsts, ordered, keys_at)
    return firsts[:count], ordered[:count], keys_at


def _spans_in_parts(spans: Spans, numbers: I64, parts: LayerParts) -> tuple[I64, I64]:
    """The spans of questions, each in the buckets of the part with its number."""
    alike = list(dict.fromkeys(parts.aggregations))
    if len(alike) == 1:
        return spans.of(alike[0])
    since, until = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    kinds = np.array([*map(alike.index, parts.aggregations), -1], np.int64)[numbers]  # the last is that of -1
    for kind, aggregation in enumerate(alike):
        positions = np.flatnonzero(kinds == kind)
        since[positions], until[positions] = spans.of(aggregation, positions)
    return since, until


def finder_class(definition: MapDefinition) -> type[Finder]:
    """The class that searches the snapshots of a map."""
    return Finder if definition.aggregation is None else BucketFinder
