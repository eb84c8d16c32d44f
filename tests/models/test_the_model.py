"""The brute-force model against cases worked out by hand: who guards the guard."""

from __future__ import annotations

import pytest

from millpond.maps.model.definition import Kind
from tests.harness.models import Address, MapModel


def model_of(kind: Kind, *rows: tuple[Address, object], overwrite: bool = True) -> MapModel:
    model = MapModel(kind, overwrite=overwrite)
    model.put(rows)
    return model


def sessions(*spans: tuple[int, int]) -> MapModel:
    return model_of(Kind.SESSION, *((("k", start, end), None) for start, end in spans))


def spans_of(model: MapModel) -> list[tuple[int, ...]]:
    return [address[1:] for address, _ in model.scan()]  # type: ignore[misc]


def test_the_later_row_wins_and_overwrite_false_keeps_the_first() -> None:
    assert model_of(Kind.STATE, (("k",), 1), (("k",), 2)).answer("k") == 2
    first_wins = model_of(Kind.STATE, (("k",), 1), (("k",), 2), overwrite=False)
    first_wins.put([(("k",), 3), (("other",), None)])
    assert first_wins.answer("k") == 1
    assert first_wins.answer("other") is None
    assert first_wins.holds("other")
    assert not first_wins.holds("oth")


def test_as_of_before_the_first_row_is_a_miss() -> None:
    model = model_of(Kind.TEMPORAL_STATE, (("k", 10), "a"), (("k", -5), "b"), (("kk", -100), "prefix"))
    assert [model.answer("k", at) for at in (-6, -5, 9, 10, 11)] == [None, "b", "b", "a", "a"]


def test_the_narrowest_range_wins_then_the_latest_start() -> None:
    model = model_of(Kind.RANGED_STATE, ((1, 100), "wide"), ((10, 20), "inner"), ((15, 25), "later"), ((-9, -9), "one"))
    expected = {0: None, 1: "wide", 10: "inner", 14: "inner", 15: "later", 20: "later", 25: "later", 26: "wide"}
    assert {number: model.answer(number) for number in expected} == expected
    assert (model.answer(-9), model.answer(-8), model.answer(101)) == ("one", None, None)


def test_a_temporal_range_is_the_narrowest_known_by_then_at_its_latest_time() -> None:
    model = model_of(
        Kind.TEMPORAL_RANGED_STATE,
        ((10, 30, 100), "a"), ((10, 30, 200), "b"), ((10, 30, 300), "c"), ((12, 14, 250), "narrow"),
    )  # fmt: skip
    assert [model.answer(20, at) for at in (99, 100, 250, 300)] == [None, "a", "b", "c"]
    assert [model.answer(13, at) for at in (249, 250, 999)] == ["b", "narrow", "narrow"]


def test_the_innermost_session_holds_both_its_ends() -> None:
    model = sessions((0, 1000), (10, 20), (10, 15), (2000, 2000))
    expected = {-1: None, 0: (0, 1000), 10: (10, 15), 16: (10, 20), 20: (10, 20), 21: (0, 1000), 1001: None}
    assert {at: model.answer("k", at) for at in expected} == expected
    assert model.answer("k", 2000) == (2000, 2000)
    assert model.answer("other", 5) is None


@pytest.mark.parametrize(
    ("values", "before", "left"),
    [
        ("aaaaa", 4, {1: "a", 4: "a", 5: "a"}),
        ("aabaa", 10, {1: "a", 3: "b", 4: "a"}),
        ("aabaa", 5, {1: "a", 3: "b", 4: "a", 5: "a"}),
        ("abab", 10, {1: "a", 2: "b", 3: "a", 4: "b"}),
        ("aa", -(10**9), {1: "a", 2: "a"}),
    ],
)
def test_confirmations_below_the_watermark_are_absorbed_by_the_earliest(
    values: str, before: int, left: dict[int, str]
) -> None:
    model = model_of(Kind.TEMPORAL_STATE, *((("k", time), value) for time, value in enumerate(values, 1)))
    model.put([(("l", 0), "a")])
    assert model.condense(before) == len(values) - len(left)
    assert {time: value for (key, time), value in model.rows.items() if key == "k"} == left


def test_a_confirmation_is_one_only_for_its_own_range_and_type() -> None:
    model = model_of(Kind.TEMPORAL_RANGED_STATE, ((1, 2, 0), 1), ((1, 3, 1), 1), ((1, 2, 2), 1.0), ((1, 2, 3), 1.0))
    assert model.condense(10) == 1
    assert (1, 2, 3) not in model.rows


@pytest.mark.parametrize(
    ("spans", "before", "left"),
    [
        ([(0, 1000), (10, 20)], 2000, [(0, 1000)]),
        ([(0, 10), (10, 20), (21, 30)], 2000, [(0, 20), (21, 30)]),
        ([(0, 10), (5, 20), (15, 40), (16, 17)], 15, [(0, 20), (15, 40), (16, 17)]),
        ([(0, 5), (0, 10), (0, 7)], 1, [(0, 10)]),
        ([(0, 5), (0, 10)], 0, [(0, 5), (0, 10)]),
    ],
)
def test_sessions_that_overlap_or_touch_are_joined_below_the_watermark(
    spans: list[tuple[int, int]], before: int, left: list[tuple[int, int]]
) -> None:
    model = sessions(*spans)
    assert model.condense(before) == len(spans) - len(left)
    assert spans_of(model) == left


def test_retain_is_strict_and_goes_by_the_end_of_a_session() -> None:
    temporal = model_of(Kind.TEMPORAL_STATE, (("k", 9), 1), (("k", 10), 2))
    assert temporal.retain(10) == 1
    assert list(temporal.rows) == [("k", 10)]
    model = sessions((0, 9), (0, 10))
    assert model.retain(10) == 1
    assert spans_of(model) == [(0, 10)]


def test_retain_by_update_time_knows_when_a_value_was_last_merged() -> None:
    model = MapModel(Kind.STATE)
    model.put([(("old",), 1), (("renewed",), 1)], now=100)
    model.put([(("renewed",), 1)], now=200)
    assert model.retain(10**12) == 0
    assert model.retain(200, by="update_time") == 1
    assert list(model.rows) == [("renewed",)]


def test_a_map_without_times_has_nothing_to_condense() -> None:
    assert model_of(Kind.STATE, (("a",), 1), (("b",), 1)).condense(10**12) == 0
    assert model_of(Kind.RANGED_STATE, ((1, 2), 1), ((2, 3), 1)).condense(10**12) == 0
