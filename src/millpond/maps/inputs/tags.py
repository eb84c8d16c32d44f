"""Sets of tags in every shape that people have them, as the keys that `model/tags.py` draws.

| Python | Arrow | Spark | a set |
|---|---|---|---|
| `{"host": "a"}` | map, struct | map, struct | a tag for each name; one whose value is null is not there |
| `[("host", "a")]` | list of structs of two | array of structs | likewise |
| `"host=a, dc=x"` | text, UTF-8 | string | the pairs between commas |

Blanks around names and values do not count. Values are read as keys are: the number 5 is `5`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Mask
from millpond.maps.inputs.keys import KEY_TOO_LONG, check_key_type, to_keys, to_numbers, too_long, type_refused
from millpond.maps.inputs.scalars import Convert, Converted, by_type, mask_of, masked, present, to_scalar
from millpond.maps.model.definition import MapDefinition, ScalarType
from millpond.maps.model.tags import TAGS_MAX

__all__ = ("TAGS_HINT", "check_keys_type", "key_reader", "to_tags", "type_of_keys_refused")

_NONE = "has no tags"
_MANY = f"has more than {TAGS_MAX} tags"
_NO_PAIR = "has a part that is not name=value"
_NO_NAME = "has a tag without a name"
_SIGNS = "has a tag with =, a comma or a control character"
_TWICE = "has a name twice"
_FORBIDDEN = r"[=,\p{Cc}]"
TAGS_HINT = f"such as {{'host': 'a'}} or 'host=a,dc=x': at most {TAGS_MAX}, without control characters, = and ,"
_WAYS = "tags are a map of names to values, a struct, a list of pairs, or text such as 'host=a,dc=x'"


def key_reader(definition: MapDefinition) -> Convert:
    """The conversion of a column to the keys, or numbers, of a map."""
    if definition.tagged:
        return to_tags
    return to_keys if definition.kind.keyed else to_numbers


def check_keys_type(definition: MapDefinition, kind: pa.DataType, **values: object) -> None:
    """Refuse a type of which no value may be a key, or number, of the map.

    Raises: `Invalid`, kind `key_type`, with the type, and `values` that name the column.
    """
    if not definition.tagged:
        check_key_type(kind, keyed=definition.kind.keyed, **values)
    elif not _suits(kind):
        raise _refused(kind, **values)


def type_of_keys_refused(definition: MapDefinition, kind: object, **values: object) -> Invalid:
    """The refusal of a type, in whatever words its door has for types."""
    return (
        _refused(kind, **values) if definition.tagged else type_refused(kind, keyed=definition.kind.keyed, **values)
    )  # fmt: skip


def _refused(kind: object, **values: object) -> Invalid:
    return Invalid("column cannot be read as tags", kind="key_type", **values, type=kind, hint=_WAYS)


def _suits(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _suits(kind.value_type)
    if types.is_union(kind):
        return all(_suits(kind.field(number).type) for number in range(kind.num_fields))
    return bool(types.is_null(kind) or types.is_map(kind) or types.is_struct(kind) or _is_pairs(kind) or _is_text(kind))


def _is_pairs(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view())


def to_tags(array: pa.Array[Any]) -> Converted:
    """A column as stored sets of tags: binary, UTF-8. Nulls stay null.

    Raises: `Invalid` when no set can be of the column's type.
    """
    if not _suits(array.type):
        raise _refused(array.type)
    return by_type(array, _to_tags)


def _to_tags(array: pa.Array[Any]) -> Converted:
    kind, types = array.type, pa.types
    if types.is_null(kind):
        return Converted(array.cast(pa.binary()))
    if _is_text(kind):
        return _of_texts(array)
    if types.is_struct(kind):
        return _of_struct(array)
    offsets = array.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if types.is_map(kind):
        names, values = array.keys, array.items
    else:
        names, values = (array.values.field(side) for side in (0, 1))
    rows = np.repeat(np.arange(len(array)), np.diff(offsets))
    return _Tags(array, rows).read(names.slice(first, last - first), values.slice(first, last - first))


def _of_struct(array: pa.Array[Any]) -> Converted:
    """A tag for each field; row by row, so that columns of several types come one after the other."""
    rows = np.tile(np.arange(len(array)), array.type.num_fields)
    names = [pa.repeat(pa.scalar(field.name, pa.string()), len(array)) for field in array.type]
    if not names:
        return Converted(pa.nulls(len(array), pa.binary()), ((present(array), _NONE),))
    read = [to_keys(column) for column in array.flatten()]
    faults = []
    for index, column in enumerate(read):
        for mask, problem in column.faults:
            spread = np.zeros(len(rows), np.bool_)
            spread[index * len(array) : (index + 1) * len(array)] = mask
            faults.append((spread, problem))
    values = Converted(pa.concat_arrays([column.values for column in read]), tuple(faults))
    return _Tags(array, rows).made(pa.concat_arrays(names), values)


def _of_texts(array: pa.Array[Any]) -> Converted:
    """Text, each different one read once."""
    checked = to_scalar(array.cast(pa.binary()), ScalarType.STRING)
    coded = checked.values.dictionary_encode()
    texts = coded.dictionary
    parts = pc.split_pattern(texts, ",")
    pairs, rows = parts.flatten(), np.repeat(np.arange(len(texts)), np.diff(parts.offsets.to_numpy()))
    whole = mask_of(pc.equal(pc.count_substring(pairs, "="), 1))
    sides = pc.split_pattern(pairs.filter(pa.array(whole)), "=").flatten()
    positions = np.arange(0, len(sides), 2)
    tags = _Tags(texts, rows[whole])
    tags.fault(rows[~whole], _NO_PAIR)
    made = tags.read(sides.take(pa.array(positions)), sides.take(pa.array(positions + 1)))
    codes = coded.indices.fill_null(0).to_numpy() if len(texts) else np.zeros(len(array), np.int64)
    there = present(checked.values)
    spread = tuple((mask[codes] & there, problem) for mask, problem in made.faults)
    return Converted(made.values.take(coded.indices), (*checked.faults, *spread))


class _Tags:
    """The tags of a column of sets, one after the other; `rows` says of which row each is."""

    def __init__(self, sets: pa.Array[Any], rows: npt.NDArray[np.int64]) -> None:
        self.there, self.rows = present(sets), rows
        self.faults: list[tuple[Mask, str]] = []

    def fault(self, rows: npt.NDArray[np.int64], problem: str) -> None:
        """These rows are no sets."""
        if len(rows):
            mask = np.zeros(len(self.there), np.bool_)
            mask[rows] = True
            self.faults.append((mask & self.there, problem))

    def read(self, names: pa.Array[Any], values: pa.Array[Any]) -> Converted:
        """The keys of the sets, of names and values of any type."""
        read = to_keys(names)
        for mask, problem in read.faults:
            self.fault(self.rows[mask], f"has a tag whose name {problem}")
        return self.made(read.values.cast(pa.string()), to_keys(values))

    def made(self, names: pa.Array[Any], values: Converted) -> Converted:
        """The keys of the sets, of names, and values as keys have them."""
        for mask, problem in values.faults:
            self.fault(self.rows[mask], f"has a tag whose value {problem}")
        stated = present(values.values) & self.there[self.rows]
        if not stated.all():
            names, self.rows = names.filter(pa.array(stated)), self.rows[stated]
        texts = values.values.filter(pa.array(stated)).cast(pa.string())
        return self._joined(pc.utf8_trim_whitespace(names), pc.utf8_trim_whitespace(texts))

    def _joined(self, names: pa.Array[Any], values: pa.Array[Any]) -> Converted:
        signs = pc.or_(pc.match_substring_regex(names, _FORBIDDEN), pc.match_substring_regex(values, _FORBIDDEN))
        self.fault(self.rows[mask_of(signs.fill_null(False))], _SIGNS)
        self.fault(self.rows[~mask_of(pc.greater(pc.binary_length(names), 0).fill_null(False))], _NO_NAME)
        order, ranks = self._order(names)
        rows = self.rows[order]
        self.fault(rows[1:][(np.diff(rows) == 0) & (np.diff(ranks[order]) == 0)], _TWICE)
        counts = np.bincount(rows, minlength=len(self.there))
        self.fault(np.flatnonzero(counts > TAGS_MAX), _MANY)
        self.fault(np.flatnonzero((counts == 0) & self.there & ~self._bad()), _NONE)
        pairs = pc.binary_join_element_wise(names, values, "=").take(pa.array(order))
        ends = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=ends[1:])
        keys = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(ends), pairs), ",").cast(pa.binary())
        long = too_long(keys)
        self.fault(np.flatnonzero(long), KEY_TOO_LONG)
        return Converted(masked(keys, self._bad() | ~self.there), tuple(self.faults))

    def _order(self, names: pa.Array[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tags by row, then by the bytes of their names, and the rank of each name."""
        coded = names.dictionary_encode()
        rank = np.empty(len(coded.dictionary) + 1, np.int64)
        rank[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(coded.dictionary))
        rank[-1] = -1
        ranks = rank[coded.indices.fill_null(-1).to_numpy()]
        return np.lexsort((ranks, self.rows)), ranks

    def _bad(self) -> Mask:
        bad = np.zeros(len(self.there), np.bool_)
        for mask, _ in self.faults:
            bad |= mask
        return bad
