"""Differences between indexes: as between two dicts, opening only what is not shared."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Invalid
from millpond.kernel.keys import encode
from millpond.ranges import Boundaries, Index
from millpond.ranges.walk import Cursor
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
    changed = sorted(key for key in set(old) & set(new) if differ(old[key], new[key]))
    assert rows_of([difference.before for difference in found]) == entries(old, changed)
    assert rows_of([difference.after for difference in found]) == entries(new, changed)


def differ(a: dict[str, object], b: dict[str, object]) -> bool:
    """As dicts are, but 0.0 is not -0.0."""
    if a == b and isinstance(a["size"], float) and isinstance(b["size"], float):
        return math.copysign(1, a["size"]) != math.copysign(1, b["size"])
    return a != b


def entries(model: Model, chosen: list[bytes]) -> list[dict[str, object]]:
    return [{"key": key, **model[key]} for key in chosen]


@pytest.mark.usefixtures("processor")
@given(models, models, boundaries, boundaries)
def test_any_two_indexes(old: Model, new: Model, limits: Boundaries, others: Boundaries) -> None:
    objects = Watched()
    check_difference(objects, written(objects, old, limits), written(objects, new, others), old, new)


@pytest.mark.usefixtures("processor")
@given(large_models, st.dictionaries(keys, st.none() | plain_values, max_size=10), boundaries)
def test_edits(old: Model, edits: dict[bytes, dict[str, object] | None], limits: Boundaries) -> None:
    new = {**old, **{key: value for key, value in edits.items() if value is not None}}
    for key, value in edits.items():
        if value is None:
            new.pop(key, None)
    objects = Watched()
    check_difference(objects, written(objects, old, limits), written(objects, new, limits), old, new)
    check_difference(objects, written(objects, new, limits), written(objects, old, limits), new, old)


def test_equal_ranges_have_no_difference() -> None:
    objects = Watched()
    index = written(objects, {b"%05d" % n: {**plain(n), "size": math.nan} for n in range(500)})
    objects.forget()
    assert list(ranges.diff(objects, index, index)) == []
    assert objects.read == []


def test_nan_equals_nan_and_zeros_have_signs() -> None:
    objects = Watched()
    old = {b"a": {**plain(1), "size": math.nan}, b"b": {**plain(1), "size": 0.0}, b"c": plain(1)}
    new = {b"a": {**plain(1), "size": math.nan}, b"b": {**plain(1), "size": -0.0}, b"c": plain(2)}
    found = list(ranges.diff(objects, written(objects, old), written(objects, new)))
    assert [key for difference in found for key in difference.after.column("key").to_pylist()] == [b"b", b"c"]
    assert sum(map(len, found)) == 2


@pytest.mark.usefixtures("processor")
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


# -- pages --------------------------------------------------------------------------------------------


def differing(found: list[ranges.Difference]) -> list[bytes]:
    """The keys of each stretch in order, stretch by stretch."""
    stretches = (
        pa.concat_batches([difference.removed, difference.added, difference.after]).column("key")
        for difference in found
    )
    return [key for stretch in stretches for key in sorted(stretch.to_pylist())]


@pytest.mark.usefixtures("processor")
@given(large_models, large_models, boundaries, st.integers(1, 40), keys | st.just(b"") | st.just(b"k1"))
def test_pages_joined_are_the_whole(old: Model, new: Model, limits: Boundaries, limit: int, prefix: bytes) -> None:
    objects = Watched()
    a, b = written(objects, old, limits), written(objects, new, limits)
    expected = [key for key in sorted({*old, *new}) if key.startswith(prefix) and old.get(key) != new.get(key)]
    assert differing(list(ranges.diff(objects, a, b, prefix=prefix))) == expected
    after: bytes | None = None
    joined: list[bytes] = []
    while page := list(ranges.diff(objects, a, b, prefix=prefix, after=after, limit=limit)):
        found = differing(page)
        assert len(found) <= limit
        assert len(found) == limit or joined + found == expected
        joined += found
        after = found[-1]
    assert joined == expected


@pytest.mark.usefixtures("processor")
@given(large_models, large_models, st.none() | keys)
def test_a_page_begins_behind_a_key(old: Model, new: Model, after: bytes | None) -> None:
    objects = Watched()
    found = ranges.diff(objects, written(objects, old), written(objects, new), after=after)
    wanted = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and (after is None or key > after)]
    assert differing(list(found)) == wanted


@pytest.mark.usefixtures("processor")
def test_a_page_opens_what_it_shows() -> None:
    objects = Watched()
    old = {b"%06d" % n: plain(n) for n in range(2000)}
    new = {key: plain(-1) for key in old}
    a, b = written(objects, old), written(objects, new)
    objects.forget()
    (page,) = [list(ranges.diff(objects, a, b, after=b"001000", limit=3))]
    assert differing(page) == [b"001001", b"001002", b"001003"]
    assert len(objects.ranges_read()) <= 6
    objects.forget()
    assert differing(list(ranges.diff(objects, a, b, prefix="00150"))) == [b"00150%d" % n for n in range(10)]
    assert len(objects.ranges_read()) <= 16
    assert list(ranges.diff(objects, a, b, limit=0)) == []
    with pytest.raises(Invalid, match="below zero"):
        ranges.diff(objects, a, b, limit=-1)


# -- walking and bounds -------------------------------------------------------------------------------


@given(large_models, st.lists(keys, max_size=8), boundaries)
def test_a_cursor_is_sought_forward(model: Model, sought: list[bytes], limits: Boundaries) -> None:
    objects = Watched()
    cursor = Cursor(objects, written(objects, model, limits))
    floor = b""
    for key in sought:
        objects.forget()
        cursor.seek(key)
        assert objects.read == []
        floor = max(floor, key)
        coming = sorted(held for held in model if held >= floor)
        assert cursor.done == (not coming)
        if coming:
            assert cursor.next_key == coming[0]
            assert len(objects.read) <= 1
    if not cursor.done:
        last = cursor.entry.last
        taken = cursor.take(last).column("key").to_pylist()
        assert taken == [key for key in sorted(model) if floor <= key <= last]


@pytest.mark.usefixtures("processor")
def test_folders_are_listed_by_seeking() -> None:
    """A listing shows what lies in a folder and jumps over what lies deeper, unread."""
    objects = Watched()
    index = written(objects, {f"{folder}/{n:04d}".encode(): plain(n) for folder in "abc" for n in range(400)})
    cursor, found = Cursor(objects, index), []
    objects.forget()
    while not cursor.done:
        folder = cursor.next_key.partition(b"/")[0] + b"/"
        found.append(folder)
        stop = ranges.starting(folder).stop
        assert stop is not None
        cursor.seek(stop)
    assert found == [b"a/", b"b/", b"c/"]
    assert len(objects.ranges_read()) <= 2


@given(st.binary(max_size=4), st.binary(max_size=5))
def test_bounds_hold_what_starts_so(prefix: bytes, key: bytes) -> None:
    assert ranges.starting(prefix).holds(key) == key.startswith(prefix)


@given(st.text(max_size=3), st.text(max_size=4), st.sampled_from(["main", "main2", ""]), st.integers())
def test_texts_within_keys_start_so(prefix: str, text: str, branch: str, number: int) -> None:
    key = encode((branch, text, number % 7))
    within = ranges.starting(ranges.text_prefix(prefix, "main"))
    assert within.holds(key) == (branch == "main" and text.startswith(prefix))


def test_a_scan_takes_bounds() -> None:
    objects = Watched()
    index = written(objects, {b"a/1": plain(1), b"a/2": plain(2), b"b/1": plain(3)})
    for reverse in (False, True):
        (found,) = ranges.scan(objects, index, *ranges.starting("a/"), reverse=reverse)
        assert found.column("key").to_pylist() == ([b"a/2", b"a/1"] if reverse else [b"a/1", b"a/2"])
