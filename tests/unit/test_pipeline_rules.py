"""Rules of checks against a reading of their names; forms that name what they do not know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid

pytest.importorskip("littlehorse")

from millpond.pipelines.requests import ColumnRule, Drift, KeyRule, Rules, parse_questions, parse_rows, parse_rules
from millpond.pipelines.rules import ColumnMeasure, Measures, judge, summary

NUMBERS = st.floats(-1e6, 1e6)
LIMITS = st.none() | NUMBERS


@given(
    st.integers(0, 50), st.integers(0, 60), st.none() | st.integers(0, 60), st.none() | NUMBERS, LIMITS, LIMITS,
    st.none() | st.floats(0, 1), st.data(),
)  # fmt: skip
def test_rows_and_columns_are_held_against_their_bounds(
    rows: int, least: int, most: int | None, smallest: float | None, low: float | None, high: float | None,
    share: float | None, data: st.DataObject,
) -> None:  # fmt: skip
    nulls = data.draw(st.integers(0, rows))
    measures = Measures(rows=rows, columns={"temp": ColumnMeasure(nulls=nulls, min=smallest, max=smallest)})
    rule = ColumnRule(min=low, max=high, null_share_max=share)
    found = {
        one.rule: one.passed for one in judge(Rules(rows_min=least, rows_max=most, columns={"temp": rule}), measures)
    }
    expected = {"rows_min": rows >= least}
    if most is not None:
        expected["rows_max"] = rows <= most
    if low is not None:
        expected["temp.min"] = smallest is None or smallest >= low
    if high is not None:
        expected["temp.max"] = smallest is None or smallest <= high
    if share is not None:
        expected["temp.null_share_max"] = not rows or nulls / rows <= share
    assert found == expected


def test_drift_and_keys_compare_with_a_map() -> None:
    rules = Rules(keys=KeyRule(column="k", found_share_min=0.9), drift=Drift(rows_change_max=0.1, mean_change_max=0.1))
    new = Measures(rows=120, columns={"t": ColumnMeasure(mean=10.5), "new": ColumnMeasure(mean=1.0)}, keys_matched=100)
    there = Measures(rows=100, columns={"t": ColumnMeasure(mean=10.0)})
    found = judge(rules, new, there)
    assert [(one.rule, one.passed) for one in found] == [
        ("keys.found_share_min", False), ("drift.rows_change_max", False), ("drift.t.mean_change_max", True),
    ]  # fmt: skip
    assert summary(found).startswith("2 of 3 rules do not hold: keys.found_share_min: found 0.833333, limit 0.9; ")
    empty = judge(rules, Measures(rows=0, keys_matched=0), Measures(rows=0))
    assert all(one.passed for one in empty), "nothing to compare with"
    assert [one.rule for one in judge(rules, new)] == ["keys.found_share_min"], "there is no map"


@pytest.mark.parametrize(
    ("parse", "given_", "words"),
    [
        (parse_rules, {"rows_mim": 3}, "rows_mim"), (parse_rules, {}, "rows_min"),
        (parse_rules, {"columns": {"t": {"minimum": 1}}}, "minimum"), (parse_rows, {"views": {}}, "sql"),
        (parse_rows, {"sql": "x", "views": {"a": {"sql": "y", "files": ["z"]}}}, "view=a"),
        (parse_questions, [], "lookups"), (parse_questions, [{"map": "m"}], "key"),
    ],
)  # fmt: skip
def test_inputs_that_are_not_understood_name_the_field(parse: object, given_: object, words: str) -> None:
    assert callable(parse)
    with pytest.raises(Invalid, match=words) as caught:
        parse(given_)
    assert caught.value.hint
