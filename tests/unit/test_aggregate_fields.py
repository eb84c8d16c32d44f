"""The fields of aggregates, as they are written."""

from __future__ import annotations

import pytest

from millpond.errors import Invalid
from millpond.maps.model.aggregate_fields import aggregated_type, fields_in_words
from millpond.maps.model.definition import parse_value_type


@pytest.mark.parametrize("value", [
    "," * 500_000, "(" * 500_000, "a" + " " * 500_000 + "9", "a quantiles" + " " * 500_000 + "z",
    "a" + " " * 250_000 + "double" + " " * 250_000 + "of",
])  # fmt: skip
def test_fields_that_are_none_are_read_once(value: str) -> None:
    """Each of their blanks and commas was looked at from each other: a megabyte of them held a node up for hours."""
    with pytest.raises(Invalid):
        aggregated_type(value, "1 hour", None)
    with pytest.raises(Invalid):
        parse_value_type(value)


def test_commas_in_brackets_part_no_fields() -> None:
    value, aggregation = aggregated_type(
        "a long sum, l quantiles(0.5, 0.9), n long count , m average of a/n", "hour", None
    )
    assert fields_in_words(value, aggregation) == "a long sum, l quantiles(0.5, 0.9), n long count, m average of a/n"
