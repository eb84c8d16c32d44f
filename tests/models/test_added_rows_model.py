"""Merges of aggregates whose layers were folded add up what both sides did, or leave a conflict."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.maps.layered.added_rows import with_sums
from millpond.maps.layered.differences import AddressRows, ChangedKeys, difference_of, same_rows
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.new_map import new_map
from tests.rings.sampling import examples

VALUE = (
    "n long count, units long sum, total double sum, low long min, high double max, "
    "last string latest, first long first"
)
MAP = new_map("m", "aggregate", VALUE, "0" * 16, {}, resolution="1 hour")
amounts = st.none() | st.integers(-3, 3)
events = st.lists(
    st.tuples(st.integers(0, 4), amounts, amounts, st.sampled_from((0.1, 0.5, 2.0)), st.none() | st.sampled_from("xyz"))
)


def row(found: list[Any]) -> dict[str, Any] | None:
    """The row of a bucket with these events."""
    if not found:
        return None

    def of(place: int) -> list[Any]:
        return [event[place] for event in found if event[place] is not None]

    dated = [(event[0], event[4]) for event in found if event[4] is not None]
    numbers = [(event[0], event[1]) for event in found if event[1] is not None]
    last, first = max(dated, default=(None, None)), min(numbers, default=(None, None))
    return {
        "n": len(found), "units": sum(of(1)) if of(1) else None, "total": float(sum(of(3))),
        "low": min(of(2), default=None), "high": max(of(3)), "last": last[1], "last_time": last[0],
        "first": first[1], "first_time": first[0],
    }  # fmt: skip


def state(found: list[Any]) -> AddressRows:
    held = row(found)
    schema = canonical_schema(MAP)
    rows = [] if held is None else [{"key": b"a", "time": 0, "value": held}]
    values = pa.array([one["value"] for one in rows], schema.field("value").type)
    columns = [pa.array([one["key"] for one in rows], pa.binary()), pa.array([0] * len(rows), pa.int64()), values]
    return AddressRows.of(MAP, [pa.RecordBatch.from_arrays(columns, schema=schema)])


@settings(max_examples=examples(60, 5000), deadline=None)
@given(events, events, events, events, st.booleans(), st.booleans())
def test_what_both_sides_did_is_added_up_or_left(
    stay: list[Any], gone: list[Any], mine: list[Any], other: list[Any], reverted: bool, ours_too: bool
) -> None:
    """Both sides have a base of events; theirs may lose some of it, or ours, and both load more."""
    theirs_keeps = stay if reverted and not ours_too else stay + gone
    ours_keeps = stay if reverted and ours_too else stay + gone
    base, ours, theirs = state(stay + gone), state(ours_keeps + mine), state(theirs_keeps + other)
    keys = pa.array([b"a"], pa.binary())
    difference = difference_of(ChangedKeys(keys, base, theirs))
    if not len(difference):
        return
    outcome = with_sums(difference, ours)
    places = ours.positions(outcome.addresses)
    if outcome is difference or not same_rows(ours, places, outcome.old, outcome.old_positions).all():
        return  # it is left, to be taken or to be a conflict
    if same_rows(ours, places, difference.old, difference.old_positions).all():
        return  # ours did nothing
    expected = row((stay if reverted else stay + gone) + mine + other)
    merged = outcome.new.rows.slice(int(outcome.new_positions[0]), 1).to_pylist()[0]["value"]
    assert expected is not None
    assert merged["total"] == pytest.approx(expected["total"])
    compared = [name for name in expected if name != "total" and not name.endswith("_time")]
    assert {name: merged[name] for name in compared} == {name: expected[name] for name in compared}


def test_a_sum_that_64_bits_do_not_hold_is_left() -> None:
    large = (1 << 62) - 1024
    base, less = [(0, large, 0, 0.5, None)], (0, -2 * large, 0, 0.5, None)
    keys = pa.array([b"a"], pa.binary())
    difference = difference_of(ChangedKeys(keys, state(base), state([*base, less])))
    assert with_sums(difference, state([*base, less])) is difference, "-3 * large would be a number above 0"
    added = with_sums(difference, state([*base, (0, large, 0, 0.5, None)]))
    merged = added.new.rows.slice(int(added.new_positions[0]), 1).to_pylist()[0]["value"]
    assert merged["units"] == 0
