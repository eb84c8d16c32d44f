"""Differences between indexes: as between two dicts, opening only what is not shared."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.stores import ranges
from millpond.stores.ranges import Boundaries, Index
from tests.unit.range_entries import (
    SMALL,
    Model,
    Watched,
    batch_of,
    boundaries,
    keys,
    large_models,
    models,
    plain,
    plain_values,
)


def written(objects: Watched, model: Model, limits: Boundaries = SMALL) -> Index:
    return ranges.write(objects, [batch_of(model)], limits)


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def check_difference(objects: Watched, a: Index, b: Index, old: Model, new: Model) -> None:
    found = list(ranges.diff(objects, a, b))
    assert all(len(difference) for difference in found)
    assert rows_of([difference.removed for difference in found]) == entries(old, sorted(set(old) - set(new)))
    assert rows_of([difference.added for difference in found]) == entries(new, sorted(set(new) - set(old)))
    changed = sorted(key for key in set(old) & set(new) if told_apart(old[key], new[key]))
    assert rows_of([difference.before for difference in found]) == entries(old, changed)
    assert rows_of([difference.after for difference in found]) == entries(new, changed)


def told_apart(a: dict[str, object], b: dict[str, object]) -> bool:
    """As dicts are, but 0.0 is not -0.0."""
    if a == b and isinstance(a["size"], float) and isinstance(b["size"], float):
        return math.copysign(1, a["size"]) != math.copysign(1, b["size"])
    return a != b


def entries(model: Model, chosen: list[bytes]) -> list[dict[str, object]]:
    return [{"key": key, **model[key]} for key in chosen]


@given(models, models, boundaries, boundaries)
def test_any_two_indexes(old: Model, new: Model, limits: Boundaries, others: Boundaries) -> None:
    objects = Watched()
    check_difference(objects, written(objects, old, limits), written(objects, new, others), old, new)


@given(large_models, st.dictionaries(keys, st.none() | plain_values, max_size=10), boundaries)
def test_edits(old: Model, edits: dict[bytes, dict[str, object] | None], limits: Boundaries) -> None:
    new = {**old, **{key: value for key, value in edits.items() if value is not None}}
    for key, value in edits.items():
        if value is None:
            new.pop(key, None)
    objects = Watched()
    check_difference(objects, written(objects, old, limits), written(objects, new, limits), old, new)
    check_difference(objects, written(objects, new, limits), written(objects, old, limits), new, old)


def test_nothing_differs_from_itself() -> None:
    objects = Watched()
    index = written(objects, {b"%05d" % n: {**plain(n), "size": math.nan} for n in range(500)})
    objects.forget()
    assert list(ranges.diff(objects, index, index)) == []
    assert objects.read == []


def test_nan_is_itself_and_zeros_have_signs() -> None:
    objects = Watched()
    old = {b"a": {**plain(1), "size": math.nan}, b"b": {**plain(1), "size": 0.0}, b"c": plain(1)}
    new = {b"a": {**plain(1), "size": math.nan}, b"b": {**plain(1), "size": -0.0}, b"c": plain(2)}
    found = list(ranges.diff(objects, written(objects, old), written(objects, new)))
    assert [key for each in found for key in each.after.column("key").to_pylist()] == [b"b", b"c"]
    assert sum(map(len, found)) == 2


def test_shared_ranges_are_not_opened() -> None:
    objects = Watched()
    old = {b"%06d" % n: plain(n) for n in range(3000)}
    new = {**old, b"000100": plain(1), b"002000+": plain(2)}
    del new[b"001000"]
    a, b = written(objects, old), written(objects, new)
    apart = len(set(a.entries) ^ set(b.entries))
    assert 6 <= apart <= 16
    objects.forget()
    assert sum(len(found) for found in ranges.diff(objects, a, b)) == 3
    assert len(objects.ranges_read()) == apart


def test_indexes_of_different_columns_are_not_compared() -> None:
    objects = Watched()
    other = ranges.write(objects, [pa.record_batch({"key": pa.array([b"a"], pa.binary())})])
    with pytest.raises(Invalid, match="different columns"):
        ranges.diff(objects, written(objects, {}), other)
