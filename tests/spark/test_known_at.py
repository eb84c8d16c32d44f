"""Layered maps as they were known, request_moments by Spark: each row at its own moment, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond import spark as mp
from millpond.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond import Pond


def test_rows_are_enriched_as_known_at_their_moments(spark: SparkSession, pond: Pond) -> None:
    pond.create_map("sharded", kind="state", value="long").load([{"key": "a", "value": 1}])
    layered = pond.create_map("numbers", kind="state", value="long", store="layers")
    for value in range(3):
        layered.load([{"key": "a", "value": value}])
    moments = [change.moment_ms for change in layered.rows.past.changes()]
    request_moments = [moments[0] - 1, *moments]
    rows = ", ".join(f"('a', timestamp_millis({moment}))" for moment in request_moments)
    events = spark.sql(f"select * from values {rows} as events(key, moment)")
    expected = layered.lookup(["a"] * 4, known_at=request_moments).to_pylist()
    assert (expected[0], expected[-1]) == (None, 2)
    answers = mp.enrich(events, pond=pond, map="numbers", key="key", into="value", known_at="moment").collect()
    assert [row["value"] for row in answers] == expected
    answers = mp.training_set(events, {"numbers": "key"}, pond=pond, at="moment").collect()
    assert [row["numbers"] for row in answers] == expected
    answers = mp.enrich(events, pond=pond, map="numbers", key="key", into="value", known_at=moments[0]).collect()
    assert [row["value"] for row in answers] == [layered.get("a", known_at=moments[0])] * 4
    for wrong in ({"map": "sharded"}, {"map": "numbers", "partition": "key"}):
        with pytest.raises(Invalid) as refused:
            mp.enrich(events, pond=pond, key="key", into="value", known_at="moment", **wrong)
        assert refused.value.kind == "known_at_unsupported"
